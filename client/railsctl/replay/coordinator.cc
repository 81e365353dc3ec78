#include "client/railsctl/replay/coordinator.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/replay/admission.h"
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
constexpr size_t kMostTextColumns = 400;  // of a text from another machine
// Time until the last rank has received the GoCommand.
constexpr absl::Duration kGoAhead = absl::Milliseconds(2);
constexpr absl::Duration kGoAheadPerRank = absl::Microseconds(100);
// Limit for a remote worker to take a command.
constexpr absl::Duration kSendTimeout = absl::Seconds(30);
constexpr absl::Duration kQuitTimeout = absl::Seconds(1);
// Readings of a remote clock. The one with the shortest round trip counts.
constexpr int kClockReadings = 3;

// The number of the event's field.
template <typename E>
int KindOf() {
  return FieldOf<Event, E>()->number();
}

NodeRails RailsOf(const RailsEvent& event) {
  NodeRails node{event.node(), {}, event.eager_tx_bytes(), event.eager_rx_bytes()};
  for (const RailsEvent::Rail& rail : event.rails()) {
    node.rails.push_back(
        {rail.name(), rail.speed_bytes_per_second(), rail.tx_bytes(), rail.rx_bytes(), rail.drained()});
  }
  return node;
}

}  // namespace

// The state of one Gather().
struct Coordinator::Waiting {
  struct Failure {
    size_t rank;
    absl::StatusCode code;
    std::string what;
  };
  int kind;  // KindOf() the expected event
  const OnEvent& on_event;
  std::vector<bool> pending;  // by rank: its event has not come yet
  std::vector<Failure> failures;

  bool AnyPending() const { return std::find(pending.begin(), pending.end(), true) != pending.end(); }
};

Coordinator::Coordinator(std::vector<WorkerLink> links, CoordinatorOptions options)
    : links_(std::move(links)), options_(std::move(options)), nodes_(links_.size()), clock_ahead_ns_(links_.size()) {
  for (const WorkerLink& link : links_) readers_.emplace_back(link.events_fd, kMaxEventBytes);
}

std::string Coordinator::Name(size_t rank) const {
  const std::string node =
      nodes_[rank].empty() ? absl::StrCat("node number ", rank / options_.ranks_per_node) : "node " + nodes_[rank];
  return absl::StrCat("rank ", rank, " on ", node);
}

std::string Coordinator::Text(size_t rank, absl::string_view text) const {
  return links_[rank].remote ? Clip(Printable(text), kMostTextColumns) : Printable(text);
}

absl::Status Coordinator::SendBytes(size_t rank, const std::string& bytes) {
  const WorkerLink& link = links_[rank];
  const absl::Status status = WriteAll(link.commands_fd, bytes, link.remote ? kSendTimeout : absl::InfiniteDuration());
  if (absl::IsDeadlineExceeded(status)) {
    return absl::DeadlineExceededError(absl::StrCat(Name(rank), " takes no commands: ", status.message()));
  }
  // After any other error the worker has ended. Its last events are still in the pipe; the next Gather() reads them.
  return absl::OkStatus();
}

template <typename C>
absl::Status Coordinator::Send(size_t rank, const C& command) {
  return SendBytes(rank, EncodeAs<Command>(command));
}

template <typename C>
absl::Status Coordinator::SendAll(const C& command) {
  const std::string bytes = EncodeAs<Command>(command);
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (absl::Status status = SendBytes(rank, bytes); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void Coordinator::Note(size_t rank, absl::StatusCode code, const std::string& what, Waiting* waiting) {
  waiting->pending[rank] = false;
  waiting->failures.push_back({rank, code, what});
}

void Coordinator::TakeMessages(size_t rank, Waiting* waiting) {
  while (waiting->pending[rank]) {
    const std::optional<std::string> message = readers_[rank].Next();
    if (!message.has_value()) {
      const absl::Status status = readers_[rank].CheckLength();
      if (!status.ok()) Note(rank, status.code(), Text(rank, status.message()), waiting);
      return;
    }
    absl::StatusOr<Event> event = ParseEvent(*message);
    if (!event.ok()) {
      Note(rank, absl::StatusCode::kInternal,
           Text(rank, absl::StrCat("sent an invalid event: ", event.status().message())), waiting);
    } else if (event->has_failed()) {
      absl::Status status = StatusOf(event->failed().outcome());
      if (status.ok()) status = absl::UnknownError("failed without saying why");
      Note(rank, status.code(),
           Text(rank, absl::StrCat("could not ", event->failed().doing(), ": ", status.ToString())), waiting);
    } else if (event->event_case() != waiting->kind) {
      Note(rank, absl::StatusCode::kInternal, absl::StrCat("sent '", NameOf(*event), "' out of turn"), waiting);
    } else {
      waiting->pending[rank] = false;
      const absl::Status status = waiting->on_event(rank, *event);
      if (!status.ok()) Note(rank, status.code(), Text(rank, status.message()), waiting);
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
    if (!more.ok()) Note(rank, more.status().code(), Text(rank, more.status().message()), waiting);
    TakeMessages(rank, waiting);
    if (more.ok() && !*more && waiting->pending[rank]) {
      const char* where = readers_[rank].pending() > 0 ? " in the middle of a message" : "";
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

absl::Status Coordinator::Gather(int kind, std::vector<bool> pending, absl::Duration timeout, const OnEvent& on_event) {
  Waiting waiting{kind, on_event, std::move(pending), {}};
  absl::Time deadline = absl::Now() + timeout;
  for (size_t rank = 0; rank < links_.size(); ++rank) TakeMessages(rank, &waiting);
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
  std::vector<bool> pending(links_.size(), true);
  std::fill_n(pending.begin(), first, false);
  return Gather(KindOf<E>(), std::move(pending), timeout,
                [&](size_t rank, Event& event) { return on_event(rank, *PartOf<E>(&event)); });
}

absl::Status Coordinator::Start(const std::vector<StartCommand>& commands) {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, commands[rank]); !status.ok()) return status;
  }
  absl::Status status = GatherAll<ConnectedEvent>(kPrepareTimeout, [this](size_t rank, ConnectedEvent& event) {
    nodes_[rank] = Text(rank, event.node());
    return absl::OkStatus();
  });
  const bool apart = std::any_of(links_.begin(), links_.end(), [](const WorkerLink& link) { return link.remote; });
  if (status.ok() && apart) status = CheckPlacement(nodes_, options_.ranks_per_node);
  if (status.ok()) status = SendAll(JoinCommand{});
  if (!status.ok()) return status;
  return GatherAll<JoinedEvent>(options_.timeout + kStuck, [](size_t, JoinedEvent&) { return absl::OkStatus(); });
}

absl::StatusOr<std::vector<NodeRails>> Coordinator::ReadRails() {
  std::vector<bool> first_of_node(links_.size());
  for (size_t rank = 0; rank < links_.size(); rank += options_.ranks_per_node) {
    if (absl::Status status = Send(rank, RailsCommand{}); !status.ok()) return status;
    first_of_node[rank] = true;
  }
  std::vector<NodeRails> nodes(links_.size() / options_.ranks_per_node);
  const absl::Status status =
      Gather(KindOf<RailsEvent>(), std::move(first_of_node), kStuck, [&](size_t rank, Event& event) {
        NodeRails& node = nodes[rank / options_.ranks_per_node] = RailsOf(event.rails());
        node.node = Text(rank, node.node);
        for (RailBytes& rail : node.rails) rail.name = Text(rank, rail.name);
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  return nodes;
}

absl::Status Coordinator::AlignClocks() {
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    int64_t shortest_ns = std::numeric_limits<int64_t>::max();
    for (int i = 0; i < (links_[rank].remote ? kClockReadings : 0); ++i) {
      const int64_t before_ns = MonotonicNanoseconds();
      if (absl::Status status = Send(rank, ClockCommand{}); !status.ok()) return status;
      std::vector<bool> pending(links_.size());
      pending[rank] = true;
      const absl::Status status = Gather(KindOf<ClockEvent>(), std::move(pending), kStuck, [&](size_t, Event& event) {
        const int64_t after_ns = MonotonicNanoseconds();
        if (after_ns - before_ns >= shortest_ns) return absl::OkStatus();
        shortest_ns = after_ns - before_ns;
        clock_ahead_ns_[rank] = event.clock().now_ns() - (before_ns + shortest_ns / 2);
        return absl::OkStatus();
      });
      if (!status.ok()) return status;
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::Prepare(const PhaseRequest& request) {
  if (absl::Status status = AlignClocks(); !status.ok()) return status;
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    PrepareCommand command;
    command.set_job(request.job);
    for (const uint64_t bytes : RowOf(*request.ranks, rank)) command.add_row(bytes);
    for (const uint64_t bytes : ColumnOf(*request.ranks, rank)) command.add_column(bytes);
    command.set_ranges_per_flow(request.ranges_per_flow);
    command.set_fill(request.fill);
    command.set_prepared(request.prepared);
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
        event.set_submit_ns(event.submit_ns() - clock_ahead_ns_[rank]);
        event.set_accepted_ns(event.accepted_ns() - clock_ahead_ns_[rank]);
        event.set_done_ns(event.done_ns() - clock_ahead_ns_[rank]);
        const absl::Status status = StatusOf(event.outcome());
        outcome->done[rank] = std::move(event);
        return status.ok() ? status : absl::Status(status.code(), absl::StrCat("failed: ", status.ToString()));
      },
      first);
}

absl::Status Coordinator::FinishGo(PhaseOutcome* outcome) {
  outcome->done.resize(links_.size());
  if (absl::Status status = GatherDone(0, outcome); !status.ok()) return status;
  int64_t begin = outcome->done[0].submit_ns(), end = outcome->done[0].done_ns();
  for (const DoneEvent& done : outcome->done) {
    begin = std::min(begin, done.submit_ns());
    end = std::max(end, done.done_ns());
  }
  outcome->seconds = static_cast<double>(end - begin) * 1e-9;
  return absl::OkStatus();
}

absl::StatusOr<PhaseOutcome> Coordinator::Go() {
  // Names a time at which all ranks submit together, as after a computation, because they get the command one by one.
  const int64_t at_ns = MonotonicNanoseconds() +
                        absl::ToInt64Nanoseconds(kGoAhead + kGoAheadPerRank * static_cast<int64_t>(links_.size()));
  for (size_t rank = 0; rank < links_.size(); ++rank) {
    GoCommand go;
    go.set_at_ns(at_ns + clock_ahead_ns_[rank]);
    if (absl::Status status = Send(rank, go); !status.ok()) return status;
  }
  PhaseOutcome outcome;
  if (absl::Status status = FinishGo(&outcome); !status.ok()) return status;
  return outcome;
}

absl::StatusOr<PhaseOutcome> Coordinator::GoLast() {
  GoCommand go;
  go.set_tell_accepted(true);
  for (size_t rank = 1; rank < links_.size(); ++rank) {
    if (absl::Status status = Send(rank, go); !status.ok()) return status;
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
  if (absl::Status status = SendAll(CheckCommand{}); !status.ok()) return status;
  return GatherAll<CheckedEvent>(kPrepareTimeout, [&](size_t rank, CheckedEvent& event) {
    outcome->wrong_bytes += event.wrong_bytes();
    if (event.has_first() && !outcome->first_wrong.has_value()) {
      outcome->first_wrong = event.first();
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

absl::Status Coordinator::Leave() {
  if (absl::Status status = SendAll(LeaveCommand{}); !status.ok()) return status;
  return GatherAll<LeftEvent>(kStuck, [](size_t, LeftEvent&) { return absl::OkStatus(); });
}

void Coordinator::Quit(int exit_code, const std::string& message) {
  const std::string bytes = EncodeQuit(exit_code, message);
  for (const WorkerLink& link : links_) {
    WriteAll(link.commands_fd, bytes, link.remote ? kQuitTimeout : absl::InfiniteDuration()).IgnoreError();
  }
}

}  // namespace rails::ctl
