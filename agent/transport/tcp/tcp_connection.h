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

// State of a half-open connection whose HELLO was accepted and whose proof has not come.
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
  std::vector<std::byte> hello;       // dialled: the HELLO as it was sent; empty before that
  std::array<std::byte, 32> nonce{};  // of that HELLO
  std::unique_ptr<Greeted> greeted;   // half open: set when the HELLO was accepted
};

// Events to wait for on a connection that we dial. Edge-triggered, because a socket that stays writable would wake the
// thread again and again.
inline constexpr uint32_t kDialledEvents = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET;

// Reads towards a full greeting. 1: complete, 0: more to come, -1: the connection is gone (errno).
int ReadGreeting(Connection& connection, size_t size);
// False, with errno, when not all bytes were sent. A fresh socket has room for them.
bool SendGreeting(const Connection& connection, absl::Span<const std::byte> bytes);

// An epoll set.
class Poller {
 public:
  explicit Poller(UniqueFd epoll) : epoll_(std::move(epoll)) {}

  bool Watch(Connection& connection, uint32_t events);
  void Rearm(Connection& connection, uint32_t events);
  // Closes the descriptor at once. The object lives until the next Wait(), because events of this round may point to
  // it.
  void Discard(std::unique_ptr<Connection>& connection);
  // Deletes discarded connections, and waits. Connections whose last turn is the longest ago come first.
  absl::Span<const epoll_event> Wait(int milliseconds);

 private:
  UniqueFd epoll_;
  std::vector<std::unique_ptr<Connection>> discarded_;
  std::array<epoll_event, 64> ready_;
};

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_TCP_CONNECTION_H_
