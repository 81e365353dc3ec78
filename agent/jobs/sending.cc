#include "agent/jobs/sending.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/jobs/node_job.h"

namespace railsd {
namespace {

// Each question for keys costs a round, and rounds are few.
constexpr absl::Duration kBetweenKeys = absl::Milliseconds(50);

}  // namespace

Sending::Sending(const ExchangeContext* context, NodeJob* job, PeerIndex peer)
    : context_(*context),
      job_(job),
      stream_{.job = job->tag,
              .peer = peer,
              .memory = {},
              .zone = {},
              .sending = this,
              .unposted_bytes = SendStream::CountByRail(context->rail_count())},
      rails_(context->rail_count()) {}

void Sending::SetStream(StreamFlows flows, MemoryRanges memory) {
  flows_ = std::move(flows);
  stream_.memory = std::move(memory);
}

bool Sending::HasKeys(size_t rail) const {
  if (!context_.traits.binds_zones) return true;
  const uint64_t connection = rails_[rail].key_connection;
  return connection != 0 && connection == context_.peer(peer()).rails[rail].connection;
}

RailMask Sending::Usable() const {
  RailMask usable = context_.traits.binds_zones ? 0 : ~RailMask{0};
  for (size_t r = 0; r < rails_.size() && usable != ~RailMask{0}; ++r) usable |= HasKeys(r) ? RailBit(r) : 0;
  return usable & ~(doubt_ | asking_);
}

absl::Status Sending::TakeKeys(const RailKeys& keys) {
  const size_t rail = keys.rail.rail.value();
  if (!context_.traits.binds_zones) return absl::InternalError("keys; rails over TCP need such rails at both ends");
  if (rail >= rails_.size()) return absl::OkStatus();  // a rail that this node lacks
  if (keys.keys.size() != stream_.remote.pieces.size()) {
    return absl::InternalError(
        absl::StrCat(keys.keys.size(), " keys of rail ", rail, " for ", stream_.remote.pieces.size(), " ranges"));
  }
  // The rail's thread reads the keys that it has, unless its connection has ended.
  if (rails_[rail].unsettled > 0 && !IsEnding(rail)) {
    return absl::InternalError(absl::StrCat("keys of rail ", rail, ", which is in use"));
  }
  stream_.remote.keys[rail] = keys.keys;
  rails_[rail].key_connection = keys.rail.connection;
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
  if (context_.traits.binds_zones) stream_.remote.keys.resize(rails_.size());
  for (const RailKeys& keys : grant.keys) {
    if (absl::Status s = TakeKeys(keys); !s.ok()) return s;
  }
  stream_.zone = grant.zone;
  granted_ = true;
  return absl::OkStatus();
}

void Sending::Start(absl::Span<const PlanRun> runs, bool by_flow) {
  started_ = true;
  stream_.number = context_.board->TakeNumber();
  stream_.urgent = job_->urgent;
  stream_.records = job_->recorder == nullptr ? nullptr : job_->recorder->rails();
  context_.board->sent(stream_.number).store(0, std::memory_order_relaxed);
  const auto begin = [&](const PlanRun& run) {
    return run.offset_bytes + (by_flow ? flows_[run.flow].begin_bytes : 0);
  };
  if (runs.size() == 1) return Give(runs[0].rail.value(), begin(runs[0]), runs[0].length_bytes, kWholeWeight);
  for (const PlanRun& run : runs) pool_.push_back({begin(run), run.length_bytes, run.rail.value()});
  GivePool(0, 0, kWholeWeight);
}

bool Sending::IsEnding(size_t rail) const {
  const Peer& now = context_.peer(peer());
  return rails_[rail].unsettled > 0 &&
         (!Has(now.connected, rail) || now.rails[rail].connection != rails_[rail].connection);
}

bool Sending::AnyEnding() const {
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (IsEnding(r)) return true;
  }
  return false;
}

size_t Sending::LeastLoaded(RailMask rails, const uint64_t* more) const {
  size_t best = rails_.size();
  double least = 0;
  for (; rails != 0; rails &= rails - 1) {
    const auto r = static_cast<size_t>(std::countr_zero(rails));
    const RailHandle& rail = (*context_.rails)[r];
    const uint64_t bytes = rail.backlog_bytes() + (more == nullptr ? 0 : more[r]);
    const double load = static_cast<double>(bytes) / std::max(1.0, rail.speed_bytes_per_s);
    if (best != rails_.size() && load >= least) continue;
    best = r;
    least = load;
  }
  return best;
}

void Sending::Give(size_t r, uint64_t offset_bytes, uint64_t length_bytes, uint32_t weight) {
  RailPart& part = rails_[r];
  RailHandle& rail = (*context_.rails)[r];
  const uint64_t connection = context_.peer(peer()).rails[r].connection;
  const bool carried = connection == part.connection && part.round != round_;
  part.connection = connection;
  part.round = round_;
  ++part.unsettled;
  ++unsettled_;
  stingy_ &= ~RailBit(r);
  rail.given_bytes += length_bytes;
  stream_.unposted_bytes[r].fetch_add(length_bytes, std::memory_order_relaxed);
  const Assignment give = {.stream = &stream_,
                           .connection = part.connection,
                           .offset_bytes = offset_bytes,
                           .length_bytes = length_bytes,
                           .tenant = static_cast<uint32_t>(job_->tenant->index()),
                           .place = context_.peers->PlaceOf(peer()),
                           .round = round_,
                           .weight = static_cast<uint8_t>(weight),
                           .carried = carried};
  rail.Command({.kind = RailCommand::Kind::kGive, .give = give});
}

// Gives the stretches of the pool to the rails that they name, or, if `rails` is not empty, to the least loaded of
// `rails`. Divides `weight` among these rails and `also`, and gives it with the last stretch of each. Every rail that
// posts must fence, so there are no more rails than weight, unless weight stays behind at a rail in doubt and the round
// cannot end.
void Sending::GivePool(RailMask rails, RailMask also, uint32_t weight) {
  RailMask used = also;
  std::array<uint64_t, kMaxMaskedRails> more = {};
  for (Stretch& stretch : pool_) {
    if (rails != 0) {
      const bool full = weight > 0 && static_cast<uint32_t>(std::popcount(used)) >= weight;
      const RailMask among = full && (used & rails) != 0 ? used & rails : rails;
      const bool moves = move_to_.has_value() && (among & RailBit(*move_to_)) != 0;
      stretch.rail = moves ? *move_to_ : LeastLoaded(among, more.data());
      more[stretch.rail] += stretch.length_bytes;
    }
    used |= RailBit(stretch.rail);
  }
  const auto count = static_cast<uint32_t>(std::popcount(used));
  const uint32_t each = count == 0 ? 0 : weight / count;
  uint32_t first = weight - each * count;
  const auto weigh = [&] { return each + std::exchange(first, 0u); };
  for (size_t i = 0; i < pool_.size(); ++i) {
    const Stretch& stretch = pool_[i];
    const bool last = std::none_of(pool_.begin() + static_cast<ptrdiff_t>(i) + 1, pool_.end(),
                                   [&](const Stretch& later) { return later.rail == stretch.rail; });
    Give(stretch.rail, stretch.offset_bytes, stretch.length_bytes, last ? weigh() : 0);
    used &= last ? ~RailBit(stretch.rail) : ~RailMask{0};
  }
  pool_.clear();
  for (; used != 0; used &= used - 1) Give(static_cast<size_t>(std::countr_zero(used)), 0, 0, weigh());
}

void Sending::GoOn() {
  if (!started_ || over_ || stopped_ || releasing_ || AnyEnding()) return;
  if (spread_due_) return Spread();
  const RailMask targets = Targets();
  if (targets != 0 && (!pool_.empty() || pool_weight_ > 0)) {
    if (pool_.empty()) {
      Give(LeastLoaded(targets), 0, 0, std::exchange(pool_weight_, 0));
    } else {
      GivePool(targets, 0, std::exchange(pool_weight_, 0));
    }
  }
  move_to_.reset();
  LeaveUnusable();
}

// A new round: living rails keep their stretches, and all of them fence, even if they have fenced before.
void Sending::Spread() {
  if (asked_ || doubt_ != 0) return;  // the receiver is asked about the next failure first
  const RailMask targets = Targets();
  if (targets == 0) return;
  RailMask living = 0;  // over the connection that they were given work for
  for (size_t r = 0; r < rails_.size(); ++r) {
    living |= context_.peer(peer()).rails[r].connection == rails_[r].connection ? RailBit(r) : 0;
  }
  living &= context_.peer(peer()).connected;
  for (const Lost& lost : std::exchange(lost_, {})) {
    pool_.push_back({lost.offset_bytes, lost.length_bytes, 0});
    job_->resent_bytes += lost.length_bytes;
  }
  if (pool_.empty() && living == 0) living = RailBit(LeastLoaded(targets));
  spread_due_ = false;
  pool_weight_ = 0;
  context_.board->sent(stream_.number).store(0, std::memory_order_relaxed);
  move_to_.reset();
  GivePool(targets, living, kWholeWeight);
  LeaveUnusable();
}

void Sending::AskBack(size_t r, uint64_t bytes) {
  releasing_ = true;
  release_from_ = r;
  gave_ = false;
  ++rails_[r].unsettled;  // the question names the stream
  ++unsettled_;
  (*context_.rails)[r].Command(
      {.kind = RailCommand::Kind::kRelease, .give = {.stream = &stream_}, .release_bytes = bytes});
}

void Sending::LeaveUnusable() {
  const RailMask targets = Targets();
  for (size_t r = 0; r < rails_.size() && targets != 0; ++r) {
    if (Has(targets | kept_, r) || rails_[r].unsettled == 0) continue;
    if (stream_.unposted_bytes[r].load(std::memory_order_relaxed) == 0) continue;
    kept_ |= RailBit(r);  // asked once
    return AskBack(r, UINT64_MAX);
  }
}

bool Sending::MayMove(size_t from) const {
  const bool busy = releasing_ || spread_due_ || asked_ || (stingy_ & RailBit(from)) != 0;
  return started_ && !over_ && !stopped_ && !busy && !AnyEnding();
}

bool Sending::Move(size_t from, size_t to, uint64_t bytes) {
  if (!MayMove(from)) return false;
  move_to_ = to;
  AskBack(from, bytes);
  return true;
}

void Sending::OnPathsChanged() {
  kept_ = 0;
  GoOn();
}

void Sending::OnReport(RailIndex rail, const RailEvent& report) {
  RailPart& part = rails_[rail.value()];
  part.unsettled -= report.settled;
  unsettled_ -= report.settled;
  const bool running = !over_ && !stopped_;
  const bool of_round = report.round == round_ && !spread_due_;
  switch (report.kind) {
    case RailEvent::Kind::kCarried:
    case RailEvent::Kind::kFenceDone:
      if (report.length_bytes > 0) {
        fruitless_rounds_ = 0;
        fruitless_since_ = absl::InfiniteFuture();
      }
      // An answer may begin another round: fences of this one prove nothing while it is awaited.
      if (!of_round || asked_ || !running) return;
      acknowledged_weight_ += report.weight;
      over_ = acknowledged_weight_ == kWholeWeight;
      if (over_) doubt_ = 0;
      return;
    case RailEvent::Kind::kReturned:
      if (!running) return;
      gave_ = true;
      if (report.length_bytes > 0) pool_.push_back({report.offset_bytes, report.length_bytes, 0});
      // Weight stays behind with what a failure leaves in doubt.
      if (of_round && ((doubt_ | asking_) & RailBit(rail.value())) == 0) pool_weight_ += report.weight;
      break;
    case RailEvent::Kind::kReleased:
      releasing_ = false;
      if (!gave_) stingy_ |= RailBit(release_from_);
      break;
    case RailEvent::Kind::kLost:
      if (running) lost_.push_back({rail, report.offset_bytes, report.length_bytes});
      return;
    case RailEvent::Kind::kShareEnded:
      if (!running) return;
      if (report.doubtful) {
        doubt_ |= RailBit(rail.value());
        doubtful_.push_back({rail, report.connection});
      } else if (of_round) {
        pool_weight_ += report.weight;
      }
      break;
    default:
      break;
  }
  GoOn();
}

void Sending::OnRailDown(RailIndex rail, uint64_t connection) {
  if (!started_ || rails_[rail.value()].connection != connection) return;
  // A message takes no more. The oldest have been named in REHOMEs, and the receiver has ended their connections.
  if (failed_.size() == RailConnection::kMaxFailed) failed_.erase(failed_.begin());
  failed_.push_back({rail, connection});
  // The rail's bytes were fenced in a round that is over, so they are in doubt again. If the rail still has a share,
  // kShareEnded reports it.
  const RailPart& part = rails_[rail.value()];
  if (over_ || stopped_ || part.unsettled > 0 || part.round == round_) return;
  doubt_ |= RailBit(rail.value());
  doubtful_.push_back({rail, connection});
}

bool Sending::NeedsKeys() const {
  if (!context_.traits.binds_zones || !granted_ || over() || asked_ || doubt_ != 0) return false;
  const RailMask connected = context_.peer(peer()).connected;
  return connected != 0 && (connected & Usable()) == 0;
}

bool Sending::MayAsk() const { return !asked_ && !over_ && !AnyEnding() && (doubt_ != 0 || NeedsKeys()); }

Rehome::Exchange Sending::Ask(std::vector<RailConnection>* failed) {
  if (doubt_ == 0) keys_wanted_at_ = job_->now() + kBetweenKeys;
  asked_ = true;
  asking_ = std::exchange(doubt_, 0);
  for (const RailConnection& rail : std::exchange(doubtful_, {})) {
    if (std::find(failed->begin(), failed->end(), rail) == failed->end()) failed->push_back(rail);
  }
  return {job_->key, round_};
}

absl::Status Sending::OnAnswer(const Rehomed::Exchange& answer) {
  asked_ = false;
  asking_ = 0;
  switch (answer.state) {
    case Rehomed::State::kAborted:
      return absl::UnavailableError("the receiver has aborted it and did not say why");
    case Rehomed::State::kComplete: {
      uint64_t unposted = started_ ? 0 : total_bytes();
      for (const auto& bytes : stream_.unposted_bytes) unposted += bytes.load(std::memory_order_relaxed);
      for (const Stretch& stretch : pool_) unposted += stretch.length_bytes;
      if (unposted > 0) {
        return absl::InternalError(absl::StrCat("it has everything, though ", unposted, " bytes were not sent"));
      }
      over_ = true;
      doubt_ = 0;
      Stop();
      return absl::OkStatus();
    }
    case Rehomed::State::kOpen:
      break;
  }
  if (answer.round != round_ + 1) {
    return absl::InternalError(absl::StrCat("round ", answer.round, " does not follow round ", round_));
  }
  for (const RailKeys& keys : answer.keys) {
    if (absl::Status s = TakeKeys(keys); !s.ok()) return s;
  }
  round_ = answer.round;
  acknowledged_weight_ = 0;
  pool_weight_ = 0;
  spread_due_ = started_;
  if (fruitless_rounds_++ == 0) fruitless_since_ = job_->now();
  GoOn();
  return absl::OkStatus();
}

void Sending::Stop() {
  if (std::exchange(stopped_, true)) return;
  pool_.clear();
  for (size_t r = 0; r < rails_.size(); ++r) {
    if (rails_[r].unsettled == 0) continue;
    (*context_.rails)[r].Command({.kind = RailCommand::Kind::kDrop, .give = {.stream = &stream_}});
  }
}

void Sending::GiveUp() {
  over_ = true;
  asked_ = false;
  doubt_ = asking_ = 0;
  lost_.clear();
  Stop();
}

}  // namespace railsd
