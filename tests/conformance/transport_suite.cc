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

}  // namespace

void TransportSuite::End::Send(PeerIndex peer, std::string bytes) {
  const std::lock_guard lock(mutex);
  signals.emplace_back(peer, std::move(bytes));
}
size_t TransportSuite::End::Post(std::vector<SendOrder> orders) {
  for (SendOrder& order : orders) order.connection = connections[order.stream->peer];
  return transport->Post(orders);
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
std::vector<RailEvent> TransportSuite::End::FencesOf(ZoneRef zone) const {
  std::vector<RailEvent> fences = Of(RailEvent::Kind::kFence);
  std::erase_if(fences, [&](const RailEvent& e) { return e.zone != zone; });
  return fences;
}

void TransportSuite::SetUp() {
  random_ = SeededRandom();
  descriptors_before_ = OpenDescriptors();
  world_ = GetParam().make();
  if (const std::string why = world_->Unavailable(); !why.empty()) GTEST_SKIP() << why;
}

void TransportSuite::TearDown() {
  ends_.clear();
  exchanges_.clear();
  world_.reset();
  EXPECT_EQ(OpenDescriptors(), descriptors_before_) << "descriptors leaked";
}

TransportSuite::End& TransportSuite::Add(const std::string& node, uint64_t boot, EndOptions options) {
  auto end = std::make_unique<End>();
  options.node = node;
  options.boot = BootId(boot);
  options.signals = end.get();
  options.zones = &end->zones;
  end->options = options;
  end->transport = world_->Create(options);
  ends_.push_back(std::move(end));
  return *ends_.back();
}

void TransportSuite::KnowAs(End& at, const End& peer, const std::string& node, uint64_t boot) {
  at.peers[Index(peer)] = {node, BootId(boot)};
  at.transport->SetPeer({Index(peer), node, BootId(boot), peer.transport->Info().address, {}, boot});
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

TransportSuite::End& TransportSuite::AddMet(End& other, const std::string& node, uint64_t boot, EndOptions options) {
  End& end = Add(node, boot, options);
  Meet(other, end);
  return end;
}

void TransportSuite::Cut(End& at, const End& peer) { at.transport->RemovePeer(Index(peer)); }

void TransportSuite::Poll(End& end, absl::Duration wait) {
  std::vector<RailEvent> batch(end.batch);
  const size_t count = end.transport->Poll(wait, absl::MakeSpan(batch));
  ASSERT_LE(count, batch.size());
  batch.resize(count);
  for (const RailEvent& event : batch) {
    if (event.kind == RailEvent::Kind::kPeerUp) end.connections[event.peer] = event.connection;
  }
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
      to->binder()->OnSignal(index, signal.second);
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

TransportSuite::Exchange* TransportSuite::MakeExchange(const End& to, uint64_t bytes, size_t send_pieces,
                                                       size_t receive_pieces, uint64_t job) {
  Exchange* exchange = exchanges_.emplace_back(std::make_unique<Exchange>()).get();
  exchange->stream.job = JobTag(job);
  exchange->stream.peer = Index(to);
  // Odd offsets: nothing is aligned.
  exchange->stream.memory = Scatter(MakeSegment(bytes + 5000), 13, bytes, send_pieces, random_);
  exchange->zone = std::make_shared<ReceiveZone>(to.options.rail.value() + 1, to.binds());
  exchange->zone->memory = Scatter(MakeSegment(bytes + 5000), 4099, bytes, receive_pieces, random_);
  exchange->bytes = RandomBytes(bytes, random_);
  WriteAll(exchange->stream.memory, exchange->bytes);
  return exchange;
}

void TransportSuite::Register(const End& at, const MemoryRanges& memory) {
  const size_t rail = at.options.rail.value();
  std::vector<std::shared_ptr<MemoryRegistrar>> rails(rail + 1);
  rails[rail] = at.transport->Info().registrar;
  for (const MemoryRanges::Piece& piece : memory.pieces()) {
    if (rails[rail] == nullptr || piece.segment->registration(rail) != nullptr) continue;
    const absl::Status registered = piece.segment->Register(rails);
    ASSERT_TRUE(registered.ok()) << registered;
  }
}

void TransportSuite::Open(End& at, const End& from, Exchange& exchange) {
  Register(at, exchange.received());
  Register(from, exchange.stream.memory);
  exchange.zone->peer = Index(from);
  at.zones.Open(exchange.zone);
  exchange.stream.zone = exchange.zone->ref;
  if (at.binds()) Bind(at, exchange);
}

TransportSuite::Exchange* TransportSuite::OpenNew(End& at, const End& from, uint64_t bytes, size_t send_pieces,
                                                  size_t receive_pieces, uint64_t job) {
  Exchange* exchange = MakeExchange(at, bytes, send_pieces, receive_pieces, job);
  Open(at, from, *exchange);
  return exchange;
}

void TransportSuite::Unbind(End& at, Exchange& exchange, bool writers_stopped) {
  exchange.bound = false;
  const size_t before = at.Count(RailEvent::Kind::kZoneClosed);
  at.binder()->Unbind(exchange.zone->ref, writers_stopped);
  ASSERT_TRUE(Until([&] { return at.Count(RailEvent::Kind::kZoneClosed) > before; }));
  ASSERT_EQ(at.Count(RailEvent::Kind::kZoneClosed), before + 1);
  EXPECT_EQ(at.Of(RailEvent::Kind::kZoneClosed).back().zone, exchange.zone->ref);
}

void TransportSuite::Bind(End& at, Exchange& exchange) {
  if (exchange.bound) Unbind(at, exchange);
  exchange.bound = true;
  const size_t before = at.Count(RailEvent::Kind::kZoneOpened);
  at.binder()->Bind(exchange.zone);
  ASSERT_TRUE(Until([&] {
    if (!at.polled) Poll(at);
    return at.Count(RailEvent::Kind::kZoneOpened) > before;
  }));
  const RailEvent opened = at.Of(RailEvent::Kind::kZoneOpened).back();
  ASSERT_EQ(opened.error_number, 0);
  EXPECT_EQ(opened.zone, exchange.zone->ref);
  EXPECT_EQ(opened.peer, exchange.zone->peer);
  RemoteZone& remote = exchange.stream.remote;
  remote.pieces.clear();
  uint64_t offset = 0;
  for (const MemoryRanges::Piece& piece : exchange.received().pieces()) {
    remote.pieces.push_back({offset, reinterpret_cast<uintptr_t>(piece.address), piece.length_bytes});
    offset += piece.length_bytes;
  }
  remote.keys.assign(exchange.zone->keys.begin(), exchange.zone->keys.end());
}

void TransportSuite::Close(End& at, Exchange& exchange, bool writers_stopped) {
  const ZoneRef ref = exchange.zone->ref;
  const bool quiet = at.zones.Close(ref);
  EXPECT_TRUE(quiet) << "nobody is inside between two calls of Poll()";
  if (at.binds()) Unbind(at, exchange, writers_stopped);
  at.zones.Release(ref);
}

size_t TransportSuite::ZoneRoom(const End& at, size_t wanted) {
  return std::min<size_t>(wanted, at.transport->Info().zone_room);
}

SendOrder TransportSuite::Order(const Exchange& exchange, uint64_t offset, uint64_t length, uint64_t cookie,
                                uint8_t weight, uint32_t round) {
  return {.stream = &exchange.stream,
          .offset_bytes = offset,
          .length_bytes = length,
          .cookie = cookie,
          .weight = weight,
          .round = round};
}

std::vector<SendOrder> TransportSuite::Orders(const Exchange& exchange, uint64_t chunk) {
  std::vector<SendOrder> orders;
  for (uint64_t offset = 0; offset < exchange.bytes.size(); offset += chunk) {
    orders.push_back(Order(exchange, offset, std::min<uint64_t>(chunk, exchange.bytes.size() - offset), orders.size()));
  }
  orders.back().weight = kWholeWeight;
  return orders;
}

void TransportSuite::PostAll(End& from, const std::vector<SendOrder>& orders) {
  for (const SendOrder& order : orders) {
    ASSERT_TRUE(Until([&] { return from.Post({order}) == 1; }));
  }
}

size_t TransportSuite::SendAll(End& from, const Exchange& exchange, uint64_t chunk) {
  const std::vector<SendOrder> orders = Orders(exchange, chunk);
  PostAll(from, orders);
  return orders.size();
}

void TransportSuite::Carry(End& from, const End& to, const Exchange& exchange, uint64_t chunk) {
  SendAll(from, exchange, chunk);
  ASSERT_TRUE(Until([&] { return !to.FencesOf(exchange.zone->ref).empty(); }));
  ExpectArrived(to, exchange);
}

bool TransportSuite::HasBegun(const MemoryRanges& zone) {
  const std::string head = ReadAll(zone).substr(0, 64);
  return head.find_first_not_of('\0') != std::string::npos;
}

void TransportSuite::ExpectArrived(const End& at, const Exchange& exchange) {
  EXPECT_TRUE(ReadAll(exchange.received()) == exchange.bytes);
  EXPECT_EQ(at.FencesOf(exchange.zone->ref).size(), 1u);
  if (at.binds()) return;
  EXPECT_EQ(exchange.zone->landed.at(at.options.rail.value()).bytes(), exchange.bytes.size());
}

}  // namespace railsd::testing
