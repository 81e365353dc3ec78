#include "agent/transport/verbs/event_thread.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"

namespace railsd::verbs {
namespace {

DeviceEvent Translate(const ibv_async_event& event) {
  DeviceEvent out;
  out.type = event.event_type;
  switch (event.event_type) {
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE:
      out.port = static_cast<uint8_t>(event.element.port_num);
      break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_PATH_MIG:
    case IBV_EVENT_PATH_MIG_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
      // It cannot be destroyed before the event is acknowledged.
      out.queue_pair_number = event.element.qp->qp_num;
      break;
    default:
      break;
  }
  return out;
}

}  // namespace

absl::StatusOr<std::shared_ptr<EventThread>> EventThread::Create() {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "epoll_create1");
  UniqueFd stop(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!stop.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  epoll_event watch{};
  watch.events = EPOLLIN;
  watch.data.fd = -1;
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, stop.get(), &watch) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  std::shared_ptr<EventThread> events(new EventThread(std::move(epoll), std::move(stop)));
  events->thread_ = std::thread([self = events.get()] { self->Run(); });
  ::pthread_setname_np(events->thread_.native_handle(), "rdma-events");
  return events;
}

EventThread::~EventThread() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_.get(), &one, sizeof(one));
  thread_.join();
}

absl::Status EventThread::Add(ibv_context* context, Handler handler) {
  const int flags = ::fcntl(context->async_fd, F_GETFL);
  if (flags < 0 || ::fcntl(context->async_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
    return absl::ErrnoToStatus(errno, "fcntl of a device's event descriptor");
  }
  std::lock_guard lock(mutex_);
  handlers_[context->async_fd] = {context, std::move(handler)};
  epoll_event watch{};
  watch.events = EPOLLIN;
  watch.data.fd = context->async_fd;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, context->async_fd, &watch) != 0) {
    const int error = errno;
    handlers_.erase(context->async_fd);
    return absl::ErrnoToStatus(error, "epoll_ctl of a device's event descriptor");
  }
  return absl::OkStatus();
}

void EventThread::Remove(ibv_context* context) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, context->async_fd, nullptr);
  std::lock_guard lock(mutex_);
  handlers_.erase(context->async_fd);
}

void EventThread::Run() {
  for (;;) {
    epoll_event ready{};
    const int count = ::epoll_wait(epoll_.get(), &ready, 1, -1);
    if (count < 0 && errno != EINTR) return;
    if (count <= 0) continue;
    if (ready.data.fd < 0) return;
    std::lock_guard lock(mutex_);
    const auto found = handlers_.find(ready.data.fd);
    if (found == handlers_.end()) continue;
    ibv_async_event event{};
    // One at a time: the others keep the descriptor readable.
    if (ibv_get_async_event(found->second.first, &event) != 0) continue;
    const DeviceEvent translated = Translate(event);
    ibv_ack_async_event(&event);
    found->second.second(translated);
  }
}

}  // namespace railsd::verbs
