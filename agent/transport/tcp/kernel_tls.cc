#include "agent/transport/tcp/kernel_tls.h"

#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/base/record_key.h"
#include "agent/base/unique_fd.h"

namespace railsd::tcp {
namespace {

constexpr char kUpperLayer[] = "tls";

int TakeKey(int fd, int direction, const RecordKey& key) {
  tls12_crypto_info_aes_gcm_256 info{};
  static_assert(sizeof(info.key) == sizeof(key.key) && sizeof(info.salt) == sizeof(key.salt) &&
                sizeof(info.iv) == sizeof(key.iv));
  info.info.version = TLS_1_3_VERSION;
  info.info.cipher_type = TLS_CIPHER_AES_GCM_256;
  std::memcpy(info.key, key.key.data(), sizeof(info.key));
  std::memcpy(info.salt, key.salt.data(), sizeof(info.salt));
  std::memcpy(info.iv, key.iv.data(), sizeof(info.iv));
  const int error = ::setsockopt(fd, SOL_TLS, direction, &info, sizeof(info)) == 0 ? 0 : errno;
  OPENSSL_cleanse(&info, sizeof(info));
  return error;
}

}  // namespace

absl::Status CheckKernelTls() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return absl::ErrnoToStatus(errno, "tls.data: socket");
  // The kernel looks for TLS before it checks the connection, so ENOTCONN means that it has TLS.
  if (::setsockopt(socket.get(), SOL_TCP, TCP_ULP, kUpperLayer, sizeof(kUpperLayer) - 1) == 0 || errno == ENOTCONN) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "tls.data: kernel: this kernel has no TLS for sockets (", std::strerror(errno),
      "); as root run `modprobe tls` and write `tls` into /etc/modules-load.d/railsd.conf, or set tls.data: off on all "
      "nodes"));
}

int StartKernelTls(int fd, const DataKey& key, absl::Span<const std::byte> dialler,
                   absl::Span<const std::byte> acceptor, bool dialled) {
  if (::setsockopt(fd, SOL_TCP, TCP_ULP, kUpperLayer, sizeof(kUpperLayer) - 1) != 0) return errno;
  const RecordKeys keys = DeriveRecordKeys(key, dialler, acceptor);
  const int error = TakeKey(fd, TLS_TX, dialled ? keys.to_acceptor : keys.to_dialler);
  return error != 0 ? error : TakeKey(fd, TLS_RX, dialled ? keys.to_dialler : keys.to_acceptor);
}

bool IsBadRecord(int error_number) {
  switch (error_number) {
    case EBADMSG:   // it does not authenticate
    case EMSGSIZE:  // longer than a record may be
    case EINVAL:    // of another version
    case EIO:       // of another kind than data
      return true;
    default:
      return false;
  }
}

}  // namespace railsd::tcp
