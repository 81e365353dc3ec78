// The result of a replay, and its output. Pure.
#ifndef RAILS_RAILSCTL_REPLAY_REPORT_H_
#define RAILS_RAILSCTL_REPLAY_REPORT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "client/railsctl/replay/accounting.h"
#include "client/railsctl/replay/exchange.h"
#include "client/railsctl/replay/worker_protocol.h"

namespace rails::ctl {

struct PhaseResult {
  std::string name;
  ByteCounts bytes;
  double seconds = 0;
  double bound_seconds = 0;  // 0: unknown, or no bytes between nodes
};

struct StepResult {
  std::string model;
  uint32_t layer = 0, iteration = 0;
  std::vector<PhaseResult> phases;
  Balance balance;  // worst node of the step

  PhaseResult Sum() const;
};

// The first wrong byte and its place.
struct WrongByteReport {
  std::string phase;
  size_t step = 0;  // counted from 0, separately for warm-up and measured steps
  bool warmup = false;
  uint32_t receiving_rank = 0;
  WrongByte byte;
};

struct ReplayReport {
  std::string workload;  // name of the generator or the file
  uint64_t seed = 0;
  double scale_factor = 1;
  uint64_t bytes_per_rank = 0;  // wanted; 0: as in the file
  uint32_t nodes = 0, ranks_per_node = 0;
  uint32_t warmup = 0;
  size_t steps_available = 0;  // steps in the file or from the generator
  bool checked = true;         // bytes were compared
  uint64_t wrong_bytes = 0;
  std::optional<WrongByteReport> first_wrong;
  std::vector<StepResult> steps;
  std::vector<NodeRails> rails;
  // False: other jobs used the rails during the run, so the bytes come from the jobs' reports.
  bool rails_from_counters = true;

  bool verified() const { return checked && wrong_bytes == 0; }
};

// "2 wrong bytes; the first: step 0 dispatch, rank 1 from rank 3, ...".
std::string DescribeWrongBytes(const ReplayReport& report);

nlohmann::ordered_json ReplayJson(const ReplayReport& report);
std::string RenderReplay(const ReplayReport& report, bool color);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_REPORT_H_
