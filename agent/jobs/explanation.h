// The course of one job on this node, for people who ask why it took so long.
#ifndef RAILSD_AGENT_JOBS_EXPLANATION_H_
#define RAILSD_AGENT_JOBS_EXPLANATION_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/jobs/submission.h"
#include "agent/rails/rail_records.h"

namespace railsd {

// The chunks of a job by rail and time, for people.
class JobTimeline {
 public:
  static constexpr uint32_t kMaxChunks = 4096;

  // A chunk that was posted and has ended.
  struct Chunk {
    RailIndex rail;
    PeerIndex peer;
    Rank source;
    bool returned = false;  // not acknowledged: given back, lost with its rail, or stopped
    uint64_t length_bytes = 0;
    absl::Time posted, ended;
  };
  struct Rail : RailRecords::Totals {
    absl::Time last_received = absl::InfinitePast();
  };

  const std::vector<Rail>& rails() const { return rails_; }
  // In the order in which they were posted.
  const std::vector<Chunk>& chunks() const { return chunks_; }
  uint64_t left_out() const { return left_out_; }  // chunks beyond kMaxChunks

 private:
  friend class JobRecorder;
  std::vector<Rail> rails_;
  std::vector<Chunk> chunks_;
  uint64_t left_out_ = 0;
};

// The records that rails make of their work for a job.
class JobRecorder {
 public:
  // Forgets everything and keeps the storage. Call while no rail writes.
  void Reset(size_t rails);
  RailRecords* rails() { return rails_.get(); }
  void OnReceived(RailIndex rail, absl::Time now) { last_received_[rail.value()] = now; }
  // The timeline as of `now`. `source_of` names the source rank of the byte at an offset in the stream to a peer. The
  // cost grows with the number of chunks.
  JobTimeline Timeline(absl::Time now, absl::FunctionRef<Rank(PeerIndex, uint64_t)> source_of) const;

 private:
  std::unique_ptr<RailRecords[]> rails_;
  std::vector<absl::Time> last_received_;  // by rail
};

// When the steps of an exchange with one peer were taken. Infinite past: the step was not taken (yet).
struct ExchangeTimes {
  absl::Time ready_sent = absl::InfinitePast(), ready_received = absl::InfinitePast();
  // The grants that were sent to the peer and received from it.
  absl::Time grant_sent = absl::InfinitePast(), grant_received = absl::InfinitePast();
  absl::Time planned = absl::InfinitePast();
  absl::Time last_acknowledged = absl::InfinitePast(), last_received = absl::InfinitePast();
};

// A job that is over, or its present state. Times are the engine's; `begun` is when the first local rank submitted.
struct JobExplanation {
  struct RankTimes {
    Rank rank;
    absl::Time submitted;
    absl::Time ended = absl::InfiniteFuture();
  };
  struct Exchange {
    PeerIndex peer;
    std::string node;
    uint64_t out_bytes = 0, in_bytes = 0;
    ExchangeTimes times;
    bool left_out = false;
    bool eager_out = false, eager_in = false;  // rode in READY
  };
  JobReport report;  // of the local rank that ended last, or is the lowest one still active
  absl::Time begun;
  absl::Time begun_at;    // `begun` by the wall clock; the agent fills it in
  std::string waits_for;  // "for rank 3 on n1 (pid 42) to submit"; empty when the job is over
  std::vector<RankTimes> ranks;
  std::vector<Exchange> exchanges;
  JobTimeline timeline;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_EXPLANATION_H_
