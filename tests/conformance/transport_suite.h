// The one suite that every RailTransport passes. It drives the transports of two or three nodes from one thread, by
// Poll() calls in turn, and knows nothing of what is behind them.
#ifndef RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
#define RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <random>
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
};

// A network to build transports in.
class World {
 public:
  virtual ~World() = default;
  virtual std::unique_ptr<RailTransport> Create(const EndOptions& options) = 0;
  // Why this network cannot be had here; empty when it can.
  virtual std::string Unavailable() const { return ""; }
};

struct WorldFactory {
  std::string name;
  std::function<std::unique_ptr<World>()> make;
};

class TransportSuite : public ::testing::TestWithParam<WorldFactory> {
 protected:
  // One node's end of the rail, and what it was told.
  struct End {
    EndOptions options;
    std::unique_ptr<RailTransport> transport;
    std::vector<RailEvent> events;
    size_t batch = 64;   // events taken per Poll()
    bool polled = true;  // by PollAll()
    size_t Count(RailEvent::Kind kind) const;
    size_t CountDone(SendResult result) const;
    std::vector<RailEvent> Of(RailEvent::Kind kind) const;
    uint64_t ReceivedBytes() const;
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
  void PollAll();
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
  void Open(End& at, const End& from, uint32_t slot, const std::vector<const Flow*>& flows, uint32_t generation = 1);
  static SendOrder Order(const Flow& flow, uint32_t slot, uint32_t index, uint64_t offset, uint64_t length,
                         uint64_t cookie, uint32_t generation = 1);
  // Posts all of it, chunk by chunk, polling everybody while the queue is full.
  void SendAll(End& from, const Flow& flow, uint32_t slot, uint32_t index, uint64_t chunk);
  // The flow's bytes were reported as received exactly once.
  static void ExpectCoveredOnce(const End& at, uint32_t slot, uint32_t index, uint64_t bytes);

  std::mt19937_64 random_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<End>> ends_;
  size_t descriptors_before_ = 0;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_CONFORMANCE_TRANSPORT_SUITE_H_
