#include "agent/rails/rail.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "agent/base/spin_budget.h"
#include "agent/base/spsc_ring.h"
#include "agent/base/steady_now.h"

namespace railsd {
namespace {

constexpr size_t kEventBatch = 256;
// The longest wait of the thread, for the watch over threads that hang. All other work wakes the thread.
constexpr absl::Duration kMaxWait = absl::Seconds(1);
// Events that are not urgent are gathered for so long, or until there are so many, because waking the engine costs more
// than its work on them.
constexpr absl::Duration kGather = absl::Milliseconds(5);
constexpr size_t kMaxUnannounced = 128;

bool IsReceiving(RailCommand::Kind kind) {
  return kind == RailCommand::Kind::kOpenZone || kind == RailCommand::Kind::kCloseZone;
}

bool CompletesWhole(RailBoard::Weight& weight, const RailEvent& event) {
  return weight.fetch_add(event.weight, std::memory_order_acq_rel) + event.weight >= kWholeWeight;
}

// Whether an event, which is in the engine's queue now, wakes the engine at once. A fence does only if it completes the
// weight of its exchange: all other fences are in the queues by then.
bool IsUrgent(const RailEvent& event, uint16_t sent_number, RailBoard* board) {
  switch (event.kind) {
    case RailEvent::Kind::kCarried:
    case RailEvent::Kind::kStretch:
      return false;
    case RailEvent::Kind::kFence:
      return CompletesWhole(board->received(event.zone.slot), event);
    case RailEvent::Kind::kFenceDone:
      return CompletesWhole(board->sent(sent_number), event);
    default:
      return true;
  }
}

}  // namespace

void Apply(RailCommand& command, absl::Time now, RailSender* sender, ZoneBinder* binder) {
  switch (command.kind) {
    case RailCommand::Kind::kGive:
      return sender->Give(command.give);
    case RailCommand::Kind::kRelease:
      return sender->Release(command.give.stream, command.release_bytes);
    case RailCommand::Kind::kDrop:
      return sender->Drop(command.give.stream);
    case RailCommand::Kind::kStopSends:
      return sender->StopSends(command.job, now);
    case RailCommand::Kind::kOpenZone:
      if (binder != nullptr) binder->Bind(std::move(command.zone));
      return;
    case RailCommand::Kind::kCloseZone:
      if (binder != nullptr) binder->Unbind(command.ref, command.writers_stopped);
      return;
    case RailCommand::Kind::kSetPeer:
      sender->SetPeer(*command.set_peer);
      return command.set_peer.reset();
    case RailCommand::Kind::kRemovePeer:
      return sender->RemovePeer(command.peer, now);
    case RailCommand::Kind::kSignal:
      if (binder != nullptr) binder->OnSignal(command.signal->peer, command.signal->bytes);
      return command.signal.reset();
    case RailCommand::Kind::kShares:
      return sender->scheduler().SetShares(*command.shares);
    case RailCommand::Kind::kExpect:
      return sender->scheduler().Expect(command.priority, now);
  }
}

struct Rail::Queues {
  Queues(size_t command_capacity, size_t event_capacity)
      : sending(command_capacity), receiving(command_capacity), events(event_capacity) {}
  SpscRing<RailCommand> sending;
  SpscRing<RailCommand> receiving;
  SpscRing<RailEvent> events;
  // Set by the rail's thread when it found no room for events. The engine clears it when it makes room, and wakes the
  // thread.
  std::atomic<bool> starved{false};

  // The rail's thread: events published since the engine was last woken, and when it must be woken for them.
  size_t unannounced = 0;
  absl::Time announce_by;
};

Rail::Rail(RailIndex index, std::unique_ptr<RailTransport> transport, const SchedulerOptions& scheduler,
           RailBoard* board, WakeEvent* engine_wake, size_t command_capacity, size_t event_capacity,
           absl::Duration spin)
    : index_(index),
      transport_(std::move(transport)),
      counters_(*transport_->Info().counters),
      traits_(transport_->Info().traits()),
      binder_(transport_->Info().binder),
      board_(*board),
      sender_(index, scheduler, board, transport_.get()),
      engine_wake_(engine_wake),
      spin_(spin),
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

bool Rail::RunCommands(absl::Time now) {
  RailCommand command;
  for (bool any = false;; any = true) {
    for (; queues_->receiving.TryPop(&command); any = true) Apply(command, now, &sender_, binder_);
    if (!queues_->sending.TryPop(&command)) return any;
    Apply(command, now, &sender_, binder_);
  }
}

void Rail::Run() {
  std::array<RailEvent, kEventBatch> batch;
  Queues& q = *queues_;
  SpinBudget spin(spin_);
  while (!stop_.load(std::memory_order_acquire)) {
    turns_.store(turns_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // the only writer
    const absl::Time now = SteadyNow();
    if (RunCommands(now)) spin.OnWork(now);
    sender_.Post(now);
    Publish(now);
    size_t room = batch.size();
    if (!sender_.reports().empty()) {  // the engine must look now: nothing more is received until it has made room
      Announce();
      q.starved.exchange(true, std::memory_order_acq_rel);
      Publish(now);
      room = sender_.reports().empty() ? batch.size() : 0;
    }
    if (q.unannounced > 0 && now >= q.announce_by) Announce();
    const absl::Time until = q.unannounced > 0 ? q.announce_by : now + kMaxWait;
    absl::Duration wait = std::max(std::min(sender_.NextDeadline(), until) - now, absl::ZeroDuration());
    if (!spin.Spent(now)) wait = absl::ZeroDuration();
    if (wait > absl::ZeroDuration())
      sleeps_.store(sleeps_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    const size_t count = transport_->Poll(wait, {batch.data(), room});
    const absl::Time then = SteadyNow();
    if (count > 0) spin.OnWork(then);
    for (size_t i = 0; i < count; ++i) sender_.OnEvent(batch[i], then);
  }
}

void Rail::Publish(absl::Time now) {
  Queues& q = *queues_;
  bool urgent = false;
  RailEvent event;
  while (q.events.Free() > 0 && sender_.reports().Take({&event, 1}) > 0) {
    // The stream may be gone as soon as the engine can see the event.
    const uint16_t number = event.stream == nullptr ? 0 : event.stream->number;
    q.events.TryPush(RailEvent(event));
    if (q.unannounced++ == 0) q.announce_by = now + kGather;
    urgent = IsUrgent(event, number, &board_) || urgent;
  }
  if (urgent || q.unannounced >= kMaxUnannounced) Announce();
}

void Rail::Announce() {
  Queues& q = *queues_;
  if (q.unannounced == 0) return;
  q.unannounced = 0;
  engine_wake_->Wake();
}

}  // namespace railsd
