// All-to-all(v) jobs on memory of an NVIDIA GPU.
//
//   auto device = rails::cuda::Device::Open(*client);             // loads libcuda.so.1
//   auto send = (*device)->Allocate(bytes), receive = (*device)->Import(tensor_address, tensor_bytes);
//   auto group = (*device)->JoinGroup({.name = "moe", .world_size = 16, .rank = 3});
//   rails::AllToAllv exchange = ...;                              // ranges of device memory, of segments, or of both
//   auto job = (*group)->Submit(exchange, stream, absl::Seconds(30));  // begins when `stream` has come to this point
//   (*job)->WaitOn(stream);                                 // what follows on `stream` sees the received bytes
//
// Where RDMA devices reach the memory of the GPU, they read and write it. Elsewhere the bytes of a job go in slices
// through pinned memory that the library shares with the daemon: the GPU copies a slice there, the rails carry it, the
// GPU of the receiver copies it to its place. The slices of a job overlap. docs/cuda.md tells what this costs.
//
// All classes are safe to use from several threads. In a forked child calls fail with FAILED_PRECONDITION, and dropping
// an object has no effect. The calls work with the primary
// context of the device, which the CUDA runtime and PyTorch use too, and leave the thread's current context as it was.
#ifndef RAILS_CUDA_H_
#define RAILS_CUDA_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rails/client.h"

namespace rails::cuda {

using Stream = void*;      // CUstream or cudaStream_t; null: the legacy default stream
using Address = uint64_t;  // CUdeviceptr

struct DeviceOptions {
  int ordinal = 0;  // as for cuDeviceGet() and cudaSetDevice()
  std::string driver = "libcuda.so.1";
  bool dma_buf = true;       // use Capabilities::dma_buf where it is present
  bool stream_waits = true;  // use Capabilities::stream_waits where it is present
};

// An ability of the device, its driver or the kernel.
struct Capability {
  bool present = false;
  std::string reason{};  // why it is absent
};

struct Capabilities {
  std::string device{};    // such as "NVIDIA H100"
  int driver_version = 0;  // 12040 is 12.4
  // A stream can wait for a job without a thread that waits: Job::WaitOn().
  Capability stream_waits{};
  // The rails of this node reach memory of the device without copies: it is exported as a dma-buf, which the daemon
  // registers with its RDMA devices.
  Capability dma_buf{};
};

// Memory of a device, as a part of Range. `bytes()` is empty, and `id()` is 0: the processor cannot touch it.
class Memory : public Segment {
 public:
  virtual Address address() const = 0;
  virtual uint64_t length_bytes() const = 0;
  // Empty: RDMA devices reach it, and its bytes to and from other nodes are not copied. Else they are staged, and this
  // is the reason.
  virtual const std::string& staged_because() const = 0;
};

// How the bytes of device memory are staged.
struct Staging {
  // Bytes that one job of the daemon moves at most in each direction of a rank. Equal on every rank. Larger slices cost
  // less time of processors, smaller ones overlap better. 64 for each rank of the group to 2^40.
  uint64_t slice_bytes = 16 << 20;
  // Slices that the group has under way, 1 to 1024. Pinned memory: twice this many times `slice_bytes`.
  uint32_t slices = 4;
  // Ranks of a node copy from each other's devices (CUDA IPC), where their devices and containers allow that. A sender
  // must not free memory of the device while a group that has sent from it may still have it open: until all ranks have
  // left. Submit() copies ranges of segments that go to them. False: their bytes are staged and copied by the daemon.
  // Need not be equal.
  bool local_copies = true;
};

// The copies that the GPU has made for a job.
struct Copies {
  uint64_t to_host_bytes = 0, to_device_bytes = 0;
  uint64_t own_bytes = 0;    // that the rank sent to itself
  uint64_t local_bytes = 0;  // from devices of other ranks of this node, without the daemon
  uint32_t slices = 0;       // jobs of the daemon
};

// A submitted job. As rails::Job, with these differences: a job is one or more jobs of the daemon, whose figures
// JobReport adds up, and `seq` numbers the jobs of this group. AllToAllv::timeout holds for each of them. Cancel() ends
// the group: the other ranks learn that this one has left. Wait() of a daemon that is silent waits on.
// Callbacks of OnDone() run on the group's thread: they must not block, submit, or drop the last reference to Memory.
class Job : public rails::Job {
 public:
  // Makes later work on `stream` wait until the received bytes are in place and the sent ones may be overwritten, or
  // until the job has failed. Does not block where the device has Capabilities::stream_waits; elsewhere it blocks as
  // Wait() does. Returns the job's error if it has failed already. Ask Wait() for the error of a job that fails later:
  // the stream then goes on without the bytes. Meanwhile the stream cannot proceed, so a call that waits for the whole
  // device, cudaFree() for example, waits for the job.
  virtual absl::Status WaitOn(Stream stream) = 0;
  // The copies made so far.
  virtual Copies copies() const = 0;
};

// A group of ranks whose jobs may use device memory. An error of one job ends the group, because ranks may then have
// come to different jobs: later jobs fail with FAILED_PRECONDITION, and this rank leaves. Recovery::kDegrade is refused
// for the same reason. Prepare() returns UNIMPLEMENTED. AllToAllv::vote must be 0: the group votes itself. When the
// group is dropped, unfinished jobs fail with CANCELLED; that waits for streams behind which jobs were submitted.
class Group : public rails::Group {
 public:
  // Numbers the job and begins it once `stream` has come to this point. Every rank submits its jobs in the same order.
  // `exchange` as for rails::Group::Submit(): ranges of device memory of this device, of segments, or of both. Later
  // work on `stream` may begin before the job ends: see Job::WaitOn(). Two unfinished jobs may use the same device
  // memory if streams order them.
  // INVALID_ARGUMENT names the field and its value. FAILED_PRECONDITION: the group is over, says why. UNAVAILABLE: the
  // group has 64 unfinished jobs, and none has ended within `timeout`. Errors of the daemon are the job's.
  virtual absl::StatusOr<std::shared_ptr<Job>> Submit(const AllToAllv& exchange, Stream stream,
                                                      absl::Duration timeout) = 0;
  // The same, for bytes that are ready: waits for no stream.
  using rails::Group::Submit;
};

// One GPU of this process.
class Device {
 public:
  // `client` outlives the device and its groups. NOT_FOUND: there is no NVIDIA driver, or no such device; says which
  // library was looked for. UNAVAILABLE: the driver does not start. UNIMPLEMENTED: it is older than CUDA 11.
  static absl::StatusOr<std::shared_ptr<Device>> Open(Client& client, DeviceOptions options = {});
  virtual ~Device() = default;
  virtual const Capabilities& capabilities() const = 0;
  // Allocates memory of the device. RESOURCE_EXHAUSTED: the device has not enough.
  virtual absl::StatusOr<std::shared_ptr<Memory>> Allocate(uint64_t length_bytes) = 0;
  // Names memory that the caller has allocated on this device and frees after the last job that uses it.
  // INVALID_ARGUMENT: the bytes are not all in one allocation.
  virtual absl::StatusOr<std::shared_ptr<Memory>> Import(Address address, uint64_t length_bytes) = 0;
  // As Client::JoinGroup(). INVALID_ARGUMENT also if the ranks do not agree on `staging`.
  virtual absl::StatusOr<std::unique_ptr<Group>> JoinGroup(GroupOptions options, Staging staging = {}) = 0;
};

}  // namespace rails::cuda

#endif  // RAILS_CUDA_H_
