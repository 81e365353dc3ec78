#include "agent/rails/rail_sender.h"

#include <algorithm>
#include <utility>

#include "agent/plan/plan.h"

namespace railsd {
namespace {

constexpr size_t kStaged = 64;
constexpr uint64_t kNoLink = UINT64_MAX;
// Acknowledged bytes are reported with the fence, or when they are so old: reports of running jobs show how far they
// are.
constexpr absl::Duration kCarriedFor = absl::Milliseconds(100);

void Add(RailProgress::Value& value, uint64_t n) {
  value.store(value.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);  // the only writer
}

}  // namespace

RailSender::RailSender(RailIndex rail, const SchedulerOptions& options, RailBoard* board, RailTransport* transport)
    : rail_(rail),
      board_(*board),
      progress_((*board)[rail.value()]),
      transport_(*transport),
      scheduler_(options, &progress_),
      reports_(0, 0) {
  staged_.reserve(kStaged);
}

RailSender::Share* RailSender::Find(const SendStream* stream) {
  const auto found = shares_.find(stream);
  return found == shares_.end() ? nullptr : found->second;
}

RailSender::Queue& RailSender::QueueOf(uint32_t tenant, PeerIndex peer, bool urgent) {
  if (tenant >= queues_.size()) queues_.resize(tenant + 1);
  if (peer.value() >= queues_[tenant].size()) queues_[tenant].resize(peer.value() + 1);
  return queues_[tenant][peer.value()][urgent];
}

void RailSender::Queued(const Share& share, uint64_t bytes) {
  const SendStream& stream = *share.stream;
  scheduler_.Add(share.tenant, stream.peer, share.place, bytes, stream.inflow_ppm, stream.urgent);
}

RailEvent RailSender::ReportOf(RailEvent::Kind kind, const Share& share) const {
  RailEvent report;
  report.kind = kind;
  report.peer = share.stream->peer;
  report.stream = share.stream;
  report.connection = share.connection;
  return report;
}

void RailSender::Return(const SendStream& stream, const Run& run, uint8_t weight, uint32_t round, uint32_t settled) {
  RailEvent report;
  report.kind = RailEvent::Kind::kReturned;
  report.peer = stream.peer;
  report.stream = &stream;
  report.offset_bytes = run.offset_bytes;
  report.length_bytes = run.length_bytes;
  report.weight = weight;
  report.round = round;
  report.settled = settled;
  stream.unposted_bytes[rail_.value()].fetch_sub(run.length_bytes, std::memory_order_relaxed);
  Add(progress_.done_bytes, run.length_bytes);
  reports_.Push(report);
}

void RailSender::Give(const Assignment& a) {
  const PeerIndex peer = a.stream->peer;
  Share* share = Find(a.stream);
  // An assignment for a share whose connection has ended comes back with the share, because the engine must hear first
  // whether the share is in doubt.
  const uint64_t connection = share != nullptr ? share->connection : ConnectionTo(peer);
  if (a.connection != connection) return Return(*a.stream, {a.offset_bytes, a.length_bytes}, a.weight, a.round, 1);
  if (share == nullptr) {
    if (free_.empty()) free_.push_back(&storage_.emplace_back());
    share = free_.back();
    free_.pop_back();
    share->stream = a.stream;
    share->connection = a.connection;
    share->tenant = a.tenant;
    share->place = a.place;
    share->round = a.round;
    share->must_fence = share->unproven = share->has_posted = a.carried;
    shares_[a.stream] = share;
  }
  ++share->unsettled;
  if (a.round != share->round) {  // weight of an older round is void, and all that was posted needs a fence of this one
    share->round = a.round;
    share->weight = 0;
    share->must_fence = share->unproven = share->has_posted;
  }
  share->weight = static_cast<uint8_t>(share->weight + a.weight);
  if (a.length_bytes > 0) {
    share->runs.push_back({a.offset_bytes, a.length_bytes});
    share->unposted_bytes += a.length_bytes;
    if (share->queued) Queued(*share, a.length_bytes);
    worked_ = true;
  }
  Schedule(*share);
}

void RailSender::Schedule(Share& share) {
  if (share.unposted_bytes > 0 && !share.queued && !share.broken) {
    share.queued = true;
    Queue& queue = QueueOf(share);
    share.previous = std::exchange(queue.last, &share);
    (share.previous == nullptr ? queue.first : share.previous->next) = &share;
    Queued(share, share.unposted_bytes);
  }
  if (MayFence(share) && !share.fences) {
    share.fences = true;
    fences_.push_back(&share);
  }
}

void RailSender::Unqueue(Share& share) {
  if (!std::exchange(share.queued, false)) return;
  Unqueued(share, share.unposted_bytes);
  Queue& queue = QueueOf(share);
  (share.previous == nullptr ? queue.first : share.previous->next) = share.next;
  (share.next == nullptr ? queue.last : share.next->previous) = share.previous;
  share.previous = share.next = nullptr;
}

void RailSender::Release(const SendStream* stream, uint64_t bytes) {
  Share* const share = Find(stream);
  RailEvent released;
  released.kind = RailEvent::Kind::kReleased;
  released.stream = stream;
  released.peer = stream->peer;
  released.settled = 1;
  if (share != nullptr && !share->broken && share->unposted_bytes > 0 && bytes > 0) {
    bytes = std::min(bytes, share->unposted_bytes);
    uint8_t weight = 0;
    if (bytes == share->unposted_bytes && !share->must_fence) {
      weight = share->weight;
    } else if (share->weight > 1) {  // weight 1 is not split
      const uint64_t part = share->weight * bytes / share->unposted_bytes;
      weight = static_cast<uint8_t>(std::clamp<uint64_t>(part, 1, share->weight - 1u));
    } else {
      bytes = 0;
    }
    share->weight = static_cast<uint8_t>(share->weight - weight);
    share->unposted_bytes -= bytes;
    Unqueued(*share, bytes);
    while (bytes > 0) {
      Run& last = share->runs.back();
      const uint64_t length = std::min(bytes, last.length_bytes);
      bytes -= length;
      last.length_bytes -= length;
      Return(*stream, {last.offset_bytes + last.length_bytes, length}, bytes == 0 ? weight : uint8_t{0}, share->round,
             0);
      if (last.length_bytes == 0) share->runs.pop_back();
    }
    if (share->unposted_bytes == 0) Unqueue(*share);
    Schedule(*share);
  }
  reports_.Push(released);
  if (share != nullptr) SettleIfDone(*share);
}

void RailSender::DropUnposted(Share& share) {
  Unqueue(share);
  share.stream->unposted_bytes[rail_.value()].fetch_sub(share.unposted_bytes, std::memory_order_relaxed);
  Add(progress_.done_bytes, share.unposted_bytes);
  share.unposted_bytes = 0;
  share.runs.clear();
  share.first_run = 0;
  share.weight = 0;
  share.must_fence = false;
  share.dropped = true;
}

void RailSender::Drop(const SendStream* stream) {
  Share* const share = Find(stream);
  if (share == nullptr) return;
  DropUnposted(*share);
  SettleIfDone(*share);
}

void RailSender::StopSends(JobTag job, absl::Time now) {
  Unstage(SendResult::kStopped, now, [&](const SendOrder& o) { return o.stream->job == job; });
  transport_.StopSends(job);
}

void RailSender::KnowPeer(PeerIndex peer) {
  if (peer.value() < connections_.size()) return;
  connections_.resize(peer.value() + 1);
  links_.resize(peer.value() + 1);
}

void RailSender::SetPeer(const RailPeer& peer) {
  KnowPeer(peer.peer);
  links_[peer.peer.value()] = peer.link;
  transport_.SetPeer(peer);
}

void RailSender::RemovePeer(PeerIndex peer, absl::Time now) {
  KnowPeer(peer);
  Unstage(SendResult::kStopped, now, [&](const SendOrder& o) { return o.stream->peer == peer; });
  transport_.RemovePeer(peer);
  connections_[peer.value()] = 0;
  links_[peer.value()] = kNoLink;
  EndShares(peer, std::nullopt);
}

template <typename Gone>
void RailSender::Unstage(SendResult result, absl::Time now, Gone gone) {
  std::vector<SendOrder> ended;
  std::erase_if(staged_, [&](const SendOrder& order) {
    if (gone(order)) ended.push_back(order);
    return gone(order);
  });
  for (const SendOrder& order : ended) {
    RailEvent event;
    event.result = result;
    event.cookie = order.cookie;
    OnSendDone(event, now);
  }
}

void RailSender::Stage(Share& share, uint64_t offset_bytes, uint64_t length_bytes, absl::Time now) {
  InFlight in_flight;
  in_flight.share = &share;
  in_flight.chunk.peer = share.stream->peer;
  in_flight.chunk.offset_bytes = offset_bytes;
  in_flight.chunk.length_bytes = length_bytes;
  in_flight.chunk.posted = now;
  if (MayFence(share)) {
    in_flight.weight = std::exchange(share.weight, uint8_t{0});
    in_flight.round = share.round;
    share.fence_under_way = true;
    share.must_fence = false;
  }
  uint64_t cookie = in_flight_.size();
  if (free_cookies_.empty()) {
    in_flight_.push_back(in_flight);
    free_cookies_.reserve(in_flight_.capacity());
  } else {
    cookie = free_cookies_.back();
    free_cookies_.pop_back();
    in_flight_[cookie] = in_flight;
  }
  ++share.outstanding;
  share.has_posted = true;
  staged_.push_back(
      {share.stream, offset_bytes, length_bytes, cookie, share.connection, in_flight.weight, in_flight.round});
}

void RailSender::StageChunk(const RailScheduler::Choice& choice, absl::Time now) {
  Share& share = *QueueOf(choice.tenant, choice.peer, choice.urgent).first;
  Run& run = share.runs[share.first_run];
  const uint64_t offset = run.offset_bytes, length = NextChunkBytes(run.length_bytes, choice.piece_bytes);
  run.offset_bytes += length;
  run.length_bytes -= length;
  share.first_run += run.length_bytes == 0;
  share.unposted_bytes -= length;
  share.must_fence = true;
  share.stream->unposted_bytes[rail_.value()].fetch_sub(length, std::memory_order_relaxed);
  scheduler_.OnPosted(choice.tenant, choice.peer, length, now, choice.urgent);
  if (share.unposted_bytes == 0) Unqueue(share);
  if (share.stream->records != nullptr) share.stream->records[rail_.value()].OnPosted(now);
  Stage(share, offset, length, now);  // the fence travels with the last bytes
}

// True when nothing is left staged.
bool RailSender::PostStaged() {
  if (staged_.empty()) return true;
  const size_t taken = transport_.Post(staged_);
  staged_.erase(staged_.begin(), staged_.begin() + static_cast<ptrdiff_t>(taken));
  return staged_.empty();
}

bool RailSender::Post(absl::Time now) {
  bool any = false;
  while (PostStaged()) {
    while (staged_.size() < kStaged && !fences_.empty()) {
      Share& share = *fences_.back();
      fences_.pop_back();
      share.fences = false;
      if (MayFence(share)) Stage(share, 0, 0, now);
    }
    while (staged_.size() < kStaged) {
      const std::optional<RailScheduler::Choice> choice = scheduler_.Next(now);
      if (!choice.has_value()) break;
      StageChunk(*choice, now);
    }
    if (staged_.empty()) break;
    any = true;
  }
  TellIfDry();
  return any;
}

// Reports only if another rail lags: otherwise the engine need not wake.
void RailSender::TellIfDry() {
  if (!worked_ || scheduler_.unposted_bytes() > 0) return;
  worked_ = false;
  if (!board_.AnyLags()) return;
  RailEvent report;
  report.kind = RailEvent::Kind::kDry;
  reports_.Push(report);
}

void RailSender::OnEvent(const RailEvent& event, absl::Time now) {
  if (event.kind == RailEvent::Kind::kSendDone) return OnSendDone(event, now);
  const bool of_link = event.kind == RailEvent::Kind::kPeerUp || event.kind == RailEvent::Kind::kPeerDown ||
                       event.kind == RailEvent::Kind::kPeerStalled;
  if (of_link) {
    // Events of an earlier link are dropped: RemovePeer() reports no end of a connection, but the transport may still
    // have events of it.
    KnowPeer(event.peer);
    if (event.cookie != links_[event.peer.value()]) return;
  }
  if (event.kind == RailEvent::Kind::kPeerUp) connections_[event.peer.value()] = event.connection;
  if (event.kind != RailEvent::Kind::kPeerDown) return reports_.Push(event);
  Unstage(SendResult::kNotSent, now, [&](const SendOrder& order) { return order.stream->peer == event.peer; });
  reports_.Push(event);
  if (ConnectionTo(event.peer) == event.connection) connections_[event.peer.value()] = 0;
  EndShares(event.peer, event.connection);
}

void RailSender::OnSendDone(const RailEvent& event, absl::Time now) {
  const InFlight done = std::exchange(in_flight_[event.cookie], InFlight{});
  free_cookies_.push_back(event.cookie);
  Share& share = *done.share;
  const uint64_t length = done.chunk.length_bytes;
  const bool acknowledged = event.result == SendResult::kAcknowledged;
  --share.outstanding;
  if (event.result == SendResult::kNotSent || event.result == SendResult::kRailFailed) {
    share.broken = true;
    Unqueue(share);  // until the end of the connection is reported
  }
  if (done.weight > 0) share.fence_under_way = false;
  if (length > 0) {
    scheduler_.OnEnded(share.tenant, share.stream->peer, length, acknowledged, now);
    if (RailRecords* const records = share.stream->records) {
      RailRecords::Chunk chunk = done.chunk;
      chunk.ended = std::max(now, chunk.posted);
      chunk.returned = !acknowledged;
      records[rail_.value()].OnEnded(chunk);
    }
  }
  switch (event.result) {
    case SendResult::kAcknowledged:
      OnAcknowledged(share, done, now);
      break;
    case SendResult::kNotSent:
      if (length > 0) Add(progress_.returned_chunks, 1);
      if (share.dropped) {
        Add(progress_.done_bytes, length);
        break;
      }
      if (length > 0) {
        if (share.first_run == 0) share.runs.insert(share.runs.begin(), ++share.first_run, {});
        share.runs[--share.first_run] = {done.chunk.offset_bytes, length};
        share.unposted_bytes += length;
        share.stream->unposted_bytes[rail_.value()].fetch_add(length, std::memory_order_relaxed);
      }
      if (done.round == share.round) share.weight = static_cast<uint8_t>(share.weight + done.weight);
      break;
    case SendResult::kRailFailed: {
      share.lost = true;
      if (length == 0) break;
      Add(progress_.returned_chunks, 1);
      Add(progress_.done_bytes, length);
      RailEvent lost = ReportOf(RailEvent::Kind::kLost, share);
      lost.offset_bytes = done.chunk.offset_bytes;
      lost.length_bytes = length;
      reports_.Push(lost);
      break;
    }
    default:
      Add(progress_.done_bytes, length);
      ReportFault(share, event);
  }
  if (const std::optional<RailScheduler::Stretch> stretch = scheduler_.TakeStretch()) {
    RailEvent report;
    report.kind = RailEvent::Kind::kStretch;
    report.length_bytes = stretch->bytes;
    report.nanoseconds = absl::ToInt64Nanoseconds(stretch->time);
    reports_.Push(report);
  }
  if (share.ended && share.outstanding == 0) return EndShare(share);
  if (!share.broken) Schedule(share);
  SettleIfDone(share);
}

void RailSender::OnAcknowledged(Share& share, const InFlight& done, absl::Time now) {
  const uint64_t length = done.chunk.length_bytes;
  if (length > 0) {
    Add(progress_.done_bytes, length);
    share.unproven = true;
    Run& carried = share.carried;
    if (carried.length_bytes > 0 && carried.offset_bytes + carried.length_bytes != done.chunk.offset_bytes) {
      ReportCarried(share);
    }
    if (carried.length_bytes == 0) {
      carried.offset_bytes = done.chunk.offset_bytes;
      share.carried_since = now;
    }
    carried.length_bytes += length;
    if (now - share.carried_since >= kCarriedFor) ReportCarried(share);
  }
  if (done.weight == 0) return;
  if (done.round == share.round && !share.must_fence) share.unproven = false;
  RailEvent fence = ReportOf(RailEvent::Kind::kFenceDone, share);
  fence.offset_bytes = share.carried.offset_bytes;
  fence.length_bytes = share.carried.length_bytes;
  share.carried = {};
  fence.weight = done.weight;
  fence.round = done.round;
  if (IsDone(share)) fence.settled = std::exchange(share.unsettled, 0);
  reports_.Push(fence);
}

void RailSender::ReportCarried(Share& share) {
  if (share.carried.length_bytes == 0) return;
  RailEvent report = ReportOf(RailEvent::Kind::kCarried, share);
  report.offset_bytes = share.carried.offset_bytes;
  report.length_bytes = share.carried.length_bytes;
  share.carried = {};
  reports_.Push(report);
}

void RailSender::ReportFault(Share& share, const RailEvent& event) {
  if (!std::exchange(share.faulted, true)) {
    RailEvent fault = ReportOf(RailEvent::Kind::kSendFault, share);
    fault.result = event.result;
    fault.offset_bytes = event.offset_bytes;
    fault.length_bytes = event.length_bytes;
    reports_.Push(fault);
  }
  if (!share.dropped) DropUnposted(share);  // its job fails
}

void RailSender::EndShares(PeerIndex peer, std::optional<uint64_t> connection) {
  std::vector<Share*> hit;
  for (const auto& [stream, share] : shares_) {
    if (stream->peer == peer && share->connection == connection.value_or(share->connection)) hit.push_back(share);
  }
  for (Share* share : hit) {
    if (!connection.has_value()) DropUnposted(*share);
    share->broken = share->ended = true;
    Unqueue(*share);
    // The transport may still have orders that came too late for the connection. The share ends after them.
    if (share->outstanding == 0) EndShare(*share);
  }
}

void RailSender::EndShare(Share& share) {
  ReportCarried(share);
  const SendStream& stream = *share.stream;
  for (size_t i = share.first_run; i < share.runs.size(); ++i) Return(stream, share.runs[i], 0, share.round, 0);
  RailEvent ended = ReportOf(RailEvent::Kind::kShareEnded, share);
  ended.weight = share.weight;
  ended.round = share.round;
  ended.doubtful = share.lost || share.unproven;
  ended.settled = share.unsettled;
  reports_.Push(ended);
  Erase(share);
}

bool RailSender::IsDone(const Share& share) {
  if (share.broken) return false;  // it ends with the connection (EndShare())
  return share.outstanding == 0 && share.unposted_bytes == 0 && share.weight == 0 && !share.must_fence;
}

void RailSender::SettleIfDone(Share& share) {
  if (!IsDone(share)) return;
  ReportCarried(share);
  if (share.unsettled > 0) {
    RailEvent settled = ReportOf(RailEvent::Kind::kSettled, share);
    settled.settled = share.unsettled;
    reports_.Push(settled);
  }
  Erase(share);
}

void RailSender::Erase(Share& share) {
  Unqueue(share);
  if (share.fences) std::erase(fences_, &share);
  shares_.erase(share.stream);
  std::vector<Run> storage = std::move(share.runs);
  storage.clear();
  share = Share{};
  share.runs = std::move(storage);
  free_.push_back(&share);
}

}  // namespace railsd
