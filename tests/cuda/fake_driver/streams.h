// Streams: each is a thread that runs the operations of its queue in order.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_STREAMS_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_STREAMS_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "memory.h"
#include "races.h"

namespace fake_cuda {

struct Context;
struct State;

// A point in a stream that others wait for. The clock is the stream's when it was reached.
struct Record {
  bool done = false;
  Clock clock;
};

struct Operation {
  enum Kind { kCopy, kSet, kRecord, kWaitRecord, kWaitValue, kHostFunction };

  Kind kind = kRecord;
  Span to{}, from{};
  unsigned char byte = 0;               // kSet
  std::shared_ptr<Record> awaited{};    // kWaitRecord
  uint32_t value = 0;                   // kWaitValue, compared with the bytes of `from`
  unsigned comparison = 0;              // kWaitValue, as CUstreamWaitValue_flags
  void (*function)(void*) = nullptr;    // kHostFunction
  void* argument = nullptr;             // kHostFunction
  std::shared_ptr<Record> finished{};   // may be null
  std::vector<unsigned char> staged{};  // the bytes of pageable memory, which a driver reads during the call
  bool pageable = false;

  // Set by Stream::Enqueue.
  uint64_t number = 0;  // in its stream, from 1
  Clock host{};         // what the host knew
  std::shared_ptr<const std::string> text{};
  // Hashes of pinned memory at the call. Absent if an operation was writing there.
  std::optional<uint64_t> to_hash{}, from_hash{};
};

// The state's mutex guards all members.
class Stream : public std::enable_shared_from_this<Stream> {
 public:
  Stream(State* state, Context* context, size_t component)
      : context(context), component(component), number_(component - kFirstStream), state_(state) {}

  void Start();
  void Enqueue(Operation operation);
  // Waits until a record of this or another stream is done. Returns the error of a broken context instead.
  static int Wait(State& state, const Record& record, std::unique_lock<std::mutex>& lock);
  bool idle() const { return completed_ == enqueued_; }
  const Clock& clock() const { return clock_; }
  // The stream whose host function the calling thread runs, or null.
  static Stream* OfHostFunction();
  // The position of the host function that runs.
  Access HostFunctionAccess() const;

  std::condition_variable ready;  // the stream's thread waits for work, or for its end
  Context* const context;         // null: any
  const size_t component;
  bool paused = false;
  bool moving = false;     // a part of a copy moves now
  bool destroyed = false;  // ends after its last operation
  bool stopped = false;    // ends at once

 private:
  using Lock = std::unique_lock<std::mutex>;

  void Run();
  void Execute(Operation& operation, Lock& lock);
  // Moves bytes in several parts.
  void Transfer(Operation& operation, Lock& lock);
  void WaitForValue(Operation& operation, Lock& lock);
  void CallHostFunction(Operation& operation, Lock& lock);
  bool Halted() const;
  bool Paused() const;
  void Delay(uint64_t operation, uint64_t step, Lock& lock);

  // Returns whether the access conflicts with an unordered one.
  bool CheckAccess(const Operation& operation, const Span& span, bool write);
  // Finds a host thread that wrote without waiting: compares pinned memory with its bytes at the call.
  void CheckUnchanged(const Operation& operation, const Span& span, const std::optional<uint64_t>& hash);
  void Count(const Operation& operation);

  const size_t number_;
  State* const state_;
  std::deque<Operation> queue_;
  uint64_t enqueued_ = 0, completed_ = 0;
  Clock clock_;  // of the newest operation that started
  std::shared_ptr<const std::string> current_;
};

}  // namespace fake_cuda

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_STREAMS_H_
