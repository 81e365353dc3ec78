#include "daemon/ring/ring_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "daemon/session/packet_socket.h"

namespace railsd {
namespace {

absl::Status Failure(const char* what) {
  const int error = errno;
  return absl::ResourceExhaustedError(
      absl::StrCat("open_ring: ", absl::ErrnoToStatus(error, what).message(), AdviceOnDescriptors(error)));
}

// Makes a memory, maps it into `address`, then seals it.
absl::Status Share(const char* name, unsigned seals, UniqueFd* fd, std::byte** address) {
  fd->Reset(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd->valid()) return Failure("memfd_create");
  if (ftruncate(fd->get(), rails::ring::kMemoryBytes) != 0) return Failure("ftruncate");
  void* const mapped = mmap(nullptr, rails::ring::kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
  if (mapped == MAP_FAILED) return Failure("mmap");
  *address = static_cast<std::byte*>(mapped);
  if (fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | seals) != 0)
    return Failure("F_ADD_SEALS");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::shared_ptr<RingMemory>> RingMemory::Make(RingDescriptors* client) {
  const std::shared_ptr<RingMemory> memory(new RingMemory());
  absl::Status status = Share("railsd-requests", 0, &client->requests, &memory->requests_);
  if (status.ok()) status = Share("railsd-answers", F_SEAL_FUTURE_WRITE, &client->answers, &memory->answers_);
  if (!status.ok()) return status;
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return Failure("socketpair");
  memory->doorbell_.Reset(ends[0]);
  client->doorbell.Reset(ends[1]);
  return memory;
}

RingMemory::~RingMemory() {
  // Empties the doorbell first. Closing it would close descriptors that a hostile client has sent, which may block.
  if (doorbell_.valid()) {
    shutdown(doorbell_.get(), SHUT_RD);
    while (TakeRings()) {
    }
  }
  if (requests_ != nullptr) munmap(requests_, rails::ring::kMemoryBytes);
  if (answers_ != nullptr) munmap(answers_, rails::ring::kMemoryBytes);
}

void RingMemory::Ring() const {
  // If the socket is full, earlier rings still wake the client.
  static_cast<void>(send(doorbell_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
}

bool RingMemory::TakeRings() const { return ReceiveNothing(doorbell_.get()); }

}  // namespace railsd
