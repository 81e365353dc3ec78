#include "streams.h"

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "bytes.h"
#include "state.h"

namespace fake_cuda {
namespace {

constexpr unsigned char kSpoiled = 0xdb;

thread_local Stream* stream_of_host_function = nullptr;

const char* Place(const Span& span) { return span.device() ? "device" : span.pinned() ? "pinned" : "pageable"; }

std::string DescribeOperation(const Operation& operation, size_t stream) {
  std::string text;
  switch (operation.kind) {
    case Operation::kCopy:
      text = std::string("copy from ") + Place(operation.from) + " to " + Place(operation.to) + " memory";
      break;
    case Operation::kSet:
      text = "memset";
      break;
    case Operation::kRecord:
      text = "event record";
      break;
    case Operation::kWaitRecord:
      text = "wait for an event";
      break;
    case Operation::kWaitValue:
      text = "wait for a value";
      break;
    case Operation::kHostFunction:
      text = "host function";
      break;
  }
  return text + " (operation " + std::to_string(operation.number) + " of stream " + std::to_string(stream) + ")";
}

bool Satisfied(uint32_t now, uint32_t value, unsigned comparison) {
  switch (comparison) {
    case 0:
      return static_cast<int32_t>(now - value) >= 0;
    case 1:
      return now == value;
    case 2:
      return (now & value) != 0;
    default:
      return ~(now | value) != 0;
  }
}

bool Removed(const Span& span) { return span.region != nullptr && span.region->removed; }

bool Removed(const Operation& operation) { return Removed(operation.to) || Removed(operation.from); }

// Calls `function` for each region of an operation.
template <typename Function>
void ForRegions(const Operation& operation, Function function) {
  for (const Span* span : {&operation.to, &operation.from}) {
    if (span->region != nullptr) function(*span->region);
  }
}

}  // namespace

void Stream::Start() {
  // The program's signals are for its own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([self = shared_from_this()] { self->Run(); }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Stream::Enqueue(Operation operation) {
  State& state = *state_;
  operation.number = ++enqueued_;
  operation.text = std::make_shared<const std::string>(DescribeOperation(operation, number_));
  state.host.Tick(kReleaseComponent);
  operation.host = state.host;
  if (operation.kind == Operation::kCopy || operation.kind == Operation::kSet) {
    const auto hash = [&](const Span& span) -> std::optional<uint64_t> {
      if (!span.pinned()) return std::nullopt;
      for (const Span& written : state.pinned_writes) {
        if (written.Overlaps(span)) return std::nullopt;
      }
      return HashBytes(span.data, span.bytes);
    };
    operation.from_hash = hash(operation.from);
    operation.to_hash = hash(operation.to);
    if (operation.to.pinned()) state.pinned_writes.push_back(operation.to);
  }
  ForRegions(operation, [](Region& region) { ++region.queued; });
  queue_.push_back(std::move(operation));
  ready.notify_one();
}

int Stream::Wait(State& state, const Record& record, std::unique_lock<std::mutex>& lock) {
  state.changed.wait(lock, [&] { return record.done || state.broken != kSuccess; });
  if (state.broken != kSuccess) return state.broken;
  state.host.Join(record.clock);
  return kSuccess;
}

Stream* Stream::OfHostFunction() { return stream_of_host_function; }

Access Stream::HostFunctionAccess() const { return {component, clock_[component], current_}; }

bool Stream::Halted() const { return stopped || state_->broken != kSuccess; }

bool Stream::Paused() const { return paused || state_->paused; }

void Stream::Run() {
  Lock lock(state_->mutex);
  while (true) {
    const auto runnable = [&] { return !queue_.empty() && !Halted() && !Paused(); };
    ready.wait(lock,
               [&] { return stopped || (destroyed && (queue_.empty() || state_->broken != kSuccess)) || runnable(); });
    if (!runnable()) break;
    // The wait itself is late enough. A delay before it would let more of what the host does count as released.
    if (queue_.front().kind != Operation::kWaitValue) Delay(queue_.front().number, 0, lock);
    if (!runnable()) continue;
    Operation operation = std::move(queue_.front());
    queue_.pop_front();
    Execute(operation, lock);
    if (Halted()) continue;
    ++completed_;
    Count(operation);
    ForRegions(operation, [](Region& region) { --region.queued; });
    auto& writes = state_->pinned_writes;
    if (operation.to.pinned()) {
      writes.erase(std::find_if(writes.begin(), writes.end(), [&](const Span& span) {
        return span.position == operation.to.position && span.bytes == operation.to.bytes;
      }));
    }
    if (operation.finished != nullptr) {
      operation.finished->clock = clock_;
      operation.finished->done = true;
    }
    state_->changed.notify_all();
  }
  std::erase_if(state_->threads, [this](const auto& stream) { return stream.get() == this; });
  state_->changed.notify_all();
}

void Stream::Delay(uint64_t operation, uint64_t step, Lock& lock) {
  const unsigned max = state_->max_delay_us;
  const uint64_t random = Mix(state_->seed, number_, operation, step);
  const uint64_t delay = max == 0 || random % 4 != 0 ? 0 : (random >> 8) % (uint64_t{max} + 1);
  if (delay == 0) return;
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(delay));
  lock.lock();
}

void Stream::Execute(Operation& operation, Lock& lock) {
  clock_.Join(operation.host);
  clock_.Tick(component);
  current_ = operation.text;
  switch (operation.kind) {
    case Operation::kCopy:
    case Operation::kSet:
      // Removing memory of queued operations was recorded then.
      if (!Removed(operation)) Transfer(operation, lock);
      break;
    case Operation::kRecord:
      break;
    case Operation::kWaitRecord:
      state_->changed.wait(lock, [&] { return Halted() || operation.awaited->done; });
      clock_.Join(operation.awaited->clock);
      break;
    case Operation::kWaitValue:
      WaitForValue(operation, lock);
      break;
    case Operation::kHostFunction:
      CallHostFunction(operation, lock);
      break;
  }
}

void Stream::Transfer(Operation& operation, Lock& lock) {
  Span& to = operation.to;
  Span& from = operation.from;
  const bool copies = operation.kind == Operation::kCopy;
  const bool read_races = CheckAccess(operation, from, false), write_races = CheckAccess(operation, to, true);
  const bool races = read_races || write_races;
  if (!races) {
    CheckUnchanged(operation, from, operation.from_hash);
    CheckUnchanged(operation, to, operation.to_hash);
  }
  ForRegions(operation, [](Region& region) { ++region.running; });
  ++state_->transfers;
  const size_t bytes = to.bytes;
  const uint64_t random = Mix(state_->seed, number_, operation.number, 1);
  // Programs may poll a word that a copy writes. All else is one part that spoils the destination, so that a reader
  // that does not wait cannot find the right bytes there from before, and then the parts of the copy.
  const bool whole = bytes <= 8;
  const size_t parts = whole ? 1 : std::min<size_t>(2 + random % 3, bytes);
  const size_t first = (random >> 8) % parts;
  const bool backward = (random >> 16) % 2 != 0;
  const auto accessible = [&] { return !Halted() && !Removed(operation); };

  lock.unlock();
  const uint64_t before = copies && !races ? HashBytes(from.data, bytes) : 0;
  lock.lock();
  for (size_t i = whole ? 1 : 0; i <= parts && accessible(); ++i) {
    if (i > 0) Delay(operation.number, 1 + i, lock);
    state_->changed.wait(lock, [&] { return !accessible() || !Paused(); });
    if (!accessible()) break;
    const size_t part = (first + (backward ? parts - i : i)) % parts;
    const size_t begin = bytes * part / parts, end = bytes * (part + 1) / parts;
    ++state_->moving;
    moving = true;
    lock.unlock();
    if (i == 0) {
      SetBytes(to.data, !to.device(), kSpoiled, bytes);
    } else if (copies) {
      CopyBytes(to.data + begin, !to.device(), from.data + begin, from.pinned(), end - begin);
    } else {
      SetBytes(to.data + begin, !to.device(), operation.byte, end - begin);
    }
    if (Mix(random, i, 0, 0) % 4 == 0) std::this_thread::yield();
    lock.lock();
    --state_->moving;
    moving = false;
    if (Paused()) state_->changed.notify_all();
  }
  if (copies && !races && accessible()) {
    lock.unlock();
    const bool from_changed = from.pinned() && HashBytes(from.data, bytes) != before;
    const bool to_changed = to.pinned() && HashBytes(to.data, bytes) != before;
    lock.lock();
    // An operation that began meanwhile and changed the bytes has recorded its race.
    const auto raced = [&](const Span& span, bool write) {
      return span.history != nullptr &&
             span.history->Find(span.position, span.position + bytes, write, clock_).has_value();
    };
    if ((from_changed || to_changed) && !raced(from, false) && !raced(to, true)) {
      state_->AddViolation((from_changed ? from : to).Describe() + " changed during the " + *operation.text);
    }
  }
  ForRegions(operation, [](Region& region) { --region.running; });
  --state_->transfers;
  if (!accessible()) state_->changed.notify_all();
}

bool Stream::CheckAccess(const Operation& operation, const Span& span, bool write) {
  if (span.history == nullptr) return false;
  auto conflict = span.history->Add(span.position, span.position + span.bytes, write,
                                    {component, clock_[component], operation.text}, clock_);
  if (!conflict) return false;
  state_->AddViolation("Race: the " + *operation.text + (write ? " writes " : " reads ") + span.Describe() +
                       ", but nothing orders it after the " + (conflict->earlier_writes ? "write" : "read") +
                       " by the " + conflict->earlier);
  return true;
}

void Stream::CheckUnchanged(const Operation& operation, const Span& span, const std::optional<uint64_t>& hash) {
  // Something before this operation may have waited for the host since the call.
  if (!hash || clock_[kReleaseComponent] != operation.host[kReleaseComponent]) return;
  if (HashBytes(span.data, span.bytes) == *hash) return;
  state_->AddViolation("The host changed " + span.Describe() + " after the call that enqueued the " + *operation.text +
                       " and before the operation ran");
}

void Stream::WaitForValue(Operation& operation, Lock& lock) {
  for (unsigned tries = 0; !Halted() && !Removed(operation); ++tries) {
    if (!Paused() && Satisfied(LoadValue(operation.from.data), operation.value, operation.comparison)) {
      state_->host.Tick(kReleaseComponent);
      clock_.Join(state_->host);
      break;
    }
    lock.unlock();
    if (tries < 20) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    lock.lock();
  }
  Delay(operation.number, 1, lock);
}

void Stream::CallHostFunction(Operation& operation, Lock& lock) {
  state_->host.Join(clock_);
  stream_of_host_function = this;
  lock.unlock();
  operation.function(operation.argument);
  lock.lock();
  stream_of_host_function = nullptr;
  state_->host.Tick(kReleaseComponent);
  clock_.Set(kReleaseComponent, state_->host[kReleaseComponent]);
}

void Stream::Count(const Operation& operation) {
  FakeCounts& counts = state_->counts;
  counts.sets += operation.kind == Operation::kSet;
  counts.host_functions += operation.kind == Operation::kHostFunction;
  if (operation.kind != Operation::kCopy) return;
  ++counts.copies;
  counts.pageable_copies += operation.pageable;
  const bool from_device = operation.from.device(), to_device = operation.to.device();
  (from_device ? to_device ? counts.device_to_device : counts.device_to_host
   : to_device ? counts.host_to_device
               : counts.host_to_host) += operation.to.bytes;
}

}  // namespace fake_cuda
