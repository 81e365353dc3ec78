// Measures the cost of one trainer's large submissions for the other tenants of a node. One tenant submits jobs of many
// ranges in a loop to an agent with its threads; another tenant submits small jobs; a caller sends an empty request to
// the engine and measures the time until the answer. Turns of the engine are measured separately (TurnProbe).
//
//   bench_stall [SECONDS] [RANGES]
//
// Prints one JSON object with two phases: without and with the large jobs.
#include <fcntl.h>
#include <spdlog/logger.h>
#include <spdlog/sinks/null_sink.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/agent.h"

namespace railsd {
namespace {

using Clock = std::chrono::steady_clock;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_stall: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

// Makes a blocking call from a call that answers by callback.
template <typename T, typename Call>
T Await(Call call) {
  std::promise<T> promise;
  call([&promise](T value) { promise.set_value(std::move(value)); });
  return promise.get_future().get();
}
template <typename Call>
void AwaitOk(Call call) {
  Must(Await<absl::Status>(std::move(call)));
}
template <typename T, typename Call>
T AwaitValue(Call call) {
  absl::StatusOr<T> value = Await<absl::StatusOr<T>>(std::move(call));
  Must(value.status());
  return *std::move(value);
}

class NoLink final : public ControlLink {
 public:
  void Send(const std::string&, ControlMessage) override {}
  absl::Status SendIfItFits(const std::string&, ControlMessage&&) override { return absl::OkStatus(); }
  void SetPatience(const std::string&, absl::Duration) override {}
};

// Two ranks of one session. Rank 0 sends to rank 1.
class Pair {
 public:
  Pair(Agent* agent, const std::string& tenant, uint64_t ranges, uint64_t range_bytes) : agent_(*agent) {
    session_ =
        AwaitValue<SessionId>([&](auto done) { agent_.OpenSession({.pid = 1, .tenant = tenant}, std::move(done)); });
    const uint64_t stride = 2 * range_bytes;  // no range continues the previous one
    for (uint32_t id : {1u, 2u}) AddSegment(id, ranges * stride);
    std::promise<void> joined[2];
    for (uint32_t rank : {0u, 1u}) {
      agent_.Join({session_, tenant, "key", 2, Rank(rank), absl::Minutes(1)},
                  [this, &joined, rank](absl::StatusOr<GroupView> group) {
                    Must(group.status());
                    if (rank == 0) epoch_ = group->epoch;
                    joined[rank].set_value();
                  });
    }
    for (auto& each : joined) each.get_future().wait();
    FlowRanges send{Rank(1), {}};
    for (uint64_t i = 0; i < ranges; ++i) send.ranges.push_back({SegmentId(1), i * stride, range_bytes});
    submissions_[0].sends.push_back(std::move(send));
    submissions_[1].receives.push_back({Rank(0), {{SegmentId(2), 0, ranges * range_bytes}}});
  }

  // Submits a job at both ranks and waits for its end.
  void Job() {
    ++seq_;
    for (uint32_t rank : {0u, 1u}) {
      Submission submission = submissions_[rank];
      submission.session = session_;
      submission.job = {epoch_, JobSeq(seq_)};
      submission.rank = Rank(rank);
      AwaitOk([&](auto done) {
        if (absl::Status full = agent_.Submit(std::move(submission), done); !full.ok()) done(std::move(full));
      });
    }
    for (uint32_t rank : {0u, 1u}) {
      const auto report = AwaitValue<JobReport>([&](auto done) {
        agent_.Wait(session_, {epoch_, JobSeq(seq_)}, Rank(rank), absl::Minutes(1), std::move(done));
      });
      Must(report.status);
    }
  }

 private:
  void AddSegment(uint32_t id, uint64_t bytes) {
    UniqueFd fd(::memfd_create("bench", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    // Allocates the pages before the measurement, as trainers do.
    if (::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)) != 0 ||
        ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      Must(absl::ErrnoToStatus(errno, "memfd"));
    }
    AwaitOk([&](auto done) { agent_.AddSegment(session_, SegmentId(id), std::move(fd), bytes, std::move(done)); });
  }

  Agent& agent_;
  SessionId session_;
  Epoch epoch_;
  uint64_t seq_ = 0;
  Submission submissions_[2];
};

struct Times {
  std::vector<double> milliseconds;
  nlohmann::json Json() {
    std::sort(milliseconds.begin(), milliseconds.end());
    const auto part = [this](double p) {
      return milliseconds[static_cast<size_t>(p * static_cast<double>(milliseconds.size() - 1))];
    };
    return {{"samples", milliseconds.size()}, {"median_ms", part(0.5)}, {"p99_ms", part(0.99)}, {"worst_ms", part(1)}};
  }
};

double ThreadCpuMilliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

template <typename Answer>
void AskForNothing(Agent& agent, Answer answer) {
  agent.Wait(SessionId(1), {Epoch{BootId(1), 1}, JobSeq(1)}, Rank(0), absl::ZeroDuration(),
             [answer = std::move(answer)](const absl::StatusOr<JobReport>&) mutable { answer(); });
}

// Measures how long calls take that ask for a job that does not exist.
Times ProbeCalls(Agent& agent, const std::atomic<bool>& stop) {
  Times calls;
  while (!stop.load()) {
    std::promise<double> waited;
    const Clock::time_point begin = Clock::now();
    AskForNothing(agent, [&] { waited.set_value(MillisecondsSince(begin)); });
    calls.milliseconds.push_back(waited.get_future().get());
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return calls;
}

// Bounds the processor time of each turn of the engine, and keeps the engine turning. Each answer sends a request that
// the next turn answers. The gap between two answers is the rest of one turn and the beginning of the next. A turn lies
// within two gaps, so their sum bounds it. Only the engine thread uses its members.
class TurnProbe {
 public:
  explicit TurnProbe(Agent* agent) : agent_(*agent) { Ask(); }
  Times Stop() {
    stop_.store(true);
    stopped_.get_future().wait();
    return std::move(turns_);
  }

 private:
  void Ask() {
    AskForNothing(agent_, [this] { OnTurn(); });
  }
  void OnTurn() {
    const double now = ThreadCpuMilliseconds();
    const double gap = last_ > 0 ? now - last_ : 0;
    turns_.milliseconds.push_back(std::exchange(previous_gap_, gap) + gap);
    if (stop_.load()) return stopped_.set_value();
    Ask();
    last_ = ThreadCpuMilliseconds();  // excludes the time of this recording
  }

  Agent& agent_;
  std::atomic<bool> stop_{false};
  std::promise<void> stopped_;
  double last_ = 0, previous_gap_ = 0;
  Times turns_;
};

// Without large jobs the submitter thread keeps its processor equally busy, so long turns then come from the machine.
nlohmann::json Turns(Agent& agent, Pair& small, Pair* large, double seconds) {
  std::atomic<bool> stop{false};
  uint64_t large_jobs = 0;
  TurnProbe probe(&agent);
  std::thread submitter([&] {
    while (!stop.load()) {
      if (large == nullptr) continue;
      large->Job();
      ++large_jobs;
    }
  });
  const Clock::time_point begin = Clock::now();
  while (MillisecondsSince(begin) < seconds * 1e3) {
    small.Job();
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop.store(true);
  submitter.join();
  return {{"turn", probe.Stop().Json()}, {"large_jobs", large_jobs}};
}

nlohmann::json Phase(Agent& agent, Pair& small, Pair* large, double seconds) {
  std::atomic<bool> stop{false};
  uint64_t large_jobs = 0;
  std::thread submitter;
  if (large != nullptr) {
    submitter = std::thread([&] {
      for (; !stop.load(); ++large_jobs) large->Job();
    });
  }
  auto calls = std::async(std::launch::async, [&] { return ProbeCalls(agent, stop); });
  Times jobs;
  const Clock::time_point begin = Clock::now();
  while (MillisecondsSince(begin) < seconds * 1e3) {
    const Clock::time_point at = Clock::now();
    small.Job();
    jobs.milliseconds.push_back(MillisecondsSince(at));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  stop.store(true);
  if (submitter.joinable()) submitter.join();
  return {{"small_job", jobs.Json()}, {"call", calls.get().Json()}, {"large_jobs", large_jobs}};
}

int Main(double seconds, uint64_t ranges) {
  NoLink link;
  AgentOptions options;
  options.node = "n0";
  options.boot = BootId(100);
  options.rails.push_back({"rail0", "127.0.0.1", "", 0});
  options.tenants = {{"small"}, {"large"}};
  options.log = std::make_shared<spdlog::logger>("bench", std::make_shared<spdlog::sinks::null_sink_mt>());
  auto agent = Agent::Create(options, &link, nullptr);
  Must(agent.status());
  Pair small(agent->get(), "small", 1, 4096), large(agent->get(), "large", ranges, 1);
  Phase(**agent, small, &large, seconds / 10);  // warm-up
  nlohmann::json alone = Phase(**agent, small, nullptr, seconds), beside = Phase(**agent, small, &large, seconds);
  nlohmann::json turns_alone = Turns(**agent, small, nullptr, seconds);
  nlohmann::json turns_beside = Turns(**agent, small, &large, seconds);
  const double ratio = beside["small_job"]["median_ms"].get<double>() / alone["small_job"]["median_ms"].get<double>();
  alone["turns"] = std::move(turns_alone);
  beside["turns"] = std::move(turns_beside);
  std::cout << nlohmann::json({{"ranges", ranges}, {"alone", alone}, {"beside", beside}, {"ratio", ratio}}).dump(2)
            << "\n";
  return 0;
}

}  // namespace
}  // namespace railsd

int main(int argc, char** argv) {
  return railsd::Main(argc > 1 ? std::atof(argv[1]) : 10, argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 1 << 20);
}
