// The one suite that every RailTransport passes. It drives the transports of two or three nodes from one thread, by
// Poll() calls in turn, and knows nothing of what is behind them. There are two kinds: those whose receiver takes
// frames and says which bytes came (kReceived), and those that write into remote memory and say so by fences.
// TransportSuite runs over both; FramedSuite and RemoteSuite hold what only one kind can promise.
#ifndef RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
#define RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/transport/transport.h"
#include "tests/support/test_memory.h"

namespace railsd::testing {

struct EndOptions {
  std::string node;
  BootId boot;
  RailIndex rail;
  uint64_t frame_bytes = 64 << 10;
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

struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
};

// transport_worlds.cc
std::vector<WorldFactory> FramedWorlds();
std::vector<WorldFactory> RemoteWorlds();

class TransportSuite : public ::testing::TestWithParam<WorldFactory> {
 protected:
  // One node's end of the rail, and what it was told.
  struct End final : SignalSink {
    EndOptions options;
    std::unique_ptr<RailTransport> transport;
    std::map<PeerIndex, std::pair<std::string, BootId>> peers;  // as SetPeer() told them
    std::mutex mutex;
    std::deque<std::pair<PeerIndex, std::string>> signals;                              // under way; guarded by mutex
    std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const ReceiveSet>> opened;  // by slot and generation
    size_t fences_done = 0;
    ~End() override { transport.reset(); }  // it may have a last word to send
    void Send(PeerIndex peer, std::string bytes) override;
    std::vector<RailEvent> events;
    size_t batch = 64;   // events taken per Poll()
    bool polled = true;  // by PollAll()
    size_t Count(RailEvent::Kind kind) const;
    size_t CountDone(SendResult result) const;
    std::vector<RailEvent> Of(RailEvent::Kind kind) const;
    // What has arrived as far as the transport says: bytes of frames, or of flows whose fence has come.
    uint64_t ReceivedBytes() const;
    bool remote() const { return transport->WritesRemotely(); }
  };

  void SetUp() override;
  void TearDown() override;

  End& Add(const std::string& node, uint64_t boot, EndOptions options = {});
  // `at` learns of `peer` under the index that the test uses for it everywhere: Index(peer).
  void Know(End& at, const End& peer);
  void KnowAs(End& at, const End& peer, const std::string& node, uint64_t boot);
  void Meet(End& a, End& b);  // both know each other and are up
  static PeerIndex Index(const End& end) { return PeerIndex(static_cast<uint32_t>(end.options.boot.value())); }

  void Poll(End& end, absl::Duration wait = absl::ZeroDuration());
  void PollAll();  // and carries their signals
  bool CarrySignal(End& from);
  // Polls everybody in turn until `done`; fails after a generous deadline.
  ::testing::AssertionResult Until(const std::function<bool()>& done);
  void Spin(int rounds);

  // A flow with its memory at the sender and a zone for it at the receiver, cut differently.
  struct Flow {
    SendFlow send;
    MemoryRanges zone;
    std::string bytes;
  };
  std::unique_ptr<Flow> MakeFlow(const End& to, uint64_t bytes, size_t send_pieces = 1, size_t receive_pieces = 1,
                                 uint64_t job = 1);
  // Registers the memory at both ends; where the transport writes remotely, also waits for the keys and gives them to
  // the flows, as READY would.
  void Open(End& at, const End& from, uint32_t slot, const std::vector<Flow*>& flows, uint32_t generation = 1);
  static void Register(const End& at, const MemoryRanges& memory);
  static SendOrder Order(const Flow& flow, uint32_t slot, uint32_t index, uint64_t offset, uint64_t length,
                         uint64_t cookie, uint32_t generation = 1);
  // Posts all of it, chunk by chunk, polling everybody while the queue is full, then its fence.
  void SendAll(End& from, const Flow& flow, uint32_t slot, uint32_t index, uint64_t chunk);
  // Posts the fence of a flow, where the transport has fences. Its kSendDone is counted apart.
  void Fence(End& from, const Flow& flow, uint32_t slot, uint32_t index, uint32_t generation = 1, uint8_t fences = 1,
             uint8_t round = 0);
  static bool HasBegun(const MemoryRanges& zone);
  // The flow's bytes, or its one fence, were reported exactly once.
  static void ExpectCoveredOnce(const End& at, uint32_t slot, uint32_t index, uint64_t bytes);

  std::mt19937_64 random_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<End>> ends_;
  size_t descriptors_before_ = 0;
  uint16_t next_fence_ = 1;
};

class FramedSuite : public TransportSuite {};
class RemoteSuite : public TransportSuite {};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
