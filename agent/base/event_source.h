// Descriptors that a thread polls beside its own work, so that their bytes need no thread in between.
#ifndef RAILSD_AGENT_BASE_EVENT_SOURCE_H_
#define RAILSD_AGENT_BASE_EVENT_SOURCE_H_

#include <mutex>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"

namespace railsd {

class EventSource {
 public:
  virtual ~EventSource() = default;
  // Readable when there is something to serve. The same one for the source's whole life.
  virtual int fd() const = 0;
  // Serves some of what has come, without blocking. True: call again before sleeping. Only the polling thread calls it.
  virtual bool Serve() = 0;
};

// The thread that polls sources.
class EventHost {
 public:
  virtual ~EventHost() = default;
  // `source` lives until RemoveSource() has returned.
  virtual void AddSource(EventSource* source) = 0;
  // Waits for a Serve() under way. Must not be called inside of Serve(), nor with a lock that Serve() takes.
  virtual void RemoveSource(EventSource* source) = 0;
};

// A host's list of sources, and its sleep.
class SourcePoller {
 public:
  // Any thread. A source that is added during a sleep is polled from the next one on.
  void Add(EventSource* source);
  void Remove(EventSource* source);

  // The polling thread only. Sleeps until a source or `wake_fd` is readable, at most for `limit`; not at all if a
  // source has said that it has more.
  void Sleep(int wake_fd, absl::Duration limit);
  // Serves the sources that the last sleep found ready. False: there were none.
  bool Serve();

 private:
  std::mutex mutex_;                              // held during EventSource::Serve()
  absl::InlinedVector<EventSource*, 4> sources_;  // guarded by mutex_
  // Used by the polling thread only: sources to serve next, and sources that said in their turn that they have more.
  absl::InlinedVector<EventSource*, 4> ready_, more_;
};

}  // namespace railsd

#endif  // RAILSD_AGENT_BASE_EVENT_SOURCE_H_
