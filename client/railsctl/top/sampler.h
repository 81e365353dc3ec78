// Asks a daemon for its overview periodically, on its own thread, so that keys work while the daemon is slow.
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

// The most finished ranks that a daemon is asked for.
inline constexpr uint32_t kFinishedAsked = 64;

class Sampler {
 public:
  // `news_fd`: an eventfd that is incremented after each answer or failure; outlives the sampler. `timeout` bounds each
  // call.
  Sampler(const std::string& socket_dir, absl::Duration timeout, absl::Duration interval, int news_fd);
  // Cancels the call under way.
  ~Sampler();
  Sampler(const Sampler&) = delete;

  // Any thread.
  void SetInterval(absl::Duration interval);
  NodeView View() const;

 private:
  void Run();
  // False: the sampler is being destroyed.
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
