// The one suite that every RailTransport passes. It drives the transports of two or three nodes from one thread, by
// Poll() calls in turn, and knows nothing of what is behind them. TransportSuite holds what all of them promise;
// FramedSuite what only a transport can that places the bytes itself, RemoteSuite what only one can that binds zones.
#ifndef RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
#define RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/transport.h"
#include "agent/transport/zone_table.h"
#include "tests/support/test_memory.h"

namespace railsd::testing {

struct EndOptions {
  std::string node;
  BootId boot;
  RailIndex rail;
  ZoneTable* zones = nullptr;
  uint64_t frame_bytes = 64 << 10;  // of transports that have frames
  size_t max_posted_orders = 256;
  size_t max_receive_events = 256;
  SignalSink* signals = nullptr;  // for transports whose ends must talk before they are up
};

// A network to build transports in.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<RailTransport> Create(const EndOptions& options) = 0;
  // Why this network cannot be had here; empty when it can.
  virtual std::string Unavailable() const { return ""; }
  // False: a key opens what lies beside its zone in the same segment, too.
  virtual bool ChecksBounds() const { return true; }
};

// A program instantiates the suites with the worlds that it has.
struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
};
inline std::string NameOf(const ::testing::TestParamInfo<WorldFactory>& info) { return info.param.name; }
template <typename T, typename... Args>
WorldFactory Factory(std::string name, Args... args) {
  return {std::move(name), [args...] { return std::make_unique<T>(args...); }};
}

class TransportSuite : public ::testing::TestWithParam<WorldFactory> {
 protected:
  // One node's end of the rail, and what it was told.
  struct End final : SignalSink {
    EndOptions options;
    ZoneTable zones;
    std::unique_ptr<RailTransport> transport;
    std::map<PeerIndex, std::pair<std::string, BootId>> peers;  // as SetPeer() told them
    std::mutex mutex;
    std::deque<std::pair<PeerIndex, std::string>> signals;  // under way; guarded by mutex
    ~End() override { transport.reset(); }                  // it may have a last word to send
    void Send(PeerIndex peer, std::string bytes) override;
    // Posts for the connection that was told last.
    size_t Post(std::vector<SendOrder> orders);
    std::map<PeerIndex, uint64_t> connections;  // as kPeerUp told them
    std::vector<RailEvent> events;
    size_t batch = 64;   // events taken per Poll()
    bool polled = true;  // by PollAll()
    size_t Count(RailEvent::Kind kind) const;
    size_t CountDone(SendResult result) const;
    std::vector<RailEvent> Of(RailEvent::Kind kind) const;
    std::vector<RailEvent> FencesOf(ZoneRef zone) const;
    ZoneBinder* binder() const { return transport->Info().binder; }
    bool binds() const { return binder() != nullptr; }
    const RailCounters& counters() const { return *transport->Info().counters; }
  };
  // Bytes that one end sends to another: their memory at both ends, cut differently.
  struct Exchange {
    SendStream stream;
    std::shared_ptr<ReceiveZone> zone;
    std::string bytes;
    bool bound = false;
    const MemoryRanges& received() const { return zone->memory; }
  };

  void SetUp() override;
  void TearDown() override;

  End& Add(const std::string& node, uint64_t boot, EndOptions options = {});
  // `at` learns of `peer` under the index that the test uses for it everywhere: Index(peer).
  void Know(End& at, const End& peer);
  void KnowAs(End& at, const End& peer, const std::string& node, uint64_t boot);
  void Meet(End& a, End& b);  // both know each other and are up
  // An end that has met `other`.
  End& AddMet(End& other, const std::string& node, uint64_t boot, EndOptions options = {});
  // Ends the connection, as `at` does when it gives the other up. Meet() makes the next one.
  void Cut(End& at, const End& peer);
  static PeerIndex Index(const End& end) { return PeerIndex(static_cast<uint32_t>(end.options.boot.value())); }

  void Poll(End& end, absl::Duration wait = absl::ZeroDuration());
  void PollAll();  // and carries their signals
  bool CarrySignal(End& from);
  // Polls everybody in turn until `done`; fails after a generous deadline.
  ::testing::AssertionResult Until(const std::function<bool()>& done);
  void Spin(int rounds);

  // The suite keeps all exchanges until the transports are gone.
  Exchange* MakeExchange(const End& to, uint64_t bytes, size_t send_pieces = 1, size_t receive_pieces = 1,
                         uint64_t job = 1);
  // Registers the memory at both ends, opens the zone at `at` and tells the exchange of it, as a grant would.
  void Open(End& at, const End& from, Exchange& exchange);
  Exchange* OpenNew(End& at, const End& from, uint64_t bytes, size_t send_pieces = 1, size_t receive_pieces = 1,
                    uint64_t job = 1);
  // Where zones are bound: waits for keys on the present connection, after the end of those for another, and tells the
  // exchange of them.
  void Bind(End& at, Exchange& exchange);
  void Unbind(End& at, Exchange& exchange, bool writers_stopped = true);
  // Ends once nothing can land in the zone any more, and gives its slot back.
  void Close(End& at, Exchange& exchange, bool writers_stopped = true);
  static void Register(const End& at, const MemoryRanges& memory);
  // As many zones as may be open at once, up to `wanted`.
  static size_t ZoneRoom(const End& at, size_t wanted);

  static SendOrder Order(const Exchange& exchange, uint64_t offset, uint64_t length, uint64_t cookie,
                         uint8_t weight = 0, uint32_t round = 0);
  // All of the exchange in chunks, with a fence behind the last.
  static std::vector<SendOrder> Orders(const Exchange& exchange, uint64_t chunk);
  // Posts them one by one, polling everybody while the queue is full.
  void PostAll(End& from, const std::vector<SendOrder>& orders);
  size_t SendAll(End& from, const Exchange& exchange, uint64_t chunk);  // returns how many orders that were
  // Sends all of the exchange, which arrives.
  void Carry(End& from, const End& to, const Exchange& exchange, uint64_t chunk);
  static bool HasBegun(const MemoryRanges& zone);
  // The bytes are right, the fence came once, and what landed adds up where that can be seen.
  static void ExpectArrived(const End& at, const Exchange& exchange);

  std::mt19937_64 random_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Exchange>> exchanges_;
  std::vector<std::unique_ptr<End>> ends_;
  size_t descriptors_before_ = 0;
};

class FramedSuite : public TransportSuite {};
class RemoteSuite : public TransportSuite {};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
