#include "client/src/memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace rails::internal {
namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // since Linux 5.14
#endif

constexpr uint64_t kSmallPageBytes = 4096;

absl::Status CheckLength(uint64_t length_bytes) {
  if (length_bytes == 0) return absl::InvalidArgumentError("length_bytes is 0: a segment holds at least one byte");
  if (length_bytes > uint64_t{1} << 56) {
    return absl::InvalidArgumentError(absl::StrCat("length_bytes ", length_bytes, " is more than 2^56"));
  }
  return absl::OkStatus();
}

absl::Status MemoryError(int error, absl::string_view what, uint64_t length_bytes, bool huge_pages) {
  const std::string text = absl::StrCat(what, " of ", length_bytes, " bytes");
  if (error == ENOMEM || error == ENOSPC || error == EFAULT || (huge_pages && (error == ENODEV || error == EINVAL))) {
    return absl::ResourceExhaustedError(absl::StrCat(
        absl::ErrnoToStatus(error, text).message(),
        huge_pages
            ? "; huge_pages is set: free ones are in HugePages_Free of /proc/meminfo, and vm.nr_hugepages adds more"
            : "; the memory limit of this process or its cgroup may be too low"));
  }
  return absl::ErrnoToStatus(error, text);
}

// Page size of the file's file system: the huge page size for huge pages.
uint64_t BlockBytes(int fd) {
  struct statfs info {};
  return fstatfs(fd, &info) == 0 && info.f_bsize > 0 ? static_cast<uint64_t>(info.f_bsize) : kSmallPageBytes;
}

}  // namespace

absl::StatusOr<SharedMemory> SharedMemory::Create(uint64_t length_bytes, const SegmentOptions& options) {
  if (absl::Status status = CheckLength(length_bytes); !status.ok()) return status;
  const unsigned flags = MFD_CLOEXEC | MFD_ALLOW_SEALING | (options.huge_pages ? MFD_HUGETLB : 0U);
  UniqueFd fd(memfd_create(options.name.c_str(), flags));
  if (!fd.valid()) {
    return MemoryError(errno, absl::StrCat("memfd_create(\"", options.name, "\")"), length_bytes, options.huge_pages);
  }
  uint64_t mapped_bytes = length_bytes;
  if (options.huge_pages) {
    const uint64_t page = BlockBytes(fd.get());
    mapped_bytes = (length_bytes + page - 1) / page * page;
  }
  if (ftruncate(fd.get(), static_cast<off_t>(mapped_bytes)) != 0) {
    return MemoryError(errno, "ftruncate", mapped_bytes, options.huge_pages);
  }
  if (fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return absl::ErrnoToStatus(errno, "sealing the memfd against shrinking");
  }
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return absl::ErrnoToStatus(errno, "fstat of the memfd");
  void* base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return MemoryError(errno, "mmap", mapped_bytes, options.huge_pages);
  return SharedMemory(std::move(fd), {info.st_dev, info.st_ino}, static_cast<std::byte*>(base), length_bytes,
                      mapped_bytes);
}

absl::StatusOr<SharedMemory> SharedMemory::Import(int fd, uint64_t length_bytes) {
  if (absl::Status status = CheckLength(length_bytes); !status.ok()) return status;
  UniqueFd copy(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return absl::InvalidArgumentError(absl::ErrnoToStatus(errno, absl::StrCat("fd ", fd)).message());
  struct statfs file_system {};
  if (fstatfs(copy.get(), &file_system) == 0 && file_system.f_type == DMA_BUF_MAGIC) {
    return ImportDmaBuf(fd, std::move(copy), length_bytes);
  }
  const int seals = fcntl(copy.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("fd ", fd, " is neither a memfd, because it cannot carry seals, nor a dma-buf"));
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("fd ", fd, " lacks F_SEAL_SHRINK: call fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) first"));
  }
  if ((seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("fd ", fd, " is sealed against writing: nothing could be received"));
  }
  struct stat info {};
  if (fstat(copy.get(), &info) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("fstat of fd ", fd));
  if (static_cast<uint64_t>(info.st_size) < length_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length_bytes ", length_bytes, " is more than the ", info.st_size, " bytes of fd ", fd));
  }
  const uint64_t page = BlockBytes(copy.get());
  const uint64_t mapped_bytes = page > kSmallPageBytes ? (length_bytes + page - 1) / page * page : length_bytes;
  void* base = mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, copy.get(), 0);
  if (base == MAP_FAILED)
    return MemoryError(errno, absl::StrCat("mmap of fd ", fd), mapped_bytes, page > kSmallPageBytes);
  return SharedMemory(std::move(copy), {info.st_dev, info.st_ino}, static_cast<std::byte*>(base), length_bytes,
                      mapped_bytes);
}

// Memory of a device need not be mappable, and neither this library nor the daemon touches it by the processor.
absl::StatusOr<SharedMemory> SharedMemory::ImportDmaBuf(int fd, UniqueFd copy, uint64_t length_bytes) {
  struct stat info {};
  const off_t size = lseek(copy.get(), 0, SEEK_END);
  if (size < 0 || fstat(copy.get(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("the size of the dma-buf of fd ", fd));
  }
  if (static_cast<uint64_t>(size) < length_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("length_bytes ", length_bytes, " is more than the ", size, " bytes of the dma-buf of fd ", fd));
  }
  return SharedMemory(std::move(copy), {info.st_dev, info.st_ino}, nullptr, length_bytes, length_bytes);
}

absl::Status SharedMemory::Prefault() const {
  while (madvise(base_, mapped_bytes_, MADV_POPULATE_WRITE) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    const bool huge_pages = BlockBytes(fd()) > kSmallPageBytes;
    if (errno != EINVAL) return MemoryError(errno, "touching the pages", mapped_bytes_, huge_pages);
    // An older kernel. fallocate() reports a lack of memory as an error; touching the pages would raise SIGBUS.
    while (fallocate(fd(), 0, 0, static_cast<off_t>(mapped_bytes_)) != 0) {
      if (errno != EINTR) return MemoryError(errno, "allocating the pages", mapped_bytes_, huge_pages);
    }
    break;
  }
  return absl::OkStatus();
}

SharedMemory::SharedMemory(SharedMemory&& other) noexcept
    : fd_(std::move(other.fd_)),
      file_(other.file_),
      base_(std::exchange(other.base_, nullptr)),
      length_bytes_(other.length_bytes_),
      mapped_bytes_(other.mapped_bytes_) {}

SharedMemory::~SharedMemory() {
  if (base_ != nullptr) munmap(base_, mapped_bytes_);
}

}  // namespace rails::internal
