#include "tests/support/fake/faulty_transport.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace railsd {
namespace {

using Kind = RailEvent::Kind;

bool IsArrival(Kind kind) { return kind == Kind::kFence; }
bool IsZone(Kind kind) { return kind == Kind::kZoneOpened || kind == Kind::kZoneClosed || kind == Kind::kZoneQuiet; }
bool IsReceiving(Kind kind) { return IsArrival(kind) || IsZone(kind) || kind == Kind::kReceiveFault; }
bool IsLink(Kind kind) { return kind == Kind::kLinkDown || kind == Kind::kLinkUp; }

}  // namespace

FaultyTransport::FaultyTransport(std::unique_ptr<RailTransport> inner, uint64_t seed, const FaultRates& rates,
                                 std::function<void(PeerIndex)> break_link)
    : inner_(std::move(inner)), random_(seed), rates_(rates), break_link_(std::move(break_link)) {}

bool FaultyTransport::Draw(uint32_t per_thousand) { return per_thousand > 0 && random_() % 1000 < per_thousand; }

void FaultyTransport::SetPeer(const RailPeer& peer) {
  peers_.insert(peer.peer);
  inner_->SetPeer(peer);
}

void FaultyTransport::RemovePeer(PeerIndex peer) {
  peers_.erase(peer);
  inner_->RemovePeer(peer);
  EndLost([&](const RailEvent& event) { return event.peer == peer; }, SendResult::kStopped);
}

void FaultyTransport::StopSends(JobTag job) {
  inner_->StopSends(job);
  EndLost([&](const RailEvent& event) { return event.kind == Kind::kSendDone && event.job == job; },
          SendResult::kStopped);
}

size_t FaultyTransport::Post(absl::Span<const SendOrder> orders) {
  size_t limit = orders.size();
  if (limit > 0 && Draw(rates_.part_of_post)) {
    limit = random_() % limit;
    ++counts_.parts_of_posts;
  }
  for (size_t i = 0; i < limit; ++i) {
    const bool fails = fail_post_ == 0 || Draw(rates_.failed_post);
    if (fails) {
      FailOrder(orders[i]);
    } else if (inner_->Post(orders.subspan(i, 1)) == 0) {
      return i;
    }
    if (fail_post_ != kNever) --fail_post_;  // past 0: never again
  }
  return limit;
}

void FaultyTransport::FailOrder(const SendOrder& order) {
  ++counts_.failed_posts;
  held_.push_back({DoneEvent(order, SendResult::kNotSent, ENOMEM), polls_});
  break_link_(order.stream->peer);
}

void FaultyTransport::Take(const RailEvent& event) {
  const bool acknowledged = event.kind == Kind::kSendDone && event.result == SendResult::kAcknowledged;
  if (acknowledged && Draw(rates_.lost_sends)) {
    ++counts_.lost_sends;
    return lost_.push_back(event);
  }
  if (IsArrival(event.kind) && Draw(rates_.lost_arrivals)) {
    ++counts_.lost_arrivals;
    return;
  }
  if (event.kind == Kind::kPeerDown) {
    EndLost([&](const RailEvent& lost) { return lost.peer == event.peer; }, SendResult::kRailFailed);
    // Nothing may be done for the next connection before this one's end is told, and so is what it had carried.
    for (Held& held : held_) held.due_poll = polls_;
    held_.push_back({event, polls_});
    ++ends_;
    return;
  }
  const auto due = [&] {
    if (!Draw(rates_.late)) return polls_;
    ++counts_.late;
    return polls_ + 1 + random_() % rates_.late_polls;
  };
  held_.push_back({event, due()});
  if (!IsArrival(event.kind) || !Draw(rates_.repeated_arrivals)) return;
  ++counts_.repeated_arrivals;
  held_.push_back({event, due()});
}

void FaultyTransport::EndLost(const std::function<bool(const RailEvent&)>& which, SendResult result) {
  const auto end = std::stable_partition(lost_.begin(), lost_.end(), [&](const RailEvent& e) { return !which(e); });
  for (auto it = end; it != lost_.end(); ++it) {
    it->result = result;
    held_.push_back({*it, polls_});
  }
  lost_.erase(end, lost_.end());
}

// The order that the contract promises, and that engines may rely on.
bool FaultyTransport::MustPrecede(const RailEvent& earlier, const RailEvent& later) const {
  if (IsLink(earlier.kind) || IsLink(later.kind)) return true;
  const bool sends = earlier.kind == Kind::kSendDone || later.kind == Kind::kSendDone;
  const bool data = (sends || IsArrival(earlier.kind)) && (later.kind == Kind::kSendDone || IsArrival(later.kind));
  if (data) return false;
  // Zones: what lands in them is told between their two events, and their keys end with the connection.
  if (IsZone(earlier.kind) || IsZone(later.kind)) return !sends;
  if (IsReceiving(earlier.kind) && IsReceiving(later.kind)) return false;
  return earlier.peer == later.peer;  // what is left is about connections
}

bool FaultyTransport::MayBeTold(size_t index) const {
  if (held_[index].due_poll > polls_) return false;
  for (size_t i = 0; i < index; ++i) {
    if (!rates_.shuffled || MustPrecede(held_[i].event, held_[index].event)) return false;
  }
  return true;
}

size_t FaultyTransport::Poll(absl::Duration max_wait, absl::Span<RailEvent> out) {
  if (out.empty()) return inner_->Poll(max_wait, out);
  ++polls_;
  if (!peers_.empty() && Draw(rates_.broken)) {
    ++counts_.broken;
    break_link_(*std::next(peers_.begin(), static_cast<std::ptrdiff_t>(random_() % peers_.size())));
  }
  fresh_.resize(out.size());
  const absl::Duration wait = held_.empty() ? max_wait : absl::ZeroDuration();
  const size_t n = ends_ > 0 ? 0 : inner_->Poll(wait, absl::MakeSpan(fresh_));
  for (size_t i = 0; i < n; ++i) Take(fresh_[i]);
  size_t told = 0;
  std::vector<size_t> candidates;
  while (told < out.size()) {
    candidates.clear();
    for (size_t i = 0; i < held_.size() && (rates_.shuffled || i == 0); ++i) {
      if (MayBeTold(i)) candidates.push_back(i);
    }
    if (candidates.empty()) break;
    const size_t chosen = candidates[rates_.shuffled ? random_() % candidates.size() : 0];
    out[told] = held_[chosen].event;
    if (out[told++].kind == Kind::kPeerDown) --ends_;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(chosen));
  }
  return told;
}

}  // namespace railsd
