#include "daemon/session/tenant_map.h"

#include <gmock/gmock.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "agent/base/unique_fd.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

TenantMap Map() {
  absl::StatusOr<TenantMap> map = TenantMap::Make({{.name = "a", .users = {"1000", "root"}},
                                                   {.name = "b", .groups = {"2000"}},
                                                   {.name = "c", .users = {"1000"}, .groups = {"2000", "3000"}},
                                                   {.name = "d"}},
                                                  "n0");
  EXPECT_TRUE(map.ok()) << map.status();
  return map.ok() ? *map : TenantMap();
}

std::string Of(const PeerCredentials& peer, const std::string& own = "") {
  const absl::StatusOr<std::string> tenant = Map().TenantOf(peer, own);
  return tenant.ok() ? *tenant : std::string(absl::StatusCodeToString(tenant.status().code()));
}

TEST(TenantMapTest, WithoutTenantsEverybodyIsOfTheDefaultOne) {
  EXPECT_EQ(*TenantMap().TenantOf({1, 7, 7, {}}, ""), "default");
  EXPECT_EQ(*TenantMap::Make({}, "n0")->TenantOf({1, 0, 0, {}}, ""), "default");
}

TEST(TenantMapTest, TheFirstThatListsUserGroupOrASupplementaryGroup) {
  EXPECT_EQ(Of({1, 0, 0, {}}), "a");
  EXPECT_EQ(Of({1, 1000, 2000, {}}), "a");
  EXPECT_EQ(Of({1, 1001, 2000, {3000}}), "b");
  EXPECT_EQ(Of({1, 1001, 1001, {5, 2000}}), "b");
  EXPECT_EQ(Of({1, 1001, 1001, {5, 3000}}), "c");
  EXPECT_EQ(Of({1, 1001, 1001, {1000}}), "PERMISSION_DENIED") << "a group is no user";
  EXPECT_EQ(Of({1, 1001, 0, {}}), "PERMISSION_DENIED");
}

TEST(TenantMapTest, OnItsOwnSocketATenantTakesWhomItListsOrElseEverybody) {
  EXPECT_EQ(Of({1, 1000, 1000, {}}, "c"), "c");
  EXPECT_EQ(Of({1, 1001, 1001, {3000}}, "c"), "c");
  EXPECT_EQ(Of({1, 1001, 1001, {}}, "c"), "PERMISSION_DENIED");
  EXPECT_EQ(Of({1, 1000, 1000, {}}, "b"), "PERMISSION_DENIED");
  EXPECT_EQ(Of({1, 0, 0, {}}, "d"), "d");
  EXPECT_EQ(Of({1, 4711, 4711, {}}, "d"), "d");
}

TEST(TenantMapTest, ARefusalNamesWhoItIsAndNoOtherTenant) {
  const absl::Status shared = Map().TenantOf({1, 1001, 1002, {}}, "").status();
  EXPECT_THAT(std::string(shared.message()), HasSubstr("uid 1001, gid 1002 is of no tenant of node n0"));
  EXPECT_THAT(std::string(shared.message()), HasSubstr("`users`"));
  const absl::Status own = Map().TenantOf({1, 1001, 1002, {}}, "c").status();
  EXPECT_THAT(std::string(own.message()), HasSubstr("uid 1001, gid 1002 is not of tenant c"));
}

TEST(TenantMapTest, NamesAllUsersAndGroupsThatThereAreNot) {
  const absl::Status status =
      TenantMap::Make(
          {{.name = "a", .users = {"root", "no-such-user"}}, {.name = "b", .groups = {"no-such-group", "root"}}}, "n0")
          .status();
  EXPECT_EQ(status, absl::InvalidArgumentError("tenants.a.users: 'no-such-user': no such user; tenants.b.groups: "
                                               "'no-such-group': no such group"));
}

TEST(CredentialsTest, OfThisProcess) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  const UniqueFd a(ends[0]), b(ends[1]);
  const absl::StatusOr<PeerCredentials> peer = CredentialsOfPeer(a.get());
  ASSERT_TRUE(peer.ok()) << peer.status();
  EXPECT_EQ(peer->pid, getpid());
  EXPECT_EQ(peer->uid, getuid());
  EXPECT_EQ(peer->gid, getgid());
  std::vector<gid_t> groups(static_cast<size_t>(getgroups(0, nullptr)));
  ASSERT_GE(getgroups(static_cast<int>(groups.size()), groups.data()), 0);
  EXPECT_THAT(peer->groups, ::testing::UnorderedElementsAreArray(groups));
}

// More groups than the first buffer holds. A child makes the sockets, because they carry their maker's groups.
TEST(CredentialsTest, ManySupplementaryGroups) {
  if (geteuid() != 0) GTEST_SKIP() << "only root may have other groups";
  std::array<gid_t, 300> groups;
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<gid_t>(5000 + i);
  const pid_t child = fork();
  if (child == 0) {
    int ends[2];
    if (setgroups(groups.size(), groups.data()) != 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) _exit(2);
    const absl::StatusOr<PeerCredentials> peer = CredentialsOfPeer(ends[0]);
    if (!peer.ok()) _exit(3);
    _exit(std::equal(groups.begin(), groups.end(), peer->groups.begin(), peer->groups.end()) ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(CredentialsTest, ASocketWithoutAPeerHasNone) {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  EXPECT_FALSE(CredentialsOfPeer(socket.get()).ok());
}

}  // namespace
}  // namespace railsd
