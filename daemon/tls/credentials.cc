#include "daemon/tls/credentials.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <cstdlib>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace railsd {
namespace {

// gRPC's C++ credentials hold the certificates of their making for ever; only its C interface asks for each connection.
class ReloadingServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit ReloadingServerCredentials(const TlsFiles* files)
      : files_(*files),
        credentials_(grpc_ssl_server_credentials_create_with_options(
            grpc_ssl_server_credentials_create_options_using_config_fetcher(
                GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, &Fetch, this))) {}
  ~ReloadingServerCredentials() override { grpc_server_credentials_release(credentials_); }
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}  // not used here

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // At the start of each connection's handshake.
  static grpc_ssl_certificate_config_reload_status Fetch(void* self, grpc_ssl_server_certificate_config** out) {
    return static_cast<ReloadingServerCredentials*>(self)->Fetch(out);
  }
  grpc_ssl_certificate_config_reload_status Fetch(grpc_ssl_server_certificate_config** out) {
    absl::MutexLock lock(&mutex_);
    std::shared_ptr<const TlsMaterial> now = files_.material();
    if (now == served_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {now->key.c_str(), now->certificate.c_str()};
    *out = grpc_ssl_server_certificate_config_create(now->ca.c_str(), &pair, 1);
    if (*out == nullptr) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_FAIL;
    served_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  const TlsFiles& files_;
  absl::Mutex mutex_;  // taken before that of the files
  std::shared_ptr<const TlsMaterial> served_ ABSL_GUARDED_BY(mutex_);
  grpc_server_credentials* const credentials_;  // last: it calls Fetch()
};

}  // namespace

void RequireTls13() {
  // gRPC 1.51 has no setting for the lowest version, and asks OpenSSL for 1.2. But it takes the list of ciphers for 1.2
  // from here, and with one that needs a key shared in advance, which nobody has, 1.2 finds no cipher. Those of 1.3 are
  // in a list of their own. Whatever the environment says is overridden.
  setenv("GRPC_SSL_CIPHER_SUITES", "PSK-AES256-GCM-SHA384", /*overwrite=*/1);
}

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const TlsFiles* files) {
  return std::make_shared<ReloadingServerCredentials>(files);
}

std::shared_ptr<grpc::ChannelCredentials> MakeChannelCredentials(const TlsMaterial& material) {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::StaticDataCertificateProvider>(
      material.ca, std::vector<tls::IdentityKeyCertPair>{{material.key, material.certificate}}));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());  // of names; the CA is checked
  options.set_check_call_host(false);
  return tls::TlsCredentials(options);
}

std::vector<std::string> DnsNamesOf(const grpc::AuthContext* context) {
  std::vector<std::string> names;
  if (context == nullptr || !context->IsPeerAuthenticated()) return names;
  for (const grpc::string_ref& name : context->FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)) {
    names.emplace_back(name.data(), name.size());
  }
  return names;
}

}  // namespace railsd
