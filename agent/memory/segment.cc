#include "agent/memory/segment.h"

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

namespace railsd {
namespace {

absl::Status MapFailure(int error, SegmentId id, uint64_t length_bytes, MemoryKind kind) {
  const std::string what = absl::StrCat("segment ", id.value(), ": mapping ", length_bytes, " bytes");
  switch (error) {
    case ENOMEM:
      return absl::ResourceExhaustedError(absl::StrCat(
          what, kind == MemoryKind::kHugePageMemfd
                    ? " failed: not enough free huge pages (raise vm.nr_hugepages)"
                    : " failed: no address space or memory left (RLIMIT_AS, vm.max_map_count, overcommit)"));
    case EACCES:
      return absl::InvalidArgumentError(
          absl::StrCat(what, " failed: its descriptor must be open for reading and writing"));
    case EPERM:
      return absl::InvalidArgumentError(absl::StrCat(what, " failed: it is sealed against writing"));
    default:
      return absl::ErrnoToStatus(error, what);
  }
}

absl::Status TooLong(const std::string& who, uint64_t length_bytes, const char* what, uint64_t size_bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat(who, ": length_bytes ", length_bytes, " is more than the ", what, "'s ", size_bytes, " bytes"));
}

absl::StatusOr<MemoryKind> InspectDmaBuf(const std::string& who, int fd, uint64_t length_bytes,
                                         uint64_t* mapped_bytes) {
  // Registering asks for no right of the descriptor, and whoever may only read the memory must not have it written.
  if (const int flags = ::fcntl(fd, F_GETFL); flags < 0 || (flags & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": it is a dma-buf, and its descriptor is not open for reading and writing"));
  }
  const off_t size = ::lseek(fd, 0, SEEK_END);
  if (size < 0) return absl::ErrnoToStatus(errno, absl::StrCat(who, ": the size of the dma-buf"));
  if (length_bytes > static_cast<uint64_t>(size)) {
    return TooLong(who, length_bytes, "dma-buf", static_cast<uint64_t>(size));
  }
  *mapped_bytes = length_bytes;
  return MemoryKind::kDmaBuf;
}

// The kind of `fd`, if it may become a segment of `length_bytes`; `*mapped_bytes` is what mmap and munmap take.
absl::StatusOr<MemoryKind> Inspect(SegmentId id, int fd, uint64_t length_bytes, uint64_t* mapped_bytes) {
  const std::string who = absl::StrCat("segment ", id.value());
  if (length_bytes == 0)
    return absl::InvalidArgumentError(absl::StrCat(who, ": length_bytes is 0; it must be positive"));
  struct statfs file_system {};
  if (::fstatfs(fd, &file_system) == 0 && file_system.f_type == DMA_BUF_MAGIC) {
    return InspectDmaBuf(who, fd, length_bytes, mapped_bytes);
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0) {
    if (errno == EBADF) return absl::InvalidArgumentError(absl::StrCat(who, ": its descriptor is not open"));
    return absl::InvalidArgumentError(
        absl::StrCat(who, ": its descriptor is not a memfd (see memfd_create), nor a dma-buf"));
  }
  if ((seals & F_SEAL_SHRINK) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(who,
                     ": the memfd lacks F_SEAL_SHRINK; create it with MFD_ALLOW_SEALING, set its size, and seal it "
                     "with fcntl(F_ADD_SEALS, F_SEAL_SHRINK)"));
  }
  struct stat file {};
  if (::fstat(fd, &file) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(who, ": fstat"));
  if (::fstatfs(fd, &file_system) != 0) return absl::ErrnoToStatus(errno, absl::StrCat(who, ": fstatfs"));
  if (length_bytes > static_cast<uint64_t>(file.st_size)) {
    return TooLong(who, length_bytes, "memfd", static_cast<uint64_t>(file.st_size));
  }
  const bool huge = file_system.f_type == HUGETLBFS_MAGIC;
  const uint64_t page = huge ? static_cast<uint64_t>(file_system.f_bsize) : 1;  // munmap wants whole huge pages
  *mapped_bytes = (length_bytes + page - 1) / page * page;
  if (*mapped_bytes < length_bytes || *mapped_bytes > std::numeric_limits<ptrdiff_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(who, ": length_bytes ", length_bytes, " cannot be addressed"));
  }
  return huge ? MemoryKind::kHugePageMemfd : MemoryKind::kMemfd;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Segment>> Segment::Map(SegmentId id, UniqueFd fd, uint64_t length_bytes) {
  uint64_t mapped_bytes = 0;
  const absl::StatusOr<MemoryKind> kind = Inspect(id, fd.get(), length_bytes, &mapped_bytes);
  if (!kind.ok()) return kind.status();
  struct stat file {};
  if (::fstat(fd.get(), &file) != 0) return absl::ErrnoToStatus(errno, absl::StrCat("segment ", id.value(), ": fstat"));
  // Device memory need not be mappable: its addresses only name bytes, to peers and in flows.
  void* base = *kind == MemoryKind::kDmaBuf
                   ? ::mmap(nullptr, mapped_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                   : ::mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (base == MAP_FAILED) return MapFailure(errno, id, length_bytes, *kind);
  // Keeps the trainer's tensors out of the daemon's core dumps.
  ::madvise(base, mapped_bytes, MADV_DONTDUMP);
  return std::shared_ptr<const Segment>(new Segment(id, std::move(fd), {file.st_dev, file.st_ino},
                                                    static_cast<std::byte*>(base), length_bytes, mapped_bytes, *kind));
}

absl::Status Segment::Register(absl::Span<const std::shared_ptr<MemoryRegistrar>> rails) const {
  registrations_.resize(rails.size());
  for (size_t r = 0; r < rails.size(); ++r) {
    if (rails[r] == nullptr && kind_ == MemoryKind::kDmaBuf) {
      registrations_.clear();
      return absl::UnimplementedError(absl::StrCat("segment ", id_.value(), ": it is a dma-buf, which rail ", r,
                                                   " cannot use: only rails over RDMA verbs can; use staging: copy "
                                                   "through memory of the host, a memfd"));
    }
    if (rails[r] == nullptr) continue;
    absl::StatusOr<std::unique_ptr<Registration>> registration = rails[r]->Register(*this);
    if (!registration.ok()) {
      registrations_.clear();
      return registration.status();
    }
    registrations_[r] = *std::move(registration);
  }
  return absl::OkStatus();
}

Segment::~Segment() {
  registrations_.clear();  // before the memory that they name
  ::munmap(base_, mapped_bytes_);
}

}  // namespace railsd
