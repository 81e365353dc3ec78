#include "client/railsctl/replay/worker.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <ctime>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "client/railsctl/exit_code.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/replay/layout.h"
#include "client/railsctl/replay/pattern.h"
#include "client/railsctl/replay/worker_protocol.h"

namespace rails::ctl {
namespace {

// Time for the daemon's answer after the job's own limit.
constexpr absl::Duration kGrace = absl::Seconds(10);
// Longest time before its start that a GoCommand may ask for.
constexpr absl::Duration kLongestRest = absl::Seconds(2);
// Time between commands, beyond the limit of a job: the coordinator waits this long for other ranks to fill or compare.
constexpr absl::Duration kLongestPause = absl::Minutes(10);

class Worker {
 public:
  explicit Worker(const WorkerOptions& options)
      : options_(options), messages_(options.commands_fd), patience_(options.patience) {}

  // Returns the error that ended the worker; OK after QuitCommand.
  absl::Status Run();
  const char* doing() const { return doing_; }
  const QuitCommand& quit() const { return *quit_; }

 private:
  absl::Status Do(const StartCommand& command);
  absl::Status Do(const JoinCommand& command);
  absl::Status Do(const PrepareCommand& command);
  absl::Status Do(const GoCommand& command);
  absl::Status Do(const CheckCommand& command);
  absl::Status Do(const RailsCommand& command);
  absl::Status Do(const ClockCommand& command);
  absl::Status Do(const LeaveCommand& command);
  absl::Status Do(const QuitCommand& command);

  // Reads from the stream at least once. An error after `patience_`.
  absl::Status FillMessages();
  absl::Status DoAny(const Command& command);
  template <typename E>
  absl::Status Tell(const E& event);
  const std::string& SocketDir() const {
    return options_.socket_dir.empty() ? start_.socket_dir() : options_.socket_dir;
  }
  absl::Span<std::byte> Receive(const PlacedRange& range) const {
    return receive_->bytes().subspan(range.segment_offset, range.length);
  }
  uint64_t KeyFrom(uint32_t source) const { return PatternKey({start_.seed(), job_, source, start_.rank()}); }
  void BuildExchange();
  absl::Status PrepareExchange();
  // Adds the wrong bytes of one stretch of the receive segment to `checked`.
  static void Add(const Mismatch& mismatch, WrongByte where, CheckedEvent* checked);

  const WorkerOptions& options_;
  MessageReader messages_;
  absl::Duration patience_;  // limit for the coordinator's next command
  const char* doing_ = "read a command";
  std::optional<QuitCommand> quit_;
  bool left_ = false;  // has left its group, after all exchanges

  StartCommand start_;
  // Destroyed in reverse order: leaves the group and releases the segments before the session ends.
  std::unique_ptr<Client> client_;
  std::shared_ptr<Segment> send_, receive_;
  std::unique_ptr<Group> group_;
  RankLayout layout_;
  uint64_t job_ = 0;
  AllToAllv exchange_;
  std::shared_ptr<Prepared> prepared_;  // null: `exchange_` is submitted itself
  Lengths lengths_;                     // of `prepared_`
};

absl::Status Worker::FillMessages() {
  if (patience_ < absl::InfiniteDuration()) {
    const absl::Time deadline = absl::Now() + patience_;
    pollfd polled{options_.commands_fd, POLLIN, 0};
    int count = 0;
    do {
      const int64_t left = absl::ToInt64Milliseconds(std::max(deadline - absl::Now(), absl::ZeroDuration()));
      count = poll(&polled, 1, static_cast<int>(std::min<int64_t>(left, INT_MAX)));
    } while (count < 0 && errno == EINTR);
    if (count <= 0) {
      return absl::DeadlineExceededError(absl::StrCat("rank 0 has been silent for ", absl::FormatDuration(patience_)));
    }
  }
  absl::StatusOr<bool> more = messages_.Fill();
  if (!more.ok()) return more.status();
  return *more ? absl::OkStatus() : absl::CancelledError("rank 0 has ended, or its network has");
}

template <typename E>
absl::Status Worker::Tell(const E& event) {
  const absl::Status status = WriteAll(options_.events_fd, EncodeAs<Event>(event), patience_);
  // If the coordinator has ended, its last command, with the reason, is still in the stream; Run() reads it.
  return absl::IsUnavailable(status) ? absl::OkStatus() : status;
}

absl::Status Worker::Run() {
  while (!quit_.has_value()) {
    doing_ = "read a command";
    const std::optional<std::string> message = messages_.Next();
    if (!message.has_value()) {
      if (absl::Status status = FillMessages(); !status.ok()) return status;
      continue;
    }
    absl::StatusOr<Command> command = ParseCommand(*message);
    if (!command.ok()) return command.status();
    if (absl::Status status = DoAny(*command); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Worker::DoAny(const Command& command) {
  switch (command.command_case()) {
    case Command::kStart:
      return Do(command.start());
    case Command::kJoin:
      return Do(command.join());
    case Command::kPrepare:
      return Do(command.prepare());
    case Command::kGo:
      return Do(command.go());
    case Command::kCheck:
      return Do(command.check());
    case Command::kRails:
      return Do(command.rails());
    case Command::kClock:
      return Do(command.clock());
    case Command::kLeave:
      return Do(command.leave());
    case Command::kQuit:
      return Do(command.quit());
    case Command::COMMAND_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("no command");
}

absl::Status Worker::Do(const StartCommand& command) {
  doing_ = "start";
  if (client_ != nullptr) return absl::FailedPreconditionError("started before");
  if (command.rank() != options_.rank.value_or(command.rank()) ||
      command.world_size() != options_.world_size.value_or(command.world_size())) {
    return absl::FailedPreconditionError(absl::StrCat("rank 0 takes this for rank ", command.rank(), " of ",
                                                      command.world_size(), "; it is rank ", *options_.rank, " of ",
                                                      *options_.world_size));
  }
  start_ = command;
  const absl::Duration timeout = absl::Milliseconds(command.timeout_milliseconds());
  if (patience_ < absl::InfiniteDuration()) patience_ = kLongestPause + timeout;
  doing_ = "connect";
  ClientOptions options{.socket_dir = SocketDir(),
                        .client_name = absl::StrCat("railsctl ", command.group(), " rank ", command.rank()),
                        .connect_timeout = std::min(timeout, absl::Seconds(10))};
  absl::StatusOr<std::unique_ptr<Client>> client = options_.connect(std::move(options));
  if (!client.ok()) return client.status();
  client_ = *std::move(client);

  doing_ = "make segments";
  for (auto [segment, bytes] :
       {std::pair{&send_, command.send_bytes()}, std::pair{&receive_, command.receive_bytes()}}) {
    SegmentOptions segment_options{.huge_pages = command.huge_pages()};
    absl::StatusOr<std::shared_ptr<Segment>> made =
        client_->CreateSegment(std::max<uint64_t>(bytes, 1), std::move(segment_options));
    if (!made.ok()) return made.status();
    *segment = *std::move(made);
  }
  ConnectedEvent connected;
  connected.set_node(client_->node());
  return Tell(connected);
}

absl::Status Worker::Do(const JoinCommand&) {
  doing_ = "join the group";
  if (client_ == nullptr) return absl::FailedPreconditionError("not started");
  absl::StatusOr<std::unique_ptr<Group>> group =
      client_->JoinGroup({.name = start_.group(),
                          .join_key = start_.join_key(),
                          .world_size = start_.world_size(),
                          .rank = start_.rank(),
                          .timeout = absl::Milliseconds(start_.timeout_milliseconds())});
  if (!group.ok()) return group.status();
  group_ = *std::move(group);
  return Tell(JoinedEvent{});
}

absl::Status Worker::Do(const PrepareCommand& command) {
  doing_ = "prepare an exchange";
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  absl::StatusOr<RankLayout> layout = LayOut(command.row(), command.column(), command.ranges_per_flow());
  if (!layout.ok()) return layout.status();
  if (static_cast<uint32_t>(command.row_size()) != start_.world_size() || layout->send_bytes > send_->bytes().size() ||
      layout->receive_bytes > receive_->bytes().size()) {
    return absl::InvalidArgumentError("the exchange does not fit the segments or the group");
  }
  layout_ = *std::move(layout);
  job_ = command.job();
  if (command.fill()) {
    for (const PlacedFlow& flow : layout_.sends) {
      const uint64_t key = PatternKey({start_.seed(), job_, start_.rank(), flow.peer});
      for (const PlacedRange& range : flow.ranges) {
        FillPattern(key, range.flow_offset, send_->bytes().subspan(range.segment_offset, range.length));
      }
    }
    std::memset(receive_->bytes().data(), PoisonByte(job_), receive_->bytes().size());
  }
  BuildExchange();
  prepared_ = nullptr;
  if (command.prepared()) {
    if (absl::Status status = PrepareExchange(); !status.ok()) return status;
  }
  return Tell(ReadyEvent{});
}

// Prepares capacities that exceed the exchanged bytes and reach into the guards, where no byte may arrive.
absl::Status Worker::PrepareExchange() {
  constexpr uint64_t kSpareBytes = 16;
  static_assert(2 * kSpareBytes <= kGuardBytes);
  AllToAllv layout = exchange_;
  lengths_ = {.tag = exchange_.tag, .timeout = exchange_.timeout};
  for (auto [flows, lengths] :
       {std::pair{&layout.sends, &lengths_.sends}, std::pair{&layout.receives, &lengths_.receives}}) {
    for (FlowRanges& flow : *flows) {
      uint64_t bytes = 0;
      for (const Range& range : flow.ranges) bytes += range.length_bytes;
      lengths->push_back(bytes);
      if (flow.ranges.empty()) continue;
      Range& last = flow.ranges.back();
      const uint64_t end = last.offset_bytes + last.length_bytes;
      last.length_bytes += std::min(kSpareBytes, last.segment->bytes().size() - end);
    }
  }
  absl::StatusOr<std::shared_ptr<Prepared>> prepared = group_->Prepare(layout);
  if (!prepared.ok()) return prepared.status();
  prepared_ = *std::move(prepared);
  return absl::OkStatus();
}

void Worker::BuildExchange() {
  exchange_ = {};
  exchange_.tag = job_;
  exchange_.timeout = absl::Milliseconds(start_.timeout_milliseconds());
  const auto convert = [](const std::vector<PlacedFlow>& flows, const std::shared_ptr<Segment>& segment,
                          std::vector<FlowRanges>* out) {
    for (const PlacedFlow& flow : flows) {
      FlowRanges& ranges = out->emplace_back();
      ranges.rank = flow.peer;
      ranges.ranges.reserve(flow.ranges.size());
      for (const PlacedRange& range : flow.ranges)
        ranges.ranges.push_back({segment, range.segment_offset, range.length});
    }
  };
  convert(layout_.sends, send_, &exchange_.sends);
  convert(layout_.receives, receive_, &exchange_.receives);
}

absl::Status Worker::Do(const GoCommand& command) {
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  DoneEvent done;
  const absl::Duration left = absl::Nanoseconds(command.at_ns() - MonotonicNanoseconds());
  absl::SleepFor(std::min(left, kLongestRest));
  doing_ = "submit an exchange";
  done.set_submit_ns(MonotonicNanoseconds());
  absl::StatusOr<std::shared_ptr<Job>> job =
      prepared_ == nullptr ? group_->Submit(exchange_) : group_->Submit(prepared_, lengths_);
  done.set_accepted_ns(MonotonicNanoseconds());
  if (!job.ok()) return job.status();
  if (command.tell_accepted()) {
    if (absl::Status status = Tell(AcceptedEvent{}); !status.ok()) return status;
  }
  doing_ = "wait for an exchange";
  absl::StatusOr<JobReport> report = (*job)->Wait(exchange_.timeout + kGrace);
  done.set_done_ns(MonotonicNanoseconds());
  if (!report.ok()) return report.status();
  if (!report->terminal) {
    return absl::DeadlineExceededError(absl::StrCat("job ", (*job)->seq(), " is not terminal ",
                                                    absl::FormatDuration(kGrace), " past its limit of ",
                                                    absl::FormatDuration(exchange_.timeout)));
  }
  *done.mutable_outcome() = OutcomeOf(report->status);
  done.set_waiting_for_ranks_seconds(absl::ToDoubleSeconds(report->waiting_for_ranks));
  done.set_waiting_for_peers_seconds(absl::ToDoubleSeconds(report->waiting_for_peers));
  done.set_elapsed_seconds(absl::ToDoubleSeconds(report->elapsed));
  done.set_to_first_chunk_seconds(absl::ToDoubleSeconds(report->to_first_chunk));
  done.mutable_rail_tx_bytes()->Assign(report->rail_tx_bytes.begin(), report->rail_tx_bytes.end());
  done.mutable_rail_rx_bytes()->Assign(report->rail_rx_bytes.begin(), report->rail_rx_bytes.end());
  done.set_eager_sent_bytes(report->eager_sent_bytes);
  done.set_eager_received_bytes(report->eager_received_bytes);
  return Tell(done);
}

void Worker::Add(const Mismatch& mismatch, WrongByte where, CheckedEvent* checked) {
  checked->set_wrong_bytes(checked->wrong_bytes() + mismatch.count);
  if (mismatch.count == 0 || checked->has_first()) return;
  where.set_flow_offset(where.flow_offset() + mismatch.first);
  where.set_segment_offset(where.segment_offset() + mismatch.first);
  where.set_expected(mismatch.expected);
  where.set_got(mismatch.got);
  *checked->mutable_first() = std::move(where);
}

absl::Status Worker::Do(const CheckCommand&) {
  doing_ = "check what was received";
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  CheckedEvent checked;
  checked.set_wrong_bytes(0);
  std::vector<std::pair<uint64_t, uint64_t>> written;  // begin and end in the segment
  for (const PlacedFlow& flow : layout_.receives) {
    const uint64_t key = KeyFrom(flow.peer);
    for (const PlacedRange& range : flow.ranges) {
      WrongByte where;
      where.set_source_rank(flow.peer);
      where.set_flow_offset(range.flow_offset);
      where.set_segment_offset(range.segment_offset);
      Add(ComparePattern(key, range.flow_offset, Receive(range)), std::move(where), &checked);
      written.emplace_back(range.segment_offset, range.segment_offset + range.length);
    }
  }
  std::sort(written.begin(), written.end());
  written.emplace_back(receive_->bytes().size(), receive_->bytes().size());
  uint64_t begin = 0;
  for (const auto& [next, end] : written) {
    WrongByte where;
    where.set_guard(true);
    where.set_segment_offset(begin);
    Add(ComparePoison(PoisonByte(job_), receive_->bytes().subspan(begin, next - begin)), std::move(where), &checked);
    begin = end;
  }
  return Tell(checked);
}

absl::Status Worker::Do(const RailsCommand&) {
  doing_ = "read the rails' counters";
  if (client_ == nullptr) return absl::FailedPreconditionError("not started");
  absl::StatusOr<NodeRails> rails = options_.read_rails(SocketDir());
  if (!rails.ok()) return rails.status();
  RailsEvent event;
  event.set_node(client_->node());
  for (const RailBytes& rail : rails->rails) {
    RailsEvent::Rail& out = *event.add_rails();
    out.set_name(rail.name);
    out.set_speed_bytes_per_second(rail.speed_bytes_per_second);
    out.set_tx_bytes(rail.tx_bytes);
    out.set_rx_bytes(rail.rx_bytes);
    out.set_drained(rail.drained);
  }
  event.set_eager_tx_bytes(rails->eager_tx_bytes);
  event.set_eager_rx_bytes(rails->eager_rx_bytes);
  return Tell(event);
}

absl::Status Worker::Do(const ClockCommand&) {
  ClockEvent clock;
  clock.set_now_ns(MonotonicNanoseconds());
  return Tell(clock);
}

absl::Status Worker::Do(const LeaveCommand&) {
  doing_ = "leave the group";
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  if (absl::Status status = group_->Leave(); !status.ok()) return status;
  left_ = true;
  return Tell(LeftEvent{});
}

absl::Status Worker::Do(const QuitCommand& command) {
  doing_ = "end";
  const bool remote = patience_ < absl::InfiniteDuration();  // any process that listens at the rendezvous can send this
  if (remote && command.exit_code() == 0 && !left_) {
    return absl::FailedPreconditionError("rank 0 reports success before this rank has left its group");
  }
  quit_ = command;
  return absl::OkStatus();
}

}  // namespace

int64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

WorkerEnd RunWorker(const WorkerOptions& options) {
  Worker worker(options);
  const absl::Status status = worker.Run();
  if (status.ok() && worker.quit().exit_code() == 0) return {};
  if (status.ok()) {
    return {static_cast<int>(worker.quit().exit_code()),
            absl::StrCat("rank 0 says: ", Printable(absl::StrReplaceAll(worker.quit().message(), {{"\n", "; "}})))};
  }
  // The error is ignored: if the write fails, the coordinator has ended.
  FailedEvent failed;
  failed.set_doing(worker.doing());
  *failed.mutable_outcome() = OutcomeOf(status);
  WriteAll(options.events_fd, EncodeAs<Event>(failed), options.patience).IgnoreError();
  return {kExitFailed, absl::StrCat("this rank could not ", worker.doing(), ": ", status.ToString())};
}

}  // namespace rails::ctl
