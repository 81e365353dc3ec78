#include "agent/jobs/sending.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/node_job.h"
#include "agent/rails/sprayer.h"

namespace railsd {
namespace {

// Each question for keys costs a round, and rounds are few.
constexpr absl::Duration kBetweenKeys = absl::Milliseconds(50);

}  // namespace

Sending::Sending(const ExchangeContext* context, NodeJob* job, PeerIndex peer)
    : context_(*context),
      job_(job),
      key_connections_(context->rail_count()),
      posted_bytes_(context->rail_count()),
      outstanding_(context->rail_count()) {
  stream_.job = job->tag;
  stream_.peer = peer;
}

void Sending::SetStream(StreamFlows flows, MemoryRanges memory) {
  flows_ = std::move(flows);
  stream_.memory = std::move(memory);
  stream_.left_bytes.store(total_bytes(), std::memory_order_relaxed);
}

bool Sending::HasKeys(size_t rail) const {
  if (!context_.traits.binds_zones) return true;
  return key_connections_[rail] != 0 && key_connections_[rail] == context_.peer(peer()).rails[rail].connection;
}

RailMask Sending::Usable() const {
  RailMask usable = 0;
  for (size_t r = 0; r < key_connections_.size(); ++r) usable |= HasKeys(r) ? RailBit(r) : 0;
  return usable & ~(doubt_ | asking_);
}

absl::Status Sending::TakeKeys(const RailKeys& keys) {
  const size_t rail = keys.rail.rail.value();
  if (rail >= key_connections_.size()) return absl::OkStatus();  // a rail that this node lacks
  if (keys.keys.size() != stream_.remote.pieces.size()) {
    return absl::InternalError(
        absl::StrCat(keys.keys.size(), " keys of rail ", rail, " for ", stream_.remote.pieces.size(), " ranges"));
  }
  // While orders are under way the rail reads the keys that it has.
  if (outstanding_[rail] > 0) return absl::InternalError(absl::StrCat("keys of rail ", rail, ", which is in use"));
  stream_.remote.keys[rail] = keys.keys;
  key_connections_[rail] = keys.rail.connection;
  return absl::OkStatus();
}

absl::Status Sending::TakeGrant(const Grant& grant) {
  if (granted_) return absl::InternalError("a second grant");
  if (context_.traits.binds_zones && grant.ranges.empty()) {
    return absl::InternalError("a grant without ranges and keys; rails over RDMA verbs need such rails at both ends");
  }
  if (!context_.traits.binds_zones && !grant.ranges.empty()) {
    return absl::InternalError("a grant with keys; rails over TCP need such rails at both ends");
  }
  uint64_t offset = 0;
  stream_.remote.pieces.reserve(grant.ranges.size());
  for (const Grant::Range& range : grant.ranges) {
    if (range.length_bytes == 0 || range.length_bytes > total_bytes() - offset) break;
    stream_.remote.pieces.push_back({offset, range.address, range.length_bytes});
    offset += range.length_bytes;
  }
  if (!grant.ranges.empty() && (offset != total_bytes() || stream_.remote.pieces.size() != grant.ranges.size())) {
    return absl::InternalError(absl::StrCat("its ranges do not cover the ", total_bytes(), " bytes exactly"));
  }
  stream_.remote.keys.resize(key_connections_.size());
  for (const RailKeys& keys : grant.keys) {
    if (absl::Status s = TakeKeys(keys); !s.ok()) return s;
  }
  stream_.zone = grant.zone;
  granted_ = true;
  return absl::OkStatus();
}

void Sending::Start(absl::Span<const PlanRun> runs, bool by_flow) {
  started_ = true;
  unposted_bytes_ = total_bytes();
  for (const PlanRun& run : runs) {
    const uint64_t begin = by_flow ? flows_.all()[run.flow].begin_bytes : 0;
    context_.sprayer->Queue(this, run.rail.value(), begin + run.offset_bytes, run.length_bytes);
  }
}

uint8_t Sending::WeightOf(size_t rail, RailMask rails) {
  const auto count = static_cast<uint32_t>(std::popcount(rails));
  const uint32_t each = kWholeWeight / count;
  const bool first = static_cast<size_t>(std::countr_zero(rails)) == rail;
  return static_cast<uint8_t>(first ? kWholeWeight - each * (count - 1) : each);
}

bool Sending::OnPosted(size_t rail, uint64_t length_bytes, bool fence) {
  unposted_bytes_ -= length_bytes;
  posted_bytes_[rail] += length_bytes;
  used_ |= RailBit(rail);
  ++outstanding_[rail];
  if (fence) fence_under_way_ |= RailBit(rail);
  fences_out_ = unposted_bytes_ == 0;
  return fences_out_;
}

void Sending::OnFencePosted(size_t rail) {
  ++outstanding_[rail];
  fence_under_way_ |= RailBit(rail);
}

void Sending::Settle(const Ended& order) {
  --outstanding_[order.rail.value()];
  if (order.weight > 0) fence_under_way_ &= ~RailBit(order.rail.value());
}

void Sending::OnAcknowledged(const Ended& order) {
  const RailMask bit = RailBit(order.rail.value());
  Settle(order);
  if (order.length_bytes > 0) {
    fruitless_rounds_ = 0;
    fruitless_since_ = absl::InfiniteFuture();
  }
  // The answer may begin another round: fences of this one prove nothing while it is awaited.
  if (order.weight == 0 || order.round != round_ || asked_ || over_) return;
  fenced_ |= bit;
  acknowledged_weight_ += order.weight;
  over_ = acknowledged_weight_ == kWholeWeight;
  if (over_) doubt_ = 0;
}

void Sending::OnNotSent(const Ended& order, bool again) {
  const size_t rail = order.rail.value();
  Settle(order);
  if (over_ || !again) return;
  if (fences_out_) {  // the other rails say that nothing is left to be posted
    if (order.length_bytes > 0) lost_.push_back({order.rail, order.offset_bytes, order.length_bytes});
    if (order.length_bytes > 0 || order.round == round_) doubt_ |= RailBit(rail);
    return;
  }
  if (order.length_bytes == 0) return;  // a fence of a round that is over
  posted_bytes_[rail] -= order.length_bytes;
  const bool in_doubt = ((doubt_ | asking_) & RailBit(rail)) != 0;  // it keeps its weight back until the answer
  if (posted_bytes_[rail] == 0 && outstanding_[rail] == 0 && !in_doubt) used_ &= ~RailBit(rail);
  unposted_bytes_ += order.length_bytes;
  Requeue(order.offset_bytes, order.length_bytes);
}

void Sending::OnLost(const Ended& order) {
  Settle(order);
  if (over_) return;
  if (order.length_bytes > 0) lost_.push_back({order.rail, order.offset_bytes, order.length_bytes});
  if (order.length_bytes > 0 || order.round == round_) doubt_ |= RailBit(order.rail.value());
}

void Sending::Requeue(uint64_t offset_bytes, uint64_t length_bytes) {
  const RailMask usable = Usable();
  const RailMask all = ~RailMask{0} >> (kMaxMaskedRails - key_connections_.size());
  context_.sprayer->Queue(this, context_.sprayer->LeastQueued(usable != 0 ? usable : all, peer()), offset_bytes,
                          length_bytes);
}

void Sending::OnRailDown(RailIndex rail, uint64_t connection) {
  if (!started_) return;
  const RailMask bit = RailBit(rail.value());
  if (posted_bytes_[rail.value()] == 0 && (used_ & bit) == 0) return;
  // More than a message takes: the first have been named in REHOMEs, and their connections are ended.
  if (failed_.size() == RailConnection::kMaxFailed) failed_.erase(failed_.begin());
  failed_.push_back({rail, connection});
  if (over_ || (used_ & bit) == 0) return;
  const bool lost = std::any_of(lost_.begin(), lost_.end(), [&](const Lost& l) { return l.rail == rail; });
  if ((fenced_ & bit) != 0 && !lost) {  // all that it carried is in memory, and the receiver has been told so
    used_ &= ~bit;
    return;
  }
  doubt_ |= bit;
  doubtful_.push_back({rail, connection});
}

bool Sending::NeedsKeys() const {
  if (!context_.traits.binds_zones || !granted_ || over() || asked_ || doubt_ != 0) return false;
  const RailMask connected = context_.peer(peer()).Connected();
  return connected != 0 && (connected & Usable()) == 0;
}

bool Sending::MayAsk() const {
  if (asked_ || over_) return false;
  for (RailMask doubt = doubt_; doubt != 0; doubt &= doubt - 1) {
    const auto rail = static_cast<uint32_t>(std::countr_zero(doubt));
    // The end of its connection, which must be named, is told after the last of its orders.
    const bool named = std::any_of(doubtful_.begin(), doubtful_.end(),
                                   [&](const RailConnection& failed) { return failed.rail == RailIndex(rail); });
    if (outstanding_[rail] > 0 || !named) return false;
  }
  return doubt_ != 0 || NeedsKeys();
}

Rehome::Exchange Sending::Ask(std::vector<RailConnection>* failed) {
  if (doubt_ == 0) keys_wanted_at_ = job_->now() + kBetweenKeys;
  asked_ = true;
  asking_ = std::exchange(doubt_, 0);
  for (const RailConnection& rail : std::exchange(doubtful_, {})) {
    if (std::find(failed->begin(), failed->end(), rail) == failed->end()) failed->push_back(rail);
  }
  return {job_->key, round_};
}

absl::Status Sending::OnAnswer(const Rehomed::Exchange& answer, std::vector<Lost>* arrived) {
  asked_ = false;
  const RailMask asked_about = std::exchange(asking_, 0);
  switch (answer.state) {
    case Rehomed::State::kAborted:
      return absl::UnavailableError("the receiver has aborted it and did not say why");
    case Rehomed::State::kComplete:
      if (unposted_bytes_ > 0) {
        return absl::InternalError(absl::StrCat("it has everything, though ", unposted_bytes_, " bytes were not sent"));
      }
      over_ = true;
      doubt_ = 0;
      context_.sprayer->DropFences(this);
      *arrived = std::exchange(lost_, {});
      return absl::OkStatus();
    case Rehomed::State::kOpen:
      break;
  }
  if (answer.round != round_ + 1) {
    return absl::InternalError(absl::StrCat("round ", answer.round, " does not follow round ", round_));
  }
  for (const RailKeys& keys : answer.keys) {
    if (absl::Status s = TakeKeys(keys); !s.ok()) return s;
  }
  context_.sprayer->DropFences(this);
  round_ = answer.round;
  acknowledged_weight_ = 0;
  fenced_ = 0;
  fences_out_ = false;
  used_ &= ~(asked_about & ~doubt_);  // a rail that is in doubt again keeps its weight back
  if (fruitless_rounds_++ == 0) fruitless_since_ = job_->now();
  // Another rail has failed meanwhile: the receiver is asked about it first.
  if (started_ && doubt_ == 0) BeginRound();
  return absl::OkStatus();
}

// Living rails keep what they carried, and fence again.
void Sending::BeginRound() {
  const RailMask usable = Usable();
  waiting_ = (context_.peer(peer()).Connected() & usable) == 0;
  if (waiting_) return;
  for (const Lost& lost : std::exchange(lost_, {})) {
    unposted_bytes_ += lost.length_bytes;
    posted_bytes_[lost.rail.value()] -= lost.length_bytes;
    Requeue(lost.offset_bytes, lost.length_bytes);
  }
  if (unposted_bytes_ > 0) return;  // fences follow the last of it
  if (used_ == 0) used_ = RailBit(context_.sprayer->LeastQueued(usable, peer()));
  fences_out_ = true;
  context_.sprayer->QueueFences(this, used_);
}

void Sending::Resume() {
  if (waiting_ && !asked_ && doubt_ == 0 && !over_) BeginRound();
}

void Sending::GiveUp() {
  over_ = true;
  asked_ = waiting_ = false;
  doubt_ = asking_ = 0;
  lost_.clear();
  context_.sprayer->Drop(this);
}

uint64_t Sending::outstanding_orders() const {
  return std::accumulate(outstanding_.begin(), outstanding_.end(), uint64_t{0});
}

}  // namespace railsd
