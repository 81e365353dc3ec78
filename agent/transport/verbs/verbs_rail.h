// The verbs transport itself: endpoints to peers, zones, the completion queue. Everything but Wake() and Info() is the
// rail's thread's.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_VERBS_RAIL_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_VERBS_RAIL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "agent/base/unique_fd.h"
#include "agent/base/wake_event.h"
#include "agent/transport/verbs/fence.h"
#include "agent/transport/verbs/flush.h"
#include "agent/transport/verbs/handshake.h"
#include "agent/transport/verbs/last_receives.h"
#include "agent/transport/verbs/peer_queue_pair.h"
#include "agent/transport/verbs/rail_context.h"
#include "agent/transport/verbs/verbs_transport.h"

namespace railsd::verbs {

// An event that a device reports by itself.
struct DeviceEvent {
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  uint8_t port = 0;                // of events of ports
  uint32_t queue_pair_number = 0;  // of events of queue pairs
};

// The queue pairs to one peer. They may outlive the peer until they have ended.
class Endpoint {
 public:
  enum class Phase {
    kIdle,      // no queue pairs; others are made when `timer` ends
    kLive,      // has queue pairs: shaking hands, or up
    kDraining,  // they are in error, and their completions are awaited
  };
  RailPeer peer;
  Handshake handshake;
  Phase phase = Phase::kIdle;
  std::optional<RdmaDevice::Address> own;  // that the queue pairs were made for
  EndpointAddress address;                 // as told to the peer
  std::vector<std::unique_ptr<PeerQueuePair>> queue_pairs;
  bool up = false;                 // kPeerUp was pushed
  bool gone = false;               // replaced or removed: it ends with the drain
  bool forgotten = false;          // RemovePeer(): orders are kStopped, and no kPeerDown
  bool orders_ended = false;       // draining: the orders have ended, the queue pairs still exist
  bool queue_pairs_ended = false;  // draining: the queue pairs were destroyed, and fences may wait to be flushed
  int error_number = 0;
  uint32_t failures = 0;           // in a row
  uint32_t tellings = 0;           // states sent of the present queue pairs
  Nanoseconds timer = 0;           // of the next task; draining: when the drain is given up
  Nanoseconds receives_until = 0;  // draining: until when it waits for the last receives (LastReceives)
  Nanoseconds up_since = 0;
  Nanoseconds next_look = 0;  // at the state of the queue pairs
  Nanoseconds last_progress = 0;
  std::string notice;  // the last one, so as not to repeat it

  // Whether all queue pairs are so.
  bool All(bool (PeerQueuePair::*is)() const) const {
    return std::all_of(queue_pairs.begin(), queue_pairs.end(), [&](const auto& one) { return (*one.*is)(); });
  }
};

class VerbsRail final : public RailTransport, public ZoneBinder {
 public:
  // The sizes in `options` are within the limits of the device.
  VerbsRail(VerbsOptions options, std::shared_ptr<RdmaDevice> device, WakeEvent wake);
  ~VerbsRail() override;
  absl::Status Init();

  TransportInfo Info() override;
  void SetPeer(const RailPeer& peer) override;
  void RemovePeer(PeerIndex peer) override;
  size_t Post(absl::Span<const SendOrder> orders) override;
  void StopSends(JobTag job) override;
  void Bind(std::shared_ptr<const ReceiveZone> zone) override;
  void Unbind(ZoneRef zone, bool writers_stopped) override;
  void OnSignal(PeerIndex peer, const std::string& bytes) override;
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override;
  void Wake() override;

  // Acts on what the device reports.
  void OnDeviceEvent(const DeviceEvent& event);

 private:
  // verbs_rail.cc: orders, completions, the poll loop.
  absl::Status PostReceives(uint32_t count);
  void PumpAll();
  bool PollCompletions();
  // Takes completions until the queue is empty, but no more than the queue can hold.
  void PollAllCompletions();
  void OnCompletion(const ibv_wc& completion);
  bool Sleep(Nanoseconds deadline);
  void WaitForWake(absl::Duration max_wait);
  void Notice(std::string* last, const std::string& text);
  void Push(RailEvent::Kind kind, const Endpoint& endpoint, int error_number);

  // verbs_endpoints.cc: how endpoints come and go.
  bool IsLeaving(PeerIndex peer) const;
  void Begin(Endpoint& endpoint);
  absl::Status MakeQueuePairs(Endpoint& endpoint);
  void Do(Endpoint& endpoint, const Handshake::Action& action);
  void Connect(Endpoint& endpoint, const EndpointAddress& peer, bool up_already);
  void Break(Endpoint& endpoint, int error_number, const std::string& why);
  void Leave(std::unique_ptr<Endpoint> endpoint, int error_number);
  void FinishDrains();
  bool HasEnded(Endpoint& endpoint, Nanoseconds now);
  bool IsDrained(const Endpoint& endpoint, Nanoseconds now);
  void EndQueuePairs(Endpoint& endpoint);
  bool TellOrders(Endpoint& endpoint);
  void FinishDrain(Endpoint& endpoint);
  void BreakBad(Endpoint& endpoint, const std::string& why);
  bool LookAtQueuePairs(Endpoint& endpoint);
  void SendState(Endpoint& endpoint);
  void SendSignal(const RailPeer& to, Signal signal);
  void Refuse(PeerIndex peer, const Endpoint* endpoint, const Signal& signal, const Refusal& refusal);
  Signal MakeSignal(const Endpoint& endpoint, Signal::Kind kind) const;
  void RunTimers(Nanoseconds now);
  void RunTimer(Endpoint& endpoint, Nanoseconds now);
  void WakeStillQueuePairs(Endpoint& endpoint);
  void Arm(Nanoseconds when) { next_timer_ = std::min(next_timer_, when); }
  Nanoseconds BackOff(uint32_t failures) const;
  static Nanoseconds NextTick(Nanoseconds now);
  Nanoseconds LookInterval() const;

  // verbs_events.cc: what the device reports.
  void ReadDeviceEvents();
  // Reports whether this end of the rail works (0: yes), if that has changed. Called before anything breaks because of
  // it.
  void SetLink(int error_number);
  void RefreshPort(const std::string& reason, int error_number);
  void BreakAll(int error_number, const std::string& why);

  // verbs_zones.cc: zones and fences.
  void TakeWindows(BoundZone& bound);
  void OnSettled(BoundZone& bound);
  void Opened(const ReceiveZone& zone, uint64_t connection, int error_number);
  void Closed(ZoneRef zone, RailEvent::Kind kind = RailEvent::Kind::kZoneClosed);
  void TakeKeysBack(BoundZone& bound);
  void Erase(BoundZone& bound);
  // Called before the endpoint's queue pairs are destroyed: windows must go before the queue pair that they are bound
  // to.
  void FreeWindows(const Endpoint& endpoint);
  // Called when nothing lands through the endpoint's queue pairs any more.
  void DropZones(const Endpoint& endpoint);
  void OnFence(const ibv_wc& completion);
  void Report(const Endpoint& endpoint, ZoneRef zone, uint8_t weight, uint8_t round);

  // verbs_flushes.cc: fences of zones in the memory of other devices.
  bool PlanFlush(BoundZone& bound);
  std::shared_ptr<const FlushPlan> FlushOf(ZoneRef zone) const;
  bool MakeFlushQueuePair();
  void Flush(UnflushedFence fence);
  void PumpFlushes();
  void OnFlushed(const ibv_wc& completion, const WorkRequestId& id);
  void FailFlush(int error_number, const std::string& why);
  void RestartFlushes();
  void GiveUpOldest(int error_number, const std::string& why);
  void GiveUp(const UnflushedFence& fence, int error_number);

  VerbsOptions options_;
  const LocalEnd local_;
  RailContext context_;
  const std::shared_ptr<MemoryRegistrar> registrar_;

  WakeEvent wake_event_;
  std::atomic<bool> woken_{false};
  UniqueFd epoll_;
  uint32_t receives_owed_ = 0;  // to be posted again: their fences were taken, or are of no use
  bool armed_ = false;          // the channel will tell of the next completion
  unsigned unacknowledged_ = 0;
  bool dead_ = false;  // the device has failed
  int link_error_ = 0;

  std::vector<WindowHandle> free_windows_;  // not bound; each bind gives a window another key
  absl::flat_hash_map<PeerIndex, std::unique_ptr<Endpoint>> endpoints_;
  std::vector<std::unique_ptr<Endpoint>> leaving_;
  absl::flat_hash_map<QueuePairId, PeerQueuePair*> queue_pairs_;
  absl::flat_hash_map<uint32_t, PeerQueuePair*> queue_pairs_by_number_;
  absl::flat_hash_map<uint16_t, std::unique_ptr<BoundZone>> zones_;  // by slot
  FlushQueue flush_{&context_};
  uint32_t next_queue_pair_ = 1;
  uint64_t next_generation_ = 1;
  uint64_t downs_pushed_ = 0;  // EventQueue::pushed() after the last kPeerDown
  Nanoseconds next_timer_ = INT64_MAX;
  Nanoseconds next_report_ = 0;  // when the device is asked for events next
  Nanoseconds last_completion_ = 0;
  LastReceives last_receives_;
  bool draining_ = false;        // an endpoint is draining
  bool draining_again_ = false;  // PollCompletions() ended before the queue was empty
  std::string inbound_notice_;
  std::string device_notice_;
  std::mt19937_64 random_;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_VERBS_RAIL_H_
