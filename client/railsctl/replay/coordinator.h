// Leads the workers through the exchanges. Knows descriptors, not processes; tests run workers as threads.
#ifndef RAILS_RAILSCTL_REPLAY_COORDINATOR_H_
#define RAILS_RAILSCTL_REPLAY_COORDINATOR_H_

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/railsctl/replay/accounting.h"
#include "client/railsctl/replay/worker_process.h"
#include "client/railsctl/replay/worker_protocol.h"
#include "client/workload/workload.h"

namespace rails::ctl {

struct CoordinatorOptions {
  uint32_t ranks_per_node = 1;
  absl::Duration timeout = absl::Seconds(60);  // of a job; workers apply it too and get a little longer to report it
  // Describes how a rank's process ended, for messages.
  std::function<std::string(size_t rank)> how_ended;
  // Readable when the user interrupts; -1: none.
  int interrupt_fd = -1;
};

struct PhaseRequest {
  uint64_t job = 0;
  const workload::TrafficMatrix* ranks = nullptr;
  uint32_t ranges_per_flow = 1;
  bool fill = true;       // pattern and poison
  bool check = true;      // compare; needs `fill`
  bool barrier = true;    // no rank submits before all are ready
  bool prepared = false;  // by Group::Prepare()
};

struct PhaseOutcome {
  double seconds = 0;           // from the first submission to the last completion
  std::vector<DoneEvent> done;  // by rank
  uint64_t wrong_bytes = 0;
  std::optional<WrongByte> first_wrong;
  uint32_t first_wrong_rank = 0;  // receiver of the first wrong byte
};

// Errors of all calls name the failure, the rank and the node. UNAVAILABLE: a worker could not reach its daemon.
// CANCELLED: interrupted. DEADLINE_EXCEEDED: a worker does not answer. Do not use the coordinator after an error.
class Coordinator {
 public:
  Coordinator(std::vector<WorkerLink> links, CoordinatorOptions options);

  // Makes every rank connect and join. `commands`: by rank. FAILED_PRECONDITION: remote ranks are not on the nodes
  // where they should be.
  absl::Status Start(const std::vector<StartCommand>& commands);
  // Prepares, submits, waits, checks.
  absl::StatusOr<PhaseOutcome> RunPhase(const PhaseRequest& request);

  // Reads the counters of all rails, by node.
  absl::StatusOr<std::vector<NodeRails>> ReadRails();

  // The parts of RunPhase(), for measurements that repeat some of them.
  absl::Status Prepare(const PhaseRequest& request);
  absl::StatusOr<PhaseOutcome> Go();
  // As Go(), but rank 0 submits only after all others have been accepted.
  absl::StatusOr<PhaseOutcome> GoLast();
  absl::Status Check(PhaseOutcome* outcome);

  // Makes the workers leave the group.
  absl::Status Leave();
  // Tells the workers to end, with this code and the reason, also after an error of Leave(). The caller waits for the
  // processes.
  void Quit(int exit_code, const std::string& message);

  // Node of each rank, known after Start().
  const std::vector<std::string>& nodes() const { return nodes_; }

 private:
  using OnEvent = std::function<absl::Status(size_t rank, Event& event)>;

  absl::Status SendBytes(size_t rank, const std::string& bytes);
  template <typename C>
  absl::Status Send(size_t rank, const C& command);
  template <typename C>
  absl::Status SendAll(const C& command);
  // Waits until every rank of `pending` has sent one event, the field `kind` of Event. Gives each to `on_event` at
  // once.
  absl::Status Gather(int kind, std::vector<bool> pending, absl::Duration timeout, const OnEvent& on_event);
  // As Gather(), from ranks first, first + 1, ...
  template <typename E>
  absl::Status GatherAll(absl::Duration timeout, const std::function<absl::Status(size_t rank, E& event)>& on_event,
                         size_t first = 0);
  // Measures how far the clocks of remote ranks are ahead of this machine's.
  absl::Status AlignClocks();
  absl::Status GatherDone(size_t first, PhaseOutcome* outcome);
  absl::Status FinishGo(PhaseOutcome* outcome);

  struct Waiting;
  absl::Status PollOnce(Waiting* waiting, absl::Time deadline);
  void TakeMessages(size_t rank, Waiting* waiting);
  void Note(size_t rank, absl::StatusCode code, const std::string& what, Waiting* waiting);
  absl::Status Verdict(const Waiting& waiting) const;
  std::string Name(size_t rank) const;
  // Makes a text of a worker printable. Also bounds its length if the worker is remote.
  std::string Text(size_t rank, absl::string_view text) const;

  std::vector<WorkerLink> links_;
  CoordinatorOptions options_;
  std::vector<MessageReader> readers_;
  std::vector<std::string> nodes_;
  std::vector<int64_t> clock_ahead_ns_;  // by rank
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_COORDINATOR_H_
