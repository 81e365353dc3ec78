// A library with the exported functions of libcuda.so.1 that the client uses. Host memory plays the device, a thread
// plays each stream, and accesses that nothing orders are recorded. README.md says what it finds and what it cannot.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_H_

#include <cstddef>
#include <cstdint>

#include "client/cuda/ipc_handle.h"

#pragma GCC visibility push(default)
extern "C" {

int cuInit(unsigned flags);
int cuDriverGetVersion(int* version);
int cuGetErrorName(int error, const char** name);
int cuGetErrorString(int error, const char** text);
int cuDeviceGetCount(int* count);
int cuDeviceGet(int* device, int ordinal);
int cuDeviceGetName(char* name, int length, int device);
int cuDeviceGetAttribute(int* value, int attribute, int device);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuMemAlloc_v2(uint64_t* address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemGetAddressRange_v2(uint64_t* base, size_t* bytes, uint64_t address);
int cuPointerGetAttribute(void* value, int attribute, uint64_t address);  // only CU_POINTER_ATTRIBUTE_BUFFER_ID
int cuMemHostRegister_v2(void* memory, size_t bytes, unsigned flags);
int cuMemHostUnregister(void* memory);
int cuMemHostGetDevicePointer_v2(uint64_t* address, void* memory, unsigned flags);
int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream);
int cuMemsetD8Async(uint64_t to, unsigned char value, size_t bytes, void* stream);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamQuery(void* stream);
int cuStreamSynchronize(void* stream);
int cuStreamWaitEvent(void* stream, void* event, unsigned flags);
int cuEventCreate(void** event, unsigned flags);
int cuEventRecord(void* event, void* stream);
int cuEventDestroy_v2(void* event);
int cuLaunchHostFunc(void* stream, void (*function)(void*), void* argument);
int cuStreamWaitValue32_v2(void* stream, uint64_t address, uint32_t value, unsigned flags);
int cuMemGetHandleForAddressRange(void* handle, uint64_t address, size_t bytes, int type, unsigned long long flags);
int cuIpcGetMemHandle(rails::cuda::IpcHandle* handle, uint64_t address);
int cuIpcOpenMemHandle_v2(uint64_t* address, rails::cuda::IpcHandle handle, unsigned flags);
int cuIpcCloseMemHandle(uint64_t address);
int cuFlushGPUDirectRDMAWrites(int target, int scope);

// Test-only functions. Any thread may call them, a host function included, except where they say otherwise.

// Operations start late by 0 to `max_microseconds`, three of four by 0. Seed, stream and the operation's number in its
// stream determine each delay. Environment variables FAKE_CUDA_SEED and FAKE_CUDA_MAX_DELAY_US set the initial values.
void fakeSetDelays(uint64_t seed, unsigned max_microseconds);

// While paused, no stream, or not this one, starts an operation or moves another part of a copy. The null stream is the
// default stream. Returns a CUDA error for an unknown stream.
void fakePause(int paused);
int fakePauseStream(void* stream, int paused);

// Waits until no stream has work left. Returns 0 if that takes longer. Tells the host's clock nothing: a test may call
// it before it reads the violations.
int fakeDrain(unsigned timeout_milliseconds);

void fakeSetAttribute(int attribute, int value);
void fakeSetDeviceCount(int count);  // 0 to 8; initially 1

// Lets the nth later call of `function` fail with `error` and without effect. The next call is the first. Returns 0 if
// the fake has no such function.
int fakeFail(const char* function, int nth_call, int error);

// Every later call returns `error` without effect, except cuGetErrorName and cuGetErrorString. Streams stop, a copy in
// progress remains half done, and queued host functions never run. Returns when no copy runs.
void fakeBreakContext(int error);

// Declares that the host reads or writes memory now: registered host memory, or device memory that a network card
// accesses for the host. Checked against what the host knows; within a host function also against its stream. Does not
// touch the memory. Returns a CUDA error for an invalid range.
int fakeHostRead(uint64_t address, size_t bytes);
int fakeHostWrite(uint64_t address, size_t bytes);

// Declares the access as the functions above do, and copies device memory from or to ordinary memory at once.
int fakePeek(void* to, uint64_t from, size_t bytes);
int fakePoke(uint64_t to, const void* from, size_t bytes);

// Where the host can access the bytes at a device address, as a network card would. Nothing declares these accesses.
// Null for an unknown address.
void* fakeDeviceBytes(uint64_t address);

struct FakeLive {
  int64_t allocations;    // of cuMemAlloc and cuIpcOpenMemHandle
  int64_t registrations;  // of cuMemHostRegister
  int64_t streams;
  int64_t events;
  int64_t contexts;  // cuDevicePrimaryCtxRetain calls without a release
};
FakeLive fakeLive(void);

// Counts of finished operations since the start or fakeReset.
struct FakeCounts {
  uint64_t copies;
  uint64_t host_to_device;  // this and the next three in bytes
  uint64_t device_to_host;
  uint64_t device_to_device;
  uint64_t host_to_host;
  uint64_t sets;
  uint64_t host_functions;
  uint64_t pageable_copies;  // copies from or to host memory that was not registered
  uint64_t flushes;
};
FakeCounts fakeCounts(void);
uint64_t fakeCalls(const char* function);  // calls of a cu* function, failed ones included

// Mistakes recorded so far. The first 1000 texts are kept, and stay valid until fakeReset. Null for others.
// The environment variable FAKE_CUDA_ABORT=1 prints the first one and aborts the process.
uint64_t fakeViolations(void);
const char* fakeViolation(uint64_t index);

// Back to the initial state: stops the streams, forgets memory, handles, contexts, failures and violations. Called
// while no other thread uses the fake, and not from a host function. The driver stays initialised.
void fakeReset(void);

}  // extern "C"
#pragma GCC visibility pop

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_H_
