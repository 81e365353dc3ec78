// A trainer that executes commands: one JSON command a line on standard input, one JSON answer a line on standard
// output. The integration tests use it for things that `railsctl replay` never does: wrong lengths, cancelling, dying
// in the middle of a job.
//
//   {"do": "connect", "socket_dir": D}                    {"do": "reconnect"}  {"do": "connected"}
//   {"do": "segment", "name": S, "bytes": N}              {"do": "drop", "name": S}
//   {"do": "fill" | "check", "name": S, "offset": O, "bytes": N, "seed": X, "first": OFFSET IN THE PATTERN}
//   {"do": "join", "group": G, "world": W, "rank": R, "key": K, "timeout": SECONDS,
//    "recovery": "fail" | "wait" | "degrade", "wait_limit": SECONDS, "restart_limit": SECONDS}
//   {"do": "submit", "group": G, "job": NAME, "sends": {RANK: [[S, O, N], ...]}, "receives": {...}, "tag": T,
//    "vote": V, "timeout": SECONDS}
//   {"do": "wait", "job": NAME, "timeout": SECONDS}       {"do": "cancel", "job": NAME}
//   {"do": "leave", "group": G}
//   {"do": "exchange", "group": G, "count": C, "sends": ..., "receives": ..., "clock": true}
//                                                                                    C jobs, one after the other
//   {"do": "import", "name": S, "bytes": N}   a segment that another process writes continuously, until
//   {"do": "settle", "name": S, "seed": X}    which writes its final bytes
//
// With `--serve PATH` it listens on a Unix socket and serves each connection in its own process, which first sends its
// process id. For tests that need hundreds of trainers.
//
// Answers: {"ok": true, ...} or {"ok": false, "code": "NOT_FOUND", "message": "..."}.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rails/client.h"

namespace rails {
namespace {

using Json = nlohmann::json;

Json Failure(const absl::Status& status) {
  return {{"ok", false}, {"code", absl::StatusCodeToString(status.code())}, {"message", std::string(status.message())}};
}

Json Answer(const absl::Status& status) { return status.ok() ? Json{{"ok", true}} : Failure(status); }

// A byte that differs between seeds and between neighbouring positions.
std::byte Pattern(uint64_t seed, uint64_t position) {
  uint64_t x = (seed * 0x9E3779B97F4A7C15u) ^ (position * 0xBF58476D1CE4E5B9u);
  x ^= x >> 31;
  return static_cast<std::byte>(x * 0x94D049BB133111EBu >> 56);
}

absl::Duration Seconds(const Json& command, double otherwise) {
  return absl::Seconds(command.value("timeout", otherwise));
}

// A process that writes a memfd continuously. It uses only that memory, so it may run after a fork().
class Scribbler {
 public:
  Scribbler(int fd, uint64_t length) {
    if (pipe(orders_) != 0) throw std::runtime_error("pipe");
    pid_ = fork();
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(orders_[1]);
    auto* bytes = static_cast<std::byte*>(mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    if (bytes == MAP_FAILED || fcntl(orders_[0], F_SETFL, O_NONBLOCK) != 0) _exit(1);
    uint64_t seed = 0;
    for (uint64_t round = 0; read(orders_[0], &seed, sizeof(seed)) != sizeof(seed); ++round) {
      memset(bytes, static_cast<int>(round & 0xff), length);
    }
    for (uint64_t i = 0; i < length; ++i) bytes[i] = Pattern(seed, i);
    _exit(0);
  }
  ~Scribbler() {
    close(orders_[0]);
    close(orders_[1]);
    if (pid_ > 0) kill(pid_, SIGKILL);
  }
  Scribbler(const Scribbler&) = delete;

  // Returns when the final bytes are written.
  bool Settle(uint64_t seed) {
    int status = 0;
    if (write(orders_[1], &seed, sizeof(seed)) != sizeof(seed) || waitpid(pid_, &status, 0) != pid_) return false;
    pid_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

 private:
  int orders_[2] = {-1, -1};
  pid_t pid_ = -1;
};

class Trainer {
 public:
  Json Do(const Json& command) {
    const std::string what = command.at("do");
    if (what == "connect") return Connect(command);
    if (client_ == nullptr) return Failure(absl::FailedPreconditionError("connect first"));
    if (what == "reconnect") return Answer(client_->Reconnect());
    if (what == "connected") return {{"ok", true}, {"connected", client_->Connected()}};
    if (what == "segment") return AddSegment(command);
    if (what == "drop") return DropSegment(command);
    if (what == "fill") return Fill(command);
    if (what == "check") return Check(command);
    if (what == "join") return Join(command);
    if (what == "leave") return Leave(command);
    if (what == "submit") return Submit(command);
    if (what == "wait") return Wait(command);
    if (what == "exchange") return Exchange(command);
    if (what == "import") return ImportWritten(command);
    if (what == "settle") return Settle(command);
    if (what == "cancel") return Cancel(command);
    return Failure(absl::UnimplementedError(absl::StrCat("no command '", what, "'")));
  }

 private:
  Json Connect(const Json& command) {
    auto client = Client::Connect({.socket_dir = command.at("socket_dir"),
                                   .client_name = "test trainer",
                                   .connect_timeout = Seconds(command, 10)});
    if (!client.ok()) return Failure(client.status());
    client_ = *std::move(client);
    return {{"ok", true}, {"node", client_->node()}, {"pid", getpid()}};
  }

  Json AddSegment(const Json& command) {
    auto segment = client_->CreateSegment(command.at("bytes").get<uint64_t>());
    if (!segment.ok()) return Failure(segment.status());
    segments_[command.at("name")] = *segment;
    return {{"ok", true}, {"id", (*segment)->id()}};
  }

  Json DropSegment(const Json& command) {
    segments_.erase(command.at("name").get<std::string>());
    return {{"ok", true}};
  }

  Json Fill(const Json& command) {
    const absl::Span<std::byte> bytes = segments_.at(command.at("name"))->bytes();
    const uint64_t offset = command.at("offset"), length = command.at("bytes"), seed = command.at("seed");
    for (uint64_t i = 0; i < length; ++i) bytes.at(offset + i) = Pattern(seed, i);
    return {{"ok", true}};
  }

  Json Check(const Json& command) {
    const absl::Span<std::byte> bytes = segments_.at(command.at("name"))->bytes();
    const uint64_t offset = command.at("offset"), length = command.at("bytes"), seed = command.at("seed");
    const uint64_t first = command.value("first", uint64_t{0});
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < length; ++i) wrong += bytes.at(offset + i) != Pattern(seed, first + i);
    return {{"ok", true}, {"wrong", wrong}};
  }

  Json Join(const Json& command) {
    const std::string name = command.at("group");
    groups_.erase(name);
    const std::string recovery = command.value("recovery", "fail");
    auto group = client_->JoinGroup({.name = name,
                                     .join_key = command.value("key", ""),
                                     .world_size = command.at("world"),
                                     .rank = command.at("rank"),
                                     .timeout = Seconds(command, 30),
                                     .recovery = recovery == "wait"      ? Recovery::kWait
                                                 : recovery == "degrade" ? Recovery::kDegrade
                                                                         : Recovery::kFail,
                                     .wait_limit = absl::Seconds(command.value("wait_limit", 0)),
                                     .restart_limit = absl::Seconds(command.value("restart_limit", 120))});
    if (!group.ok()) return Failure(group.status());
    const std::vector<std::string> members = (*group)->members();
    groups_[name] = *std::move(group);
    return {{"ok", true}, {"members", members}};
  }

  Json Leave(const Json& command) {
    const std::string name = command.at("group");
    const absl::Status left = groups_.at(name)->Leave();
    groups_.erase(name);
    return Answer(left);
  }

  std::vector<FlowRanges> Flows(const Json& flows) {
    std::vector<FlowRanges> result;
    for (const auto& [rank, ranges] : flows.items()) {
      FlowRanges flow;
      if (!absl::SimpleAtoi(rank, &flow.rank)) throw std::invalid_argument("rank " + rank);
      for (const Json& range : ranges) {
        flow.ranges.push_back({segments_.at(range.at(0)), range.at(1), range.at(2)});
      }
      result.push_back(std::move(flow));
    }
    return result;
  }

  Json Submit(const Json& command) {
    AllToAllv exchange;
    exchange.sends = Flows(command.value("sends", Json::object()));
    exchange.receives = Flows(command.value("receives", Json::object()));
    exchange.tag = command.value("tag", uint64_t{0});
    exchange.vote = command.value("vote", uint64_t{0});
    exchange.timeout = Seconds(command, 0);
    auto job = groups_.at(command.at("group"))->Submit(exchange);
    if (!job.ok()) return Failure(job.status());
    jobs_[command.at("job")] = *job;
    return {{"ok", true}, {"seq", (*job)->seq()}};
  }

  Json Wait(const Json& command) {
    auto report = jobs_.at(command.at("job"))->Wait(Seconds(command, 60));
    if (!report.ok()) return Failure(report.status());
    return {{"ok", true},
            {"terminal", report->terminal},
            {"code", absl::StatusCodeToString(report->status.code())},
            {"message", std::string(report->status.message())},
            {"sent", report->bytes_sent},
            {"received", report->bytes_received},
            {"rail_tx", report->rail_tx_bytes},
            {"rail_rx", report->rail_rx_bytes},
            {"lost_ranks", report->lost_ranks},
            {"replays", report->replays},
            {"highest_vote", report->highest_vote},
            {"ratio", report->ratio_to_bound}};
  }

  // Stops at the first job that is not done; `done` counts the done jobs. With `clock`, `seconds` has the time of
  // each.
  Json Exchange(const Json& command) {
    AllToAllv exchange;
    exchange.sends = Flows(command.value("sends", Json::object()));
    exchange.receives = Flows(command.value("receives", Json::object()));
    const uint64_t count = command.at("count");
    Json seconds = Json::array();
    for (uint64_t done = 0; done < count; ++done) {
      const absl::Time begin = absl::Now();
      absl::Status status;
      auto job = groups_.at(command.at("group"))->Submit(exchange);
      if (!job.ok()) {
        status = job.status();
      } else if (auto report = (*job)->Wait(Seconds(command, 120)); !report.ok()) {
        status = report.status();
      } else {
        status = report->terminal ? report->status : absl::DeadlineExceededError("still running");
      }
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
      if (status.ok()) continue;
      Json answer = Failure(status);
      answer["done"] = done;
      return answer;
    }
    Json answer = {{"ok", true}, {"done", count}};
    if (command.value("clock", false)) answer["seconds"] = seconds;
    return answer;
  }

  Json ImportWritten(const Json& command) {
    const uint64_t length = command.at("bytes");
    const std::string name = command.at("name");
    const int fd = memfd_create("trainer", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(length)) != 0 || fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
      return Failure(absl::ErrnoToStatus(errno, "memfd"));
    }
    scribblers_[name] = std::make_unique<Scribbler>(fd, length);
    auto segment = client_->ImportSegment(fd, length);
    close(fd);
    if (!segment.ok()) return Failure(segment.status());
    segments_[name] = *segment;
    return {{"ok", true}, {"id", (*segment)->id()}};
  }

  Json Settle(const Json& command) {
    const std::string name = command.at("name");
    const bool settled = scribblers_.at(name)->Settle(command.at("seed"));
    scribblers_.erase(name);
    return settled ? Json{{"ok", true}} : Failure(absl::InternalError("the writing process failed"));
  }

  Json Cancel(const Json& command) { return Answer(jobs_.at(command.at("job"))->Cancel()); }

  std::unique_ptr<Client> client_;
  std::map<std::string, std::shared_ptr<Segment>> segments_;
  std::map<std::string, std::unique_ptr<Scribbler>> scribblers_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;
};

void Obey() {
  Trainer trainer;
  std::string line;
  while (std::getline(std::cin, line)) {
    Json answer;
    try {
      answer = trainer.Do(Json::parse(line));
    } catch (const std::exception& error) {  // malformed command: the test is wrong
      answer = {{"ok", false}, {"code", "BAD_COMMAND"}, {"message", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}

// Forks before gRPC is used, so each child is like a newly started program.
int Serve(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return 2;
  memcpy(address.sun_path, path.data(), path.size());
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 || listen(listener, 64) != 0) {
    return 1;
  }
  signal(SIGCHLD, SIG_IGN);
  std::cout << "serving" << std::endl;
  while (true) {
    const int connection = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) return 1;
    if (fork() == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      signal(SIGCHLD, SIG_DFL);
      dup2(connection, STDIN_FILENO);
      dup2(connection, STDOUT_FILENO);
      close(connection);
      std::cout << Json{{"ok", true}, {"pid", getpid()}}.dump() << std::endl;
      Obey();
      return 0;
    }
    close(connection);
  }
}

}  // namespace
}  // namespace rails

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "--serve") return rails::Serve(argv[2]);
  rails::Obey();
  return 0;
}
