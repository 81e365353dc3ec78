// railsctl-plan as a program: exit codes, JSON, tables.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_folder.h"

namespace {

using ::testing::HasSubstr;

struct Outcome {
  int code = -1;
  std::string output;  // standard output and error together
};

Outcome RunProgram(const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen((std::string(RAILSCTL_PLAN) + " " + arguments + " 2>&1").c_str(), "r");
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) outcome.output.append(buffer, got);
  outcome.code = WEXITSTATUS(pclose(pipe));
  return outcome;
}

class ProgramTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& content) const {
    return temporary_.Write(name, content);
  }
  const railsd::testing::TemporaryFolder temporary_;
  const std::string folder_ = temporary_.path();
};

TEST_F(ProgramTest, JsonHasEveryPolicy) {
  const std::string file = Write("m.csv", "0,100000000\n50000000,0\n");
  const Outcome outcome = RunProgram(file + " --rails 4 --speed 10gbit --ranks-per-node 2 --json");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_EQ(json["nodes"], 2);
  EXPECT_EQ(json["rails"], 4);
  EXPECT_EQ(json["exchanges"], 2);
  EXPECT_EQ(json["bytes"], 300000000);
  ASSERT_EQ(json["policies"].size(), 6u);
  EXPECT_EQ(json["policies"][0]["policy"], "lpt");
  EXPECT_LE(json["policies"][0]["completion_over_bound"], 1.005);
  EXPECT_LE(json["policies"][0]["per_exchange"]["rx_max_over_mean"]["worst"], 1.01);
  EXPECT_EQ(json["policies"][1]["policy"], "pinned");
  // Two ranks use two of four rails.
  EXPECT_GE(json["policies"][1]["tx_max_over_mean"], 2);
}

TEST_F(ProgramTest, GeneratedWorkloadAsATable) {
  const Outcome outcome =
      RunProgram("--workload mixtral --nodes 8 --steps 3 --seed 7 --bytes-per-rank 16MiB --policy lpt --policy ecmp");
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.output, HasSubstr("8 nodes x 8 rails"));
  EXPECT_THAT(outcome.output, HasSubstr("Volumes are scaled by"));
  EXPECT_THAT(outcome.output, HasSubstr("ecmp"));
  EXPECT_THAT(outcome.output, ::testing::Not(HasSubstr("pinned")));
}

// The mistake that --json printed; the same in words follows it.
nlohmann::json ErrorOf(const Outcome& outcome) {
  return nlohmann::json::parse(outcome.output.substr(0, outcome.output.rfind('}') + 1))["error"];
}

TEST_F(ProgramTest, ExitCodes) {
  const auto expect = [](const std::string& arguments, int code, const std::string& text) {
    const Outcome outcome = RunProgram(arguments);
    EXPECT_EQ(outcome.code, code) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(text)) << arguments;
  };
  expect("--help", 0, "Exit codes: 0 done");
  expect("", 2, "give either a file or --workload");
  expect("--workload what", 2, "\"what\" is none of mixtral");
  expect("--workload zipf --policy what", 2, "--policy: policy \"what\" is none of lpt");
  expect("--workload zipf --rails 2 --speed 1gbit,2gbit,3gbit", 2, "--speed has 3 values for 2 rails");
  expect("--workload zipf --speed fast", 2, "--speed:");
  expect("--workload zipf --chunk 1 --min-chunk 2", 2, "min_chunk_bytes 2 is above chunk_bytes 1");
  expect("--no-such-flag", 2, "");
  expect("/no/such/file", 5, "/no/such/file: No such file");
  expect(Write("bad.csv", "1,2\n3,-4\n"), 5, "bad.csv: row 2, column 2: \"-4\" is negative");
  expect(Write("ok.csv", "1,2\n3,4\n") + " --nodes 3", 5, "is of 2 nodes, --nodes says 3");
  expect(Write("ok.csv", "1,2\n3,4\n") + " --trace", 5, "has no column rank");
  const Outcome json = RunProgram("/no/such/file --json");
  EXPECT_EQ(json.code, 5);
  EXPECT_EQ(ErrorOf(json)["code"], "NOT_FOUND");
  for (const char* arguments :
       {"--json --workload zipf --nodes 0", "--nonsense --json", "--workload zipf --seed -1 --json"}) {
    const Outcome usage = RunProgram(arguments);
    EXPECT_EQ(usage.code, 2) << arguments;
    EXPECT_EQ(ErrorOf(usage)["exit_code"], 2) << arguments;
  }
}

TEST_F(ProgramTest, UnequalAndDeadRails) {
  const Outcome outcome =
      RunProgram("--workload uniform --nodes 4 --rails 4 --speed 100gbit,50gbit,0,100gbit --json --policy lpt");
  ASSERT_EQ(outcome.code, 0) << outcome.output;
  const auto json = nlohmann::json::parse(outcome.output);
  EXPECT_LE(json["policies"][0]["completion_over_bound"], 1.005);
}

}  // namespace
