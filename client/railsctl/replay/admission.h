// Decides which ranks take part in a run whose ranks are started apart. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_ADMISSION_H_
#define RAILS_RAILSCTL_REPLAY_ADMISSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/railsctl/replay/worker_protocol.h"

namespace rails::ctl {

class Admission {
 public:
  // `own`: the hello of rank 0. All ranks must agree with it.
  explicit Admission(HelloEvent own);

  // Admits the rank. PERMISSION_DENIED: another token. FAILED_PRECONDITION: names the rank and what differs, or says
  // that the rank was admitted before.
  absl::Status Admit(const HelloEvent& hello);
  // Undoes Admit(). For a rank that ends before all have come.
  void Forget(uint32_t rank) { present_[rank] = false; }

  bool Complete() const;
  // "rank 3", "ranks 1, 2 and 7": the ranks that have not come, or the first of them.
  std::string Missing() const;

 private:
  HelloEvent own_;
  std::vector<bool> present_;  // by rank
};

// Checks that each block of `ranks_per_node` ranks is on one node, and no two blocks on the same. `nodes`: by rank.
// FAILED_PRECONDITION: names the ranks and the nodes.
absl::Status CheckPlacement(const std::vector<std::string>& nodes, uint32_t ranks_per_node);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_ADMISSION_H_
