// One transport of a FakeFabric. Everything is guarded by the fabric's mutex.
#ifndef RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/fake/fake_fabric.h"
#include "agent/transport/transport.h"

namespace railsd {

// Atomic, unlike AddTo: a fake rail's counters have several writers, the other side of a link among them.
inline void CountUp(RailCounters::Counter& counter, uint64_t n) { counter.fetch_add(n, std::memory_order_relaxed); }

class FakeTransport;

struct FakeFabricState {
  std::mutex mutex;
  uint64_t next_address = 1;
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

class FakeTransport final : public RailTransport {
 public:
  FakeTransport(std::shared_ptr<FakeFabricState> fabric, std::string address, FakeTransportOptions options);
  ~FakeTransport() override;

  std::string LocalAddress() const override { return address_; }
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  void OpenZones(std::shared_ptr<const ReceiveSet> zones) override;
  void CloseZones(uint32_t slot, uint32_t generation, bool writers_stopped) override;
  bool WritesRemotely() const override { return options_.writes_remotely; }
  uint32_t FenceRoom() const override { return options_.writes_remotely ? options_.fence_room : UINT32_MAX; }
  std::shared_ptr<MemoryRegistrar> registrar() const override { return registrar_; }
  void OnSignal(PeerIndex peer, const std::string& bytes) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override;
  const RailCounters& counters() const override { return counters_; }

 private:
  friend class FakeFabric;
  friend struct FakeFabricState;

  struct Pending {
    SendOrder order;
    uint64_t done_bytes = 0;   // copied
    uint64_t frame_bytes = 0;  // copied of the frame that is under way
    uint64_t parked_at = 0;    // the receiver's Poll() that first met it with its zone not open
    bool begun = false;        // its zone was open once
  };
  struct Link {  // to one peer
    RailPeer peer;
    bool up = false;
    bool heard = false;    // the peer's signal, if links need one
    bool greeted = false;  // it was sent ours
    std::deque<Pending> orders;
  };
  // What a key opens: only this memory, only to this peer.
  struct OpenKey {
    PeerIndex peer;
    uint64_t address, length_bytes;
    uint32_t slot, generation;
  };
  struct OpenFence {
    PeerIndex peer;
    uint8_t generation;
    ZoneRef zone;
  };
  enum class Step { kNothing, kProgress };

  void Push(const RailEvent& event);
  // `arrived_bytes`: of kReturned.
  void FinishSend(const SendOrder& order, SendResult result, int error_number, uint64_t arrived_bytes = 0);
  SendResult WhenDown() const { return options_.writes_remotely ? SendResult::kRailFailed : SendResult::kReturned; }
  void Disconnect(Link& link, int error_number);
  void FailOrders(Link& link, SendResult result, int error_number);
  void DropIncoming(int error_number);
  bool Accepts(const FakeTransport& dialler) const;
  bool HasHeard(const FakeTransport& peer) const;
  bool IsReceiveRoom() const { return receive_events_ < options_.max_receive_events; }

  bool ReceiveStep();
  Step ReceiveFrom(FakeTransport& sender, Link& link, uint64_t* budget_bytes);
  Step CopyPart(FakeTransport& sender, Link& link, PeerIndex from, const ReceiveSet& set, uint64_t* budget_bytes);
  size_t Deliver(absl::Span<RailEvent> out);
  std::string Greeting() const;
  void Greet();

  // fake_remote.cc
  void OpenRemote(const ReceiveSet& set);
  void CloseRemote(const ReceiveSet& set, bool writers_stopped);
  void DropKeys(PeerIndex peer);  // with its connection
  Step ReceiveRemote(FakeTransport& sender, Link& link, uint64_t* budget_bytes);
  // Writes a part of the first order. False: the order or its link has ended.
  bool WritePart(FakeTransport& sender, Link& link, PeerIndex from, uint64_t* budget_bytes);
  // The two ends of a link go into error together. `blame`: for what the peer sent.
  void Break(FakeTransport& sender, Link& link, PeerIndex from, int error_number, bool blame);

  const std::shared_ptr<FakeFabricState> fabric_;
  const std::string address_;
  FakeTransportOptions options_;
  bool failed_ = false;
  std::map<PeerIndex, Link> links_;
  std::map<std::pair<uint32_t, uint32_t>, std::shared_ptr<const ReceiveSet>> zones_;
  std::deque<RailEvent> events_;
  size_t orders_held_ = 0;     // posted, or done with the event not delivered
  size_t receive_events_ = 0;  // kReceived not delivered
  uint64_t poll_number_ = 0;
  bool parked_ = false;  // this Poll() met a zone that is not open
  bool woken_ = false;
  bool changed_ = false;
  std::condition_variable wake_;
  // Of one that writes remotely.
  std::shared_ptr<FakeRegistrar> registrar_;
  std::mt19937_64 random_;
  std::map<uint32_t, OpenKey> keys_;
  std::map<uint16_t, OpenFence> fences_;
  int open_error_ = 0;
  struct {
    uint64_t orders_before = 0;
    SendResult result = SendResult::kAcknowledged;
    int error_number = 0;
  } fault_;  // of an order of this transport; kAcknowledged: none
  RailCounters counters_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_
