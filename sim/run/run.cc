#include "sim/run/run.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace railsd::sim {
namespace {

// Work of a point grows with its pairs of GPUs.
double CostOf(const Scenario& scenario) {
  const double ranks = static_cast<double>(std::max<size_t>(scenario.nodes, 1) * scenario.gpus);
  return ranks * ranks * static_cast<double>(scenario.steps);
}

// The exchanges of a point. The first policy that needs them makes them, the last one frees them.
struct SharedTraffic {
  absl::Mutex making;  // held while the exchanges are made; they do not change before the last policy has ended
  std::optional<absl::StatusOr<Traffic>> traffic;
  std::atomic<size_t> left{0};  // policies
};

// One run of all points: threads take policies of points in their order.
class Run {
 public:
  Run(const Points& points, const RunOptions& options)
      : points_(points), options_(options), traffic_(points.points.size()) {
    outcome_.report.title = options.title;
    outcome_.report.swept = points.swept;
    outcome_.report.points.resize(points.points.size());
    for (size_t i = 0; i < points.points.size(); ++i) {
      traffic_[i] = std::make_unique<SharedTraffic>();
      traffic_[i]->left = points.policies.size();
      outcome_.report.points[i].policies.resize(points.policies.size());
      cost_ += CostOf(points.points[i].scenario) * static_cast<double>(points.policies.size());
    }
  }

  RunOutcome Finish() && {
    std::vector<std::thread> threads;
    const size_t tasks = points_.points.size() * points_.policies.size();
    for (size_t i = 1; i < std::min(options_.threads, tasks); ++i) threads.emplace_back([this] { Work(); });
    Work();
    for (std::thread& thread : threads) thread.join();
    absl::MutexLock lock(&mutex_);
    outcome_.status = std::move(failure_);
    outcome_.failed_point = failed_point_;
    return std::move(outcome_);
  }

 private:
  void Work() {
    const size_t policies = points_.policies.size();
    while (true) {
      const size_t task = next_.fetch_add(1);
      if (task >= points_.points.size() * policies || failed_.load()) return;
      const size_t point = task / policies;
      if (absl::Status status = Simulate(point, task % policies); !status.ok()) Fail(point, std::move(status));
      Advance(CostOf(points_.points[point].scenario));
    }
  }

  absl::Status Simulate(size_t index, size_t policy) {
    const Point& point = points_.points[index];
    SharedTraffic& shared = *traffic_[index];
    {
      absl::MutexLock lock(&shared.making);
      if (!shared.traffic.has_value()) {
        shared.traffic = MakeTraffic(point.scenario);
        if (shared.traffic->ok()) Describe(index, **shared.traffic);
      }
    }
    if (!shared.traffic->ok()) return shared.traffic->status();
    absl::StatusOr<PolicyResult> result =
        RunPolicy(point.scenario, **shared.traffic, points_.policies[policy], index < options_.detailed_points);
    if (--shared.left == 0) shared.traffic->value() = Traffic();
    if (!result.ok()) return result.status();
    outcome_.report.points[index].policies[policy] = *std::move(result);
    return absl::OkStatus();
  }

  void Describe(size_t index, const Traffic& traffic) {
    const Point& point = points_.points[index];
    const Fabric fabric = FabricOf(point.scenario, traffic.nodes);
    PointResult& result = outcome_.report.points[index];
    result.values = point.values;
    result.workload = point.scenario.workload;
    result.nodes = traffic.nodes;
    result.gpus = point.scenario.gpus;
    result.rail_speeds = fabric.rail_bytes_per_second;
    result.changes = ChangesByTime(fabric);
    result.packets = point.scenario.mode == NetworkMode::kPacket;
    result.exchanges = traffic.exchanges.size();
    result.bytes_between_nodes = traffic.bytes_between_nodes;
    result.scale = traffic.scale;
  }

  // Keeps the failure of the first failed point, so that the message does not depend on the order of threads.
  void Fail(size_t point, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok() || point < failed_point_) {
      failure_ = std::move(status);
      failed_point_ = point;
    }
    failed_.store(true);
  }

  void Advance(double cost) {
    absl::MutexLock lock(&mutex_);
    done_ += cost;
    if (options_.progress != nullptr) options_.progress(done_ / cost_);
  }

  const Points& points_;
  const RunOptions& options_;
  std::vector<std::unique_ptr<SharedTraffic>> traffic_;
  std::atomic<size_t> next_{0};
  std::atomic<bool> failed_{false};
  RunOutcome outcome_;  // each element of the report has one writer; the status is set at the end
  double cost_ = 0;     // of all; set before the threads start
  absl::Mutex mutex_;
  double done_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  size_t failed_point_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

RunOutcome RunPoints(const Points& points, const RunOptions& options) { return Run(points, options).Finish(); }

}  // namespace railsd::sim
