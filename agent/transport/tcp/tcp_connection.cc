#include "agent/transport/tcp/tcp_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace railsd::tcp {

int ReadGreeting(Connection& connection, size_t size) {
  connection.greeting.resize(size);
  while (connection.greeting_have < size) {
    const ssize_t got = ::recv(connection.fd.get(), connection.greeting.data() + connection.greeting_have,
                               size - connection.greeting_have, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return 0;
    if (got == 0) errno = ECONNRESET;
    if (got <= 0) return -1;
    connection.greeting_have += static_cast<size_t>(got);
  }
  return 1;
}

bool SendGreeting(const Connection& connection, absl::Span<const std::byte> bytes) {
  return ::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) ==
         static_cast<ssize_t>(bytes.size());
}

bool Poller::Watch(Connection& connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection.fd.get(), &event) == 0;
}

void Poller::Rearm(Connection& connection, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = &connection;
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.fd.get(), &event);
}

void Poller::Discard(std::unique_ptr<Connection>& connection) {
  if (connection == nullptr) return;
  connection->fd.Reset();
  discarded_.push_back(std::move(connection));
}

absl::Span<const epoll_event> Poller::Wait(int milliseconds) {
  discarded_.clear();
  const int count = ::epoll_wait(epoll_.get(), ready_.data(), static_cast<int>(ready_.size()), milliseconds);
  const absl::Span<epoll_event> ready(ready_.data(), static_cast<size_t>(std::max(count, 0)));
  // The kernel reports sockets that stay readable in the same order every time.
  const auto last_turn = [](const epoll_event& event) { return static_cast<Connection*>(event.data.ptr)->last_turn; };
  std::sort(ready.begin(), ready.end(),
            [&](const epoll_event& a, const epoll_event& b) { return last_turn(a) < last_turn(b); });
  return ready;
}

}  // namespace railsd::tcp
