#include "client/railsctl/replay/run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/format.h"

namespace rails::ctl {
namespace {

// Rails count a chunk when it is acknowledged, which may be shortly after the end of the job.
constexpr absl::Duration kCountersSettle = absl::Seconds(1);

class Run {
 public:
  Run(const Exchange& exchange, const RunOptions& options, Coordinator* coordinator, ReplayReport* report)
      : exchange_(exchange), options_(options), coordinator_(*coordinator), report_(*report) {}

  absl::Status All();

 private:
  // Sets `*right` to false after wrong bytes.
  absl::Status RunStep(size_t index, bool warmup, bool* right);
  // Reads the rails' counters until they have grown by `bytes` each way since `before`, or for kCountersSettle.
  absl::StatusOr<std::vector<NodeRails>> ReadCarried(const std::vector<NodeRails>& before, uint64_t bytes) const;
  absl::Status CountRails(const std::vector<NodeRails>& before);
  void AddJobRails(const PhaseOutcome& outcome, std::vector<NodeRails>* step_rails) const;
  void Progress(size_t index, bool warmup, const Phase& phase) const;

  const Exchange& exchange_;
  const RunOptions& options_;
  Coordinator& coordinator_;
  ReplayReport& report_;
  uint64_t job_ = 0;
  uint64_t network_bytes_ = 0;        // in the counted steps
  uint64_t warmup_bytes_ = 0;         // in the warm-up steps
  std::vector<NodeRails> rails_;      // names and speeds
  std::vector<NodeRails> job_rails_;  // bytes by rail in the jobs' reports, in the counted steps
};

std::vector<NodeRails> Emptied(std::vector<NodeRails> nodes) {
  for (NodeRails& node : nodes) {
    for (RailBytes& rail : node.rails) rail.tx_bytes = rail.rx_bytes = 0;
    node.eager_tx_bytes = node.eager_rx_bytes = 0;
  }
  return nodes;
}

bool AllCarried(const std::vector<NodeRails>& nodes, uint64_t bytes) {
  uint64_t tx = 0, rx = 0;
  for (const NodeRails& node : nodes) {
    tx += node.TxSum();
    rx += node.RxSum();
  }
  return tx == bytes && rx == bytes;
}

absl::Status Run::All() {
  absl::StatusOr<std::vector<NodeRails>> before = options_.read_rails();
  if (!before.ok()) return before.status();
  rails_ = job_rails_ = Emptied(*before);
  bool right = true;
  for (uint32_t i = 0; i < options_.warmup && right; ++i) {
    if (absl::Status status = RunStep(i % exchange_.steps.size(), true, &right); !status.ok()) return status;
  }
  if (options_.warmup > 0) {
    before = ReadCarried(*before, warmup_bytes_);
    if (!before.ok()) return before.status();
  }
  for (size_t i = 0; i < exchange_.steps.size() && right; ++i) {
    if (absl::Status status = RunStep(i, false, &right); !status.ok()) return status;
  }
  return CountRails(*before);
}

void Run::Progress(size_t index, bool warmup, const Phase& phase) const {
  if (!options_.progress) return;
  std::string text = absl::StrCat(warmup ? "warm-up step " : "step ", index);
  if (!warmup) absl::StrAppend(&text, " of ", exchange_.steps.size());
  absl::StrAppend(&text, ", ", phase.name, ", ", FormatBytes(phase.bytes.network));
  PhaseResult sum;
  for (const StepResult& step : report_.steps) {
    sum.seconds += step.Sum().seconds;
    sum.bound_seconds += step.Sum().bound_seconds;
  }
  if (sum.bound_seconds > 0)
    absl::StrAppend(&text, "; time over bound so far ", FormatRatio(sum.seconds / sum.bound_seconds));
  options_.progress(text);
}

absl::Status Run::RunStep(size_t index, bool warmup, bool* right) {
  const ExchangeStep& step = exchange_.steps[index];
  StepResult result{step.model, step.layer, step.iteration, {}, {}};
  std::vector<NodeRails> step_rails = rails_;
  for (const Phase& phase : step.phases) {
    Progress(index, warmup, phase);
    absl::StatusOr<PhaseOutcome> outcome = coordinator_.RunPhase({.job = job_++,
                                                                  .ranks = &phase.ranks,
                                                                  .ranges_per_flow = options_.ranges_per_flow,
                                                                  .fill = options_.verify,
                                                                  .check = options_.verify,
                                                                  .barrier = options_.barrier,
                                                                  .prepared = options_.prepared});
    if (!outcome.ok()) {
      return absl::Status(outcome.status().code(), absl::StrCat(warmup ? "warm-up step " : "step ", index, ", ",
                                                                phase.name, ": ", outcome.status().message()));
    }
    report_.wrong_bytes += outcome->wrong_bytes;
    if (outcome->first_wrong.has_value() && !report_.first_wrong.has_value()) {
      report_.first_wrong =
          WrongByteReport{phase.name, index, warmup, outcome->first_wrong_rank, *outcome->first_wrong};
    }
    result.phases.push_back({phase.name, phase.bytes, outcome->seconds,
                             BoundSeconds(phase.ranks, exchange_.ranks_per_node, options_.node_speeds)});
    (warmup ? warmup_bytes_ : network_bytes_) += phase.bytes.network;
    AddJobRails(*outcome, &step_rails);
    *right = outcome->wrong_bytes == 0;
    if (!*right) break;
  }
  if (warmup) return absl::OkStatus();
  result.balance = WorstBalance(step_rails);
  report_.steps.push_back(std::move(result));
  for (size_t node = 0; node < step_rails.size(); ++node) {
    job_rails_[node].eager_tx_bytes += step_rails[node].eager_tx_bytes;
    job_rails_[node].eager_rx_bytes += step_rails[node].eager_rx_bytes;
    for (size_t rail = 0; rail < step_rails[node].rails.size(); ++rail) {
      job_rails_[node].rails[rail].tx_bytes += step_rails[node].rails[rail].tx_bytes;
      job_rails_[node].rails[rail].rx_bytes += step_rails[node].rails[rail].rx_bytes;
    }
  }
  return absl::OkStatus();
}

// Every rank reports the bytes of its whole node. The rank that ended last reports the most.
void Run::AddJobRails(const PhaseOutcome& outcome, std::vector<NodeRails>* step_rails) const {
  for (size_t node = 0; node < step_rails->size(); ++node) {
    uint64_t eager_tx = 0, eager_rx = 0;
    for (size_t i = 0; i < exchange_.ranks_per_node; ++i) {
      const DoneEvent& done = outcome.done[node * exchange_.ranks_per_node + i];
      eager_tx = std::max(eager_tx, done.eager_sent_bytes());
      eager_rx = std::max(eager_rx, done.eager_received_bytes());
    }
    (*step_rails)[node].eager_tx_bytes += eager_tx;
    (*step_rails)[node].eager_rx_bytes += eager_rx;
    std::vector<RailBytes>& rails = (*step_rails)[node].rails;
    for (size_t rail = 0; rail < rails.size(); ++rail) {
      uint64_t tx = 0, rx = 0;
      for (size_t i = 0; i < exchange_.ranks_per_node; ++i) {
        const DoneEvent& done = outcome.done[node * exchange_.ranks_per_node + i];
        const auto r = static_cast<int>(rail);
        if (r < done.rail_tx_bytes_size()) tx = std::max(tx, done.rail_tx_bytes(r));
        if (r < done.rail_rx_bytes_size()) rx = std::max(rx, done.rail_rx_bytes(r));
      }
      rails[rail].tx_bytes += tx;
      rails[rail].rx_bytes += rx;
    }
  }
}

absl::StatusOr<std::vector<NodeRails>> Run::ReadCarried(const std::vector<NodeRails>& before, uint64_t bytes) const {
  const absl::Time deadline = absl::Now() + kCountersSettle;
  for (;;) {
    absl::StatusOr<std::vector<NodeRails>> after = options_.read_rails();
    if (!after.ok()) return after;
    const absl::StatusOr<std::vector<NodeRails>> difference = Difference(before, *after);
    if (!difference.ok()) return difference;
    // Counters below the bytes of the run may still grow. Counters above them, because of other jobs, stay above.
    if (AllCarried(*difference, bytes) || absl::Now() >= deadline) return after;
    absl::SleepFor(absl::Milliseconds(20));
  }
}

absl::Status Run::CountRails(const std::vector<NodeRails>& before) {
  const absl::StatusOr<std::vector<NodeRails>> after = ReadCarried(before, network_bytes_);
  if (!after.ok()) return after.status();
  report_.rails = *Difference(before, *after);
  if (!AllCarried(report_.rails, network_bytes_) && AllCarried(job_rails_, network_bytes_)) {
    report_.rails = job_rails_;
    report_.rails_from_counters = false;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RunExchange(const Exchange& exchange, const RunOptions& options, Coordinator* coordinator,
                         ReplayReport* report) {
  return Run(exchange, options, coordinator, report).All();
}

}  // namespace rails::ctl
