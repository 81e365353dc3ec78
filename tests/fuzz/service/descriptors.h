// Helpers of the fuzz programs of both ends of the descriptor socket.
#ifndef RAILSD_TESTS_FUZZ_SERVICE_DESCRIPTORS_H_
#define RAILSD_TESTS_FUZZ_SERVICE_DESCRIPTORS_H_

#include <dirent.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"

namespace railsd::testing {

inline void Require(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s\n", what);
  std::abort();
}

// The descriptor that every packet carries. Stays open.
inline int File() {
  static const int file = memfd_create("fuzz", MFD_CLOEXEC);
  return file;
}

inline size_t OpenDescriptors() {
  DIR* const directory = opendir("/proc/self/fd");
  size_t count = 0;
  while (readdir(directory) != nullptr) ++count;
  closedir(directory);
  return count;
}

// A name that no file system has.
inline const std::string& SocketName() {
  static const std::string name = std::string(1, '\0') + absl::StrCat("railsd-fuzz-", getpid());
  return name;
}

inline sockaddr_un SocketAddress() {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, SocketName().data(), SocketName().size());
  return address;
}

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_FUZZ_SERVICE_DESCRIPTORS_H_
