// One transport of a FakeFabric. Everything is guarded by the fabric's mutex.
#ifndef RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_
#define RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/fake/fake_fabric.h"
#include "agent/transport/transport.h"

namespace railsd {

class FakeTransport;

struct FakeFabricState {
  std::mutex mutex;
  uint64_t next_address = 1;
  std::vector<FakeTransport*> transports;  // those alive, in order of creation

  FakeTransport* Find(const std::string& address) const;
  void ConnectAll();  // brings up every link whose two ends agree
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
    std::deque<Pending> orders;
  };
  enum class Step { kNothing, kProgress };

  void Push(const RailEvent& event);
  void FinishSend(const SendOrder& order, SendResult result, int error_number);
  void Disconnect(Link& link, int error_number);
  void FailOrders(Link& link, SendResult result, int error_number);
  void DropIncoming(int error_number);
  bool Accepts(const FakeTransport& dialler) const;
  bool IsReceiveRoom() const { return receive_events_ < options_.max_receive_events; }

  bool ReceiveStep();
  Step ReceiveFrom(FakeTransport& sender, Link& link, uint64_t* budget_bytes);
  Step CopyPart(FakeTransport& sender, Link& link, PeerIndex from, const ReceiveSet& set, uint64_t* budget_bytes);
  size_t Deliver(absl::Span<RailEvent> out);

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
  RailCounters counters_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_TRANSPORT_FAKE_FAKE_TRANSPORT_H_
