#include "daemon/metrics/status_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/lifecycle/readiness.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/metrics/http_client.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class StatusPortTest : public ::testing::Test {
 protected:
  void SetUp() override {
    AgentSnapshot snapshot;
    snapshot.rails.resize(2);
    snapshot.rails[0].name = "rail0";
    snapshot.rails[1].name = "rail1 <script>alert(1)</script>\xff";
    snapshot.rails[1].health.state = HealthState::kDown;
    snapshot.rails[1].health.why = "the link has no carrier";
    for (uint64_t i = 0; i < 100; ++i) {
      JobReport report;
      report.job.seq = JobSeq(i);
      report.state = JobState::kDone;
      snapshot.finished_jobs.push_back(report);
    }
    snapshot_ = snapshot;
    agent_.SetSnapshot(snapshot);
    auto context = std::make_shared<ServiceContext>();
    context->agent = &agent_;
    context->node = "n0";
    context->readiness = &readiness_;
    MetricSources sources;
    sources.context = context;
    sources.deadline = absl::Milliseconds(50);
    HttpOptions http;
    http.listen = "127.0.0.1:0";
    auto port = StatusPort::Start(http, sources);
    ASSERT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
  }
  std::string Get(const std::string& path) { return Ask(port_->port(), "GET", path); }
  nlohmann::json Status(const std::string& query = "") {
    return nlohmann::json::parse(BodyOf(Get("/api/v1/status" + query)));
  }

  FakeAgent agent_;
  Readiness readiness_;
  AgentSnapshot snapshot_;
  std::unique_ptr<StatusPort> port_;
};

TEST_F(StatusPortTest, Metrics) {
  const std::string answer = Get("/metrics");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_THAT(BodyOf(answer), StartsWith("# HELP railsd_build_info "));
}

TEST_F(StatusPortTest, TheOverviewAsJson) {
  const std::string answer = Get("/api/v1/status");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"));
  const nlohmann::json overview = Status();
  EXPECT_EQ(overview["status"]["node"], "n0");
  EXPECT_EQ(overview["rails"][0]["name"], "rail0");
  EXPECT_EQ(overview["rails"][1]["name"], "rail1 <script>alert(1)</script>\xef\xbf\xbd")
      << "what is no UTF-8 is replaced";
  EXPECT_EQ(overview["rails"][1]["health"]["state"], "down");
  EXPECT_EQ(overview["finished"].size(), 10u);
}

TEST_F(StatusPortTest, FinishedJobsAreBounded) {
  EXPECT_EQ(Status("?finished=0")["finished"].size(), 0u);
  EXPECT_EQ(Status("?other=7&finished=3")["finished"].size(), 3u);
  EXPECT_EQ(Status("?finished=4000000000")["finished"].size(), 64u);
  EXPECT_EQ(Status("?")["finished"].size(), 10u);
  for (const char* query :
       {"?finished=", "?finished=-1", "?finished=x", "?finished=99999999999999999999", "?finished"}) {
    EXPECT_THAT(Get(absl::StrCat("/api/v1/status", query)), StartsWith("HTTP/1.1 400 ")) << query;
    EXPECT_EQ(Status(query)["error"], "finished: not a number of jobs");
  }
}

TEST_F(StatusPortTest, ReadyBetweenTheStartAndTheEnd) {
  EXPECT_THAT(Get("/healthz"), HasSubstr("200 OK"));
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_EQ(BodyOf(Get("/readyz")), "starting\n");
  readiness_.SetStarted();
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 200 "));
  EXPECT_EQ(BodyOf(Get("/readyz")), "ready\n");
  snapshot_.draining = true;
  agent_.SetSnapshot(snapshot_);
  EXPECT_THAT(Get("/readyz"), StartsWith("HTTP/1.1 503 "));
  readiness_.SetStopping();
  EXPECT_EQ(BodyOf(Get("/readyz")), "stopping: running jobs end, nothing new is taken\n");
  EXPECT_EQ(BodyOf(Get("/healthz")), "ok\n");
}

TEST_F(StatusPortTest, AnEngineThatDoesNotAnswer) {
  readiness_.SetStarted();
  agent_.silent = true;
  for (const char* path : {"/healthz", "/readyz", "/api/v1/status"}) {
    EXPECT_THAT(Get(path), StartsWith("HTTP/1.1 503 ")) << path;
    EXPECT_THAT(BodyOf(Get(path)), HasSubstr("the engine does not answer")) << path;
  }
  EXPECT_THAT(std::string(Status()["error"]), HasSubstr("the engine does not answer"));
  EXPECT_THAT(BodyOf(Get("/metrics")), HasSubstr("railsd_scrape_failed 1\n"));
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 200 ")) << "the page says it";
  agent_.silent = false;
  EXPECT_THAT(Get("/healthz"), StartsWith("HTTP/1.1 200 "));
}

TEST_F(StatusPortTest, ThePageHasAllItNeedsAndMayDoNothingElse) {
  const std::string answer = Get("/");
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"));
  EXPECT_THAT(answer, HasSubstr("Content-Security-Policy: default-src 'none'; style-src 'sha256-"));
  EXPECT_THAT(answer, HasSubstr("; script-src 'sha256-"));
  const std::string page = BodyOf(answer);
  EXPECT_THAT(page, StartsWith("<!doctype html>"));
  for (const char* without : {"http://", "https://", "//cdn", " style=", " onclick=", "innerHTML", "outerHTML",
                              "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_THAT(page, Not(HasSubstr(without)));
  }
}

}  // namespace
}  // namespace railsd
