// The CUDA driver's interface, opened at run time: a program without a GPU neither links nor loads it. Types, values
// and the suffixes of names are those of NVIDIA's CUDA Driver API reference, version 12.
#ifndef RAILS_CLIENT_CUDA_DRIVER_H_
#define RAILS_CLIENT_CUDA_DRIVER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/cuda/ipc_handle.h"
#include "rails/cuda.h"

namespace rails::cuda {

using Result = int;        // CUresult
using DeviceNumber = int;  // CUdevice
using Context = void*;     // CUcontext
using Event = void*;       // CUevent

inline constexpr Result kSuccess = 0;
inline constexpr Result kNotReady = 600;

// CUdevice_attribute
inline constexpr int kRdmaFlushOptions = 117;
inline constexpr int kRdmaWritesOrdering = 118;
inline constexpr int kDmaBufSupported = 124;

inline constexpr int kPointerBufferId = 7;  // CUpointer_attribute
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kHostRegisterPortable = 1, kHostRegisterMapped = 2;
inline constexpr unsigned kWaitValueAtLeast = 0;   // cyclic: (int32_t)(*address - value) >= 0
inline constexpr int kAddressRangeDmaBuf = 1;      // CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
inline constexpr unsigned kIpcLazyPeerAccess = 1;  // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr int kFlushCurrentContext = 0, kFlushToOwner = 100;

// The functions used: name in the library, and type. `X` for those that every driver since CUDA 11 has, `Y` for those
// that may be missing, which are then null.
#define RAILS_CUDA_FUNCTIONS(X, Y)                                                                                    \
  X(cuInit, Result(unsigned flags))                                                                                   \
  X(cuDriverGetVersion, Result(int* version))                                                                         \
  X(cuGetErrorName, Result(Result error, const char** name))                                                          \
  X(cuGetErrorString, Result(Result error, const char** text))                                                        \
  X(cuDeviceGetCount, Result(int* count))                                                                             \
  X(cuDeviceGet, Result(DeviceNumber* device, int ordinal))                                                           \
  X(cuDeviceGetName, Result(char* name, int length, DeviceNumber device))                                             \
  X(cuDeviceGetAttribute, Result(int* value, int attribute, DeviceNumber device))                                     \
  X(cuDevicePrimaryCtxRetain, Result(Context* context, DeviceNumber device))                                          \
  X(cuDevicePrimaryCtxRelease_v2, Result(DeviceNumber device))                                                        \
  X(cuCtxPushCurrent_v2, Result(Context context))                                                                     \
  X(cuCtxPopCurrent_v2, Result(Context* context))                                                                     \
  X(cuMemAlloc_v2, Result(Address* address, size_t bytes))                                                            \
  X(cuMemFree_v2, Result(Address address))                                                                            \
  X(cuMemGetAddressRange_v2, Result(Address* base, size_t* bytes, Address address))                                   \
  X(cuPointerGetAttribute, Result(void* value, int attribute, Address address))                                       \
  X(cuMemHostRegister_v2, Result(void* memory, size_t bytes, unsigned flags))                                         \
  X(cuMemHostUnregister, Result(void* memory))                                                                        \
  X(cuMemHostGetDevicePointer_v2, Result(Address* address, void* memory, unsigned flags))                             \
  X(cuMemcpyAsync, Result(Address to, Address from, size_t bytes, Stream stream))                                     \
  X(cuMemsetD8Async, Result(Address to, unsigned char value, size_t bytes, Stream stream))                            \
  X(cuStreamCreate, Result(Stream* stream, unsigned flags))                                                           \
  X(cuStreamDestroy_v2, Result(Stream stream))                                                                        \
  X(cuStreamQuery, Result(Stream stream))                                                                             \
  X(cuStreamSynchronize, Result(Stream stream))                                                                       \
  X(cuStreamWaitEvent, Result(Stream stream, Event event, unsigned flags))                                            \
  X(cuEventCreate, Result(Event* event, unsigned flags))                                                              \
  X(cuEventRecord, Result(Event event, Stream stream))                                                                \
  X(cuEventDestroy_v2, Result(Event event))                                                                           \
  X(cuLaunchHostFunc, Result(Stream stream, void (*function)(void*), void* argument))                                 \
  Y(cuStreamWaitValue32_v2, Result(Stream stream, Address address, uint32_t value, unsigned flags))                   \
  Y(cuMemGetHandleForAddressRange, Result(void* handle, Address address, size_t bytes, int type, unsigned long long)) \
  Y(cuIpcGetMemHandle, Result(IpcHandle* handle, Address address))                                                    \
  Y(cuIpcOpenMemHandle_v2, Result(Address* address, IpcHandle handle, unsigned flags))                                \
  Y(cuIpcCloseMemHandle, Result(Address address))                                                                     \
  Y(cuFlushGPUDirectRDMAWrites, Result(int target, int scope))

// The functions of one driver library. Immutable; any thread.
class Driver {
 public:
  // Loads `library` and initialises the driver. NOT_FOUND: there is no such library, so no NVIDIA driver.
  // UNIMPLEMENTED: it lacks a function. UNAVAILABLE: it finds no device, or does not start. The library stays loaded
  // until the process ends, because its threads may outlive its last user.
  static absl::StatusOr<std::shared_ptr<const Driver>> Open(const std::string& library);

  // OK, or INTERNAL (RESOURCE_EXHAUSTED when memory is short) with the function, the name of the error, and its text.
  absl::Status Check(Result result, absl::string_view function) const;

#define RAILS_CUDA_MEMBER(name, type) std::add_pointer_t<type> name = nullptr;
  RAILS_CUDA_FUNCTIONS(RAILS_CUDA_MEMBER, RAILS_CUDA_MEMBER)
#undef RAILS_CUDA_MEMBER
};

// Makes a context the calling thread's current one while it exists.
class InContext {
 public:
  InContext(const Driver& driver, Context context)
      : driver_(driver), pushed_(driver.cuCtxPushCurrent_v2(context) == kSuccess) {}
  ~InContext() {
    Context before;
    if (pushed_) driver_.cuCtxPopCurrent_v2(&before);  // else it would take the caller's
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;

 private:
  const Driver& driver_;
  const bool pushed_;
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_DRIVER_H_
