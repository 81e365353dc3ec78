// Segments: memory that a trainer and this daemon both map.
#ifndef RAILSD_AGENT_MEMORY_SEGMENT_H_
#define RAILSD_AGENT_MEMORY_SEGMENT_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "agent/base/ids.h"
#include "agent/base/unique_fd.h"
#include "agent/memory/registration.h"

namespace railsd {

// The memory behind a descriptor. A dma-buf is memory of a device, of a GPU for example: only RDMA devices reach it.
enum class MemoryKind { kMemfd, kHugePageMemfd, kDmaBuf };

// The file that a segment maps. Two segments of one file share memory, since each is mapped from the file's beginning.
struct FileId {
  uint64_t device = 0, inode = 0;
  friend auto operator<=>(const FileId&, const FileId&) = default;
};

// One mapped segment. Immutable after Map(); shared by the session that owns it and by every job that uses it, and
// unmapped with the last of them. Its bytes are touched only by system calls that can fail (recv, send), and by
// GuardedCopy(), because its owner may take pages out of it.
class Segment {
 public:
  // Maps the whole of `fd`; for a dma-buf it only reserves addresses, which only devices can use. INVALID_ARGUMENT:
  // `fd` is no memfd and no dma-buf, is a memfd that lacks F_SEAL_SHRINK, or is shorter than `length_bytes`, or the
  // length is 0. RESOURCE_EXHAUSTED: the mapping fails for lack of memory.
  static absl::StatusOr<std::shared_ptr<const Segment>> Map(SegmentId id, UniqueFd fd, uint64_t length_bytes);
  // Registers the segment with every rail that has a registrar, before it is shared. Null entries are skipped; with one
  // of them a dma-buf is UNIMPLEMENTED. After an error the segment is registered with no rail.
  absl::Status Register(absl::Span<const std::shared_ptr<MemoryRegistrar>> rails) const;
  ~Segment();
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;

  SegmentId id() const { return id_; }
  std::byte* base() const { return base_; }
  uint64_t length_bytes() const { return length_bytes_; }
  MemoryKind kind() const { return kind_; }
  int fd() const { return fd_.get(); }
  FileId file() const { return file_; }
  // Null on rails without a registrar.
  const Registration* registration(size_t rail) const {
    return rail < registrations_.size() ? registrations_[rail].get() : nullptr;
  }

 private:
  Segment(SegmentId id, UniqueFd fd, FileId file, std::byte* base, uint64_t length_bytes, uint64_t mapped_bytes,
          MemoryKind kind)
      : id_(id),
        fd_(std::move(fd)),
        file_(file),
        base_(base),
        length_bytes_(length_bytes),
        mapped_bytes_(mapped_bytes),
        kind_(kind) {}
  SegmentId id_;
  UniqueFd fd_;
  FileId file_;
  std::byte* base_;
  uint64_t length_bytes_;
  uint64_t mapped_bytes_;  // rounded up to whole huge pages
  MemoryKind kind_;
  mutable std::vector<std::unique_ptr<Registration>> registrations_;  // by rail
};

}  // namespace railsd

#endif  // RAILSD_AGENT_MEMORY_SEGMENT_H_
