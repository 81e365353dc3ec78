#include "client/railsctl/replay/worker.h"

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/railsctl/exit_code.h"
#include "client/railsctl/replay/layout.h"
#include "client/railsctl/replay/pattern.h"
#include "client/railsctl/replay/worker_protocol.h"

namespace rails::ctl {
namespace {

// Time for the daemon's answer after the job's own limit.
constexpr absl::Duration kGrace = absl::Seconds(10);
// Longest time until the start that a command may ask for.
constexpr absl::Duration kLongestRest = absl::Seconds(2);

class Worker {
 public:
  Worker(int commands_fd, int events_fd, const ConnectFunction& connect)
      : lines_(commands_fd), events_fd_(events_fd), connect_(connect) {}

  // Returns the error that ended the worker; OK after QuitCommand.
  absl::Status Run();
  const char* doing() const { return doing_; }

 private:
  absl::Status Do(const StartCommand& command);
  absl::Status Do(const PrepareCommand& command);
  absl::Status Do(const GoCommand& command);
  absl::Status Do(const CheckCommand& command);
  absl::Status Do(const QuitCommand& command);

  absl::Status Tell(const Event& event) { return WriteLine(events_fd_, Encode(event)); }
  absl::Span<std::byte> Receive(const PlacedRange& range) const {
    return receive_->bytes().subspan(range.segment_offset, range.length);
  }
  uint64_t KeyFrom(uint32_t source) const { return PatternKey({start_.seed, job_, source, start_.rank}); }
  void BuildExchange();
  absl::Status PrepareExchange();
  // Adds the wrong bytes of one stretch of the receive segment to `checked`.
  static void Add(const Mismatch& mismatch, WrongByte where, CheckedEvent* checked);

  LineReader lines_;
  const int events_fd_;
  const ConnectFunction& connect_;
  const char* doing_ = "read a command";
  bool quit_ = false;

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

absl::Status Worker::Run() {
  while (!quit_) {
    doing_ = "read a command";
    std::optional<std::string> line = lines_.Next();
    if (!line.has_value()) {
      absl::StatusOr<bool> more = lines_.Fill();
      if (!more.ok()) return more.status();
      if (!*more) return absl::CancelledError("the coordinator is gone");
      continue;
    }
    absl::StatusOr<Command> command = ParseCommand(*line);
    if (!command.ok()) return command.status();
    absl::Status status = std::visit([this](const auto& alternative) { return Do(alternative); }, *command);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Worker::Do(const StartCommand& command) {
  start_ = command;
  const absl::Duration timeout = absl::Milliseconds(command.timeout_milliseconds);
  doing_ = "connect";
  ClientOptions options{.socket_dir = command.socket_dir,
                        .client_name = absl::StrCat("railsctl ", command.group, " rank ", command.rank),
                        .connect_timeout = std::min(timeout, absl::Seconds(10))};
  absl::StatusOr<std::unique_ptr<Client>> client = connect_(std::move(options));
  if (!client.ok()) return client.status();
  client_ = *std::move(client);

  doing_ = "make segments";
  for (auto [segment, bytes] : {std::pair{&send_, command.send_bytes}, std::pair{&receive_, command.receive_bytes}}) {
    SegmentOptions segment_options{.huge_pages = command.huge_pages};
    absl::StatusOr<std::shared_ptr<Segment>> made =
        client_->CreateSegment(std::max<uint64_t>(bytes, 1), std::move(segment_options));
    if (!made.ok()) return made.status();
    *segment = *std::move(made);
  }

  doing_ = "join the group";
  absl::StatusOr<std::unique_ptr<Group>> group = client_->JoinGroup({.name = command.group,
                                                                     .join_key = command.join_key,
                                                                     .world_size = command.world_size,
                                                                     .rank = command.rank,
                                                                     .timeout = timeout});
  if (!group.ok()) return group.status();
  group_ = *std::move(group);
  return Tell(JoinedEvent{client_->node()});
}

absl::Status Worker::Do(const PrepareCommand& command) {
  doing_ = "prepare an exchange";
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  absl::StatusOr<RankLayout> layout = LayOut(command.row, command.column, command.ranges_per_flow);
  if (!layout.ok()) return layout.status();
  if (command.row.size() != start_.world_size || layout->send_bytes > send_->bytes().size() ||
      layout->receive_bytes > receive_->bytes().size()) {
    return absl::InvalidArgumentError("the exchange does not fit the segments or the group");
  }
  layout_ = *std::move(layout);
  job_ = command.job;
  if (command.fill) {
    for (const PlacedFlow& flow : layout_.sends) {
      const uint64_t key = PatternKey({start_.seed, job_, start_.rank, flow.peer});
      for (const PlacedRange& range : flow.ranges) {
        FillPattern(key, range.flow_offset, send_->bytes().subspan(range.segment_offset, range.length));
      }
    }
    std::memset(receive_->bytes().data(), PoisonByte(job_), receive_->bytes().size());
  }
  BuildExchange();
  prepared_ = nullptr;
  if (command.prepared) {
    if (absl::Status status = PrepareExchange(); !status.ok()) return status;
  }
  return Tell(ReadyEvent{});
}

// The capacities go past what is exchanged, into the bytes between the ranges, where no byte may arrive.
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
  exchange_.timeout = absl::Milliseconds(start_.timeout_milliseconds);
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
  const absl::Duration left = absl::Nanoseconds(command.at_ns - MonotonicNanoseconds());
  absl::SleepFor(std::min(left, kLongestRest));
  doing_ = "submit an exchange";
  done.submit_ns = MonotonicNanoseconds();
  absl::StatusOr<std::shared_ptr<Job>> job =
      prepared_ == nullptr ? group_->Submit(exchange_) : group_->Submit(prepared_, lengths_);
  done.accepted_ns = MonotonicNanoseconds();
  if (!job.ok()) return job.status();
  if (command.tell_accepted) {
    if (absl::Status status = Tell(AcceptedEvent{}); !status.ok()) return status;
  }
  doing_ = "wait for an exchange";
  absl::StatusOr<JobReport> report = (*job)->Wait(exchange_.timeout + kGrace);
  done.done_ns = MonotonicNanoseconds();
  if (!report.ok()) return report.status();
  if (!report->terminal) {
    return absl::DeadlineExceededError(absl::StrCat("job ", (*job)->seq(), " is not terminal ",
                                                    absl::FormatDuration(kGrace), " past its limit of ",
                                                    absl::FormatDuration(exchange_.timeout)));
  }
  done.status = report->status;
  done.waiting_for_ranks_seconds = absl::ToDoubleSeconds(report->waiting_for_ranks);
  done.waiting_for_peers_seconds = absl::ToDoubleSeconds(report->waiting_for_peers);
  done.elapsed_seconds = absl::ToDoubleSeconds(report->elapsed);
  done.to_first_chunk_seconds = absl::ToDoubleSeconds(report->to_first_chunk);
  done.rail_tx_bytes = report->rail_tx_bytes;
  done.rail_rx_bytes = report->rail_rx_bytes;
  done.eager_sent_bytes = report->eager_sent_bytes;
  done.eager_received_bytes = report->eager_received_bytes;
  return Tell(done);
}

void Worker::Add(const Mismatch& mismatch, WrongByte where, CheckedEvent* checked) {
  checked->wrong_bytes += mismatch.count;
  if (mismatch.count == 0 || checked->first.has_value()) return;
  where.flow_offset += mismatch.first;
  where.segment_offset += mismatch.first;
  where.expected = mismatch.expected;
  where.got = mismatch.got;
  checked->first = where;
}

absl::Status Worker::Do(const CheckCommand&) {
  doing_ = "check what was received";
  if (group_ == nullptr) return absl::FailedPreconditionError("not started");
  CheckedEvent checked;
  std::vector<std::pair<uint64_t, uint64_t>> written;  // begin and end in the segment
  for (const PlacedFlow& flow : layout_.receives) {
    const uint64_t key = KeyFrom(flow.peer);
    for (const PlacedRange& range : flow.ranges) {
      Add(ComparePattern(key, range.flow_offset, Receive(range)),
          {.source_rank = flow.peer, .flow_offset = range.flow_offset, .segment_offset = range.segment_offset},
          &checked);
      written.emplace_back(range.segment_offset, range.segment_offset + range.length);
    }
  }
  std::sort(written.begin(), written.end());
  written.emplace_back(receive_->bytes().size(), receive_->bytes().size());
  uint64_t begin = 0;
  for (const auto& [next, end] : written) {
    Add(ComparePoison(PoisonByte(job_), receive_->bytes().subspan(begin, next - begin)),
        {.guard = true, .segment_offset = begin}, &checked);
    begin = end;
  }
  return Tell(checked);
}

absl::Status Worker::Do(const QuitCommand&) {
  doing_ = "leave the group";
  quit_ = true;
  if (group_ == nullptr) return absl::OkStatus();
  return group_->Leave();
}

}  // namespace

int64_t MonotonicNanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

int RunWorker(int commands_fd, int events_fd, const ConnectFunction& connect) {
  Worker worker(commands_fd, events_fd, connect);
  const absl::Status status = worker.Run();
  if (status.ok()) return kExitOk;
  // The error is ignored: if the write fails, the coordinator has ended.
  WriteLine(events_fd, Encode(FailedEvent{worker.doing(), status})).IgnoreError();
  return kExitFailed;
}

}  // namespace rails::ctl
