// Ranks of the same node, whose devices copy from each other without the daemon.
//
// The sender of such a flow tells the receiver in slice 0 where the bytes are: a note, with handles that the driver
// makes for other processes. The receiver's device copies from there. An acknowledgement in the job's last slice tells
// the sender that its bytes have been read.
#ifndef RAILS_CLIENT_CUDA_LOCAL_PEERS_H_
#define RAILS_CLIENT_CUDA_LOCAL_PEERS_H_

#include <array>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cuda/buffers.h"
#include "client/cuda/flows.h"
#include "client/cuda/open_device.h"
#include "rails/cuda.h"

namespace rails::cuda {

// Bytes of a sender, as another process of the node can name them.
struct RemotePart {
  IpcHandle handle{};         // of the allocation
  uint64_t offset_bytes = 0;  // in it
  uint64_t length_bytes = 0;
  Address address = 0;  // for receivers in the same process
};

struct LocalNote {
  static constexpr uint32_t kMaxParts = 32;
  uint64_t length_bytes = 0;  // of all parts
  uint32_t part_count = 0;
  uint32_t reserved = 0;
  std::array<RemotePart, kMaxParts> parts{};
};

// Used by the group's worker, after AgreeOn(); in the device's context.
class LocalPeers {
 public:
  LocalPeers(std::shared_ptr<OpenDevice> device, uint32_t world_size)
      : device_(std::move(device)), reads_(world_size), read_by_(world_size) {}
  ~LocalPeers();
  LocalPeers(const LocalPeers&) = delete;
  LocalPeers& operator=(const LocalPeers&) = delete;

  // Finds out, in two jobs of the group, which ranks of this node can read from which: each tries with a small
  // allocation. `wanted`: false if this rank does not take part. The first job has the tag `tag`.
  absl::Status AgreeOn(rails::Group& group, const Buffers& buffers, bool wanted, uint64_t tag, absl::Duration timeout);

  // Whether this rank reads what `rank` sends to it, and the other way round.
  bool Reads(uint32_t rank) const { return reads_[rank].has_value(); }
  bool IsReadBy(uint32_t rank) const { return read_by_[rank]; }

  // The parts of a flow do not fit into a note, or are not all on the device.
  static bool MustGather(const Flow& flow);
  // A note about the bytes of a flow. If they must be gathered, copies those of the device into `gathered` on `stream`;
  // those of the host are there.
  absl::StatusOr<LocalNote> Write(const Flow& flow, const Memory* gathered, Stream stream) const;
  // Copies the bytes of a note to their places in `flow`, whose length it sets, on `stream`. Returns how many they are.
  // INVALID_ARGUMENT: more than the flow has room for. INTERNAL: the note makes no sense.
  absl::StatusOr<uint64_t> Read(const LocalNote& note, Flow* flow, Stream stream);

 private:
  // A number for each process that runs this library.
  using ProcessId = std::array<uint64_t, 2>;
  // The first message of a rank to each other one of its node.
  struct Hello {
    ProcessId process{};
    uint32_t usable = 0, reserved = 0;
    RemotePart part{};
  };
  struct Opened {
    IpcHandle handle{};
    Address base = 0;
    uint64_t length_bytes = 0;
  };
  static ProcessId ThisProcess();
  absl::StatusOr<RemotePart> Name(Address address, uint64_t length_bytes) const;
  // The address of a part here. Opens its allocation, unless it is open.
  absl::StatusOr<Address> Find(const RemotePart& part, bool same_process, Stream stream);
  absl::StatusOr<Opened> Open(const IpcHandle& handle);

  const std::shared_ptr<OpenDevice> device_;
  std::vector<std::optional<bool>> reads_;  // by rank; true: in the same process
  std::vector<bool> read_by_;
  std::list<Opened> opened_;  // the last used one first
};

}  // namespace rails::cuda

#endif  // RAILS_CLIENT_CUDA_LOCAL_PEERS_H_
