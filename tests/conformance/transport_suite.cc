#include "tests/conformance/transport_suite.h"

#include <dirent.h>

#include <algorithm>
#include <utility>

#include "tests/support/seeds.h"
#include "tests/support/until.h"

namespace railsd::testing {
namespace {

size_t OpenDescriptors() {
  DIR* directory = ::opendir("/proc/self/fd");
  size_t count = 0;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

constexpr uint64_t kFenceCookie = uint64_t{1} << 63;

// Where a flow lands, as the receiver's READY would tell it.
void FillRemote(const ReceiveSet& set, size_t zone, size_t rail, RemoteZone* remote) {
  size_t key = 0;
  for (size_t z = 0; z < zone; ++z) key += set.zones[z].range_count();
  remote->pieces.clear();
  remote->keys.assign(rail, 0);  // of the rails before this one
  remote->fence = set.fences[zone];
  for (const MemoryRanges::Piece& piece : set.zones[zone].pieces()) {
    const auto first_key = static_cast<uint32_t>(remote->pieces.size());
    remote->pieces.push_back(
        {piece.flow_offset_bytes, reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes, first_key});
    remote->keys.push_back(set.keys[rail][key++]);
  }
}

}  // namespace

void TransportSuite::End::Send(PeerIndex peer, std::string bytes) {
  const std::lock_guard lock(mutex);
  signals.emplace_back(peer, std::move(bytes));
}
size_t TransportSuite::End::Count(RailEvent::Kind kind) const {
  return static_cast<size_t>(
      std::count_if(events.begin(), events.end(), [&](const RailEvent& e) { return e.kind == kind; }));
}
size_t TransportSuite::End::CountDone(SendResult result) const {
  return static_cast<size_t>(std::count_if(events.begin(), events.end(), [&](const RailEvent& e) {
    return e.kind == RailEvent::Kind::kSendDone && e.result == result;
  }));
}
std::vector<RailEvent> TransportSuite::End::Of(RailEvent::Kind kind) const {
  std::vector<RailEvent> found;
  for (const RailEvent& event : events) {
    if (event.kind == kind) found.push_back(event);
  }
  return found;
}
uint64_t TransportSuite::End::ReceivedBytes() const {
  uint64_t bytes = 0;
  for (const RailEvent& event : Of(RailEvent::Kind::kReceived)) bytes += event.length_bytes;
  for (const RailEvent& event : Of(RailEvent::Kind::kFence)) {
    bytes += opened.at({event.zone.slot, event.zone.generation})->zones.at(event.zone.index).total_bytes();
  }
  return bytes;
}

void TransportSuite::SetUp() {
  random_ = SeededRandom();
  descriptors_before_ = OpenDescriptors();
  world_ = GetParam().make();
  if (const std::string why = world_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
}

void TransportSuite::TearDown() {
  ends_.clear();
  world_.reset();
  EXPECT_EQ(OpenDescriptors(), descriptors_before_) << "descriptors leaked";
}

TransportSuite::End& TransportSuite::Add(const std::string& node, uint64_t boot, EndOptions options) {
  auto end = std::make_unique<End>();
  options.node = node;
  options.boot = BootId(boot);
  options.signals = end.get();
  end->options = options;
  end->transport = world_->Create(options);
  ends_.push_back(std::move(end));
  return *ends_.back();
}

void TransportSuite::KnowAs(End& at, const End& peer, const std::string& node, uint64_t boot) {
  at.peers[Index(peer)] = {node, BootId(boot)};
  at.transport->SetPeer({Index(peer), node, BootId(boot), peer.transport->LocalAddress()});
}
void TransportSuite::Know(End& at, const End& peer) { KnowAs(at, peer, peer.options.node, peer.options.boot.value()); }

void TransportSuite::Meet(End& a, End& b) {
  const size_t a_before = a.Count(RailEvent::Kind::kPeerUp);
  const size_t b_before = b.Count(RailEvent::Kind::kPeerUp);
  Know(a, b);
  Know(b, a);
  ASSERT_TRUE(Until(
      [&] { return a.Count(RailEvent::Kind::kPeerUp) > a_before && b.Count(RailEvent::Kind::kPeerUp) > b_before; }));
}

void TransportSuite::Poll(End& end, absl::Duration wait) {
  std::vector<RailEvent> batch(end.batch);
  const size_t count = end.transport->Poll(wait, absl::MakeSpan(batch));
  ASSERT_LE(count, batch.size());
  batch.resize(count);
  end.fences_done += std::erase_if(batch, [](const RailEvent& event) {
    return event.kind == RailEvent::Kind::kSendDone && event.cookie >= kFenceCookie;
  });
  end.events.insert(end.events.end(), batch.begin(), batch.end());
}

// To the end that the sender knows under that index; in order, and not before that end knows the sender.
bool TransportSuite::CarrySignal(End& from) {
  std::pair<PeerIndex, std::string> signal;
  {
    const std::lock_guard lock(from.mutex);
    if (from.signals.empty()) return false;
    signal = from.signals.front();
  }
  for (const auto& to : ends_) {
    if (std::pair(to->options.node, to->options.boot) != from.peers.at(signal.first) || !to->transport) continue;
    for (const auto& [index, peer] : to->peers) {
      if (peer != std::pair(from.options.node, from.options.boot)) continue;
      {
        const std::lock_guard lock(from.mutex);
        from.signals.pop_front();
      }
      to->transport->OnSignal(index, signal.second);
      return true;
    }
    return false;  // it will know the sender when the link is up
  }
  const std::lock_guard lock(from.mutex);
  from.signals.pop_front();  // of a life that is over
  return true;
}

void TransportSuite::PollAll() {
  for (const auto& end : ends_) {
    while (end->transport != nullptr && CarrySignal(*end)) {
    }
  }
  for (const auto& end : ends_) {
    if (end->transport != nullptr && end->polled) Poll(*end);
  }
}

::testing::AssertionResult TransportSuite::Until(const std::function<bool()>& done) {
  return testing::Until(done, [this] { PollAll(); })
             ? ::testing::AssertionSuccess()
             : ::testing::AssertionFailure() << "the condition did not come true within a minute";
}

void TransportSuite::Spin(int rounds) {
  for (int i = 0; i < rounds; ++i) PollAll();
}

std::unique_ptr<TransportSuite::Flow> TransportSuite::MakeFlow(const End& to, uint64_t bytes, size_t send_pieces,
                                                               size_t receive_pieces, uint64_t job) {
  auto flow = std::make_unique<Flow>();
  // Odd offsets: nothing is aligned.
  flow->send.job = JobTag(job);
  flow->send.peer = Index(to);
  flow->send.memory = Scatter(MakeSegment(bytes + 5000), 13, bytes, send_pieces, random_);
  flow->zone = Scatter(MakeSegment(bytes + 5000), 4099, bytes, receive_pieces, random_);
  flow->bytes = RandomBytes(bytes, random_);
  WriteAll(flow->send.memory, flow->bytes);
  return flow;
}

void TransportSuite::Register(const End& at, const MemoryRanges& memory) {
  const size_t rail = at.options.rail.value();
  std::vector<std::shared_ptr<MemoryRegistrar>> rails(rail + 1);
  rails[rail] = at.transport->registrar();
  for (const MemoryRanges::Piece& piece : memory.pieces()) {
    if (rails[rail] == nullptr || piece.segment->registration(rail) != nullptr) continue;
    const absl::Status registered = piece.segment->Register(rails);
    ASSERT_TRUE(registered.ok()) << registered;
  }
}

void TransportSuite::Open(End& at, const End& from, uint32_t slot, const std::vector<Flow*>& flows,
                          uint32_t generation) {
  auto set = std::make_shared<ReceiveSet>();
  set->peer = Index(from);
  set->slot = slot;
  set->generation = generation;
  for (const Flow* flow : flows) {
    Register(at, flow->zone);
    Register(from, flow->send.memory);
    set->zones.push_back(flow->zone);
    set->left_bytes += flow->zone.total_bytes();
  }
  if (!at.remote()) return at.transport->OpenZones(std::move(set));
  for (size_t i = 0; i < flows.size(); ++i) set->fences.push_back({next_fence_++, static_cast<uint8_t>(slot % 16)});
  set->keys.resize(at.options.rail.value() + 1);
  at.opened[{slot, generation}] = set;
  const size_t before = at.Count(RailEvent::Kind::kZonesOpened);
  at.transport->OpenZones(set);
  ASSERT_TRUE(Until([&] {
    if (!at.polled) Poll(at);
    return at.Count(RailEvent::Kind::kZonesOpened) > before;
  }));
  ASSERT_EQ(at.Of(RailEvent::Kind::kZonesOpened).back().error_number, 0);
  for (size_t i = 0; i < flows.size(); ++i) FillRemote(*set, i, at.options.rail.value(), &flows[i]->send.remote);
}

SendOrder TransportSuite::Order(const Flow& flow, uint32_t slot, uint32_t index, uint64_t offset, uint64_t length,
                                uint64_t cookie, uint32_t generation) {
  return {&flow.send, {slot, generation, index}, offset, length, cookie};
}

void TransportSuite::SendAll(End& from, const Flow& flow, uint32_t slot, uint32_t index, uint64_t chunk) {
  for (uint64_t offset = 0; offset < flow.bytes.size(); offset += chunk) {
    const SendOrder order =
        Order(flow, slot, index, offset, std::min<uint64_t>(chunk, flow.bytes.size() - offset), offset);
    ASSERT_TRUE(Until([&] { return from.transport->Post({&order, 1}) == 1; }));
  }
  Fence(from, flow, slot, index);
}

void TransportSuite::Fence(End& from, const Flow& flow, uint32_t slot, uint32_t index, uint32_t generation,
                           uint8_t fences, uint8_t round) {
  if (!from.remote()) return;
  SendOrder order = Order(flow, slot, index, flow.bytes.size(), 0, kFenceCookie, generation);
  order.fences = fences;
  order.round = round;
  ASSERT_TRUE(Until([&] { return from.transport->Post({&order, 1}) == 1; }));
}

bool TransportSuite::HasBegun(const MemoryRanges& zone) {
  const std::string head = ReadAll(zone).substr(0, 64);
  return head.find_first_not_of('\0') != std::string::npos;
}

void TransportSuite::ExpectCoveredOnce(const End& at, uint32_t slot, uint32_t index, uint64_t bytes) {
  if (at.remote()) {
    const std::vector<RailEvent> fences = at.Of(RailEvent::Kind::kFence);
    EXPECT_EQ(std::count_if(fences.begin(), fences.end(),
                            [&](const RailEvent& e) { return e.zone.slot == slot && e.zone.index == index; }),
              1);
    return;
  }
  std::map<uint64_t, uint64_t> pieces;
  for (const RailEvent& event : at.Of(RailEvent::Kind::kReceived)) {
    if (event.zone.slot != slot || event.zone.index != index) continue;
    ASSERT_TRUE(pieces.emplace(event.offset_bytes, event.length_bytes).second) << "reported twice";
  }
  uint64_t next = 0;
  for (const auto& [offset, length] : pieces) {
    ASSERT_EQ(offset, next) << "a hole or an overlap";
    next = offset + length;
  }
  EXPECT_EQ(next, bytes);
}

}  // namespace railsd::testing
