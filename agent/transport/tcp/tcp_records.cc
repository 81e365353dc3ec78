// A TcpRail whose connections carry TLS records (TcpOptions::tls): where they begin, and what a bad one is.
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "agent/transport/tcp/kernel_tls.h"
#include "agent/transport/tcp/tcp_rail.h"

namespace railsd::tcp {

// Behind the proof, of which nothing more than its own bytes has been read: what follows it is records already. False,
// with errno, when the connection is of no use.
bool TcpRail::StartRecords(const Connection& connection, const Peer& peer, absl::Span<const std::byte> dialler,
                           absl::Span<const std::byte> acceptor, bool dialled) {
  if (!options_.tls) return true;
  const RecordKeys keys = DeriveRecordKeys(peer.config.key, dialler, acceptor);
  errno = StartKernelTls(connection.fd.get(), dialled ? keys.to_acceptor : keys.to_dialler,
                         dialled ? keys.to_dialler : keys.to_acceptor);
  return errno == 0;
}

// What to wait for where data comes in. The kernel says that a socket is readable while only a part of a record is
// there, which nobody can read: seen as a level that would keep the thread spinning. The edge comes with the whole
// record.
uint32_t TcpRail::ReadEvents() const { return options_.tls ? EPOLLIN | EPOLLET : EPOLLIN; }

void TcpRail::NoticeNoRecords(const std::string& who, int error_number) {
  Context::Add(context_.counters.refused_connections, 1);
  Notice(&inbound_notice_, absl::StrCat("rail ", options_.rail.value(), " of ", options_.node, ": a connection of ",
                                        who, " was given up: ", kNoRecords, ": ", std::strerror(error_number)));
}

// A changed record ends its connection like any failure of the network; it is counted, because networks do not do that.
void TcpRail::CountBadRecord(int error_number) {
  if (options_.tls && IsBadRecord(error_number)) Context::Add(context_.counters.protocol_errors, 1);
}

}  // namespace railsd::tcp
