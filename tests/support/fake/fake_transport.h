// One transport of a FakeFabric. Everything is guarded by the fabric's mutex.
#ifndef RAILSD_TESTS_SUPPORT_FAKE_FAKE_TRANSPORT_H_
#define RAILSD_TESTS_SUPPORT_FAKE_FAKE_TRANSPORT_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "agent/transport/event_queue.h"
#include "agent/transport/transport.h"
#include "tests/support/fake/fake_fabric.h"

namespace railsd {

class FakeTransport;

struct FakeFabricState {
  std::mutex mutex;
  uint64_t next_address = 1;
  uint64_t connections = 0;                // made so far; the last one's number
  std::vector<FakeTransport*> transports;  // those alive, in order of creation

  FakeTransport* Find(const std::string& address) const;
  void ConnectAll();  // brings up every link whose two ends agree
};

// Hands out registrations and counts those alive. Any thread.
class FakeRegistrar final : public MemoryRegistrar, public std::enable_shared_from_this<FakeRegistrar> {
 public:
  explicit FakeRegistrar(std::string address) : address_(std::move(address)) {}
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& segment) override;
  std::atomic<size_t> alive{0};
  std::atomic<bool> refuses{false};

 private:
  const std::string address_;
};

class FakeTransport final : public RailTransport, public ZoneBinder {
 public:
  FakeTransport(std::shared_ptr<FakeFabricState> fabric, std::string address, const FakeTransportOptions& options);
  ~FakeTransport() override;

  TransportInfo Info() override;
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  void OnSignal(PeerIndex peer, const std::string& bytes) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  void Bind(std::shared_ptr<const ReceiveZone> zone) override;
  void Unbind(ZoneRef zone, bool writers_stopped) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override;

 private:
  friend class FakeFabric;
  friend struct FakeFabricState;

  struct Pending {
    SendOrder order;
    uint64_t done_bytes = 0;  // copied
  };
  // How an order ended at the receiver; on its way back.
  struct Reply {
    SendOrder order;
    SendResult result = SendResult::kAcknowledged;
    int error_number = 0;
  };
  struct Link {  // to one peer
    RailPeer peer;
    uint64_t connection = 0;
    // The other end; null: the link is down.
    FakeTransport* far = nullptr;
    Link* far_link = nullptr;
    bool heard = false;    // the peer's signal, if links need one
    bool greeted = false;  // it was sent ours
    // Not at the receiver yet. The first kOnTheWire have left: nobody knows what becomes of them when the link breaks.
    std::deque<Pending> orders;
    std::deque<Reply> replies;  // posted before `orders`
  };
  static constexpr size_t kOnTheWire = 4;
  // The memory that a key opens, and the one peer that it opens it to.
  struct OpenKey {
    PeerIndex peer;
    uint64_t address, length_bytes;
    ZoneRef zone;
  };

  bool binds() const { return options_.traits.binds_zones; }
  void Notify();
  void Push(const RailEvent& event);
  void Finish(const SendOrder& order, SendResult result, int error_number);

  // Links.
  Link* LinkTo(const std::string& address);
  void Connect(Link& link, FakeTransport& far, Link& far_link);
  void EndOrders(Link& link, SendResult left, SendResult not_sent, int error_number);
  void Disconnect(Link& link, int error_number);  // this end
  void Break(Link& link, int error_number);       // both ends
  void BreakAll(int error_number);
  std::string Greeting() const;
  void Greet();

  // Receiving. `link` leads to the sender.
  bool ReceiveStep();
  bool ReceiveFrom(Link& link, uint64_t* budget_bytes);
  // Moves a part of the first order. False: the order or the link has ended.
  bool PlacePart(Link& link, Pending& pending, uint64_t* budget_bytes);
  bool PlaceFence(Link& link, const SendOrder& order);
  bool InjectFault(Link& link);
  void EndAtReceiver(Link& link, SendResult result, int error_number = 0);
  void Leave(ZoneRef zone);
  void Blame(Link& link, int error_number);  // for what the peer sent
  void TakeReplies();
  // Whether the byte at `offset_bytes` of the stream can be read.
  static bool IsReadable(const MemoryRanges& memory, uint64_t offset_bytes);

  // fake_remote.cc
  void DropKeys(PeerIndex peer);  // with its connection
  bool WritePart(Link& link, Pending& pending, uint64_t* budget_bytes);
  bool EndpointError(Link& link, int error_number);  // at both ends. Returns false

  const std::shared_ptr<FakeFabricState> fabric_;
  const std::string address_;
  FakeTransportOptions options_;
  bool failed_ = false;
  std::map<PeerIndex, Link> links_;
  EventQueue events_;
  bool woken_ = false;
  bool changed_ = false;
  std::condition_variable wake_;
  // Used where zones are bound.
  std::shared_ptr<FakeRegistrar> registrar_;
  std::mt19937_64 random_;
  std::map<uint32_t, OpenKey> keys_;
  std::set<ZoneRef> bound_;  // also those whose keys were lost with their connection
  int open_error_ = 0;
  struct {
    uint64_t orders_before = 0;
    SendResult result = SendResult::kAcknowledged;
    int error_number = 0;
  } fault_;  // of an order of this transport; kAcknowledged: none
  RailCounters counters_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_SUPPORT_FAKE_FAKE_TRANSPORT_H_
