// Tenants: quotas one by one, and that nothing of one shows to another.
#include "agent/sessions/tenants.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "agent/sessions/sessions.h"
#include "tests/support/test_memory.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

using ::testing::HasSubstr;

QuotaNumbers Only(QuotaKind kind, uint64_t value) {
  QuotaNumbers quota;
  quota[kind] = value;
  return quota;
}

void ExpectRefused(const absl::Status& status, const std::string& text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

class TenantTest : public ::testing::Test {
 protected:
  uint64_t InUse(const Tenant& tenant, QuotaKind kind) const { return tenant.View(now_).in_use[kind]; }
  uint64_t Refused(const Tenant& tenant, QuotaKind kind) const { return tenant.View(now_).refused[kind]; }
  absl::Time now_ = absl::UnixEpoch();
};

TEST(SessionLimitsTest, ALimitBelowWhatASessionHasStaysALimit) {
  AgentLimits limits;
  TenantTable tenants({}, nullptr);
  LimitCounters refused;
  SessionTable sessions(limits, &refused, &tenants);
  const SessionId session = sessions.Open({.tenant = "t"}).value();
  ASSERT_TRUE(sessions.BeginMapping(session, SegmentId(1), 8192).ok());
  ASSERT_TRUE(sessions.AddSegment(session, SegmentId(1), MakeSegment(8192)).ok());
  limits.max_segment_bytes_per_session = 4096;  // as a reload may
  ExpectRefused(sessions.BeginMapping(session, SegmentId(2), 4096), "would pass the limit of 4096");
}

TEST(SessionLimitsTest, WhatIsBeingMappedCountsAndIsGivenBack) {
  AgentLimits limits;
  TenantTable tenants({{"t", Only(QuotaKind::kSegmentBytes, 8192)}}, nullptr);
  LimitCounters refused;
  SessionTable sessions(limits, &refused, &tenants);
  const auto in_use = [&] { return tenants.Of("t").View(absl::UnixEpoch()).in_use; };
  const SessionId session = sessions.Open({.tenant = "t"}).value();
  EXPECT_EQ(sessions.AddSegment(session, SegmentId(1), MakeSegment(8192)).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(sessions.BeginMapping(session, SegmentId(1), 8192).ok());
  // A second one at the same time, of a quota that one fits.
  ExpectRefused(sessions.BeginMapping(session, SegmentId(2), 4096), "quota.segment_bytes");
  EXPECT_EQ(sessions.BeginMapping(session, SegmentId(1), 0).code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(sessions.RemoveSegment(session, SegmentId(1)).code(), absl::StatusCode::kNotFound);
  // It cannot be mapped.
  EXPECT_EQ(sessions.AddSegment(session, SegmentId(1), absl::UnknownError("no")), absl::UnknownError("no"));
  EXPECT_EQ(in_use()[QuotaKind::kSegmentBytes], 0u);
  EXPECT_EQ(in_use()[QuotaKind::kSegments], 0u);
  ASSERT_TRUE(sessions.BeginMapping(session, SegmentId(1), 8192).ok());
  sessions.Find(session)->closing = true;
  EXPECT_EQ(sessions.AddSegment(session, SegmentId(1), MakeSegment(8192)).code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(in_use()[QuotaKind::kSegmentBytes], 0u);
  sessions.Erase(session);
  EXPECT_EQ(in_use(), QuotaNumbers());
}

TEST_F(TenantTest, WithoutQuotasNothingIsRefused) {
  Tenant tenant(0, {"t", {}}, nullptr);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(tenant.TakeSession().ok());
    EXPECT_TRUE(tenant.TakeSegment(uint64_t{1} << 40).ok());
    EXPECT_TRUE(tenant.TakeJob(false, now_).ok());
  }
  EXPECT_EQ(InUse(tenant, QuotaKind::kSessions), 1000u);
  EXPECT_EQ(InUse(tenant, QuotaKind::kSegmentBytes), uint64_t{1000} << 40);
  EXPECT_EQ(InUse(tenant, QuotaKind::kJobs), 1000u);
  EXPECT_EQ(tenant.View(now_).refused, QuotaNumbers());
}

TEST_F(TenantTest, Sessions) {
  Tenant tenant(0, {"t", Only(QuotaKind::kSessions, 2)}, nullptr);
  EXPECT_TRUE(tenant.TakeSession().ok());
  EXPECT_TRUE(tenant.TakeSession().ok());
  ExpectRefused(tenant.TakeSession(), "tenants.t.quota.sessions: tenant t may have 2, 2 in use");
  EXPECT_EQ(InUse(tenant, QuotaKind::kSessions), 2u);
  EXPECT_EQ(Refused(tenant, QuotaKind::kSessions), 1u);
  tenant.ReturnSession();
  EXPECT_TRUE(tenant.TakeSession().ok());
}

TEST_F(TenantTest, Segments) {
  Tenant tenant(0, {"t", Only(QuotaKind::kSegments, 1)}, nullptr);
  EXPECT_TRUE(tenant.TakeSegment(10).ok());
  ExpectRefused(tenant.TakeSegment(10), "tenants.t.quota.segments: tenant t may have 1, 1 in use");
  EXPECT_EQ(InUse(tenant, QuotaKind::kSegmentBytes), 10u);
  tenant.ReturnSegment(10);
  EXPECT_EQ(InUse(tenant, QuotaKind::kSegmentBytes), 0u);
  EXPECT_TRUE(tenant.TakeSegment(10).ok());
}

TEST_F(TenantTest, SegmentBytes) {
  Tenant tenant(0, {"t", Only(QuotaKind::kSegmentBytes, 100)}, nullptr);
  EXPECT_TRUE(tenant.TakeSegment(60).ok());
  ExpectRefused(tenant.TakeSegment(41),
                "tenants.t.quota.segment_bytes: tenant t may have 100, 60 in use; length_bytes 41");
  ExpectRefused(tenant.TakeSegment(~uint64_t{0}), "segment_bytes");
  EXPECT_EQ(InUse(tenant, QuotaKind::kSegments), 1u);
  EXPECT_TRUE(tenant.TakeSegment(40).ok());
  tenant.ReturnSegment(60);
  EXPECT_TRUE(tenant.TakeSegment(60).ok());
  // A lower quota leaves what is there.
  tenant.Retune({"t", Only(QuotaKind::kSegmentBytes, 50)});
  ExpectRefused(tenant.TakeSegment(1), "may have 50, 100 in use");
}

TEST_F(TenantTest, JobsButNeverAHead) {
  Tenant tenant(0, {"t", Only(QuotaKind::kJobs, 2)}, nullptr);
  EXPECT_TRUE(tenant.TakeJob(true, now_).ok());
  EXPECT_TRUE(tenant.TakeJob(false, now_).ok());
  ExpectRefused(tenant.TakeJob(false, now_), "tenants.t.quota.jobs: tenant t may have 2, 2 in use");
  EXPECT_TRUE(tenant.TakeJob(true, now_).ok());
  EXPECT_EQ(InUse(tenant, QuotaKind::kJobs), 3u);
  JobReport done;
  done.bytes_sent = 5;
  done.bytes_received = 6;
  tenant.ReturnJob(done);
  ExpectRefused(tenant.TakeJob(false, now_), "2 in use");
  done.status = absl::UnavailableError("x");
  tenant.ReturnJob(done);
  EXPECT_TRUE(tenant.TakeJob(false, now_).ok());
  const TenantView view = tenant.View(now_);
  EXPECT_EQ(view.jobs_done, 1u);
  EXPECT_EQ(view.jobs_failed, 1u);
  EXPECT_EQ(view.bytes_sent, 10u);
  EXPECT_EQ(view.bytes_received, 12u);
  EXPECT_EQ(view.refused[QuotaKind::kJobs], 2u);
}

TEST_F(TenantTest, JobsPerSecondAreABucketOfOneSecond) {
  Tenant tenant(0, {"t", Only(QuotaKind::kJobsPerSecond, 4)}, nullptr);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(tenant.TakeJob(true, now_).ok());
  ExpectRefused(tenant.TakeJob(true, now_),
                "tenants.t.quota.jobs_per_second: tenant t may have 4, 4 in use; submit again in 250ms");
  EXPECT_EQ(InUse(tenant, QuotaKind::kJobsPerSecond), 4u);
  now_ += absl::Milliseconds(249);
  EXPECT_FALSE(tenant.TakeJob(true, now_).ok());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(tenant.TakeJob(true, now_).ok());
  EXPECT_FALSE(tenant.TakeJob(true, now_).ok());
  // It never holds more than a second's worth.
  now_ += absl::Hours(1);
  EXPECT_EQ(InUse(tenant, QuotaKind::kJobsPerSecond), 0u);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(tenant.TakeJob(true, now_).ok());
  EXPECT_FALSE(tenant.TakeJob(true, now_).ok());
  EXPECT_EQ(Refused(tenant, QuotaKind::kJobsPerSecond), 4u);
  EXPECT_EQ(InUse(tenant, QuotaKind::kJobs), 9u) << "refused ones take nothing";
}

TEST_F(TenantTest, TheTableTakesOverQuotasOfTenantsThatItHas) {
  TenantTable table({{"a", Only(QuotaKind::kSessions, 1)}, {"b", {}}}, nullptr);
  Tenant& a = table.Of("a");
  table.Retune({{"a", Only(QuotaKind::kSessions, 2)}, {"c", Only(QuotaKind::kSessions, 1)}});
  EXPECT_TRUE(a.TakeSession().ok());
  EXPECT_TRUE(a.TakeSession().ok());
  EXPECT_FALSE(a.TakeSession().ok());
  ASSERT_EQ(table.Views(now_).size(), 2u);
  EXPECT_EQ(table.Views(now_)[1].name, "b");
  EXPECT_EQ(table.Views(now_)[1].quota, QuotaNumbers());
}

// Through the engine.
class TenantJobsTest : public ::testing::Test {
 protected:
  void SetQuota(size_t node, const std::string& tenant, QuotaKind kind, uint64_t value) {
    AgentTuning tuning = {{}, absl::Minutes(10), absl::Minutes(10), 256, {{tenant, Only(kind, value)}}};
    cluster_.node(node).engine->Retune(tuning);
  }
  TenantView ViewOf(size_t node, const std::string& tenant) {
    for (const TenantView& view : cluster_.node(node).engine->Snapshot(0).tenants) {
      if (view.name == tenant) return view;
    }
    ADD_FAILURE() << "no tenant " << tenant;
    return {};
  }
  void Submit(Exchange& exchange, uint32_t rank, uint64_t seq, absl::StatusCode code = absl::StatusCode::kOk) {
    const absl::Status status = exchange.trainer(rank).Submit(exchange.For(rank, seq));
    EXPECT_EQ(status.code(), code) << status;
  }
  Cluster cluster_{{.nodes = 2, .rails = 2}};
};

TEST_F(TenantJobsTest, ARefusedSubmissionTakesNoNumberAndTheHeadIsAlwaysTaken) {
  Exchange exchange(&cluster_, 2, "g", {.tenant = "a"}), other(&cluster_, 2, "g", {.tenant = "b"});
  exchange.ReceiveApart(2);
  for (Exchange* e : {&exchange, &other}) e->SetLengths({{0, 5000}, {4000, 0}}, 1);
  SetQuota(0, "a", QuotaKind::kJobs, 1);
  Submit(exchange, 0, 1);
  Submit(exchange, 0, 2, absl::StatusCode::kResourceExhausted);
  Submit(exchange, 0, 1);  // the same again is the same job
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kJobs], 1u);
  EXPECT_EQ(ViewOf(0, "a").refused[QuotaKind::kJobs], 1u);
  other.RunJob(1);
  // Node 1 has no quota: it goes ahead, and node 0 takes each job when it is its head.
  Submit(exchange, 1, 1);
  Submit(exchange, 1, 2);
  cluster_.Run();
  Submit(exchange, 0, 2);
  cluster_.Run();
  EXPECT_EQ((*exchange.trainer(0).Wait(2))->state, JobState::kDone);
  exchange.ExpectBytes();
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kJobs], 0u);
  EXPECT_EQ(ViewOf(0, "a").jobs_done, 2u);
  EXPECT_EQ(ViewOf(0, "a").bytes_sent, 10000u);
  EXPECT_EQ(ViewOf(1, "a").bytes_received, 10000u);
}

// Two groups that fill both nodes in opposite order would wait for each other for ever if a quota refused heads.
TEST_F(TenantJobsTest, FullQuotasNeverDeadlock) {
  Exchange x(&cluster_, 2, "x", {.tenant = "a"}), y(&cluster_, 2, "y", {.tenant = "a"});
  for (Exchange* e : {&x, &y}) e->SetLengths({{0, 3000}, {2000, 0}}, 1);
  for (size_t n : {0, 1}) SetQuota(n, "a", QuotaKind::kJobs, 1);
  Submit(x, 0, 1);
  Submit(y, 1, 1);
  Submit(y, 0, 1);
  Submit(x, 1, 1);
  cluster_.Run();
  for (Exchange* e : {&x, &y}) {
    for (uint32_t r : {0u, 1u}) EXPECT_EQ((*e->trainer(r).Wait(1))->state, JobState::kDone);
    e->ExpectBytes();
  }
}

TEST_F(TenantJobsTest, WhatASessionHeldIsGivenBackWithIt) {
  const SessionId session = cluster_.OpenSession(0, "a");
  Buffer buffer(8192);
  cluster_.AddSegment(0, session, 1, buffer);
  cluster_.AddSegment(0, session, 2, buffer);
  SetQuota(0, "a", QuotaKind::kSessions, 1);
  Engine& engine = *cluster_.node(0).engine;
  absl::Status refused;
  engine.OpenSession({1, 1, 1, "a"}, [&](absl::StatusOr<SessionId> s) { refused = s.status(); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  engine.RemoveSegment(session, SegmentId(2), [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kSegments], 1u);
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kSegmentBytes], 8192u);
  engine.CloseSession(session, "test", [](absl::Status s) { EXPECT_TRUE(s.ok()) << s; });
  cluster_.Run();
  EXPECT_EQ(ViewOf(0, "a").in_use, QuotaNumbers());
  cluster_.OpenSession(0, "a");
}

TEST_F(TenantJobsTest, ASessionThatEndsWaitsForWhatIsBeingMapped) {
  const SessionId session = cluster_.OpenSession(0, "a");
  Engine& engine = *cluster_.node(0).engine;
  ASSERT_TRUE(engine.BeginMapping(session, SegmentId(1), 8192).ok());
  bool closed = false;
  engine.CloseSession(session, "test", [&](absl::Status) { closed = true; });
  cluster_.Run();
  EXPECT_FALSE(closed);
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kSegmentBytes], 8192u) << "it may be pinned";
  absl::Status added;
  engine.AddSegment(session, SegmentId(1), MakeSegment(8192), [&](absl::Status s) { added = s; });
  EXPECT_EQ(added.code(), absl::StatusCode::kNotFound);
  cluster_.Run();
  EXPECT_TRUE(closed);
  EXPECT_EQ(ViewOf(0, "a").in_use, QuotaNumbers());
}

TEST_F(TenantJobsTest, AbortedJobsAreGivenBack) {
  Exchange exchange(&cluster_, 2, "g", {.tenant = "a"});
  exchange.SetLengths({{0, 5000}, {4000, 0}}, 1);
  Submit(exchange, 0, 1);
  cluster_.node(1).engine->CloseSession(exchange.trainer(1).session, "killed", [](absl::Status) {});
  cluster_.Run();
  EXPECT_EQ(ViewOf(0, "a").in_use[QuotaKind::kJobs], 0u);
  EXPECT_EQ(ViewOf(0, "a").jobs_failed, 1u);
}

// Tenants with the same group name and join key do not meet; ranks of one world can be taken by both.
TEST_F(TenantJobsTest, TheSameGroupOfTwoTenantsIsTwoGroups) {
  Exchange a(&cluster_, 2, "g", {.tenant = "a", .join = false}), b(&cluster_, 2, "g", {.tenant = "b", .join = false});
  a.trainer(0).Join("g", 2);
  b.trainer(1).Join("g", 2);
  cluster_.Run();
  EXPECT_EQ(a.trainer(0).group.status().message(), "joining");
  EXPECT_EQ(b.trainer(1).group.status().message(), "joining");
  a.trainer(1).Join("g", 2);
  b.trainer(0).Join("g", 2);
  cluster_.Run();
  ASSERT_TRUE(a.trainer(0).group.ok());
  ASSERT_TRUE(b.trainer(0).group.ok());
  EXPECT_NE(a.trainer(0).group->epoch, b.trainer(0).group->epoch);
}

// A session that names a thing of another tenant gets, letter by letter, the answer for a thing that does not exist.
TEST_F(TenantJobsTest, NothingOfAnotherTenantShows) {
  Exchange a(&cluster_, 2, "secret", {.tenant = "a"}), b(&cluster_, 2, "b", {.tenant = "b"});
  a.SetLengths({{0, 5000}, {4000, 0}}, 1);
  b.SetLengths({{0, 5000}, {4000, 0}}, 1);
  Submit(a, 0, 1);  // waits for the other rank
  Engine& engine = *cluster_.node(0).engine;
  const SessionId stranger = b.trainer(0).session;
  const Epoch theirs = a.trainer(0).group->epoch, none = {BootId(4711), theirs.counter};
  const auto answers = [&](Epoch epoch, Rank rank, JobSeq seq) {
    std::vector<std::string> out;
    Submission submission = b.For(0, seq.value());
    submission.session = stranger;
    submission.job = {epoch, seq};
    submission.rank = rank;
    engine.Submit(engine.Check(submission), [&](absl::Status s) { out.push_back(s.ToString()); });
    engine.Leave(stranger, epoch, rank, [&](absl::Status s) { out.push_back(s.ToString()); });
    engine.Wait(stranger, {epoch, seq}, rank, absl::ZeroDuration(),
                [&](absl::StatusOr<JobReport> r) { out.push_back(r.status().ToString()); });
    engine.Cancel(stranger, {epoch, seq}, rank, [&](absl::Status s) { out.push_back(s.ToString()); });
    for (std::string& text : out) {
      const std::string id = absl::StrCat(absl::Hex(epoch.boot.value(), absl::kZeroPad16), ".", epoch.counter);
      if (const size_t at = text.find(id); at != std::string::npos) text.replace(at, id.size(), "EPOCH");
    }
    return out;
  };
  for (const uint32_t rank : {0u, 1u, 7u}) {
    for (const uint64_t seq : {1u, 2u, 9u}) {
      const std::vector<std::string> real = answers(theirs, Rank(rank), JobSeq(seq));
      EXPECT_EQ(real, answers(none, Rank(rank), JobSeq(seq)));
      ASSERT_EQ(real.size(), 4u);
      for (const std::string& text : real) {
        EXPECT_THAT(text, HasSubstr("NOT_FOUND"));
        EXPECT_THAT(text, ::testing::Not(HasSubstr("secret")));
      }
    }
  }
  Buffer buffer(4096);
  cluster_.AddSegment(0, a.trainer(0).session, 7, buffer);
  std::vector<std::string> removed;
  for (const uint32_t segment : {7u, 8u}) {
    engine.RemoveSegment(stranger, SegmentId(segment), [&](absl::Status s) { removed.push_back(s.ToString()); });
  }
  EXPECT_THAT(removed, ::testing::ElementsAre("NOT_FOUND: segment_id: 7 is not a segment of this session",
                                              "NOT_FOUND: segment_id: 8 is not a segment of this session"));
  // Nor did it change anything.
  Submit(a, 1, 1);
  cluster_.Run();
  EXPECT_EQ((*a.trainer(0).Wait(1))->state, JobState::kDone);
  a.ExpectBytes();
}

TEST_F(TenantJobsTest, LimitsOfTheNodeSayNothingOfWhoHasWhat) {
  Exchange a(&cluster_, 2, "g", {.tenant = "a"}), b(&cluster_, 2, "h", {.tenant = "b", .join = false});
  AgentTuning tuning = {{.max_groups = 1}, absl::Minutes(10), absl::Minutes(10), 256, {}};
  cluster_.node(0).engine->Retune(tuning);
  b.trainer(0).Join("h", 2);
  EXPECT_EQ(b.trainer(0).group.status(),
            absl::ResourceExhaustedError("limits.max_groups: n0 has 1 groups, the most that it may have"));
}

}  // namespace
}  // namespace railsd::testing
