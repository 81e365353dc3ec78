#include "agent/jobs/receiving.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

Receiving::Receiving(const ExchangeContext* context, PeerIndex peer)
    : context_(*context), peer_(peer), bindings_(context->traits.binds_zones ? context->rail_count() : 0) {}

void Receiving::SetStream(StreamFlows flows, MemoryRanges memory) {
  flows_ = std::move(flows);
  memory_ = std::move(memory);
}

void Receiving::Open(std::shared_ptr<ReceiveZone> zone) {
  zone_ = std::move(zone);
  zone_->peer = peer_;
  zone_->memory = std::move(memory_);
  context_.zones->Open(zone_);
  context_.board->received(zone_->ref.slot).store(0, std::memory_order_relaxed);
  // Also on rails without a known connection: the peer's end may be up before this node hears of it.
  for (size_t r = 0; r < bindings_.size(); ++r) Bind(r);
}

void Receiving::BindAgain() {
  if (!open()) return;
  for (size_t r = 0; r < bindings_.size(); ++r) {
    if (bindings_[r].state == Binding::kNone && Has(context_.peer(peer_).connected, r)) Bind(r);
  }
}

void Receiving::Bind(size_t rail) {
  bindings_[rail] = {Binding::kOpening};
  (*context_.rails)[rail].Command({.kind = RailCommand::Kind::kOpenZone, .zone = zone_});
}

void Receiving::Unbind(size_t rail, bool writers_stopped) {
  bindings_[rail].state = Binding::kClosing;
  (*context_.rails)[rail].Command(
      {.kind = RailCommand::Kind::kCloseZone, .ref = zone_->ref, .writers_stopped = writers_stopped});
}

bool Receiving::IsBound() const {
  if (!context_.traits.binds_zones) return true;
  return std::any_of(bindings_.begin(), bindings_.end(),
                     [](const RailBinding& binding) { return binding.state == Binding::kOpen; });
}

absl::Status Receiving::OnZoneOpened(RailIndex rail, const RailEvent& event) {
  RailBinding& binding = bindings_[rail.value()];
  if (binding.state != Binding::kOpening) return absl::OkStatus();  // it is being closed
  const bool whole = zone_->keys[rail.value()].size() == zone_->memory.range_count();
  const int error = event.error_number == 0 && !whole ? EPROTO : event.error_number;
  if (error == 0) {
    binding = {Binding::kOpen, event.connection};
    return absl::OkStatus();
  }
  Unbind(rail.value(), /*writers_stopped=*/true);
  if (error == ENOTCONN) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("rail ", rail.value(), " of ", context_.peers->self(),
                                                   " cannot open a zone to ", context_.peer(peer_).node, ": ",
                                                   std::strerror(error)));
}

RailKeys Receiving::KeysOf(size_t rail) {
  bindings_[rail].told = true;
  return {{RailIndex(static_cast<uint32_t>(rail)), bindings_[rail].connection}, zone_->keys[rail]};
}

void Receiving::GiveBack(const std::vector<RailKeys>& keys) {
  for (const RailKeys& rail : keys) bindings_[rail.rail.rail.value()].told = false;
}

std::vector<RailKeys> Receiving::TakeNewKeys() {
  std::vector<RailKeys> keys;
  for (size_t r = 0; r < bindings_.size(); ++r) {
    if (bindings_[r].state == Binding::kOpen && !bindings_[r].told) keys.push_back(KeysOf(r));
  }
  return keys;
}

Grant Receiving::BuildGrant() {
  granted_ = true;
  Grant grant;
  grant.zone = zone_->ref;
  if (!context_.traits.binds_zones) return grant;
  grant.ranges.reserve(zone_->memory.range_count());
  for (const MemoryRanges::Piece& piece : zone_->memory.pieces()) {
    grant.ranges.push_back({reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes});
  }
  grant.keys = TakeNewKeys();
  return grant;
}

absl::Status Receiving::OnFence(const RailEvent& event) {
  if (zone_ == nullptr || closing_ || event.round < round_) return absl::OkStatus();
  const auto contradicts = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat(context_.peer(peer_).node, " sent a fence of weight ", event.weight,
                                            " in round ", event.round,
                                            " that contradicts what it sent before: ", what));
  };
  if (event.peer != peer_) return contradicts("the zone is another node's");
  if (event.round > round_) return contradicts(absl::StrCat("this is round ", round_));
  if (event.weight == 0 || weight_ + event.weight > kWholeWeight) {
    return contradicts(absl::StrCat("the fences before it weigh ", weight_));
  }
  weight_ += event.weight;
  if (weight_ < kWholeWeight) return absl::OkStatus();
  uint64_t landed = 0;
  zone_->ForEachLanding([&](size_t, const Landing& landing) { landed += landing.bytes(); });
  if (!context_.traits.binds_zones && (landed < total_bytes() || (round_ == 0 && landed > total_bytes()))) {
    return contradicts(absl::StrCat(landed, " of ", total_bytes(), " bytes have landed"));
  }
  complete_ = true;
  Close(/*writers_stopped=*/true);
  return absl::OkStatus();
}

absl::Status Receiving::OnReceiveFault(RailIndex rail, const RailEvent& event) const {
  const Rank rank = flows_.At(event.offset_bytes).destination;
  if (event.error_number == 0) {
    return absl::FailedPreconditionError(absl::StrCat("a page of a receive range on ", context_.peers->self(),
                                                      " cannot be written (rank ", rank.value(), ")"));
  }
  return absl::FailedPreconditionError(
      absl::StrCat("rail ", rail.value(), " of ", context_.peers->self(),
                   " cannot read back what it wrote into the memory of a device, so it is not known what has arrived: ",
                   std::strerror(event.error_number)));
}

void Receiving::OnZoneClosed(RailIndex rail) {
  RailBinding& binding = bindings_[rail.value()];
  if (binding.state == Binding::kClosing) binding = {};
}

void Receiving::OnRailDown(RailIndex rail, uint64_t connection) {
  if (bindings_.empty()) return;
  const RailBinding& binding = bindings_[rail.value()];
  if (binding.state == Binding::kOpen && binding.connection == connection) Unbind(rail.value(), true);
}

void Receiving::OnRailUp(RailIndex rail, uint64_t connection) {
  if (bindings_.empty()) return;
  const RailBinding& binding = bindings_[rail.value()];
  if (binding.state == Binding::kOpen && binding.connection != connection) Unbind(rail.value(), true);
}

absl::Status Receiving::BeginRound(uint32_t round_over, const std::vector<RailConnection>& failed) {
  if (round_over != round_) return absl::InternalError(absl::StrCat("round ", round_over, " is not ", round_));
  if (round_ >= context_.traits.max_rounds) {
    return absl::InternalError(absl::StrCat("more than ", context_.traits.max_rounds, " times"));
  }
  ++round_;
  weight_ = 0;
  context_.board->received(zone_->ref.slot).store(0, std::memory_order_relaxed);
  for (const RailConnection& rail : failed) {
    if (rail.rail.value() >= bindings_.size()) continue;
    const RailBinding& binding = bindings_[rail.rail.value()];
    if (binding.state == Binding::kOpen && binding.connection == rail.connection) {
      Unbind(rail.rail.value(), /*writers_stopped=*/false);
    }
  }
  return absl::OkStatus();
}

void Receiving::Close(bool writers_stopped, const std::vector<RailConnection>& failed) {
  if (zone_ == nullptr || closing_) return;
  closing_ = true;
  inside_ = !context_.zones->Close(zone_->ref);
  for (size_t r = 0; r < bindings_.size(); ++r) {
    const RailBinding& binding = bindings_[r];
    if (binding.state != Binding::kOpen && binding.state != Binding::kOpening) continue;
    const bool may_land = std::any_of(failed.begin(), failed.end(), [&](const RailConnection& rail) {
      return rail.rail.value() == r && rail.connection == binding.connection;
    });
    Unbind(r, writers_stopped && !may_land);
  }
}

bool Receiving::FreeIfQuiet(CountLanded count) {
  if (zone_ == nullptr || !closing_ || inside_ || IsBinding()) return false;
  const bool once = round_ == 0;  // nothing is sent twice
  if (!once || !complete_) landed_ = LandedOnce();
  if (once) {
    zone_->ForEachLanding([&](size_t rail, const Landing& landing) { count(rail, landing.bytes(), 0); });
  } else {
    CountRounds(count);
  }
  context_.zones->Release(zone_->ref);
  memory_ = std::move(zone_->memory);  // freed with the job, which may leave it to another thread
  zone_.reset();
  closing_ = false;
  return true;
}

void Receiving::CountRounds(CountLanded count) const {
  BytesByRail known(zone_->landed.size());
  for (const Landed& landed : landed_) known[landed.rail] += landed.end - landed.begin;
  // Bytes of a complete exchange that landed in runs beyond those that were kept.
  const uint64_t sum = std::accumulate(known.begin(), known.end(), uint64_t{0});
  uint64_t missing = complete_ && !context_.traits.binds_zones ? total_bytes() - std::min(total_bytes(), sum) : 0;
  zone_->ForEachLanding([&](size_t rail, const Landing& landing) {
    const uint64_t bytes = landing.bytes();
    const uint64_t more = std::min(missing, bytes - std::min(bytes, known[rail]));
    missing -= more;
    const uint64_t landed = known[rail] + more;
    count(rail, landed, bytes - std::min(bytes, landed));
  });
}

// Stretches that landed over several rails count for the first of them.
std::vector<Receiving::Landed> Receiving::LandedOnce() const {
  if (zone_ == nullptr) return landed_;
  std::vector<Landed> all;
  zone_->ForEachLanding([&](size_t rail, const Landing& landing) {
    for (size_t i = 0; i < landing.runs(); ++i) all.push_back({landing.run(i).begin, landing.run(i).end, rail});
  });
  std::sort(all.begin(), all.end(), [](const Landed& a, const Landed& b) { return a.begin < b.begin; });
  uint64_t until = 0;
  for (Landed& landed : all) {
    landed.begin = std::max(landed.begin, until);
    landed.end = std::min(landed.end, total_bytes());
    until = std::max(until, landed.end);
  }
  std::erase_if(all, [](const Landed& landed) { return landed.begin >= landed.end; });
  return all;
}

void Receiving::AddLanding(BytesByRail* by_rail) const {
  if (zone_ == nullptr) return;
  if (round_ == 0) {
    return zone_->ForEachLanding([&](size_t rail, const Landing& landing) { (*by_rail)[rail] += landing.bytes(); });
  }
  for (const Landed& landed : LandedOnce()) (*by_rail)[landed.rail] += landed.end - landed.begin;
}

void Receiving::ForEachLanded(absl::FunctionRef<void(Rank, uint64_t)> visit) const {
  for (const Landed& landed : LandedOnce()) {
    flows_.ForEach(landed.begin, landed.end - landed.begin,
                   [&](const StreamFlow& flow, uint64_t bytes) { visit(flow.destination, bytes); });
  }
}

}  // namespace railsd
