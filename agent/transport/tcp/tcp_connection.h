// The descriptors of a TCP rail and the epoll set that they are in.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_TCP_CONNECTION_H_
#define RAILSD_AGENT_TRANSPORT_TCP_TCP_CONNECTION_H_

#include <sys/epoll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "agent/base/unique_fd.h"
#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_context.h"

namespace railsd::tcp {

struct Peer;

// A half-open connection whose HELLO was accepted: what must come next.
struct Greeted {
  Hello hello;
  Mac proof;
  std::array<std::byte, 32> nonce{};  // of the answer
};

struct Connection {
  enum class Role {
    kListener,
    kWake,
    kLink,      // the kernel's messages about the rail's interface
    kHalfOpen,  // accepted; the proof has not come
    kDialling,  // the answer has not come
    kOut,       // dialled by us: frames go out, acknowledgements come in
    kIn,        // dialled by the peer: frames come in, acknowledgements go out
  };
  Role role = Role::kHalfOpen;
  UniqueFd fd;                      // invalid once closed; the object lives on until the next Poller::Wait()
  Peer* peer = nullptr;             // of the last three roles
  Nanoseconds deadline = 0;         // half open
  uint64_t last_turn = 0;           // number of its last turn to receive frames
  std::vector<std::byte> greeting;  // HELLO, its answer or the proof while it arrives
  size_t greeting_have = 0;
  std::vector<std::byte> hello;       // dialled: as it was sent; empty before
  std::array<std::byte, 32> nonce{};  // of that
  std::unique_ptr<Greeted> greeted;   // half open: since the answer
};

// Events to wait for on a connection that we dial. Edges, because one on which there is always room for more would wake
// the thread for ever.
inline constexpr uint32_t kDialledEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

// Reads towards a full greeting. 1: complete, 0: more to come, -1: the connection is gone (errno).
int ReadGreeting(Connection& connection, size_t size);
// False, with errno, when not all of it went. A fresh socket has room for so little.
bool SendGreeting(const Connection& connection, absl::Span<const std::byte> bytes);

// An epoll set.
class Poller {
 public:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  bool Watch(Connection& connection, uint32_t events);
  void Rearm(Connection& connection, uint32_t events);
  // Closes at once; events of this round may still point to the object.
  void Discard(std::unique_ptr<Connection>& connection);
  // Forgets what was discarded, and waits. The connections whose last turn was the longest ago come first.
  absl::Span<const epoll_event> Wait(int milliseconds);

 private:
  UniqueFd epoll_;
  std::vector<std::unique_ptr<Connection>> discarded_;
  std::array<epoll_event, 64> ready_;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_CONNECTION_H_
