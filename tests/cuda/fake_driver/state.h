// The state of the driver, and what every call of the interface has in common.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_STATE_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_STATE_H_

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fake_driver.h"
#include "memory.h"
#include "races.h"
#include "streams.h"

namespace fake_cuda {

struct Context {
  int device = 0;
  int retained = 0;
};

struct Event {
  Context* context = nullptr;
  std::shared_ptr<Record> last;  // null until recorded
};

struct Failure {
  std::string function;
  int calls = 0;  // until it fails
  int error = 0;
};

struct State {
  State();

  void AddViolation(const std::string& text);
  // Checks an access that the calling host thread makes now, and adds it to the history.
  void CheckHostAccess(const Span& span, bool write);
  // Removes a region, and records a violation if the host does not know that all operations on it have finished. Waits
  // until none accesses its bytes.
  void RemoveRegion(const std::shared_ptr<Region>& region, const char* function, std::unique_lock<std::mutex>& lock);
  // Wakes the streams too. They do not wait for `changed` while they are idle, because most changes do not concern
  // them.
  void WakeAll();
  void Reset(std::unique_lock<std::mutex>& lock);
  void* NewHandle();
  // Returns null for an unknown handle. The default stream starts when it is first used.
  std::shared_ptr<Stream> FindStream(void* handle);

  std::mutex mutex;
  std::condition_variable changed;

  bool initialized = false;
  int broken = 0;  // the error of fakeBreakContext
  bool paused = false;
  uint64_t seed = 1;
  unsigned max_delay_us = 0;
  int devices = 1;
  std::map<int, int> attributes;
  std::array<Context, 8> contexts;
  uint64_t generation = 0;  // of the threads' stacks of contexts; fakeReset empties them all

  Memory memory;
  Clock host;  // what the host knows
  std::map<void*, std::shared_ptr<Stream>> streams;
  std::shared_ptr<Stream> default_stream;
  std::vector<std::shared_ptr<Stream>> threads;  // streams whose threads run, destroyed ones included
  size_t next_component = kFirstStream;
  std::map<void*, Event> events;
  uint64_t last_handle = 0;
  int transfers = 0;                // copies and memsets that have started and not finished
  int moving = 0;                   // those of them that move a part now
  std::vector<Span> pinned_writes;  // host memory that unfinished operations write

  std::vector<Failure> failures;
  std::map<std::string, uint64_t> calls;
  FakeCounts counts{};
  std::deque<std::string> violations;
  uint64_t violation_count = 0;
};

// Never destroyed, because threads use it until the process has ended.
State& GetState();

// One call of a cu* function: takes the mutex, and decides whether the call fails before it does anything.
class Call {
 public:
  enum Needs { kNothing, kLibrary, kDriver, kContext };
  Call(const char* function, Needs needs);

  int error() const { return error_; }
  State& state() { return *state_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }
  Context* context() const { return context_; }  // the thread's current one
  // Records a violation. Returns `error`.
  int Refuse(int error, const std::string& problem);

 private:
  int Check(Needs needs);

  const char* const function_;
  State* const state_;
  std::unique_lock<std::mutex> lock_;
  Context* context_ = nullptr;
  int error_ = 0;
};

// The calling thread's contexts, the current one last.
std::vector<Context*>& ContextStack(const State& state);

bool IsFunction(const std::string& name);

}  // namespace fake_cuda

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_STATE_H_
