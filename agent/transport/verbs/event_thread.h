// The one thread of a process that reads what RDMA devices report by themselves, for all rails.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_EVENT_THREAD_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_EVENT_THREAD_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "agent/base/unique_fd.h"

namespace railsd::verbs {

struct DeviceEvent {
  ibv_event_type type = IBV_EVENT_DEVICE_FATAL;
  uint8_t port = 0;                // of events of ports
  uint32_t queue_pair_number = 0;  // of events of queue pairs
};

// Who tells rails what their devices report.
class DeviceEvents {
 public:
  virtual ~DeviceEvents() = default;
  using Handler = std::function<void(const DeviceEvent&)>;
  // Calls `handler` for every event of `context`, until Remove(), which waits for a call under way. Both from any
  // thread but the one that calls. The handler must not block.
  virtual absl::Status Add(ibv_context* context, Handler handler) = 0;
  virtual void Remove(ibv_context* context) = 0;
};

class EventThread final : public DeviceEvents {
 public:
  static absl::StatusOr<std::shared_ptr<EventThread>> Create();
  ~EventThread() override;
  EventThread(const EventThread&) = delete;
  EventThread& operator=(const EventThread&) = delete;

  absl::Status Add(ibv_context* context, Handler handler) override;
  void Remove(ibv_context* context) override;

 private:
  EventThread(UniqueFd epoll, UniqueFd stop) : epoll_(std::move(epoll)), stop_(std::move(stop)) {}
  void Run();

  UniqueFd epoll_;
  UniqueFd stop_;  // an eventfd
  std::mutex mutex_;
  std::map<int, std::pair<ibv_context*, Handler>> handlers_ ABSL_GUARDED_BY(mutex_);  // by the context's descriptor
  std::thread thread_;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_EVENT_THREAD_H_
