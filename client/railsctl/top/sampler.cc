#include "client/railsctl/top/sampler.h"

#include <sys/eventfd.h>

#include <utility>

#include "absl/time/clock.h"

namespace rails::ctl {

Sampler::Sampler(const std::string& socket_dir, absl::Duration timeout, absl::Duration interval, int news_fd)
    : client_(socket_dir, timeout), news_fd_(news_fd), interval_(interval) {
  view_.socket_dir = socket_dir;
  thread_ = std::thread([this] { Run(); });
}

Sampler::~Sampler() {
  {
    const absl::MutexLock lock(&mutex_);
    end_ = true;
  }
  client_.Cancel();
  thread_.join();
}

void Sampler::SetInterval(absl::Duration interval) {
  const absl::MutexLock lock(&mutex_);
  interval_ = interval;
}

NodeView Sampler::View() const {
  const absl::MutexLock lock(&mutex_);
  NodeView view = view_;
  view.silent = absl::Now() - answered_;
  return view;
}

void Sampler::Run() {
  absl::Time asked;
  do {
    asked = absl::Now();
    absl::StatusOr<v1::GetOverviewResponse> answer = client_.GetOverview(kFinishedAsked);
    {
      const absl::MutexLock lock(&mutex_);
      view_.status = answer.status();
      if (answer.ok()) {
        view_.before = std::move(view_.after);
        view_.after = *std::move(answer);
        answered_ = absl::Now();
      }
    }
    eventfd_write(news_fd_, 1);
  } while (WaitForNext(asked));
}

bool Sampler::WaitForNext(absl::Time asked) {
  const absl::MutexLock lock(&mutex_);
  while (!end_) {
    const absl::Duration interval = interval_;
    const absl::Duration left = asked + interval - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    const auto changed = [this, interval]()
                             ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return end_ || interval_ != interval; };
    mutex_.AwaitWithTimeout(absl::Condition(&changed), left);
  }
  return false;
}

}  // namespace rails::ctl
