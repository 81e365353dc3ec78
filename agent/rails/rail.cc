#include "agent/rails/rail.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/base/spsc_ring.h"

namespace railsd {
namespace {

constexpr size_t kPostBatch = 64;
constexpr size_t kEventBatch = 256;
// Only the watch over threads that hang depends on it: whatever needs the thread wakes it.
constexpr absl::Duration kMaxWait = absl::Seconds(1);
// Events that nobody waits for are gathered for so long, or until there are so many: waking the engine for every chunk
// costs more than its work on them.
constexpr absl::Duration kGather = absl::Milliseconds(5);
constexpr size_t kMaxUnannounced = 128;
constexpr size_t kMinAnnouncedSends = 3;

bool IsReceiving(RailCommand::Kind kind) {
  return kind == RailCommand::Kind::kOpenZone || kind == RailCommand::Kind::kCloseZone;
}

}  // namespace

struct Rail::Queues {
  Queues(size_t command_capacity, size_t event_capacity)
      : sending(command_capacity), receiving(command_capacity), events(event_capacity) {}
  SpscRing<RailCommand> sending;
  SpscRing<RailCommand> receiving;
  SpscRing<RailEvent> events;
  // Set by the rail's thread when it found no room for events; whoever makes room clears it and wakes the thread.
  std::atomic<bool> starved{false};

  // Orders that the transport has not taken yet; of the rail's thread.
  std::array<SendOrder, kPostBatch> staged;
  size_t staged_begin = 0;
  size_t staged_end = 0;
  RailCommand held;  // taken from `sending` behind the staged orders, not yet applied
  bool holding = false;

  // Published, but the engine was not woken for them yet; of the rail's thread.
  size_t unannounced = 0;
  size_t unannounced_sends = 0;
  size_t outstanding_orders = 0;
};

Rail::Rail(RailIndex index, std::unique_ptr<RailTransport> transport, WakeEvent* engine_wake, size_t command_capacity,
           size_t event_capacity)
    : index_(index),
      transport_(std::move(transport)),
      counters_(*transport_->Info().counters),
      traits_(transport_->Info().traits),
      engine_wake_(engine_wake),
      queues_(std::make_unique<Queues>(command_capacity, event_capacity)) {}

Rail::~Rail() {
  if (!thread_.joinable()) return;
  stop_.store(true, std::memory_order_release);
  transport_->Wake();
  thread_.join();
}

void Rail::Start() {
  thread_ = std::thread([this] { Run(); });
  ::pthread_setname_np(thread_.native_handle(), absl::StrCat("rail-", index_.value()).substr(0, 15).c_str());
}

size_t Rail::command_depth() const { return queues_->sending.Depth() + queues_->receiving.Depth(); }
size_t Rail::event_depth() const { return queues_->events.Depth(); }

bool Rail::TryCommand(RailCommand command) {
  SpscRing<RailCommand>& queue = IsReceiving(command.kind) ? queues_->receiving : queues_->sending;
  if (!queue.TryPush(std::move(command))) return false;
  unflushed_ = true;
  return true;
}

size_t Rail::TakeEvents(absl::Span<RailEvent> out) {
  size_t taken = 0;
  while (taken < out.size() && queues_->events.TryPop(&out[taken])) ++taken;
  if (taken > 0 && queues_->starved.exchange(false, std::memory_order_acq_rel)) transport_->Wake();
  return taken;
}

void Rail::Flush() {
  if (!std::exchange(unflushed_, false)) return;
  transport_->Wake();
}

void Rail::Apply(RailCommand& command) {
  switch (command.kind) {
    case RailCommand::Kind::kPost:
      break;  // staged by RunCommands()
    case RailCommand::Kind::kStopSends:
      transport_->StopSends(command.job);
      break;
    case RailCommand::Kind::kOpenZone:
      transport_->OpenZone(std::move(command.zone));
      break;
    case RailCommand::Kind::kCloseZone:
      transport_->CloseZone(command.ref, command.writers_stopped);
      break;
    case RailCommand::Kind::kSetPeer:
      transport_->SetPeer(*command.set_peer);
      command.set_peer.reset();
      break;
    case RailCommand::Kind::kRemovePeer:
      transport_->RemovePeer(command.peer);
      break;
    case RailCommand::Kind::kSignal:
      transport_->OnSignal(command.signal->peer, command.signal->bytes);
      command.signal.reset();
      break;
  }
}

void Rail::DrainReceiving() {
  RailCommand command;
  while (queues_->receiving.TryPop(&command)) Apply(command);
}

// True when nothing is left staged.
bool Rail::PostStaged() {
  Queues& q = *queues_;
  if (q.staged_begin < q.staged_end) {
    const size_t taken = transport_->Post({q.staged.data() + q.staged_begin, q.staged_end - q.staged_begin});
    q.staged_begin += taken;
    q.outstanding_orders += taken;
    if (q.staged_begin < q.staged_end) return false;
  }
  q.staged_begin = q.staged_end = 0;
  return true;
}

// Applies what is queued, until there is no more or the transport takes no more orders. True when it did something.
bool Rail::RunCommands() {
  Queues& q = *queues_;
  bool any = false;
  for (;;) {
    DrainReceiving();
    if (!PostStaged()) return any;
    if (std::exchange(q.holding, false)) Apply(q.held);
    while (q.staged_end < q.staged.size() && q.sending.TryPop(&q.held)) {
      any = true;
      if (q.held.kind != RailCommand::Kind::kPost) {
        q.holding = true;
        break;
      }
      q.staged[q.staged_end++] = q.held.order;
    }
    if (q.staged_end == 0 && !q.holding) return any;
  }
}

void Rail::Run() {
  std::array<RailEvent, kEventBatch> batch;
  Queues& q = *queues_;
  while (!stop_.load(std::memory_order_acquire)) {
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // the only writer
    RunCommands();
    size_t room = std::min(q.events.Free(), batch.size());
    if (room == 0) {
      ++q.unannounced;  // whatever fills the queue: the engine must look now
      Announce();
      q.starved.exchange(true, std::memory_order_acq_rel);
      room = std::min(q.events.Free(), batch.size());
    }
    const size_t count = transport_->Poll(q.unannounced > 0 ? kGather : kMaxWait, {batch.data(), room});
    if (Publish({batch.data(), count}) || count == 0) Announce();
  }
}

bool Rail::Publish(absl::Span<RailEvent> events) {
  Queues& q = *queues_;
  bool urgent = false;
  for (RailEvent& event : events) {
    if (event.kind == RailEvent::Kind::kSendDone) {
      --q.outstanding_orders;
      ++q.unannounced_sends;
      // Half of what the engine had posted is done: time to post more. What failed is told at once.
      const bool half = q.unannounced_sends >= kMinAnnouncedSends && 2 * q.unannounced_sends >= q.outstanding_orders;
      urgent = urgent || event.result != SendResult::kAcknowledged || event.last ||
               (hungry_.load(std::memory_order_relaxed) && (half || q.outstanding_orders == 0));
    } else {
      urgent = urgent || event.kind != RailEvent::Kind::kFence || event.last;
    }
    q.events.TryPush(std::move(event));
    ++q.unannounced;
  }
  return urgent || q.unannounced >= kMaxUnannounced;
}

void Rail::Announce() {
  Queues& q = *queues_;
  if (q.unannounced == 0) return;
  q.unannounced = q.unannounced_sends = 0;
  engine_wake_->Wake();
}

}  // namespace railsd
