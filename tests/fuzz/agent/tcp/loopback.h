// A TCP connection to oneself, for fuzzers of what lies behind a socket.
#ifndef RAILSD_TESTS_FUZZ_AGENT_TCP_LOOPBACK_H_
#define RAILSD_TESTS_FUZZ_AGENT_TCP_LOOPBACK_H_

#include <poll.h>
#include <sys/socket.h>

#include <cstdlib>
#include <utility>

#include "agent/base/unique_fd.h"
#include "agent/transport/tcp/tcp_socket.h"

namespace railsd::tcp {

// {one end, the other end}; both non-blocking.
inline std::pair<UniqueFd, UniqueFd> MakeLoopback() {
  const SocketAddress any = ParseAddress("127.0.0.1").value();
  const UniqueFd listener = Listen(any, {}).value();
  int error = 0;
  UniqueFd near = StartConnect(any, LocalAddressOf(listener.get()).value(), {}, &error);
  pollfd ready{listener.get(), POLLIN, 0};
  ::poll(&ready, 1, 10000);
  UniqueFd far(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!near.valid() || !far.valid()) std::abort();
  TuneAccepted(far.get(), {});
  return {std::move(near), std::move(far)};
}

}  // namespace railsd::tcp

#endif  // RAILSD_TESTS_FUZZ_AGENT_TCP_LOOPBACK_H_
