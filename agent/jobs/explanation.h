// What became of one job on this node, for people who ask why it took so long.
#ifndef RAILSD_AGENT_JOBS_EXPLANATION_H_
#define RAILSD_AGENT_JOBS_EXPLANATION_H_

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "agent/base/ids.h"
#include "agent/jobs/submission.h"

namespace railsd {

// What went over the rails and when. Written by the engine's thread while the job runs; its storage is there from the
// beginning, so that nothing is allocated for a chunk.
class JobTimeline {
 public:
  static constexpr uint32_t kMaxChunks = 4096;
  static constexpr uint32_t kNoRecord = UINT32_MAX;

  // One that was posted to a rail.
  struct Chunk {
    RailIndex rail;
    PeerIndex peer;
    Rank source;
    bool returned = false;  // not acknowledged: given back, lost with its rail, or stopped
    uint64_t length_bytes = 0;
    absl::Time posted;
    absl::Time ended = absl::InfiniteFuture();  // while it is under way
  };
  struct Rail {
    uint64_t chunks = 0, returned_chunks = 0;
    absl::Time first_posted = absl::InfiniteFuture();
    absl::Time last_acknowledged = absl::InfinitePast(), last_received = absl::InfinitePast();
    absl::Duration busy;  // with something posted and not ended
    uint64_t under_way = 0;
    absl::Time busy_since;
  };

  // Forgets everything and keeps the storage.
  void Reset(size_t rails) {
    rails_.assign(rails, Rail{});
    chunks_.clear();
    chunks_.reserve(kMaxChunks);
    left_out_ = 0;
  }
  // Returns the record for OnEnded().
  uint32_t OnPosted(RailIndex rail, PeerIndex peer, Rank source, uint64_t length_bytes, absl::Time now) {
    Rail& to = rails_[rail.value()];
    ++to.chunks;
    to.first_posted = std::min(to.first_posted, now);
    if (to.under_way++ == 0) to.busy_since = now;
    if (chunks_.size() == kMaxChunks) {
      ++left_out_;
      return kNoRecord;
    }
    chunks_.push_back({rail, peer, source, false, length_bytes, now});
    return static_cast<uint32_t>(chunks_.size() - 1);
  }
  void OnEnded(uint32_t record, RailIndex rail, bool acknowledged, absl::Time now) {
    Rail& from = rails_[rail.value()];
    if (--from.under_way == 0) from.busy += now - from.busy_since;
    if (acknowledged) from.last_acknowledged = now;
    from.returned_chunks += !acknowledged;
    if (record == kNoRecord) return;
    chunks_[record].ended = now;
    chunks_[record].returned = !acknowledged;
  }
  void OnReceived(RailIndex rail, absl::Time now) { rails_[rail.value()].last_received = now; }

  const std::vector<Rail>& rails() const { return rails_; }
  const std::vector<Chunk>& chunks() const { return chunks_; }
  uint64_t left_out() const { return left_out_; }  // chunks beyond kMaxChunks

 private:
  std::vector<Rail> rails_;
  std::vector<Chunk> chunks_;
  uint64_t left_out_ = 0;
};

// When the steps of an exchange with one peer were taken; in the infinite past: not (yet).
struct ExchangeTimes {
  absl::Time ready_sent = absl::InfinitePast(), ready_received = absl::InfinitePast();
  // Permission to write, given to the peer and had from it.
  absl::Time grant_sent = absl::InfinitePast(), grant_received = absl::InfinitePast();
  absl::Time planned = absl::InfinitePast();
  absl::Time last_acknowledged = absl::InfinitePast(), last_received = absl::InfinitePast();
};

// A job that is over, or as it is now. Times are the engine's; `begun` is when the first local rank submitted.
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
  };
  JobReport report;  // of the local rank that ended last, or is the lowest one still active
  absl::Time begun;
  absl::Duration age;     // since `begun`, when this was asked for
  std::string waits_for;  // "for rank 3 on n1 (pid 42) to submit"; empty when the job is over
  std::vector<RankTimes> ranks;
  std::vector<Exchange> exchanges;
  JobTimeline timeline;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_JOBS_EXPLANATION_H_
