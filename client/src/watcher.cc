#include "client/src/watcher.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace rails::internal {

Watcher::Watcher() : wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  thread_.Start("rails-client", [this] { Run(); });
}

Watcher::~Watcher() { Stop(); }

void Watcher::Stop() {
  if (!thread_.running()) return;
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  Wake();
  thread_.Join();
  std::vector<Task> left;
  {
    absl::MutexLock lock(&mutex_);
    left.swap(tasks_);
  }
  for (Task& task : left) task.run();
}

void Watcher::Watch(int socket_fd, int process_fd, std::function<void()> on_lost) {
  {
    absl::MutexLock lock(&mutex_);
    socket_fd_ = socket_fd;
    process_fd_ = process_fd;
    on_lost_.swap(on_lost);
  }
  Wake();
}

void Watcher::Unwatch() {
  std::function<void()> dropped;
  absl::MutexLock lock(&mutex_);
  on_lost_.swap(dropped);
  socket_fd_ = process_fd_ = -1;
  mutex_.Await(absl::Condition(
      +[](bool* calling) { return !*calling; }, &calling_));
}

void Watcher::WatchBell(int bell_fd, std::function<bool()> on_bell) {
  {
    absl::MutexLock lock(&mutex_);
    bell_fd_ = bell_fd;
    bell_due_ = true;
    on_bell_.swap(on_bell);
  }
  Wake();
}

void Watcher::Post(absl::Duration delay, std::function<void()> task) {
  {
    absl::MutexLock lock(&mutex_);
    if (!stop_) {
      tasks_.push_back({Deadline::After(delay), std::move(task)});
      task = nullptr;
    }
  }
  if (task != nullptr) return task();
  Wake();
}

void Watcher::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));  // if full, the thread is awake
}

std::vector<Watcher::Task> Watcher::TakeDue(Deadline* next) {
  const Deadline now = Deadline::After(absl::ZeroDuration());
  const auto due = std::stable_partition(tasks_.begin(), tasks_.end(), [now](const Task& t) { return t.due > now; });
  std::vector<Task> taken(std::make_move_iterator(due), std::make_move_iterator(tasks_.end()));
  tasks_.erase(due, tasks_.end());
  *next = Deadline::Never();
  for (const Task& task : tasks_) *next = std::min(*next, task.due);
  return taken;
}

void Watcher::Run() {
  for (;;) {
    pollfd entries[4] = {{wake_.get(), POLLIN, 0}, {-1, POLLRDHUP, 0}, {-1, POLLIN, 0}, {-1, POLLIN, 0}};
    Deadline next = Deadline::Never();
    std::vector<Task> due;
    std::function<bool()> on_bell;
    {
      absl::MutexLock lock(&mutex_);
      if (stop_) break;
      due = TakeDue(&next);
      if (std::exchange(bell_due_, false)) on_bell = on_bell_;
      entries[1].fd = socket_fd_;
      entries[2].fd = process_fd_;
      entries[3].fd = bell_fd_;
    }
    for (Task& task : due) task.run();
    if (on_bell != nullptr && !on_bell()) {
      absl::MutexLock lock(&mutex_);
      if (!bell_due_) bell_fd_ = -1;
    }
    if (!due.empty() || on_bell != nullptr) continue;
    int timeout_ms = -1;
    if (next != Deadline::Never()) {
      const int64_t left = absl::ToInt64Milliseconds(absl::Ceil(next.left(), absl::Milliseconds(1)));
      timeout_ms = static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
    }
    if (poll(entries, 4, timeout_ms) <= 0) continue;
    uint64_t count = 0;
    [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof(count));
    if (entries[3].revents != 0) {
      absl::MutexLock lock(&mutex_);
      if (bell_fd_ == entries[3].fd) bell_due_ = true;
    }
    if (entries[1].revents == 0 && entries[2].revents == 0) continue;
    std::function<void()> on_lost;
    {
      absl::MutexLock lock(&mutex_);
      // Watch() may have replaced the descriptors meanwhile.
      if (socket_fd_ != entries[1].fd || process_fd_ != entries[2].fd) continue;
      on_lost.swap(on_lost_);
      socket_fd_ = process_fd_ = -1;
      calling_ = true;
    }
    if (on_lost) on_lost();
    on_lost = nullptr;
    absl::MutexLock lock(&mutex_);
    calling_ = false;
  }
}

}  // namespace rails::internal
