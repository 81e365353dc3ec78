// Maps segments and registers them with the rails' devices, on a thread of its own: registering pins the memory, which
// takes long.
#ifndef RAILSD_AGENT_SESSIONS_SEGMENT_MAPPER_H_
#define RAILSD_AGENT_SESSIONS_SEGMENT_MAPPER_H_

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/agent.h"
#include "agent/memory/segment.h"

namespace railsd {

class SegmentMapper {
 public:
  struct Task {
    SegmentId id;
    UniqueFd fd;
    uint64_t length_bytes = 0;
    Callback<absl::StatusOr<std::shared_ptr<const Segment>>> done;
  };
  // `registrars`: by rail, null for rails that need not know of segments. At most `capacity` tasks wait.
  SegmentMapper(std::vector<std::shared_ptr<MemoryRegistrar>> registrars, size_t capacity);
  ~SegmentMapper() { Stop(); }

  // Maps segments in the order of the calls. `done` is always called, on the mapper's thread or on the caller's: with
  // UNAVAILABLE when too many tasks wait, with ABORTED after Stop(). A descriptor that is refused is closed before.
  void Submit(Task task);
  // Finishes the task under way and ends the thread. Tasks that wait end with ABORTED.
  void Stop();

 private:
  static void Refuse(Task& task, const absl::Status& why);
  void Run();
  absl::StatusOr<std::shared_ptr<const Segment>> Map(Task& task) const;

  const std::vector<std::shared_ptr<MemoryRegistrar>> registrars_;
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;   // guarded by mutex_
  std::deque<Task> tasks_;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_SESSIONS_SEGMENT_MAPPER_H_
