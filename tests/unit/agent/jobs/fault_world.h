// Engines on broken rails, with several groups of trainers that submit, cancel, die and compare every byte. Everything
// is drawn from one seed.
#ifndef RAILSD_TESTS_UNIT_AGENT_JOBS_FAULT_WORLD_H_
#define RAILSD_TESTS_UNIT_AGENT_JOBS_FAULT_WORLD_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/fake/faulty_transport.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {

struct FaultWorldOptions {
  bool remote = false, weak_zones = false;
  uint64_t seed = 1;
  FaultRates rates;
  // Events besides the faults, at random moments.
  bool cancels = false, deaths = false, deadlines = false, drains = false, lost_peers = false, dead_rails = false;
  bool keeps_drained = false;  // rails that are drained in the end stay so
  size_t nodes = 3, rails = 3, groups = 3, jobs = 3;
  uint64_t flow_bytes = 60'000;  // at most
  size_t moments = 60;
};

class FaultWorld {
 public:
  explicit FaultWorld(const FaultWorldOptions& options);

  // Submits every job while everything goes wrong.
  void Live();
  // Nothing more goes wrong, and the time of every job passes: all of them are terminal by then.
  void Settle();
  // Every byte of what ended well is right, nothing was written or read after the end, all failures are of `codes`, the
  // counts add up, and nothing is left.
  void Check(const std::set<absl::StatusCode>& codes);
  void ExpectAllDone();

  uint64_t done() const { return done_; }
  const std::map<absl::StatusCode, uint64_t>& failed() const { return failed_; }
  FaultCounts counts() const;

 private:
  // One rank's part of one job: its buffers and its report.
  struct Part {
    std::unique_ptr<Buffer> send, receive;
    bool accepted = false, given_back = false;
    std::optional<JobReport> report;  // terminal
  };
  struct Member {
    size_t node = 0;
    SessionId session;
    bool dead = false, closed = false;
    absl::StatusOr<GroupView> group = absl::UnknownError("not joined");
    size_t submitted = 0;  // jobs, those that were refused included
    std::deque<Part> parts;
  };
  struct Team {
    std::string name;
    std::deque<Member> members;
    std::vector<std::vector<std::vector<uint64_t>>> lengths;  // by job, source, destination
  };
  void MakeTeam(size_t number);
  void Steps(uint64_t count);
  void Happen();
  void Act(uint32_t what, size_t node, size_t rail);
  void SubmitNext(Team& team, uint32_t rank);
  std::vector<FlowRanges> Flows(const Team& team, uint32_t rank, size_t job, bool sends);
  void OnTerminal(Team& team, uint32_t rank, size_t job, const absl::StatusOr<JobReport>& report);
  void ExpectBytes(const Team& team, uint32_t rank, size_t job) const;
  // The trainer may use the buffers for something else.
  void GiveBack(Part& part);
  void Kill(Member& member);
  void MendPeers();
  uint64_t BytesOf(const Team& team, size_t job, size_t from_node) const;  // to other nodes
  void CheckRails(Team& team, size_t job);
  uint8_t Pattern(const Team& team, uint32_t source, uint32_t destination, size_t job, uint64_t at) const;

  const FaultWorldOptions options_;
  std::mt19937_64 random_;
  std::unique_ptr<Cluster> cluster_;
  std::vector<FaultyTransport*> faulty_;  // of rail r of node n: [n * rails + r]
  std::deque<Team> teams_;
  std::set<std::string> failed_rails_;
  std::set<std::pair<size_t, size_t>> lost_;  // nodes that have lost each other
  bool all_crossed_once_ = true;              // no byte was sent in vain
  uint64_t done_ = 0;
  std::map<absl::StatusCode, uint64_t> failed_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_JOBS_FAULT_WORLD_H_
