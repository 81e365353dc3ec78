#include "state.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace fake_cuda {
namespace {

constexpr size_t kKeptViolations = 1000;
constexpr std::chrono::seconds kStopTimeout{5};

// Set in a child of fork. It has no stream threads, and may hold the mutex for ever.
std::atomic<bool> forked{false};

std::map<int, int> DefaultAttributes() { return {{41, 1}, {117, 1}, {118, 0}, {124, 0}}; }

uint64_t Environment(const char* name, uint64_t otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 0);
}

}  // namespace

State& GetState() {
  static State* const state = new State;
  return *state;
}

State::State() : attributes(DefaultAttributes()) {
  seed = Environment("FAKE_CUDA_SEED", 1);
  max_delay_us = static_cast<unsigned>(Environment("FAKE_CUDA_MAX_DELAY_US", 0));
  for (size_t i = 0; i < contexts.size(); ++i) contexts[i].device = static_cast<int>(i);
  pthread_atfork(nullptr, nullptr, [] { forked = true; });
}

void State::AddViolation(const std::string& text) {
  if (std::getenv("FAKE_CUDA_ABORT") != nullptr) {
    std::fprintf(stderr, "fake CUDA driver: %s\n", text.c_str());
    std::abort();
  }
  ++violation_count;
  if (violations.size() < kKeptViolations) violations.push_back(text);
}

void State::CheckHostAccess(const Span& span, bool write) {
  if (span.history == nullptr) return;
  Clock clock = host;
  Access access;
  if (const Stream* stream = Stream::OfHostFunction()) {
    clock.Join(stream->clock());
    access = stream->HostFunctionAccess();
  } else {
    host.Tick(kHostComponent);
    access = {kHostComponent, host[kHostComponent], std::make_shared<const std::string>("host")};
  }
  auto conflict = span.history->Add(span.position, span.position + span.bytes, write, access, clock);
  if (!conflict) return;
  AddViolation(std::string("Race: the host ") + (write ? "writes " : "reads ") + span.Describe() +
               ", but does not know that the " + (conflict->earlier_writes ? "write" : "read") + " by the " +
               conflict->earlier + " has finished");
}

void State::RemoveRegion(const std::shared_ptr<Region>& region, const char* function,
                         std::unique_lock<std::mutex>& lock) {
  std::string problem;
  const Span span = memory.Locate(region->address, region->bytes, &problem).value_or(Span{});
  if (region->queued > 0) {
    AddViolation(std::string(function) + " of " + span.Describe() + " while " + std::to_string(region->queued) +
                 " operations on it have not finished");
  } else if (span.history != nullptr) {
    if (auto conflict = span.history->Find(span.position, span.position + span.bytes, true, host)) {
      AddViolation(std::string(function) + " of " + span.Describe() + ", but the host does not know that the " +
                   conflict->earlier + " has finished");
    }
  }
  memory.Remove(*region);
  changed.notify_all();
  changed.wait(lock, [&] { return region->running == 0; });
}

void State::WakeAll() {
  for (const auto& stream : threads) stream->ready.notify_one();
  changed.notify_all();
}

void State::Reset(std::unique_lock<std::mutex>& lock) {
  for (const auto& stream : threads) stream->stopped = true;
  WakeAll();
  // A host function that does not return must not block the tests that follow.
  changed.wait_until(lock, std::chrono::system_clock::now() + kStopTimeout, [&] { return threads.empty(); });
  broken = 0;
  paused = false;
  seed = Environment("FAKE_CUDA_SEED", 1);
  max_delay_us = static_cast<unsigned>(Environment("FAKE_CUDA_MAX_DELAY_US", 0));
  devices = 1;
  attributes = DefaultAttributes();
  for (Context& context : contexts) context.retained = 0;
  ++generation;
  memory.Clear();
  streams.clear();
  default_stream = nullptr;
  events.clear();
  pinned_writes.clear();
  if (threads.empty()) {
    host = {};
    next_component = kFirstStream;
  }
  failures.clear();
  calls.clear();
  counts = {};
  violations.clear();
  violation_count = 0;
}

void* State::NewHandle() {
  // Never reused, so that the use of a destroyed stream or event is always an error. No address of memory.
  last_handle += 16;
  return reinterpret_cast<void*>(0x100 + last_handle);  // NOLINT(performance-no-int-to-ptr): never followed
}

std::shared_ptr<Stream> State::FindStream(void* handle) {
  // CU_STREAM_LEGACY and CU_STREAM_PER_THREAD
  if (reinterpret_cast<uintptr_t>(handle) <= 2) {
    if (default_stream == nullptr) {
      default_stream = std::make_shared<Stream>(this, nullptr, next_component++);
      threads.push_back(default_stream);
      default_stream->Start();
    }
    return default_stream;
  }
  auto found = streams.find(handle);
  return found == streams.end() ? nullptr : found->second;
}

Call::Call(const char* function, Needs needs) : function_(function), state_(&GetState()) {
  if (forked) {
    error_ = kNotInitialized;
    return;
  }
  lock_ = std::unique_lock(state_->mutex);
  error_ = Check(needs);
}

int Call::Refuse(int error, const std::string& problem) {
  state_->AddViolation(std::string(function_) + ": " + problem);
  return error;
}

int Call::Check(Needs needs) {
  if (Stream::OfHostFunction() != nullptr) return Refuse(kNotPermitted, "called from a host function");
  ++state_->calls[function_];
  int failure = kSuccess;
  std::erase_if(state_->failures, [&](Failure& planned) {
    if (planned.function != function_ || --planned.calls > 0) return false;
    failure = planned.error;
    return true;
  });
  if (failure != kSuccess || needs == kNothing) return failure;
  if (state_->broken != kSuccess) return state_->broken;
  if (needs == kLibrary) return kSuccess;
  if (!state_->initialized) return kNotInitialized;
  auto& stack = ContextStack(*state_);
  if (!stack.empty()) context_ = stack.back();
  if (needs == kDriver) return kSuccess;
  if (context_ == nullptr) return kInvalidContext;
  return context_->retained > 0 ? kSuccess : kContextIsDestroyed;
}

std::vector<Context*>& ContextStack(const State& state) {
  thread_local std::vector<Context*> stack;
  thread_local uint64_t generation = 0;
  if (generation != state.generation) stack.clear();
  generation = state.generation;
  return stack;
}

bool IsFunction(const std::string& name) {
  static const auto* const names = new std::set<std::string>{
      "cuInit",
      "cuDriverGetVersion",
      "cuGetErrorName",
      "cuGetErrorString",
      "cuDeviceGetCount",
      "cuDeviceGet",
      "cuDeviceGetName",
      "cuDeviceGetAttribute",
      "cuDevicePrimaryCtxRetain",
      "cuDevicePrimaryCtxRelease_v2",
      "cuCtxPushCurrent_v2",
      "cuCtxPopCurrent_v2",
      "cuMemAlloc_v2",
      "cuMemFree_v2",
      "cuMemGetAddressRange_v2",
      "cuMemHostRegister_v2",
      "cuMemHostUnregister",
      "cuMemHostGetDevicePointer_v2",
      "cuMemcpyAsync",
      "cuMemsetD8Async",
      "cuStreamCreate",
      "cuStreamDestroy_v2",
      "cuStreamQuery",
      "cuStreamSynchronize",
      "cuStreamWaitEvent",
      "cuEventCreate",
      "cuEventRecord",
      "cuEventDestroy_v2",
      "cuLaunchHostFunc",
      "cuStreamWaitValue32_v2",
      "cuMemGetHandleForAddressRange",
      "cuPointerGetAttribute",
      "cuIpcGetMemHandle",
      "cuIpcOpenMemHandle_v2",
      "cuIpcCloseMemHandle",
      "cuFlushGPUDirectRDMAWrites",
  };
  return names->count(name) == 1;
}

}  // namespace fake_cuda
