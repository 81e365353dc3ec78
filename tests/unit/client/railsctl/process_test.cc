// The program itself: exit codes, standard output and standard error, against a daemon that answers from a script.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rails/v1/operator.grpc.pb.h"
#include "tests/support/temporary_folder.h"

namespace rails {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int code = -1;
  std::string out, err;
};

class ProcessTest : public ::testing::Test {
 protected:
  Outcome Run(const std::string& arguments) {
    const std::string errors = (folder_ / "stderr").string();
    const std::string line = std::string(RAILSCTL) + " " + arguments + " 2>" + errors + " </dev/null";
    Outcome outcome;
    FILE* pipe = popen(line.c_str(), "r");
    char buffer[4096];
    for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.out.append(buffer, n);
    const int status = pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ifstream stream(errors);
    outcome.err.assign(std::istreambuf_iterator<char>(stream), {});
    return outcome;
  }

  const railsd::testing::TemporaryFolder temporary_;
  const std::filesystem::path folder_ = temporary_.path();
};

TEST_F(ProcessTest, WrongCommandLinesAreUsage) {
  for (const char* arguments : {"",
                                "nonsense",
                                "status --nonsense",
                                "--timeout 0 status",
                                "--timeout x status",
                                "rails --watch soon",
                                "jobs --finished many",
                                "jobs --finished -1",
                                "completion",
                                "completion tcsh",
                                "status extra",
                                "replay",
                                "replay --workload nonsense",
                                "replay a.csv --workload uniform",
                                "replay --workload uniform --bytes-per-rank 1parsec",
                                "replay --workload uniform --bytes-per-rank 0",
                                "replay --workload uniform --steps 0",
                                "replay --workload uniform --ranks-per-node 0",
                                "replay --workload uniform --goodput 2",
                                "replay --workload uniform --seed -1",
                                "replay --workload uniform --rail-speed 200",
                                "replay --workload uniform --rails 4",
                                "replay --workload uniform --nodes a,,b",
                                "replay --workload uniform --ranges-per-flow 0",
                                "replay --workload uniform --rank 0",
                                "replay --workload uniform --rank 2 --world 2 --rendezvous a:1",
                                "replay --workload uniform --rank -1 --world 2 --rendezvous a:1",
                                "replay --workload uniform --rank 0 --world 3 --rendezvous a:1 --ranks-per-node 2",
                                "replay --workload uniform --rank 0 --world 2 --rendezvous a",
                                "replay --workload uniform --rank 0 --world 2 --rendezvous a:1 --token /nowhere/file",
                                "replay --workload uniform --rank 0 --world 2 --rendezvous a:1 --join-timeout 0",
                                "replay --workload uniform --rank 0 --world 2 --rendezvous a:1 --nodes a,b",
                                "replay --workload uniform --rank 0 --world 2 --rendezvous a:1 --launch x",
                                "bench --mode nonsense",
                                "bench --mode submit",
                                "bench --iterations 0"}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err, "") << arguments;
  }
}

TEST_F(ProcessTest, AnUnknownCommandIsNamedBesideThoseThereAre) {
  EXPECT_THAT(Run("nonsense --socket-dir /x").err,
              HasSubstr("no command 'nonsense'; the commands are status, tenants, rails"));
  EXPECT_THAT(Run("nonsense").err, Not(HasSubstr("worker")));
  EXPECT_THAT(Run("").err, HasSubstr("is required"));
}

TEST_F(ProcessTest, WrongCommandLinesAreJsonWhenAsked) {
  for (const char* arguments : {"--json nonsense", "jobs --finished many --json"}) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments;
    const nlohmann::json error = nlohmann::json::parse(outcome.out)["error"];
    EXPECT_EQ(error["code"], "INVALID_ARGUMENT") << arguments;
    EXPECT_EQ(error["exit_code"], 2) << arguments;
    EXPECT_NE(error["message"], "") << arguments;
  }
}

TEST_F(ProcessTest, HelpOfACommandLeadsToTheOptionsOfAll) {
  EXPECT_THAT(Run("jobs --help").out, HasSubstr("--socket-dir, --json, --no-color, --timeout; see railsctl --help"));
  EXPECT_THAT(Run("--help").out, Not(HasSubstr("see railsctl --help")));
}

TEST_F(ProcessTest, HelpExplainsTheExitCodes) {
  const Outcome outcome = Run("--help");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("4  Bytes arrived wrong."));
  EXPECT_EQ(Run("--version").code, 0);
}

TEST_F(ProcessTest, AMissingDaemonIsUnreachable) {
  const std::string where = " --socket-dir " + folder_.string();
  for (const char* command : {"status", "rails", "peers", "jobs", "rails --watch 1s"}) {
    const Outcome outcome = Run(command + where);
    EXPECT_EQ(outcome.code, 3) << command;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_THAT(outcome.err, HasSubstr((folder_ / "operator.sock").string())) << command;
  }
  const Outcome outcome = Run("--json status" + where);
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["error"]["code"], "UNAVAILABLE");
}

TEST_F(ProcessTest, ASocketThatNobodyServesIsUnreachable) {
  std::ofstream(folder_ / "operator.sock") << "no socket";
  EXPECT_EQ(Run("status --timeout 2s --socket-dir " + folder_.string()).code, 3);
}

TEST_F(ProcessTest, TheLastOfRepeatedOptionsCountsAndAllNodesDo) {
  const std::string line = "replay --workload uniform --bytes-per-rank nonsense --bytes-per-rank 1MiB --daemon ";
  EXPECT_EQ(Run(line + folder_.string() + "/a --daemon " + folder_.string() + "/b").code, 3);
  std::ofstream(folder_ / "three.csv") << "1 2 3\n4 5 6\n7 8 9\n";  // fits three nodes only
  const std::string a = folder_.string() + "/a", file = (folder_ / "three.csv").string();
  EXPECT_EQ(Run("replay --nodes " + a + " --nodes " + a + "," + a + " " + file).code, 3);
  EXPECT_EQ(Run("replay --nodes " + a + " --nodes " + a + " " + file).code, 5);
}

TEST_F(ProcessTest, BadInputFilesAreNamed) {
  const std::string nodes = " --nodes " + folder_.string() + "/a," + folder_.string() + "/b ";
  const auto replay = [&](const std::string& content) {
    std::ofstream(folder_ / "in.csv") << content;
    return Run("replay" + nodes + (folder_ / "in.csv").string());
  };
  EXPECT_EQ(Run("replay" + nodes + (folder_ / "missing.csv").string()).code, 5);
  for (const char* content : {"", "this,is,no\ntrace,at,all\n", "1 2\n3\n", "1 nan\n3 4\n", "1 -2\n3 4\n",
                              "1 2 3\n4 5 6\n7 8 9\n", "0 0\n0 0\n"}) {
    const Outcome outcome = replay(content);
    EXPECT_EQ(outcome.code, 5) << content << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  // A good one gets as far as the daemons, which are not there.
  EXPECT_EQ(replay("1 2\n3 4\n").code, 3);
  EXPECT_EQ(Run("bench" + nodes).code, 3);
}

TEST_F(ProcessTest, AWorkerWithoutACoordinatorEnds) {
  // Descriptors 3 and 4 are closed, or lead nowhere.
  EXPECT_EQ(Run("worker 3<&- 4>&-").code, 1);
  EXPECT_EQ(Run("worker 3</dev/null 4>/dev/null").code, 1);
  const Outcome outcome = Run("worker 3</proc/version 4>&1");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("read a command"));
}

TEST_F(ProcessTest, CompletionScriptsParse) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = Run(std::string("completion ") + shell);
    EXPECT_EQ(outcome.code, 0) << shell;
    EXPECT_THAT(outcome.out, HasSubstr("status")) << shell;
    const std::string script = (folder_ / shell).string();
    std::ofstream(script) << outcome.out;
    const std::string check = std::string("command -v ") + shell + " >/dev/null || exit 0; " + shell + " -n " + script;
    EXPECT_EQ(std::system(check.c_str()), 0) << shell;
  }
}

TEST_F(ProcessTest, ExternalCommandsHandEverythingToTheirPrograms) {
  const std::filesystem::path program = folder_ / "railsctl-plan";
  std::ofstream(program) << "#!/bin/sh\nprintf '%s|' \"$@\"\nexit 5\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  // A copy of the command finds the program beside itself.
  const std::filesystem::path copy = folder_ / "railsctl";
  std::filesystem::copy_file(RAILSCTL, copy);
  const std::string output = (folder_ / "out").string();
  const int status = std::system((copy.string() + " plan a.csv --rails 4 --help >" + output).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 5);
  std::ifstream stream(output);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(stream), {}), "a.csv|--rails|4|--help|");
  const int with_json = std::system((copy.string() + " --json plan a.csv >" + output).c_str());
  EXPECT_EQ(WEXITSTATUS(with_json), 5);
  std::ifstream again(output);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(again), {}), "a.csv|--json|");
  std::filesystem::rename(program, folder_ / "railsctl-sim");
  EXPECT_EQ(WEXITSTATUS(std::system((copy.string() + " sim a.yaml --json >/dev/null").c_str())), 5);
}

class ScriptedDaemon final : public v1::OperatorService::Service {
  grpc::Status GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*, v1::GetStatusResponse* out) override {
    out->set_node("n0");
    out->set_boot_id(7);
    return grpc::Status::OK;
  }
  grpc::Status ListRails(grpc::ServerContext*, const v1::ListRailsRequest*, v1::ListRailsResponse* out) override {
    out->add_rails()->set_name("rail0");
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const v1::ListJobsRequest* in, v1::ListJobsResponse* out) override {
    for (uint32_t i = 0; i < in->finished_limit(); ++i) out->add_finished()->set_state(v1::JOB_STATE_DONE);
    return grpc::Status::OK;
  }
  grpc::Status ListPeers(grpc::ServerContext*, const v1::ListPeersRequest*, v1::ListPeersResponse*) override {
    return grpc::Status(grpc::StatusCode::INTERNAL, "the peers are at lunch");
  }
  grpc::Status DrainRail(grpc::ServerContext*, const v1::DrainRailRequest* in, v1::DrainRailResponse* out) override {
    if (in->rail() != "rail0") return grpc::Status(grpc::StatusCode::NOT_FOUND, "rail: no rail '" + in->rail() + "'");
    out->mutable_rail()->set_name(in->rail());
    out->mutable_rail()->mutable_health()->set_drained(true);
    return grpc::Status::OK;
  }
  grpc::Status UndrainRail(grpc::ServerContext*, const v1::UndrainRailRequest* in,
                           v1::UndrainRailResponse* out) override {
    out->mutable_rail()->mutable_health()->set_drained(false);
    out->mutable_rail()->set_name(in->rail());
    return grpc::Status::OK;
  }
};

TEST_F(ProcessTest, ReadsADaemon) {
  ScriptedDaemon daemon;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("unix:" + (folder_ / "operator.sock").string(), grpc::InsecureServerCredentials());
  builder.RegisterService(&daemon);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  ASSERT_NE(server, nullptr);
  const std::string where = " --socket-dir " + folder_.string();

  Outcome outcome = Run("status" + where);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("node      n0\n"));
  outcome = Run("rails --json" + where);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["rails"][0]["name"], "rail0");
  outcome = Run("jobs --json" + where);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["finished"].size(), 10u);
  outcome = Run("jobs --finished 2 --json" + where);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["finished"].size(), 2u);
  outcome = Run("replay --workload uniform --nodes " + folder_.string() + "," + folder_.string() + "/.");
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.err, HasSubstr("the daemon of node n0 twice"));
  outcome = Run("peers" + where);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("the peers are at lunch"));
  outcome = Run("drain rail0" + where);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "rail0 is DRAINED; 0 B of this node are still on it.\n");
  outcome = Run("undrain rail0 --json" + where);
  EXPECT_EQ(nlohmann::json::parse(outcome.out)["health"]["drained"], false);
  outcome = Run("drain eth9" + where);
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no rail 'eth9'"));
  outcome = Run("drain" + where);
  EXPECT_EQ(outcome.code, 2) << "a drain names its rail";
  server->Shutdown();
}

}  // namespace
}  // namespace rails
