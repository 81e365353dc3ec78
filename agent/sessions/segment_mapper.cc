#include "agent/sessions/segment_mapper.h"

#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd {

SegmentMapper::SegmentMapper(std::vector<std::shared_ptr<MemoryRegistrar>> registrars, size_t capacity)
    : registrars_(std::move(registrars)), capacity_(capacity), thread_([this] { Run(); }) {}

void SegmentMapper::Submit(Task task) {
  absl::Status refused;
  {
    std::lock_guard lock(mutex_);
    if (stopping_) {
      refused = absl::AbortedError("the daemon is stopping");
    } else if (tasks_.size() >= capacity_) {
      refused = absl::UnavailableError(absl::StrCat(capacity_, " segments wait to be mapped; try again"));
    } else {
      tasks_.push_back(std::move(task));
    }
  }
  if (!refused.ok()) return Refuse(task, refused);
  changed_.notify_one();
}

void SegmentMapper::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
  for (Task& task : tasks_) Refuse(task, absl::AbortedError("the daemon is stopping"));
  tasks_.clear();
}

void SegmentMapper::Refuse(Task& task, const absl::Status& why) {
  task.fd.Reset();
  std::move(task.done)(why);
}

void SegmentMapper::Run() {
  pthread_setname_np(pthread_self(), "segments");
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    std::move(task.done)(Map(task));
    lock.lock();
  }
}

absl::StatusOr<std::shared_ptr<const Segment>> SegmentMapper::Map(Task& task) const {
  absl::StatusOr<std::shared_ptr<const Segment>> segment = Segment::Map(task.id, std::move(task.fd), task.length_bytes);
  if (!segment.ok()) return segment;
  if (absl::Status s = (*segment)->Register(registrars_); !s.ok()) return s;
  return segment;
}

}  // namespace railsd
