// Test-only calls.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>

#include "bytes.h"
#include "fake_driver.h"
#include "memory.h"
#include "state.h"
#include "streams.h"

namespace fake_cuda {
namespace {

int DeclareHostAccess(uint64_t address, size_t bytes, bool write, void* read_to, const void* write_from) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  std::string problem;
  auto span = state.memory.Locate(address, bytes, &problem);
  if (!span) return kInvalidValue;
  if ((read_to != nullptr || write_from != nullptr) && !span->device()) return kInvalidValue;
  state.CheckHostAccess(*span, write);
  if (read_to != nullptr) CopyBytes(static_cast<unsigned char*>(read_to), true, span->data, false, bytes);
  if (write_from != nullptr) CopyBytes(span->data, false, static_cast<const unsigned char*>(write_from), true, bytes);
  return kSuccess;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): C functions follow

void fakeSetDelays(uint64_t seed, unsigned max_microseconds) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.seed = seed;
  state.max_delay_us = max_microseconds;
}

void fakePause(int paused) {
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  state.paused = paused != 0;
  state.WakeAll();
  if (state.paused) state.changed.wait(lock, [&] { return state.moving == 0; });
}

int fakePauseStream(void* stream, int paused) {
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  auto found = state.FindStream(stream);
  if (found == nullptr) return kInvalidHandle;
  found->paused = paused != 0;
  state.WakeAll();
  if (found->paused) state.changed.wait(lock, [&] { return !found->moving; });
  return kSuccess;
}

int fakeDrain(unsigned timeout_milliseconds) {
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  const auto end = std::chrono::system_clock::now() + std::chrono::milliseconds(timeout_milliseconds);
  const auto idle = [&] {
    return std::all_of(state.threads.begin(), state.threads.end(), [](const auto& stream) { return stream->idle(); });
  };
  state.changed.wait_until(lock, end, [&] { return state.broken != kSuccess || idle(); });
  return idle();
}

void fakeSetAttribute(int attribute, int value) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.attributes[attribute] = value;
}

void fakeSetDeviceCount(int count) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  state.devices = std::clamp(count, 0, static_cast<int>(state.contexts.size()));
}

int fakeFail(const char* function, int nth_call, int error) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  if (!IsFunction(function) || nth_call < 1) return 0;
  state.failures.push_back({function, nth_call, error});
  return 1;
}

void fakeBreakContext(int error) {
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  state.broken = error;
  state.WakeAll();
  state.changed.wait(lock, [&] { return state.transfers == 0; });
}

int fakeHostRead(uint64_t address, size_t bytes) { return DeclareHostAccess(address, bytes, false, nullptr, nullptr); }

int fakeHostWrite(uint64_t address, size_t bytes) { return DeclareHostAccess(address, bytes, true, nullptr, nullptr); }

int fakePeek(void* to, uint64_t from, size_t bytes) { return DeclareHostAccess(from, bytes, false, to, nullptr); }

int fakePoke(uint64_t to, const void* from, size_t bytes) { return DeclareHostAccess(to, bytes, true, nullptr, from); }

void* fakeDeviceBytes(uint64_t address) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  auto region = state.memory.FindDevice(address);
  return region == nullptr ? nullptr : region->allocation->data + (address - region->address);
}

FakeLive fakeLive(void) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  int64_t contexts = 0;
  for (const Context& context : state.contexts) contexts += context.retained;
  return {state.memory.allocations(), state.memory.registrations(), static_cast<int64_t>(state.streams.size()),
          static_cast<int64_t>(state.events.size()), contexts};
}

FakeCounts fakeCounts(void) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  return state.counts;
}

uint64_t fakeCalls(const char* function) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  auto found = state.calls.find(function);
  return found == state.calls.end() ? 0 : found->second;
}

uint64_t fakeViolations(void) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  return state.violation_count;
}

const char* fakeViolation(uint64_t index) {
  State& state = GetState();
  std::lock_guard lock(state.mutex);
  return index < state.violations.size() ? state.violations[index].c_str() : nullptr;
}

void fakeReset(void) {
  State& state = GetState();
  std::unique_lock lock(state.mutex);
  if (Stream::OfHostFunction() == nullptr) state.Reset(lock);
}
