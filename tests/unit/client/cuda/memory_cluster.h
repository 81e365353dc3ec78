// The ranks of one process: clients whose jobs a thread carries out in memory. It plays the daemons for tests of what
// is built on a group.
#ifndef RAILSD_TESTS_UNIT_CLIENT_CUDA_MEMORY_CLUSTER_H_
#define RAILSD_TESTS_UNIT_CLIENT_CUDA_MEMORY_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "rails/client.h"

namespace railsd::testing {

class MemoryFabric;

// A group of `world_size` ranks can be joined once. Jobs end in random order, by `seed`.
class MemoryCluster {
 public:
  // Rank r is on node r modulo `nodes`.
  MemoryCluster(uint32_t world_size, uint64_t seed, uint32_t nodes = UINT32_MAX);
  ~MemoryCluster();

  // The client of any one rank.
  std::unique_ptr<rails::Client> MakeClient();
  // The job of this number will fail at every rank. 1 is the first job of the group.
  void FailJob(uint64_t seq, absl::Status status);
  // The clients refuse dma-bufs, as a daemon with rails over TCP.
  void UseTcp();
  // Daemons that take at most so many unfinished jobs, or do not know votes.
  void LimitJobs(uint32_t count);
  void IgnoreVotes();
  // Changes the bytes of a flow from `from` in job `seq` on their way.
  void Tamper(uint64_t seq, uint32_t from, std::function<void(std::string*)> change);
  // Jobs stay unfinished while it is held.
  void Hold(bool held);
  // Submissions wait from now on until a rank has left the group, as if the daemons did not answer.
  void StallSubmissions();
  // Number of those that wait.
  uint32_t stalled() const;
  // Jobs that all ranks have submitted so far.
  uint64_t jobs() const;

 private:
  const std::shared_ptr<MemoryFabric> fabric_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_CLIENT_CUDA_MEMORY_CLUSTER_H_
