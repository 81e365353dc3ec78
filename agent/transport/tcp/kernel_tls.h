// TLS 1.3 records made and opened by the kernel (Linux: tls.rst, "kTLS"): the data path's sendmsg() and recv() stay.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_KERNEL_TLS_H_
#define RAILSD_AGENT_TRANSPORT_TCP_KERNEL_TLS_H_

#include <cstddef>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "agent/base/data_key.h"

namespace railsd::tcp {

// Returns FAILED_PRECONDITION, with what to do, if the kernel has no TLS for sockets. Loads the kernel's module if this
// process may (CAP_NET_ADMIN).
absl::Status CheckKernelTls();

// Makes all bytes on the connected socket `fd` TLS records from now on, in both directions; bytes that have arrived and
// were not read count as records. AES-256-GCM, numbered from 0, with keys made of the secret of the two daemons and the
// nonces of HELLO and answer. Returns 0, or an errno, after which the socket can only be closed.
int StartKernelTls(int fd, const DataKey& key, absl::Span<const std::byte> dialler,
                   absl::Span<const std::byte> acceptor, bool dialled);

// Reason for closing a connection after StartKernelTls() failed.
inline constexpr char kNoKernelTls[] = "the kernel's TLS could not be turned on";

// True if a receive failed because of the bytes that came: a record that was changed on its way, or no record.
bool IsBadRecord(int error_number);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_KERNEL_TLS_H_
