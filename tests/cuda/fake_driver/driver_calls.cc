// Calls of the interface about the library, devices, contexts and memory.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>

#include "fake_driver.h"
#include "memory.h"
#include "state.h"

#define FAKE_CUDA_ENTER(needs)                \
  Call call(__func__, Call::needs);           \
  if (call.error() != 0) return call.error(); \
  [[maybe_unused]] State& state = call.state()

namespace fake_cuda {
namespace {

struct ErrorText {
  int error;
  const char* name;
  const char* text;
};
constexpr ErrorText kErrors[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the requested memory range is already mapped"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

int FindError(int error, const char** out, const char* ErrorText::*member) {
  if (out == nullptr) return kInvalidValue;
  *out = nullptr;
  for (const ErrorText& known : kErrors) {
    if (known.error == error) *out = known.*member;
  }
  return *out == nullptr ? kInvalidValue : kSuccess;
}

// The content of an IpcHandle: the allocation's process and that process's descriptor of its file, a number that is
// never used again, and its length.
struct IpcContent {
  uint64_t process, file, serial, bytes;
};

}  // namespace
}  // namespace fake_cuda

using namespace fake_cuda;  // NOLINT(google-build-using-namespace): C functions follow

int cuInit(unsigned flags) {
  FAKE_CUDA_ENTER(kLibrary);
  if (flags != 0) return kInvalidValue;
  state.initialized = true;
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  FAKE_CUDA_ENTER(kLibrary);
  *version = 12040;
  return kSuccess;
}

int cuGetErrorName(int error, const char** name) {
  FAKE_CUDA_ENTER(kNothing);
  return FindError(error, name, &ErrorText::name);
}

int cuGetErrorString(int error, const char** text) {
  FAKE_CUDA_ENTER(kNothing);
  return FindError(error, text, &ErrorText::text);
}

int cuDeviceGetCount(int* count) {
  FAKE_CUDA_ENTER(kDriver);
  *count = state.devices;
  return kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  FAKE_CUDA_ENTER(kDriver);
  if (ordinal < 0 || ordinal >= state.devices) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetName(char* name, int length, int device) {
  FAKE_CUDA_ENTER(kDriver);
  if (device < 0 || device >= state.devices) return kInvalidDevice;
  if (name == nullptr || length <= 0) return kInvalidValue;
  std::snprintf(name, static_cast<size_t>(length), "Fake device %d", device);
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  FAKE_CUDA_ENTER(kDriver);
  if (device < 0 || device >= state.devices) return kInvalidDevice;
  if (value == nullptr || attribute <= 0) return kInvalidValue;
  auto found = state.attributes.find(attribute);
  *value = found == state.attributes.end() ? 0 : found->second;
  return kSuccess;
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  FAKE_CUDA_ENTER(kDriver);
  if (device < 0 || device >= state.devices) return kInvalidDevice;
  Context& retained = state.contexts[static_cast<size_t>(device)];
  ++retained.retained;
  *context = &retained;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  FAKE_CUDA_ENTER(kDriver);
  if (device < 0 || device >= state.devices) return kInvalidDevice;
  Context& context = state.contexts[static_cast<size_t>(device)];
  if (context.retained == 0) return call.Refuse(kInvalidContext, "no context is retained");
  --context.retained;
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  FAKE_CUDA_ENTER(kDriver);
  for (Context& known : state.contexts) {
    if (&known != context || known.retained == 0) continue;
    ContextStack(state).push_back(&known);
    return kSuccess;
  }
  return kInvalidContext;
}

int cuCtxPopCurrent_v2(void** context) {
  FAKE_CUDA_ENTER(kDriver);
  auto& stack = ContextStack(state);
  if (stack.empty()) return kInvalidContext;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return kSuccess;
}

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  FAKE_CUDA_ENTER(kContext);
  return address == nullptr ? kInvalidValue : state.memory.Allocate(bytes, address);
}

int cuMemFree_v2(uint64_t address) {
  FAKE_CUDA_ENTER(kContext);
  if (address == 0) return kSuccess;
  auto region = state.memory.FindDevice(address);
  if (region == nullptr || region->address != address) return kInvalidValue;
  state.RemoveRegion(region, __func__, call.lock());
  return kSuccess;
}

int cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address) {
  FAKE_CUDA_ENTER(kContext);
  auto region = state.memory.FindDevice(address);
  if (region == nullptr) region = state.memory.FindRegistration(address);
  if (region == nullptr) return kInvalidValue;
  if (base != nullptr) *base = region->address;
  if (bytes != nullptr) *bytes = region->bytes;
  return kSuccess;
}

int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  FAKE_CUDA_ENTER(kContext);
  constexpr int kBufferId = 7;
  auto region = state.memory.FindDevice(address);
  if (value == nullptr || attribute != kBufferId || region == nullptr) return kInvalidValue;
  const uint64_t serial = region->allocation->serial();
  std::memcpy(value, &serial, sizeof serial);
  return kSuccess;
}

int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags) {
  FAKE_CUDA_ENTER(kContext);
  if (flags > 0xf) return kInvalidValue;
  return state.memory.Register(reinterpret_cast<uint64_t>(memory), bytes);
}

int cuMemHostUnregister(void* memory) {
  FAKE_CUDA_ENTER(kContext);
  auto region = state.memory.FindRegistration(reinterpret_cast<uint64_t>(memory));
  if (region == nullptr || region->address != reinterpret_cast<uint64_t>(memory)) return kNotRegistered;
  state.RemoveRegion(region, __func__, call.lock());
  return kSuccess;
}

int cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned flags) {
  FAKE_CUDA_ENTER(kContext);
  const auto wanted = reinterpret_cast<uint64_t>(memory);
  if (address == nullptr || flags != 0 || state.memory.FindRegistration(wanted) == nullptr) return kInvalidValue;
  *address = wanted;
  return kSuccess;
}

int cuMemGetHandleForAddressRange(void* handle, uint64_t address, size_t bytes, int type, unsigned long long flags) {
  FAKE_CUDA_ENTER(kContext);
  if (state.attributes[124] != 1) return kNotSupported;
  auto region = state.memory.FindDevice(address);
  if (handle == nullptr || type != 1 || flags > 1 || region == nullptr || bytes == 0 || address % kPage != 0 ||
      bytes % kPage != 0) {
    return kInvalidValue;
  }
  const Allocation& allocation = *region->allocation;
  const uint64_t offset = address - region->address;
  if (bytes > allocation.mapped_bytes() - offset) return kInvalidValue;
  // Opened anew, because duplicates would share their positions: the position tells where the range starts.
  const int file = open(("/proc/self/fd/" + std::to_string(allocation.file)).c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kOutOfMemory;
  lseek(file, static_cast<off_t>(offset), SEEK_SET);
  std::memcpy(handle, &file, sizeof file);
  return kSuccess;
}

int cuIpcGetMemHandle(rails::cuda::IpcHandle* handle, uint64_t address) {
  FAKE_CUDA_ENTER(kContext);
  auto region = state.memory.FindDevice(address);
  if (handle == nullptr || region == nullptr || region->allocation->opened) return kInvalidValue;
  const Allocation& allocation = *region->allocation;
  const IpcContent content{static_cast<uint64_t>(getpid()), static_cast<uint64_t>(allocation.file), allocation.serial(),
                           allocation.bytes};
  *handle = {};
  std::memcpy(handle->bytes, &content, sizeof content);
  return kSuccess;
}

int cuIpcOpenMemHandle_v2(uint64_t* address, rails::cuda::IpcHandle handle, unsigned flags) {
  FAKE_CUDA_ENTER(kContext);
  if (address == nullptr || flags != 1) return kInvalidValue;
  IpcContent content;
  std::memcpy(&content, handle.bytes, sizeof content);
  if (content.process == static_cast<uint64_t>(getpid())) return kInvalidContext;  // as a real one
  const std::string path = "/proc/" + std::to_string(content.process) + "/fd/" + std::to_string(content.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kInvalidHandle;
  return state.memory.Add(Allocation::Open(file, content.bytes), address);
}

int cuIpcCloseMemHandle(uint64_t address) {
  FAKE_CUDA_ENTER(kContext);
  auto region = state.memory.FindDevice(address);
  if (region == nullptr || !region->allocation->opened || region->address != address) return kInvalidValue;
  state.RemoveRegion(region, __func__, call.lock());
  return kSuccess;
}

int cuFlushGPUDirectRDMAWrites(int target, int scope) {
  FAKE_CUDA_ENTER(kContext);
  if (target != 0 || (scope != 100 && scope != 200)) return kInvalidValue;
  if ((state.attributes[117] & 1) == 0) return kNotSupported;
  ++state.counts.flushes;
  return kSuccess;
}
