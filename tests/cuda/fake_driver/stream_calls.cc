// Calls of the interface about streams and events.
#include <memory>
#include <string>
#include <utility>

#include "fake_driver.h"
#include "state.h"
#include "streams.h"

namespace fake_cuda {
namespace {

constexpr unsigned kWaitValueFlush = 1U << 30;

// Checks and locates the sides of a copy or memset. `from` is null for a memset.
int Locate(Call& call, const Stream& stream, size_t bytes, uint64_t to, const uint64_t* from, Operation* operation) {
  if (stream.context != nullptr && stream.context != call.context()) {
    return call.Refuse(kInvalidHandle, "the stream belongs to a context that is not current");
  }
  std::string problem;
  auto located = call.state().memory.Locate(to, bytes, &problem);
  if (!located) return call.Refuse(kInvalidValue, "the destination " + problem);
  operation->to = *located;
  if (from == nullptr) return kSuccess;
  located = call.state().memory.Locate(*from, bytes, &problem);
  if (!located) return call.Refuse(kInvalidValue, "the source " + problem);
  operation->from = *located;
  if (operation->to.Overlaps(operation->from)) return call.Refuse(kInvalidValue, "source and destination overlap");
  return kSuccess;
}

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): C functions follow

// Returns early if the call fails. Defines `call`, `state`, and `found`, the stream.
#define FAKE_CUDA_ENTER_STREAM(handle)                            \
  Call call(__func__, Call::kContext);                            \
  if (call.error() != kSuccess) return call.error();              \
  State& state = call.state();                                    \
  const std::shared_ptr<Stream> found = state.FindStream(handle); \
  if (found == nullptr) return call.Refuse(kInvalidHandle, "unknown stream, maybe a destroyed one")

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  if (bytes == 0) return kSuccess;
  Operation operation{.kind = Operation::kCopy};
  if (int error = Locate(call, *found, bytes, to, &from, &operation); error != kSuccess) return error;
  const bool to_pageable = operation.to.region == nullptr, from_pageable = operation.from.region == nullptr;
  operation.pageable = to_pageable || from_pageable;
  if (from_pageable) {
    operation.staged.assign(operation.from.data, operation.from.data + bytes);
    operation.from.data = operation.staged.data();
  }
  // A driver returns from a copy to pageable memory when the bytes are there.
  const auto finished = std::make_shared<Record>();
  operation.finished = finished;
  found->Enqueue(std::move(operation));
  return to_pageable ? Stream::Wait(state, *finished, call.lock()) : kSuccess;
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  if (bytes == 0) return kSuccess;
  Operation operation{.kind = Operation::kSet, .byte = value};
  if (int error = Locate(call, *found, bytes, to, nullptr, &operation); error != kSuccess) return error;
  if (operation.to.region == nullptr) return call.Refuse(kInvalidValue, operation.to.Describe());
  found->Enqueue(std::move(operation));
  return kSuccess;
}

int cuStreamCreate(void** stream, unsigned flags) {
  Call call(__func__, Call::kContext);
  if (call.error() != kSuccess) return call.error();
  if (stream == nullptr || flags > 1) return kInvalidValue;
  State& state = call.state();
  auto made = std::make_shared<Stream>(&state, call.context(), state.next_component++);
  *stream = state.NewHandle();
  state.streams[*stream] = made;
  state.threads.push_back(made);
  made->Start();
  return kSuccess;
}

int cuStreamDestroy_v2(void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  if (state.streams.erase(stream) == 0) return call.Refuse(kInvalidHandle, "the default stream");
  found->destroyed = true;
  state.WakeAll();
  return kSuccess;
}

int cuStreamQuery(void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  if (!found->idle()) return kNotReady;
  state.host.Join(found->clock());
  return kSuccess;
}

int cuStreamSynchronize(void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  const auto finished = std::make_shared<Record>();
  found->Enqueue({.kind = Operation::kRecord, .finished = finished});
  return Stream::Wait(state, *finished, call.lock());
}

int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  FAKE_CUDA_ENTER_STREAM(stream);
  auto recorded = state.events.find(event);
  if (recorded == state.events.end()) return call.Refuse(kInvalidHandle, "unknown event, maybe a destroyed one");
  if (flags > 1) return kInvalidValue;
  if (recorded->second.last == nullptr) return kSuccess;
  found->Enqueue({.kind = Operation::kWaitRecord, .awaited = recorded->second.last});
  return kSuccess;
}

int cuEventCreate(void** event, unsigned flags) {
  Call call(__func__, Call::kContext);
  if (call.error() != kSuccess) return call.error();
  if (event == nullptr || flags > 7) return kInvalidValue;
  *event = call.state().NewHandle();
  call.state().events[*event] = {call.context(), nullptr};
  return kSuccess;
}

int cuEventRecord(void* event, void* stream) {
  FAKE_CUDA_ENTER_STREAM(stream);
  auto recorded = state.events.find(event);
  if (recorded == state.events.end()) return call.Refuse(kInvalidHandle, "unknown event, maybe a destroyed one");
  if (found->context != nullptr && found->context != recorded->second.context) {
    return call.Refuse(kInvalidHandle, "event and stream belong to different contexts");
  }
  recorded->second.last = std::make_shared<Record>();
  found->Enqueue({.kind = Operation::kRecord, .finished = recorded->second.last});
  return kSuccess;
}

int cuEventDestroy_v2(void* event) {
  Call call(__func__, Call::kContext);
  if (call.error() != kSuccess) return call.error();
  if (call.state().events.erase(event) == 0) return call.Refuse(kInvalidHandle, "unknown event");
  return kSuccess;
}

int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  FAKE_CUDA_ENTER_STREAM(stream);
  if (function == nullptr) return kInvalidValue;
  found->Enqueue({.kind = Operation::kHostFunction, .function = function, .argument = argument});
  return kSuccess;
}

int cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags) {
  FAKE_CUDA_ENTER_STREAM(stream);
  const unsigned comparison = flags & ~kWaitValueFlush;
  if (comparison > 3 || address % sizeof value != 0) return kInvalidValue;
  std::string problem;
  auto located = state.memory.Locate(address, sizeof value, &problem);
  if (!located) return call.Refuse(kInvalidValue, "the value " + problem);
  if (located->region == nullptr) return call.Refuse(kInvalidValue, "the value is in " + located->Describe());
  found->Enqueue({.kind = Operation::kWaitValue, .from = *located, .value = value, .comparison = comparison});
  return kSuccess;
}
