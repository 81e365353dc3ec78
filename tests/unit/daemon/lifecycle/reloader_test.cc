#include "daemon/lifecycle/reloader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/logging.h"

namespace railsd {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<std::string> Texts(const std::vector<ConfigDifference>& changes) {
  std::vector<std::string> out;
  for (const ConfigDifference& change : changes) {
    out.push_back(absl::StrCat(change.key, ": ", change.before, " -> ", change.after));
  }
  return out;
}

constexpr char kRails[] = "rails: [{address: 127.0.0.1}]\n";

Config Parsed(const std::string& text) {
  absl::StatusOr<Config> config = ParseConfig(
      std::string("node: n0\n") + kRails + "control: {listen: \"127.0.0.1:0\"}\ntls: {mode: plain_text}\n" + text,
      "f.yaml");
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : Config();
}

class ReloaderTest : public ::testing::Test {
 protected:
  void Begin(const std::string& text) {
    reloader_ = std::make_unique<Reloader>(
        Parsed(text), [this] { return file_; },
        [this](const Config& before, const Config& now) { applied_.emplace_back(before, now); }, NullLogger());
  }
  absl::StatusOr<Config> file_;
  std::vector<std::pair<Config, Config>> applied_;
  std::unique_ptr<Reloader> reloader_;
};

TEST_F(ReloaderTest, AppliesWhatCanChangeAndNamesWhatCannot) {
  Begin("limits: {max_groups: 4}\n");
  const std::string hash = reloader_->config_hash();
  file_ = Parsed(
      "limits: {max_groups: 8, max_world_size: 16}\nlog: {level: debug}\ntimeouts: {drain: 1m}\n"
      "peers: {static: [{name: n1, control: \"127.0.0.1:7\"}]}\nmetrics: {listen: \"127.0.0.1:1\"}\n");
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(report->applied),
              ElementsAre("limits.max_groups: 4 -> 8", "log.level: info -> debug", "timeouts.drain: 30s -> 1m",
                          "peers.static.n1:  -> {control: 127.0.0.1:7, rails: []}"));
  EXPECT_THAT(Texts(report->needs_restart),
              ElementsAre("limits.max_world_size: 4096 -> 16", "metrics.listen: \"\" -> 127.0.0.1:1"));
  ASSERT_EQ(applied_.size(), 1u);
  EXPECT_EQ(applied_[0].first.limits.max_groups, 4u);
  EXPECT_EQ(applied_[0].second.limits.max_groups, 8u);
  EXPECT_EQ(applied_[0].second.limits.max_world_size, 4096u);
  EXPECT_EQ(reloader_->config().static_peers.size(), 1u);
  EXPECT_EQ(reloader_->config().metrics_listen, "");
  EXPECT_NE(reloader_->config_hash(), hash);
  EXPECT_EQ(report->config_hash, reloader_->config_hash());
}

TEST_F(ReloaderTest, ASecondTimeOnlyWhatStillDiffersIsNamed) {
  Begin("");
  file_ = Parsed("limits: {max_groups: 8}\nplan: {policy: ecmp}\n");
  ASSERT_TRUE(reloader_->Reload().ok());
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->applied, IsEmpty());
  EXPECT_THAT(Texts(report->needs_restart), ElementsAre("plan.policy: lpt -> ecmp"));
  EXPECT_EQ(applied_.size(), 1u);
}

TEST_F(ReloaderTest, QuotasAndSharesOfTenantsChangeAndTenantsDoNot) {
  Begin("tenants: [{name: a, users: [root], quota: {jobs: 4}}, {name: b}, {name: c}]\n");
  file_ = Parsed(
      "tenants: [{name: b, quota: {jobs: 7}, share: {weight: 5}}, {name: a, users: [\"1\"], quota: {segment_bytes: "
      "1GiB}}]\n");
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(Texts(report->applied),
              ElementsAre("tenants.a.quota.jobs: 4 -> 0", "tenants.a.quota.segment_bytes: 0 -> 1GiB",
                          "tenants.b.quota.jobs: 0 -> 7", "tenants.b.share.weight: 1 -> 5"));
  const std::vector<std::string> restart = Texts(report->needs_restart);
  ASSERT_GE(restart.size(), 2u);
  EXPECT_EQ(restart[0], "tenants: [a, b, c] -> [b, a]");
  EXPECT_EQ(restart[1], "tenants.a.users: [root] -> [1]");
  for (size_t i = 2; i < restart.size(); ++i) EXPECT_EQ(restart[i].rfind("tenants.c.", 0), 0u) << restart[i];
  ASSERT_EQ(applied_.size(), 1u);
  const std::vector<TenantConfig>& now = applied_[0].second.tenants;
  ASSERT_EQ(now.size(), 3u);
  EXPECT_THAT(now[0].users, ElementsAre("root"));
  EXPECT_EQ(now[0].quota[QuotaKind::kSegmentBytes], uint64_t{1} << 30);
  EXPECT_EQ(now[1].quota[QuotaKind::kJobs], 7u);
  EXPECT_EQ(now[1].share.weight, 5u);
}

TEST_F(ReloaderTest, ABadFileChangesNothing) {
  Begin("");
  const std::string hash = reloader_->config_hash();
  file_ = absl::InvalidArgumentError("f.yaml:1: no");
  EXPECT_EQ(reloader_->Reload().status(), absl::InvalidArgumentError("f.yaml:1: no"));
  EXPECT_TRUE(applied_.empty());
  EXPECT_EQ(reloader_->config_hash(), hash);
}

TEST_F(ReloaderTest, PeersNeedARestartWhereNobodyListensForThem) {
  reloader_ = std::make_unique<Reloader>(
      *ParseConfig(std::string("node: n0\n") + kRails, "f"), [this] { return file_; },
      [this](const Config& before, const Config& now) { applied_.emplace_back(before, now); }, NullLogger());
  file_ = Parsed("peers: {static: [{name: n1, control: \"127.0.0.1:7\"}]}\n");
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok());
  EXPECT_THAT(report->applied, IsEmpty());
  EXPECT_EQ(report->needs_restart.size(), 3u) << "control.listen, tls.mode, peers.static.n1";
}

// One of a hundred peers changes.
TEST_F(ReloaderTest, OnlyPeersThatDifferAreTold) {
  const auto peers = [](const std::string& last) {
    std::string list;
    for (int i = 1; i < 100; ++i)
      list += "{name: n" + std::to_string(i) + ", control: \"h:" + std::to_string(i) + "\"}, ";
    return "peers: {static: [" + list + last + "]}\n";
  };
  Begin(peers("{name: z, control: \"h:200\"}"));
  file_ = Parsed(peers("{name: z, control: \"h:201\", rails: [10.0.0.1]}"));
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(report->applied),
              ElementsAre("peers.static.z: {control: h:200, rails: []} -> {control: h:201, rails: [10.0.0.1]}"));
}

// One key of a rail changes, and a rail comes; the others are not told.
TEST_F(ReloaderTest, OnlyKeysOfRailsThatDifferAreTold) {
  const auto with_rails = [](const std::string& rails) {
    return *ParseConfig("node: n0\nrails: [{address: 127.0.0.1}, " + rails + "]\n", "f");
  };
  reloader_ = std::make_unique<Reloader>(
      with_rails("{address: 127.0.0.2, speed: 10gbit}"), [this] { return file_; }, [](const Config&, const Config&) {},
      NullLogger());
  file_ = with_rails("{address: 127.0.0.2, speed: 25gbit}, {address: 127.0.0.3}");
  const absl::StatusOr<ReloadReport> report = reloader_->Reload();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(Texts(report->needs_restart),
              ElementsAre("rails[1].speed: 10gbit -> 25gbit", "rails[2].address:  -> 127.0.0.3",
                          "rails[2].name:  -> rail2", "rails[2].transport:  -> tcp"));
}

}  // namespace
}  // namespace railsd
