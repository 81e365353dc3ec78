#include "agent/base/event_source.h"

#include <poll.h>

#include <algorithm>

namespace railsd {
namespace {

bool Contains(const absl::InlinedVector<EventSource*, 4>& sources, const EventSource* source) {
  return std::find(sources.begin(), sources.end(), source) != sources.end();
}

}  // namespace

void SourcePoller::Add(EventSource* source) {
  std::lock_guard lock(mutex_);
  sources_.push_back(source);
}

void SourcePoller::Remove(EventSource* source) {
  std::lock_guard lock(mutex_);
  sources_.erase(std::remove(sources_.begin(), sources_.end(), source), sources_.end());
}

void SourcePoller::Sleep(int wake_fd, absl::Duration limit) {
  absl::InlinedVector<EventSource*, 4> polled;
  absl::InlinedVector<pollfd, 5> fds;
  {
    std::lock_guard lock(mutex_);
    polled = sources_;
    // A source may be gone, and its descriptor closed, before the sleep ends: Serve() looks again.
    for (const EventSource* const source : polled) fds.push_back({source->fd(), POLLIN, 0});
  }
  fds.push_back({wake_fd, POLLIN, 0});
  const timespec timeout = absl::ToTimespec(more_.empty() ? limit : absl::ZeroDuration());
  const int count = ::ppoll(fds.data(), fds.size(), &timeout, nullptr);
  ready_.swap(more_);
  more_.clear();
  for (size_t i = 0; count > 0 && i < polled.size(); ++i) {
    if (fds[i].revents != 0 && !Contains(ready_, polled[i])) ready_.push_back(polled[i]);
  }
}

bool SourcePoller::Serve() {
  if (ready_.empty()) return false;
  for (EventSource* const source : ready_) {
    std::lock_guard lock(mutex_);
    if (Contains(sources_, source) && source->Serve()) more_.push_back(source);
  }
  ready_.clear();
  return true;
}

}  // namespace railsd
