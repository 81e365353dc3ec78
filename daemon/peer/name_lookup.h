// Looks names of peers up.
#ifndef RAILSD_DAEMON_PEER_NAME_LOOKUP_H_
#define RAILSD_DAEMON_PEER_NAME_LOOKUP_H_

#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace railsd {

// Looks up one name after the other on a thread of its own ("dns"), because a look-up blocks.
class NameLookup {
 public:
  // `found`: every address behind `address`, as "ip:port", sorted, each once. NOT_FOUND: the name and the reason.
  using OnFound = std::function<void(const std::string& address, absl::StatusOr<std::vector<std::string>> found)>;
  // Calls `on_found` on its thread, once for each question.
  explicit NameLookup(OnFound on_found);
  ~NameLookup();  // joins the thread; waits for a look-up under way
  // `address`: "name:port". `first`: before the questions that wait.
  void Ask(const std::string& address, bool first = false);

 private:
  void Loop();

  const OnFound on_found_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_NAME_LOOKUP_H_
