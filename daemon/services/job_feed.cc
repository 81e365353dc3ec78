#include "daemon/services/job_feed.h"

#include <algorithm>
#include <utility>

namespace railsd {

void JobWatch::Push(Report report) {
  {
    absl::MutexLock lock(&mutex_);
    if (reports_.size() == capacity_) {
      reports_.pop_front();
      ++missed_;
    }
    reports_.push_back(std::move(report));
  }
  notify_();
}

std::optional<JobWatch::Item> JobWatch::Pop() {
  absl::MutexLock lock(&mutex_);
  if (reports_.empty()) return std::nullopt;
  Item item{std::move(reports_.front()), std::exchange(missed_, 0)};
  reports_.pop_front();
  return item;
}

void JobFeed::OnJobFinished(SessionId session, const JobReport& report) {
  if (next_ != nullptr) next_->OnJobFinished(session, report);
  std::vector<std::shared_ptr<JobWatch>> interested;
  std::shared_ptr<ReportSink> sink;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto found = sinks_.find(session); found != sinks_.end()) sink = found->second.lock();
    if (const auto watches = watches_.find(session); watches != watches_.end()) {
      for (const std::weak_ptr<JobWatch>& watch : watches->second) {
        if (std::shared_ptr<JobWatch> alive = watch.lock()) interested.push_back(std::move(alive));
      }
    }
  }
  if (sink != nullptr) sink->Push(report);
  if (interested.empty()) return;
  const JobWatch::Report shared = std::make_shared<const JobReport>(report);
  for (const std::shared_ptr<JobWatch>& watch : interested) watch->Push(shared);
}

void JobFeed::RemoveSession(SessionId session) {
  absl::MutexLock lock(&mutex_);
  watches_.erase(session);
  sinks_.erase(session);
}

void JobFeed::SetSink(SessionId session, const std::shared_ptr<ReportSink>& sink) {
  absl::MutexLock lock(&mutex_);
  sinks_[session] = sink;
}

bool JobFeed::AddWatch(SessionId session, const std::shared_ptr<JobWatch>& watch) {
  absl::MutexLock lock(&mutex_);
  std::vector<std::weak_ptr<JobWatch>>& watches = watches_[session];
  std::erase_if(watches, [](const std::weak_ptr<JobWatch>& w) { return w.expired(); });
  if (watches.size() >= max_watches_) return false;
  watches.push_back(watch);
  return true;
}

WatchDepths JobFeed::Depths() const {
  WatchDepths depths;
  absl::MutexLock lock(&mutex_);
  for (const auto& [session, watches] : watches_) {
    for (const std::weak_ptr<JobWatch>& watch : watches) {
      const std::shared_ptr<JobWatch> alive = watch.lock();
      if (alive == nullptr) continue;
      const size_t reports = alive->Depth();
      ++depths.watches;
      depths.reports += reports;
      depths.most_reports = std::max(depths.most_reports, reports);
    }
  }
  return depths;
}

}  // namespace railsd
