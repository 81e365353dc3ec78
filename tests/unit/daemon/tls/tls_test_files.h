// Certificates for the tests of mutual TLS, in a folder that the destructor removes.
#ifndef RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_TEST_FILES_H_
#define RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_TEST_FILES_H_

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/pki/certificate.h"
#include "daemon/config/config.h"
#include "tests/support/temporary_folder.h"

namespace railsd {

inline rails::ctl::pki::Validity ValidFor(absl::Duration before, absl::Duration after) {
  return {absl::Now() - before, absl::Now() + after};
}

class TlsTestFiles {
 public:
  TlsTestFiles() {
    authority = NewAuthority();
    Write("ca.pem", authority.certificate);
  }

  static rails::ctl::pki::Pair NewAuthority() {
    return *rails::ctl::pki::MakeAuthority("test", ValidFor(absl::Hours(24 * 20), absl::Hours(24 * 20)));
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_.path(), "/", name); }
  void Write(const std::string& name, const std::string& text, mode_t mode = 0600) const {
    std::ofstream(Path(name), std::ios::trunc) << text;
    EXPECT_EQ(chmod(Path(name).c_str(), mode), 0);
  }
  rails::ctl::pki::Pair Issue(const std::string& node, rails::ctl::pki::Validity validity) const {
    return *rails::ctl::pki::IssueCertificate(authority, node, validity);
  }
  // Writes NODE.pem and NODE.key. Returns the configuration that names them.
  TlsConfig WriteNode(const std::string& node, const rails::ctl::pki::Pair& pair) const {
    Write(node + ".key", pair.key);
    Write(node + ".pem", pair.certificate);
    return Config(node);
  }
  TlsConfig WriteNode(const std::string& node) const {
    return WriteNode(node, Issue(node, ValidFor(absl::Hours(1), absl::Hours(24))));
  }
  TlsConfig Config(const std::string& node) const {
    TlsConfig config;
    config.mode = TlsMode::kMutual;
    config.certificate = Path(node + ".pem");
    config.key = Path(node + ".key");
    config.ca = Path("ca.pem");
    config.refresh = absl::Hours(1);
    return config;
  }

  rails::ctl::pki::Pair authority;

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_TLS_TLS_TEST_FILES_H_
