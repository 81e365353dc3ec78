#include "client/railsctl/pki/files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "absl/strings/str_cat.h"

namespace rails::ctl::pki {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;
constexpr mode_t kPublic = 0644, kSecret = 0600;

absl::Status CheckAbsent(const std::string& path) {
  struct stat about = {};
  if (lstat(path.c_str(), &about) != 0 && errno == ENOENT) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists already; --force replaces it"));
}

// Writes a file whole or not at all: writes a new file beside it, which replaces it.
absl::Status WriteFile(const std::string& path, const std::string& text, mode_t mode) {
  const std::string beside = absl::StrCat(path, ".new");
  unlink(beside.c_str());
  const int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode);
  if (fd < 0) return absl::ErrnoToStatus(errno, absl::StrCat(beside, ": cannot create"));
  bool whole = fchmod(fd, mode) == 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  whole = fsync(fd) == 0 && whole;
  whole = close(fd) == 0 && whole;
  if (whole && rename(beside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot write"));
  unlink(beside.c_str());
  return status;
}

absl::Status WritePair(const std::string& folder, const std::string& name, const Pair& pair) {
  absl::Status status = WriteFile(KeyPath(folder, name), pair.key, kSecret);
  if (status.ok()) status = WriteFile(CertificatePath(folder, name), pair.certificate, kPublic);
  return status;
}

absl::Status CheckPairAbsent(const std::string& folder, const std::string& name) {
  if (absl::Status status = CheckAbsent(KeyPath(folder, name)); !status.ok()) return status;
  return CheckAbsent(CertificatePath(folder, name));
}

}  // namespace

std::string CertificatePath(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name, ".pem");
}

std::string KeyPath(const std::string& folder, const std::string& name) {
  return absl::StrCat(folder, "/", name, ".key");
}

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  struct CloseFile {
    void operator()(FILE* file) const { fclose(file); }
  };
  const std::unique_ptr<FILE, CloseFile> file(fopen(path.c_str(), "re"));
  if (file == nullptr) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot open"));
  std::string text(kMaxPemBytes + 1, '\0');
  text.resize(fread(text.data(), 1, text.size(), file.get()));
  if (ferror(file.get()) != 0) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  if (text.size() > kMaxPemBytes) return absl::InvalidArgumentError(absl::StrCat(path, ": larger than 1 MiB"));
  return text;
}

absl::Status InitFolder(const std::string& folder, const Choices& choices) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return absl::ErrnoToStatus(errno, absl::StrCat(folder, ": cannot create"));
  }
  if (!choices.force) {
    if (absl::Status status = CheckPairAbsent(folder, kAuthorityName); !status.ok()) return status;
  }
  const absl::StatusOr<Pair> authority = MakeAuthority("railsd test CA", choices.validity);
  if (!authority.ok()) return authority.status();
  return WritePair(folder, kAuthorityName, *authority);
}

absl::Status IssueInto(const std::string& folder, const std::vector<std::string>& nodes, const Choices& choices) {
  Pair authority;
  for (const auto& [path, out] : {std::pair(CertificatePath(folder, kAuthorityName), &authority.certificate),
                                  std::pair(KeyPath(folder, kAuthorityName), &authority.key)}) {
    absl::StatusOr<std::string> text = ReadPem(path);
    if (!text.ok()) return text.status();
    *out = *std::move(text);
  }
  for (const std::string& node : nodes) {
    if (absl::Status status = CheckNodeName(node); !status.ok()) return status;
    if (node == kAuthorityName) {
      return absl::InvalidArgumentError("'ca': the authority's files have this name; give the node another name");
    }
    if (choices.force) continue;
    if (absl::Status status = CheckPairAbsent(folder, node); !status.ok()) return status;
  }
  for (const std::string& node : nodes) {
    const absl::StatusOr<Pair> pair = IssueCertificate(authority, node, choices.validity);
    if (absl::IsInvalidArgument(pair.status())) {
      return absl::InvalidArgumentError(
          absl::StrCat(CertificatePath(folder, kAuthorityName), ": ", pair.status().message()));
    }
    if (!pair.ok()) return pair.status();
    if (absl::Status status = WritePair(folder, node, *pair); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace rails::ctl::pki
