// What the daemon says of its health, from what is known of it: to gRPC's health service on every server and to
// /readyz.
#ifndef RAILSD_DAEMON_LIFECYCLE_READINESS_H_
#define RAILSD_DAEMON_LIFECYCLE_READINESS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// The health service's name for "the daemon works", which it also does while it takes nothing new: for probes that
// restart what does not. The empty name, for the whole server, and the names of the services say whether new work is
// taken.
inline constexpr absl::string_view kLiveService = "live";

// Any thread may call anything; the listeners are called one at a time.
class Readiness {
 public:
  // `why` is empty when `ready`; a sentence without a full stop otherwise. A daemon that is `ready` is `live`.
  using Listener = std::function<void(bool ready, bool live, const std::string& why)>;

  // Tells the listener at once, and again with every change up to SetStopping(), the last one.
  void AddListener(Listener listener);
  // Not before everything is there to serve with.
  void SetStarted();
  // By an operator.
  void SetDrained(bool drained);
  // Threads that hang; empty: none does.
  void SetStuck(const std::vector<std::string>& threads);
  void SetStopping();
  bool stopping() const;

 private:
  void Tell(const Listener& listener) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TellAll() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  std::vector<Listener> listeners_ ABSL_GUARDED_BY(mutex_);
  bool started_ ABSL_GUARDED_BY(mutex_) = false;
  bool drained_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::string stuck_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LIFECYCLE_READINESS_H_
