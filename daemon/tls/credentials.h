// Mutual TLS 1.3 for gRPC: the control port and the channels to peers.
#ifndef RAILSD_DAEMON_TLS_CREDENTIALS_H_
#define RAILSD_DAEMON_TLS_CREDENTIALS_H_

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/tls/certificate.h"
#include "daemon/tls/tls_files.h"

namespace railsd {

// Before gRPC makes its first credentials and before any other thread runs: no handshake of this process settles on
// less than TLS 1.3.
void RequireTls13();

// Clients must show a certificate that the CA signed. Each connection takes what is in force in `files`, which outlives
// the server.
std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files);

// The server must show a certificate that the CA signed; its names are the caller's to check (DnsNamesOf), because what
// is dialled is an address.
std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material);

// The DNS names of the certificate that the other end has proven to own. Empty over plain text.
std::vector<std::string> DnsNamesOf(const grpc::AuthContext* context);

}  // namespace railsd

#endif  // RAILSD_DAEMON_TLS_CREDENTIALS_H_
