#include "client/railsctl/replay/coordinator.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/railsctl/replay/exchange.h"
#include "client/railsctl/replay/worker.h"

namespace rails::ctl {
namespace {

// Limit for a stuck worker, beyond the worker's own limit of the job and its grace.
constexpr absl::Duration kStuck = absl::Seconds(30);
// After a failure other workers may report its cause within this time.
constexpr absl::Duration kEcho = absl::Seconds(2);
constexpr absl::Duration kPrepareTimeout = absl::Minutes(5);
constexpr size_t kMaxFailuresShown = 4;
// Time until the last rank has received the command to go.
constexpr absl::Duration kGoAhead = absl::Milliseconds(2);
constexpr absl::Duration kGoAheadPerRank = absl::Microseconds(100);

template <typename E, size_t kIndex = 0>
constexpr size_t KindOf() {
  if constexpr (std::is_same_v<std::variant_alternative_t<kIndex, Event>, E>) {
    return kIndex;
  } else {
    return KindOf<E, kIndex + 1>();
  }
}

}  // namespace

// The state of one Gather().
struct Coordinator::Waiting {
  struct Failure {
    size_t rank;
    absl::StatusCode code;
    std::string what;
  };
  size_t kind;
  const OnEvent& on_event;
  std::vector<bool> pending;  // by rank: its event has not come yet
  std::vector<Failure> failures;

  bool AnyPending() const { return std::find(pending.begin(), pending.end(), true) != pending.end(); }
};

Coordinator::Coordinator(std::vector<WorkerLink> links, CoordinatorOptions options)
    : links_(std::move(links)), options_(std::move(options)), nodes_(links_.size()) {
  for (const WorkerLink& link : links_) readers_.emplace_back(link.events_fd);
}

std::string Coordinator::Name(size_t rank) const {
  const std::string node =
      nodes_[rank].empty() ? absl::StrCat("node number ", rank / options_.ranks_per_node) : "node " + nodes_[rank];
  return absl::StrCat("rank ", rank, " on ", node);
}

absl::Status Coordinator::Send(size_t rank, const Command& command) {
  const absl::Status status = WriteLine(links_[rank].commands_fd, Encode(command));
  if (status.ok()) return status;
  // The worker has ended. Its last events are still in the pipe; the next Gather() reads them.
  return absl::OkStatus();
}

void Coordinator::Note(size_t rank, absl::StatusCode code, const std::string& what, Waiting* waiting) {
  waiting->pending[rank] = false;
  waiting->failures.push_back({rank, code, what});
}

void Coordinator::TakeLines(size_t rank, Waiting* waiting) {
  while (waiting->pending[rank]) {
    const std::optional<std::string> line = readers_[rank].Next();
    if (!line.has_value()) return;
    absl::StatusOr<Event> event = ParseEvent(*line);
    if (!event.ok()) {
      Note(rank, absl::StatusCode::kInternal, absl::StrCat("said what is no event: ", event.status().message()),
           waiting);
    } else if (const auto* failed = std::get_if<FailedEvent>(&*event)) {
      Note(rank, failed->status.code(), absl::StrCat("could not ", failed->doing, ": ", failed->status.ToString()),
           waiting);
    } else if (event->index() != waiting->kind) {
      Note(rank, absl::StatusCode::kInternal, absl::StrCat("said '", EventName(*event), "' out of turn"), waiting);
    } else {
      waiting->pending[rank] = false;
      const absl::Status status = waiting->on_event(rank, *event);
      if (!status.ok()) Note(rank, status.code(), std::string(status.message()), waiting);
    }
  }
}

absl::Status Coordinator::PollOnce(Waiting* waiting, absl::Time deadline) {
  std::vector<pollfd> polled;
  std::vector<size_t> ranks;
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (!waiting->pending[rank]) continue;
    polled.push_back({links_[rank].events_fd, POLLIN, 0});
    ranks.push_back(rank);
  }
  polled.push_back({options_.interrupt_fd, POLLIN, 0});
  const double milliseconds = absl::ToDoubleMilliseconds(deadline - absl::Now());
  const int count = poll(polled.data(), polled.size(), static_cast<int>(std::clamp(std::ceil(milliseconds), 0.0, 1e6)));
  if (count < 0 && errno != EINTR) return absl::InternalError(absl::StrCat("poll: ", std::strerror(errno)));
  if (count <= 0) return absl::OkStatus();
  if (polled.back().revents != 0) return absl::CancelledError("interrupted");
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (polled[i].revents == 0) continue;
    const size_t rank = ranks[i];
    const absl::StatusOr<bool> more = readers_[rank].Fill();
    if (!more.ok()) Note(rank, more.status().code(), std::string(more.status().message()), waiting);
    TakeLines(rank, waiting);
    if (more.ok() && !*more && waiting->pending[rank]) {
      const char* where = readers_[rank].pending() > 0 ? " in the middle of a line" : "";
      const std::string how = options_.how_ended ? options_.how_ended(rank) : "ended";
      Note(rank, absl::StatusCode::kAborted, absl::StrCat(how, where), waiting);
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Verdict(const Waiting& waiting) const {
  // Failures of processes that died come first, because they cause the others' failures.
  std::vector<Waiting::Failure> failures = waiting.failures;
  std::stable_partition(failures.begin(), failures.end(),
                        [](const auto& failure) { return failure.code == absl::StatusCode::kAborted; });
  std::vector<std::string> lines;
  for (const auto& failure : failures) {
    if (lines.size() == kMaxFailuresShown) {
      lines.push_back(absl::StrCat("and ", failures.size() - kMaxFailuresShown, " more ranks"));
      break;
    }
    lines.push_back(absl::StrCat(Name(failure.rank), " ", failure.what));
  }
  return absl::Status(failures.front().code, absl::StrJoin(lines, "\n  "));
}

absl::Status Coordinator::Gather(size_t kind, size_t first, absl::Duration timeout, const OnEvent& on_event) {
  Waiting waiting{kind, on_event, std::vector<bool>(links_.size(), true), {}};
  std::fill_n(waiting.pending.begin(), first, false);
  absl::Time deadline = absl::Now() + timeout;
  for (size_t rank = first; rank < links_.size(); ++rank) TakeLines(rank, &waiting);
  bool echo = false;
  while (waiting.AnyPending()) {
    if (!waiting.failures.empty() && !echo) {
      echo = true;
      deadline = std::min(deadline, absl::Now() + kEcho);
    }
    if (absl::Now() >= deadline) break;
    if (absl::Status status = PollOnce(&waiting, deadline); !status.ok()) return status;
  }
  if (!waiting.failures.empty()) return Verdict(waiting);
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (!waiting.pending[rank]) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(Name(rank), " has been silent for ", absl::FormatDuration(timeout)));
  }
  return absl::OkStatus();
}

template <typename E>
absl::Status Coordinator::GatherAll(absl::Duration timeout,
                                    const std::function<absl::Status(size_t rank, E& event)>& on_event, size_t first) {
  return Gather(KindOf<E>(), first, timeout,
                [&](size_t rank, Event& event) { return on_event(rank, std::get<E>(event)); });
}

absl::Status Coordinator::Start(const std::vector<StartCommand>& commands) {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, commands[rank]); !status.ok()) return status;
  }
  return GatherAll<JoinedEvent>(options_.timeout + kStuck, [this](size_t rank, JoinedEvent& event) {
    nodes_[rank] = event.node;
    return absl::OkStatus();
  });
}

absl::Status Coordinator::Prepare(const PhaseRequest& request) {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    PrepareCommand command{request.job,
                           RowOf(*request.ranks, rank),
                           ColumnOf(*request.ranks, rank),
                           request.ranges_per_flow,
                           request.fill,
                           request.prepared};
    if (absl::Status status = Send(rank, command); !status.ok()) return status;
  }
  return GatherAll<ReadyEvent>(kPrepareTimeout, [&](size_t rank, ReadyEvent&) {
    return request.barrier ? absl::OkStatus() : Send(rank, GoCommand{});
  });
}

absl::Status Coordinator::GatherDone(size_t first, PhaseOutcome* outcome) {
  return GatherAll<DoneEvent>(
      options_.timeout + kStuck,
      [&](size_t rank, DoneEvent& event) {
        outcome->done[rank] = std::move(event);
        const absl::Status& status = outcome->done[rank].status;
        return status.ok() ? status : absl::Status(status.code(), absl::StrCat("failed: ", status.ToString()));
      },
      first);
}

absl::Status Coordinator::FinishGo(PhaseOutcome* outcome) {
  outcome->done.resize(links_.size());
  if (absl::Status status = GatherDone(0, outcome); !status.ok()) return status;
  int64_t begin = outcome->done[0].submit_ns, end = outcome->done[0].done_ns;
  for (const DoneEvent& done : outcome->done) {
    begin = std::min(begin, done.submit_ns);
    end = std::max(end, done.done_ns);
  }
  outcome->seconds = static_cast<double>(end - begin) * 1e-9;
  return absl::OkStatus();
}

absl::StatusOr<PhaseOutcome> Coordinator::Go() {
  // All ranks submit at the same time, as after a computation, whatever the order in which they get the command.
  const int64_t at_ns = MonotonicNanoseconds() +
                        absl::ToInt64Nanoseconds(kGoAhead + kGoAheadPerRank * static_cast<int64_t>(links_.size()));
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, GoCommand{.at_ns = at_ns}); !status.ok()) return status;
  }
  PhaseOutcome outcome;
  if (absl::Status status = FinishGo(&outcome); !status.ok()) return status;
  return outcome;
}

absl::StatusOr<PhaseOutcome> Coordinator::GoLast() {
  for (size_t rank = 1; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, GoCommand{.tell_accepted = true}); !status.ok()) return status;
  }
  absl::Status status = GatherAll<AcceptedEvent>(
      options_.timeout + kStuck, [](size_t, AcceptedEvent&) { return absl::OkStatus(); }, /*first=*/1);
  if (status.ok()) status = Send(0, GoCommand{});
  PhaseOutcome outcome;
  if (status.ok()) status = FinishGo(&outcome);
  if (!status.ok()) return status;
  return outcome;
}

absl::Status Coordinator::Check(PhaseOutcome* outcome) {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, CheckCommand{}); !status.ok()) return status;
  }
  return GatherAll<CheckedEvent>(kPrepareTimeout, [&](size_t rank, CheckedEvent& event) {
    outcome->wrong_bytes += event.wrong_bytes;
    if (event.first.has_value() && !outcome->first_wrong.has_value()) {
      outcome->first_wrong = event.first;
      outcome->first_wrong_rank = static_cast<uint32_t>(rank);
    }
    return absl::OkStatus();
  });
}

absl::StatusOr<PhaseOutcome> Coordinator::RunPhase(const PhaseRequest& request) {
  if (absl::Status status = Prepare(request); !status.ok()) return status;
  PhaseOutcome outcome;
  if (request.barrier) {
    absl::StatusOr<PhaseOutcome> gone = Go();
    if (!gone.ok()) return gone.status();
    outcome = *std::move(gone);
  } else if (absl::Status status = FinishGo(&outcome); !status.ok()) {
    return status;
  }
  if (request.check) {
    if (absl::Status status = Check(&outcome); !status.ok()) return status;
  }
  return outcome;
}

void Coordinator::Quit() {
  for (size_t rank = 0; rank < links_.size(); ++rank) Send(rank, QuitCommand{}).IgnoreError();
}

}  // namespace rails::ctl
