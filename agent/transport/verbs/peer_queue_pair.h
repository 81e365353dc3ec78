// One RC queue pair to one peer, with the orders that wait to be posted on it or to be acknowledged.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_PEER_QUEUE_PAIR_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_PEER_QUEUE_PAIR_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/transport/verbs/rail_context.h"
#include "agent/transport/verbs/signal.h"
#include "agent/transport/verbs/work_request_id.h"
#include "agent/transport/verbs/write_cutter.h"

namespace railsd::verbs {

class PeerQueuePair {
 public:
  // In state INIT. `psn`: of its first packet. RESOURCE_EXHAUSTED when the completion queue has no room for another.
  static absl::StatusOr<std::unique_ptr<PeerQueuePair>> Create(RailContext* context, QueuePairId id, Endpoint* endpoint,
                                                               uint32_t psn);
  ~PeerQueuePair();
  PeerQueuePair(const PeerQueuePair&) = delete;
  PeerQueuePair& operator=(const PeerQueuePair&) = delete;

  QueuePairId id() const { return id_; }
  Endpoint* endpoint() const { return endpoint_; }
  uint32_t number() const { return number_; }
  uint32_t psn() const { return psn_; }
  uint32_t outstanding() const { return queue_.outstanding(); }

  // INIT to RTS, towards `index` of the peer's queue pairs.
  absl::Status Connect(const RdmaDevice::Address& own, const EndpointAddress& own_end, const EndpointAddress& peer,
                       size_t index);
  // True when the device has put the queue pair into error by itself.
  bool IsInError() const;

  void Add(uint32_t order) {
    waiting_.Push(context_.orders, order);
    MarkBusy();
  }
  void Bind(BoundZone* zone, uint32_t window) { Queue({zone, window, true}); }
  void Invalidate(BoundZone* zone, uint32_t window) { Queue({zone, window, false}); }
  bool HasWork() const { return !draining_ && (!local_.empty() || !waiting_.empty()); }
  // It was taken out of RailContext::busy.
  void OnIdle() { busy_ = false; }
  // Posts as much as fits. Returns 0, or an errno if the device refused; the queue pair is then of no use any more.
  int Pump();

  // Posts an empty write if work requests were outstanding at the last call and none was acknowledged since. The write
  // restarts a send queue that the device has stopped serving; a working queue gets none. Sets `*woken` if it posted
  // one. Returns 0, or an errno.
  int WakeIfStill(bool* woken);

  // Ends the job's orders that are not posted. Posted orders end with their completion.
  void Stop(JobTag job);
  // All work requests up to `sequence` were acknowledged.
  void Complete(uint32_t sequence);
  // Work request `sequence` has failed. `earlier_done`: all before it were acknowledged.
  void CompleteFailed(uint32_t sequence, bool earlier_done);

  // Puts the queue pair into error. Nothing lands through it and nothing is sent from here on.
  void BeginDrain();
  void OnDrained() { drained_ = flushed_ = true; }
  // The device has reported that completions of all receives of the queue pair are in the completion queue.
  void OnLastReceive() { last_receive_told_ = true; }
  // True also for a queue pair that was never connected, and could receive nothing.
  bool ReceivesEnded() const { return last_receive_told_ || !connected_; }
  bool drained() const { return drained_; }
  // The drain's marker has come back, and so has everything before it. False if there was no marker, or the drain was
  // given up.
  bool flushed() const { return flushed_; }
  // Ends every order, after the drain: kStopped if `stopped`; else as kNotSent if nothing of it was posted, and as
  // kRailFailed if something was.
  void FailOrders(bool stopped, int error_number);
  // Destroys the queue pair: the device adds no more completions of it. Windows that were bound to it have been freed.
  void Destroy();

 private:
  struct LocalOperation {
    BoundZone* zone;
    uint32_t window;
    bool bind;
  };
  struct Posted {
    BoundZone* zone;
    uint32_t sequence;
  };
  PeerQueuePair(RailContext* context, QueuePairId id, Endpoint* endpoint, uint32_t psn);

  ibv_send_wr& NextRequest(size_t at, ibv_wr_opcode opcode);
  void AddLocal(size_t at);
  bool AddWrite(size_t at);
  bool CopyInline(const OrderSlot& slot, size_t at, uint64_t length_bytes);
  bool CutNext(const OrderSlot& slot, size_t at, RemoteWrite* write, bool* inlined);
  void Queue(const LocalOperation& operation) {
    local_.push_back(operation);
    MarkBusy();
  }
  void MarkBusy() {
    if (!std::exchange(busy_, true)) context_.busy.push_back(this);
  }
  void EndEarly(SendResult result, int error_number);
  int PostChain(size_t count, size_t orders_ended);
  void PopDone();

  RailContext& context_;
  const QueuePairId id_;
  Endpoint* const endpoint_;
  const uint32_t psn_;
  QueuePairHandle handle_;
  uint32_t number_ = 0;
  SendQueue queue_;
  OrderList waiting_;                 // the first order may be partly posted
  OrderList posted_;                  // orders that are wholly posted, or ended early
  std::deque<LocalOperation> local_;  // go before orders: a grant waits for them
  std::deque<Posted> local_posted_;
  uint32_t completed_before_ = 0;  // at the last WakeIfStill()
  bool waited_before_ = false;
  bool ended_early_ = false;  // posted_ has an order whose last work request may be done
  bool busy_ = false;         // in RailContext::busy
  bool connected_ = false;
  bool draining_ = false;
  bool drained_ = false;
  bool flushed_ = false;
  bool last_receive_told_ = false;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_PEER_QUEUE_PAIR_H_
