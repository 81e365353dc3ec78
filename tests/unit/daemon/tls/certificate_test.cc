#include "daemon/tls/certificate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "daemon/lifecycle/logging.h"
#include "daemon/tls/tls_files.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/tls/tls_test_files.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;
namespace pki = rails::ctl::pki;

class CertificateTest : public ::testing::Test {
 protected:
  // The error in the files of `config`; empty: none.
  std::string Verdict(const TlsConfig& config, const std::string& node = "n1") {
    const absl::StatusOr<TlsMaterial> material = ReadTlsMaterial(config);
    if (!material.ok()) return std::string(material.status().message());
    const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(*material, config, node, absl::Now());
    return expires.ok() ? "" : std::string(expires.status().message());
  }
  std::string At(const std::string& key, const std::string& name) const {
    return absl::StrCat("tls.", key, ": ", files.Path(name), ": ");
  }
  TlsTestFiles files;
};

TEST_F(CertificateTest, GoodFilesAreTaken) {
  const TlsConfig config = files.WriteNode("n1");
  EXPECT_EQ(Verdict(config), "");
  const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(*ReadTlsMaterial(config), config, "n1", absl::Now());
  ASSERT_TRUE(expires.ok());
  EXPECT_EQ(*expires, *pki::ExpiryOf(ReadTlsMaterial(config)->certificate));
}

TEST_F(CertificateTest, TheFirstToExpireCounts) {
  // The authority expires before the wanted end of the certificate; pki shortens the certificate to that.
  TlsConfig config = files.WriteNode("n1", files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(24 * 400))));
  const absl::StatusOr<absl::Time> expires = CheckTlsMaterial(*ReadTlsMaterial(config), config, "n1", absl::Now());
  ASSERT_TRUE(expires.ok());
  EXPECT_EQ(*expires, *pki::ExpiryOf(files.authority.certificate));
}

TEST_F(CertificateTest, MissingFilesAreNamed) {
  files.WriteNode("n1");
  for (const auto& [key, name] :
       {std::pair("certificate", "n1.pem"), std::pair("key", "n1.key"), std::pair("ca", "ca.pem")}) {
    ASSERT_EQ(rename(files.Path(name).c_str(), files.Path("away").c_str()), 0);
    EXPECT_EQ(Verdict(files.Config("n1")), At(key, name) + "cannot open: No such file or directory");
    ASSERT_EQ(rename(files.Path("away").c_str(), files.Path(name).c_str()), 0);
  }
}

TEST_F(CertificateTest, AKeyThatEverybodyMayReadIsRefused) {
  const TlsConfig config = files.WriteNode("n1");
  for (const mode_t mode : {0604, 0644, 0601, 0602}) {
    ASSERT_EQ(chmod(config.key.c_str(), mode), 0);
    EXPECT_THAT(Verdict(config), HasSubstr("lets every user of this machine use the key; chmod 0600"));
  }
  ASSERT_EQ(chmod(config.key.c_str(), 0640), 0);
  EXPECT_EQ(Verdict(config), "");
}

TEST_F(CertificateTest, WhatIsNoFileIsRefused) {
  TlsConfig config = files.WriteNode("n1");
  config.ca = files.Path("");
  EXPECT_THAT(Verdict(config), HasSubstr("not a file"));
  config.ca = "/dev/zero";
  EXPECT_THAT(Verdict(config), HasSubstr("tls.ca: /dev/zero: not a file"));
  ASSERT_EQ(mkfifo(files.Path("pipe").c_str(), 0600), 0);
  config.ca = files.Path("pipe");
  EXPECT_THAT(Verdict(config), HasSubstr("not a file"));
}

TEST_F(CertificateTest, GarbageIsRefused) {
  const pki::Pair good = files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(1)));
  const std::string no_certificate = At("certificate", "n1.pem") + "holds no whole certificate in PEM";
  const std::string no_key = At("key", "n1.key") + "holds no private key in PEM that has no password";
  const std::string half = good.certificate.substr(0, good.certificate.size() / 2);
  for (const std::string& bad : {std::string(), std::string("hello\n"), std::string(1000, '\0'), half, good.key,
                                 good.certificate + half, std::string("-----BEGIN CERTIFICATE-----\n")}) {
    EXPECT_EQ(Verdict(files.WriteNode("n1", {bad, good.key})), no_certificate) << bad;
  }
  for (const std::string& bad :
       {std::string(), std::string("\xff\xfe"), good.key.substr(0, good.key.size() / 2), good.certificate}) {
    EXPECT_EQ(Verdict(files.WriteNode("n1", {good.certificate, bad})), no_key) << bad;
  }
  files.WriteNode("n1", good);
  files.Write("ca.pem", "no certificate");
  EXPECT_EQ(Verdict(files.Config("n1")), At("ca", "ca.pem") + "holds no whole certificate in PEM");
  files.Write("ca.pem", std::string(kMaxTlsFileBytes + 1, 'x'));
  EXPECT_EQ(Verdict(files.Config("n1")), At("ca", "ca.pem") + "larger than 1MiB: no certificate or key");
}

TEST_F(CertificateTest, AnotherKeyIsRefused) {
  const pki::Validity validity = ValidFor(absl::Hours(1), absl::Hours(1));
  const TlsConfig config =
      files.WriteNode("n1", {files.Issue("n1", validity).certificate, files.Issue("n1", validity).key});
  EXPECT_EQ(Verdict(config),
            absl::StrCat(At("key", "n1.key"), "is not the key of the certificate ", config.certificate));
}

TEST_F(CertificateTest, TimesAreCompared) {
  EXPECT_THAT(Verdict(files.WriteNode("n1", files.Issue("n1", ValidFor(absl::Hours(48), -absl::Hours(24))))),
              HasSubstr(At("certificate", "n1.pem") + "expired at "));
  EXPECT_THAT(Verdict(files.WriteNode("n1", files.Issue("n1", ValidFor(-absl::Hours(1), absl::Hours(24))))),
              HasSubstr(At("certificate", "n1.pem") + "not valid before "));
}

TEST_F(CertificateTest, TheAuthorityMustHaveSigned) {
  const TlsConfig config = files.WriteNode("n1");
  files.Write("ca.pem", TlsTestFiles::NewAuthority().certificate);
  EXPECT_THAT(Verdict(config), HasSubstr("it must be signed by tls.ca, " + config.ca));
  // One matching CA among several is enough.
  files.Write("ca.pem", TlsTestFiles::NewAuthority().certificate + files.authority.certificate);
  EXPECT_EQ(Verdict(config), "");
}

TEST_F(CertificateTest, AnExpiredAuthorityIsRefused) {
  const pki::Pair good = files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(24 * 30)));
  const TlsConfig config = files.WriteNode("n1", good);
  const absl::StatusOr<absl::Time> expires =
      CheckTlsMaterial(*ReadTlsMaterial(config), config, "n1", absl::Now() + absl::Hours(24 * 21));
  EXPECT_THAT(std::string(expires.status().message()), HasSubstr("expired"));
}

TEST_F(CertificateTest, TheNodesNameMustBeThere) {
  files.WriteNode("n2");
  EXPECT_EQ(
      Verdict(files.Config("n2")),
      At("certificate", "n2.pem") +
          "is of n2, not of this node, n1: the node's name must be among its DNS names (subject alternative name)");
  // The authority's own certificate has no names, and is for neither servers nor clients.
  EXPECT_NE(Verdict(files.WriteNode("n1", files.authority)), "");
}

class TlsFilesTest : public CertificateTest {};

TEST_F(TlsFilesTest, WrongFilesDoNotOpen) {
  files.WriteNode("n2");
  const auto opened = TlsFiles::Open(files.Config("n2"), "n1", NullLogger());
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(TlsFilesTest, ChangedFilesAreTakenAndWrongOnesAreNot) {
  const pki::Pair first = files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(5)));
  auto opened = TlsFiles::Open(files.WriteNode("n1", first), "n1", NullLogger());
  ASSERT_TRUE(opened.ok()) << opened.status();
  TlsFiles& tls = **opened;
  const std::shared_ptr<const TlsContext> before = tls.context();
  tls.Look();
  EXPECT_EQ(tls.context(), before) << "nothing has changed";
  EXPECT_EQ(tls.counters().taken, 0u);

  files.Write("n1.pem", "garbage");
  tls.Look();
  tls.Look();
  EXPECT_EQ(tls.context(), before);
  EXPECT_EQ(tls.counters().refused, 1u) << "once, not at every look";
  files.WriteNode("n1", files.Issue("n2", ValidFor(absl::Hours(1), absl::Hours(5))));
  tls.Look();
  EXPECT_EQ(tls.counters().refused, 2u) << "another mistake";
  EXPECT_EQ(tls.context(), before);

  const pki::Pair second = files.Issue("n1", ValidFor(absl::Hours(1), absl::Hours(9)));
  files.WriteNode("n1", second);
  tls.Look();
  EXPECT_EQ(tls.counters().taken, 1u);
  EXPECT_EQ(tls.counters().refused, 2u);
  EXPECT_NE(tls.context(), before);
  EXPECT_EQ(tls.expires(), *pki::ExpiryOf(second.certificate));

  // The same error after a good file is reported again.
  files.Write("n1.pem", "garbage");
  tls.Look();
  EXPECT_EQ(tls.counters().refused, 3u);
}

TEST_F(TlsFilesTest, TheThreadLooks) {
  TlsConfig config = files.WriteNode("n1");
  config.refresh = absl::Milliseconds(10);
  auto opened = TlsFiles::Open(config, "n1", NullLogger());
  ASSERT_TRUE(opened.ok()) << opened.status();
  files.WriteNode("n1");
  testing::Until([&] { return (*opened)->counters().taken != 0; });
  EXPECT_EQ((*opened)->counters().taken, 1u);
}

}  // namespace
}  // namespace railsd
