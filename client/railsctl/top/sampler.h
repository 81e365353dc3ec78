// Asks a daemon for its overview again and again, on a thread of its own, so that keys are answered while it is slow.
#ifndef RAILS_RAILSCTL_TOP_SAMPLER_H_
#define RAILS_RAILSCTL_TOP_SAMPLER_H_

#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/top/render.h"

namespace rails::ctl {

// Finished ranks asked for: as many as a daemon keeps at hand.
inline constexpr uint32_t kFinishedAsked = 64;

class Sampler {
 public:
  // `news_fd`: an eventfd that is added to after each answer, or failure; outlives this. `timeout` bounds each call.
  Sampler(const std::string& socket_dir, absl::Duration timeout, absl::Duration interval, int news_fd);
  // Gives up the call that is under way.
  ~Sampler();
  Sampler(const Sampler&) = delete;

  // Any thread.
  void SetInterval(absl::Duration interval);
  NodeView View() const;

 private:
  void Run();
  // False when it is time to end.
  bool WaitForNext(absl::Time asked);

  OperatorClient client_;
  const int news_fd_;
  mutable absl::Mutex mutex_;
  bool end_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_);
  NodeView view_ ABSL_GUARDED_BY(mutex_);
  absl::Time answered_ ABSL_GUARDED_BY(mutex_) = absl::Now();
  std::thread thread_;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_SAMPLER_H_
