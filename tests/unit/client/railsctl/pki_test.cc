#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/pki/certificate.h"
#include "client/railsctl/pki/files.h"
#include "tests/support/temporary_folder.h"

namespace rails::ctl::pki {
namespace {

using ::testing::HasSubstr;

class PkiTest : public ::testing::Test {
 protected:
  mode_t Mode(const std::string& path) const {
    struct stat about = {};
    EXPECT_EQ(lstat(path.c_str(), &about), 0) << path;
    return about.st_mode & 07777;
  }
  static Choices For(absl::Duration time, bool force = false) {
    return {{absl::Now() - absl::Hours(1), absl::Now() + time}, force};
  }
  const railsd::testing::TemporaryFolder temporary;
  const std::string parent = temporary.path(), folder = parent + "/pki";
};

TEST_F(PkiTest, WritesFilesThatOnlyTheirOwnerMayUse) {
  ASSERT_TRUE(InitFolder(folder, For(absl::Hours(48))).ok());
  ASSERT_TRUE(IssueInto(folder, {"n0", "a.b-c_d"}, For(absl::Hours(24))).ok());
  EXPECT_EQ(Mode(folder), 0700u);
  for (const char* name : {"ca", "n0", "a.b-c_d"}) {
    EXPECT_EQ(Mode(KeyPath(folder, name)), 0600u);
    EXPECT_EQ(Mode(CertificatePath(folder, name)), 0644u);
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.exists();
  EXPECT_EQ(files, 6u) << "nothing else is left";
}

TEST_F(PkiTest, ReplacesNothingWithoutForce) {
  ASSERT_TRUE(InitFolder(folder, For(absl::Hours(48))).ok());
  ASSERT_TRUE(IssueInto(folder, {"n0"}, For(absl::Hours(24))).ok());
  const std::string before = *ReadPem(KeyPath(folder, "n0"));
  EXPECT_EQ(InitFolder(folder, For(absl::Hours(48))).code(), absl::StatusCode::kAlreadyExists);
  const absl::Status status = IssueInto(folder, {"n1", "n0"}, For(absl::Hours(24)));
  EXPECT_EQ(status.message(), absl::StrCat(KeyPath(folder, "n0"), ": exists already; --force replaces it"));
  EXPECT_FALSE(std::filesystem::exists(KeyPath(folder, "n1"))) << "all or none";
  EXPECT_EQ(*ReadPem(KeyPath(folder, "n0")), before);
  ASSERT_TRUE(IssueInto(folder, {"n1", "n0"}, For(absl::Hours(24), true)).ok());
  EXPECT_NE(*ReadPem(KeyPath(folder, "n0")), before);
}

TEST_F(PkiTest, ForceReplacesALinkAndNotWhatItLeadsTo) {
  ASSERT_TRUE(InitFolder(folder, For(absl::Hours(48))).ok());
  const std::string victim = absl::StrCat(parent, "/victim");
  ASSERT_EQ(symlink(victim.c_str(), KeyPath(folder, "n0").c_str()), 0);
  EXPECT_EQ(IssueInto(folder, {"n0"}, For(absl::Hours(24))).code(), absl::StatusCode::kAlreadyExists);
  ASSERT_TRUE(IssueInto(folder, {"n0"}, For(absl::Hours(24), true)).ok());
  EXPECT_FALSE(std::filesystem::exists(victim));
  EXPECT_EQ(Mode(KeyPath(folder, "n0")), 0600u);
}

TEST_F(PkiTest, RefusesNames) {
  ASSERT_TRUE(InitFolder(folder, For(absl::Hours(48))).ok());
  for (const std::string& name : {std::string(), std::string("a/b"), std::string("a b"), std::string("a,DNS:b"),
                                  std::string("a\0b", 3), std::string(254, 'a')}) {
    EXPECT_EQ(IssueInto(folder, {name}, For(absl::Hours(1))).code(), absl::StatusCode::kInvalidArgument) << name;
  }
  EXPECT_THAT(std::string(IssueInto(folder, {"ca"}, For(absl::Hours(1))).message()), HasSubstr("another name"));
  EXPECT_TRUE(IssueInto(folder, {std::string(240, 'a')}, For(absl::Hours(1))).ok()) << "longer than a common name";
}

TEST_F(PkiTest, NeedsAnAuthority) {
  EXPECT_EQ(IssueInto(folder, {"n0"}, For(absl::Hours(1))).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(InitFolder(folder, For(absl::Hours(48))).ok());
  const absl::StatusOr<Pair> other = MakeAuthority("other", For(absl::Hours(1)).validity);
  const Pair mixed = {*ReadPem(CertificatePath(folder, "ca")), other->key};
  EXPECT_EQ(IssueCertificate(mixed, "n0", For(absl::Hours(1)).validity).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(IssueCertificate({"", ""}, "n0", For(absl::Hours(1)).validity).ok());
}

TEST_F(PkiTest, ACertificateEndsWithItsAuthority) {
  const Pair authority = *MakeAuthority("test", For(absl::Hours(10)).validity);
  const Pair node = *IssueCertificate(authority, "n0", For(absl::Hours(1000)).validity);
  EXPECT_EQ(*ExpiryOf(node.certificate), *ExpiryOf(authority.certificate));
  EXPECT_FALSE(ExpiryOf("garbage").ok());
}

}  // namespace
}  // namespace rails::ctl::pki
