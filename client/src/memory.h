// Shared memory: a sealed memfd and this process's mapping of it, or a dma-buf.
#ifndef RAILS_CLIENT_SRC_MEMORY_H_
#define RAILS_CLIENT_SRC_MEMORY_H_

#include <compare>
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/src/unique_fd.h"
#include "rails/client.h"

namespace rails::internal {

// Identifies the file behind a descriptor. Two mappings of one file show the same bytes.
struct FileId {
  uint64_t device = 0, inode = 0;
  friend auto operator<=>(const FileId&, const FileId&) = default;
};

class SharedMemory {
 public:
  // Makes memory of `length_bytes`, sealed against shrinking and growing. Touches no page.
  // INVALID_ARGUMENT: the length is 0 or absurd. RESOURCE_EXHAUSTED: no memory, or no free huge pages.
  static absl::StatusOr<SharedMemory> Create(uint64_t length_bytes, const SegmentOptions& options);
  // Maps the first `length_bytes` of a duplicate of `fd`. INVALID_ARGUMENT: `fd` is no memfd, has no F_SEAL_SHRINK, is
  // sealed against writing, or is shorter than `length_bytes`. A dma-buf is kept without being mapped.
  static absl::StatusOr<SharedMemory> Import(int fd, uint64_t length_bytes);

  // Touches every page, so that the pages are charged to this process and not to the daemon. RESOURCE_EXHAUSTED: no
  // memory, or no free huge pages.
  absl::Status Prefault() const;

  SharedMemory(SharedMemory&& other) noexcept;
  SharedMemory& operator=(SharedMemory&&) = delete;
  ~SharedMemory();

  int fd() const { return fd_.get(); }
  // Every mapping begins at the file's begin, so file and offset identify a byte.
  FileId file() const { return file_; }
  // Without an address for a dma-buf.
  absl::Span<std::byte> bytes() const { return {base_, static_cast<size_t>(length_bytes_)}; }
  // Bytes mapped and shared: the length, rounded up to whole huge pages if the file has them.
  uint64_t mapped_bytes() const { return mapped_bytes_; }

 private:
  static absl::StatusOr<SharedMemory> ImportDmaBuf(int fd, UniqueFd copy, uint64_t length_bytes);
  SharedMemory(UniqueFd fd, FileId file, std::byte* base, uint64_t length_bytes, uint64_t mapped_bytes)
      : fd_(std::move(fd)), file_(file), base_(base), length_bytes_(length_bytes), mapped_bytes_(mapped_bytes) {}

  UniqueFd fd_;
  FileId file_;
  std::byte* base_;
  uint64_t length_bytes_;
  uint64_t mapped_bytes_;
};

}  // namespace rails::internal

#endif  // RAILS_CLIENT_SRC_MEMORY_H_
