#include "client/railsctl/replay/rendezvous.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/exit_code.h"
#include "client/railsctl/replay/admission.h"

namespace rails::ctl {
namespace {

using internal::UniqueFd;
using AddressList = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

constexpr absl::Duration kRetry = absl::Milliseconds(200);
constexpr absl::Duration kConnectTimeout = absl::Seconds(5);
// Limit from a connection's start to its hello.
constexpr absl::Duration kHelloTimeout = absl::Seconds(10);
// Connections without a hello that are accepted, beyond one for each rank. More of them wait in the kernel's queue
// until the oldest has been silent for kMaySilent; the next connection then takes the place of the oldest, which is
// refused.
constexpr size_t kMaxUnknown = 64;
constexpr absl::Duration kMaySilent = absl::Seconds(1);
constexpr size_t kMaxReported = 100;  // refusals

int Milliseconds(absl::Duration duration) {
  const int64_t rounded_up = absl::ToInt64Milliseconds(absl::Ceil(duration, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(rounded_up, 0, INT_MAX));
}

absl::StatusOr<AddressList> Resolve(const Endpoint& endpoint) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(endpoint.host.c_str(), endpoint.port.c_str(), &hints, &found);
  if (error != 0) return absl::UnavailableError(::gai_strerror(error));
  return AddressList(found, &::freeaddrinfo);
}

// Sets keepalive, which ends a connection whose other machine has vanished, and a limit for write(), so that WriteAll()
// sees its deadline.
void SetLimits(int fd) {
  const auto set = [fd](int level, int option, int value) { ::setsockopt(fd, level, option, &value, sizeof(value)); };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set(IPPROTO_TCP, TCP_KEEPCNT, 4);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, 30'000);
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  const timeval second = {1, 0};
  ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &second, sizeof(second));
}

// Raises the limit of descriptors to the highest that is allowed. Every rank needs one, and many systems allow 1,024 by
// default.
void RaiseDescriptorLimit() {
  rlimit limit;
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string Describe(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  const auto* generic = reinterpret_cast<const sockaddr*>(&address);
  if (::getnameinfo(generic, length, host, sizeof(host), port, sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "an unknown address";
  }
  return FormatEndpoint({host, port});
}

absl::StatusOr<UniqueFd> ListenAt(const addrinfo& at) {
  UniqueFd fd(::socket(at.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd.valid() && ::bind(fd.get(), at.ai_addr, at.ai_addrlen) == 0 && ::listen(fd.get(), SOMAXCONN) == 0) return fd;
  const char* hint = errno == EADDRNOTAVAIL ? "; rank 0 must be started on the machine that has this address" : "";
  return absl::FailedPreconditionError(absl::StrCat(std::strerror(errno), hint));
}

std::string AddressOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return Describe(address, length);
}

uint16_t PortOf(int fd) {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Waits. CANCELLED: interrupted. OK: the time has passed.
absl::Status Pause(absl::Duration time, int interrupt_fd) {
  pollfd interrupt{interrupt_fd, POLLIN, 0};
  return ::poll(&interrupt, 1, Milliseconds(time)) > 0 ? absl::CancelledError("interrupted") : absl::OkStatus();
}

// The wait of rank 0 for the others.
class Gathering {
 public:
  Gathering(const HelloEvent& own, int listener, const std::function<void(const std::string&)>& report)
      : listener_(listener), report_(report), most_unknown_(own.world_size() + kMaxUnknown), admission_(own) {}

  absl::Status Wait(const Patience& patience);
  std::vector<UniqueFd> TakeRanks();
  // Ends the ranks that have come, with the reason.
  void Dismiss(const std::string& why);

 private:
  struct Connection {
    UniqueFd fd;
    std::string from;
    MessageReader messages;
    absl::Time deadline;  // of the hello
    absl::Time may_be_silent_until() const { return deadline - kHelloTimeout + kMaySilent; }
  };

  absl::Status PollOnce(const Patience& patience);
  void Accept();
  // Reads the bytes that have arrived. False: remove the connection, which has ended, was refused or is now in ranks_.
  bool ReadHello(Connection& connection);
  bool Admit(const std::string& message, Connection& connection);
  void Refuse(const std::string& why, const Connection& connection);
  static void SendQuit(int exit_code, const std::string& why, const Connection& connection);
  void Report(const std::string& text);

  const int listener_;
  const std::function<void(const std::string&)>& report_;
  const size_t most_unknown_;
  size_t reported_ = 0;
  bool no_descriptors_ = false;  // a lack of descriptors was reported
  Admission admission_;
  std::vector<Connection> unknown_;  // connections whose hello has not come, the oldest first
  std::map<uint32_t, Connection> ranks_;
};

void Gathering::Report(const std::string& text) {
  if (reported_++ < kMaxReported) report_(text);
  if (reported_ == kMaxReported) report_("more refused connections are not shown");
}

void Gathering::Refuse(const std::string& why, const Connection& connection) {
  Report(absl::StrCat("refused a connection from ", connection.from, ": ", why));
  SendQuit(kExitUsage, why, connection);
}

void Gathering::SendQuit(int exit_code, const std::string& why, const Connection& connection) {
  const std::string bytes = EncodeQuit(exit_code, why);
  // The message fits into the empty buffer of a new connection. If not, the rank sees the end of the connection.
  ::send(connection.fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

bool Gathering::Admit(const std::string& message, Connection& connection) {
  const absl::StatusOr<Event> event = ParseEvent(message);
  if (!event.ok() || !event->has_hello()) {
    // The report leaves the message out, because it may hold a token.
    Refuse(event.ok() ? absl::StrCat("it says '", NameOf(*event), "' instead of 'hello'") : "it says no hello",
           connection);
    return false;
  }
  if (connection.messages.pending() > 0) {
    Refuse("it says more than a hello", connection);
    return false;
  }
  if (const absl::Status status = admission_.Admit(event->hello()); !status.ok()) {
    Refuse(std::string(status.message()), connection);
    return false;
  }
  ranks_.emplace(event->hello().rank(), std::move(connection));
  return false;
}

bool Gathering::ReadHello(Connection& connection) {
  const absl::StatusOr<bool> more = connection.messages.Fill();
  if (more.ok() && !*more) {
    Report(absl::StrCat("a connection from ", connection.from, " ended before its hello"));
    return false;
  }
  if (const std::optional<std::string> message = connection.messages.Next(); message.has_value()) {
    return Admit(*message, connection);
  }
  if (more.ok()) return true;
  Refuse(absl::IsInvalidArgument(more.status())
             ? "it says no hello, or one that is too long; is it railsctl of another version?"
             : std::string(more.status().message()),
         connection);
  return false;
}

void Gathering::Accept() {
  sockaddr_storage address = {};
  socklen_t length = sizeof(address);
  UniqueFd fd(::accept4(listener_, reinterpret_cast<sockaddr*>(&address), &length, SOCK_CLOEXEC));
  if (!fd.valid() && (errno == EMFILE || errno == ENFILE)) {
    if (!std::exchange(no_descriptors_, true)) {
      report_(absl::StrCat("no descriptor is left for another rank: ", std::strerror(errno), "; raise ulimit -n"));
    }
    absl::SleepFor(kRetry);
  }
  if (!fd.valid()) return;
  if (unknown_.size() >= most_unknown_) {
    Refuse("it makes room for others: its hello has not come", unknown_.front());
    unknown_.erase(unknown_.begin());
  }
  SetLimits(fd.get());
  MessageReader messages(fd.get(), kMaxHelloBytes);
  unknown_.push_back({std::move(fd), Describe(address, length), std::move(messages), absl::Now() + kHelloTimeout});
}

absl::Status Gathering::PollOnce(const Patience& patience) {
  absl::Time wake = patience.deadline;
  const bool full = unknown_.size() >= most_unknown_ && absl::Now() < unknown_.front().may_be_silent_until();
  if (full) wake = std::min(wake, unknown_.front().may_be_silent_until());
  std::vector<pollfd> polled = {{patience.interrupt_fd, POLLIN, 0}, {full ? -1 : listener_, POLLIN, 0}};
  for (const Connection& connection : unknown_) {
    polled.push_back({connection.fd.get(), POLLIN, 0});
    wake = std::min(wake, connection.deadline);
  }
  for (const auto& [rank, connection] : ranks_) polled.push_back({connection.fd.get(), POLLIN, 0});
  if (::poll(polled.data(), polled.size(), Milliseconds(wake - absl::Now())) < 0) return absl::OkStatus();
  if (polled[0].revents != 0) return absl::CancelledError("interrupted");

  // Goes from the last entry to the first, because both loops erase elements.
  auto entry = polled.rbegin();
  for (auto it = ranks_.end(); it != ranks_.begin(); ++entry) {
    --it;
    if (entry->revents == 0) continue;
    // A rank sends nothing before it gets a command, so this is the end of its connection.
    Report(absl::StrCat("rank ", it->first, " from ", it->second.from, " has ended while it waited for the others"));
    admission_.Forget(it->first);
    it = ranks_.erase(it);
  }
  for (size_t i = unknown_.size(); i-- > 0; ++entry) {
    bool keep = entry->revents == 0 || ReadHello(unknown_[i]);
    if (keep && absl::Now() >= unknown_[i].deadline) {
      Refuse(absl::StrCat("no hello within ", absl::FormatDuration(kHelloTimeout)), unknown_[i]);
      keep = false;
    }
    if (!keep) unknown_.erase(unknown_.begin() + static_cast<ptrdiff_t>(i));
  }
  if (polled[1].revents != 0) Accept();
  return absl::OkStatus();
}

absl::Status Gathering::Wait(const Patience& patience) {
  const absl::Time begin = absl::Now();
  while (!admission_.Complete()) {
    if (absl::Now() >= patience.deadline) {
      const absl::Duration waited = absl::Ceil(patience.deadline - begin, absl::Milliseconds(100));
      return absl::DeadlineExceededError(
          absl::StrCat(admission_.Missing(), " did not come within ", absl::FormatDuration(waited)));
    }
    if (absl::Status status = PollOnce(patience); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<UniqueFd> Gathering::TakeRanks() {
  std::vector<UniqueFd> connections;
  for (auto& [rank, connection] : ranks_) connections.push_back(std::move(connection.fd));
  return connections;
}

void Gathering::Dismiss(const std::string& why) {
  for (const auto& [rank, connection] : ranks_) SendQuit(kExitFailed, why, connection);
  for (const Connection& connection : unknown_) SendQuit(kExitFailed, why, connection);
}

// True if a connection leads to itself: the kernel chose the port that it connects to, on this machine, as its own
// port.
bool LeadsToItself(int fd) {
  sockaddr_storage own = {}, peer = {};
  socklen_t own_length = sizeof(own), peer_length = sizeof(peer);
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_length) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_length) == 0 && own_length == peer_length &&
         std::memcmp(&own, &peer, own_length) == 0;
}

// Connects to one address. UNAVAILABLE: has the system's error text.
absl::StatusOr<UniqueFd> ConnectTo(const addrinfo& to, absl::Time deadline) {
  UniqueFd fd(::socket(to.ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::UnavailableError(std::strerror(errno));
  // SO_SNDTIMEO also limits connect().
  const absl::Duration limit = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), kConnectTimeout);
  const timeval time = absl::ToTimeval(limit);
  ::setsockopt(fd.get(), SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
  if (::connect(fd.get(), to.ai_addr, to.ai_addrlen) == 0) {
    if (!LeadsToItself(fd.get())) return fd;
    errno = ECONNREFUSED;
  }
  return absl::UnavailableError(errno == EINPROGRESS ? "no answer" : std::strerror(errno));
}

absl::StatusOr<UniqueFd> ConnectOnce(const Endpoint& endpoint, absl::Time deadline) {
  const absl::StatusOr<AddressList> addresses = Resolve(endpoint);
  if (!addresses.ok()) return addresses.status();
  absl::StatusOr<UniqueFd> connected;
  for (const addrinfo* to = addresses->get(); to != nullptr; to = to->ai_next) {
    connected = ConnectTo(*to, deadline);
    if (connected.ok()) break;
  }
  return connected;
}

}  // namespace

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text) {
  const size_t colon = text.rfind(':');
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(colon + 1), &port) || port == 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT"));
  }
  absl::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (host.empty() || (!bracketed && host.find_first_of("[]:") != absl::string_view::npos)) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT; write IPv6 as in [fd00::1]:29400"));
  }
  return Endpoint{std::string(host), absl::StrCat(port)};
}

std::string FormatEndpoint(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  return absl::StrCat(brackets ? "[" : "", endpoint.host, brackets ? "]:" : ":", endpoint.port);
}

absl::StatusOr<Rendezvous> Rendezvous::Listen(const Endpoint& endpoint, const Patience& patience) {
  absl::StatusOr<AddressList> addresses = Resolve(endpoint);
  // In a cluster a name may become known only after its pod has started.
  while (!addresses.ok()) {
    if (absl::Now() >= patience.deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("cannot listen at ", FormatEndpoint(endpoint), ": ", addresses.status().message()));
    }
    if (absl::Status status = Pause(kRetry, patience.interrupt_fd); !status.ok()) return status;
    addresses = Resolve(endpoint);
  }
  absl::StatusOr<UniqueFd> listener;
  for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
    listener = ListenAt(*at);
    if (listener.ok()) break;
  }
  if (!listener.ok()) {
    return absl::Status(listener.status().code(),
                        absl::StrCat("cannot listen at ", FormatEndpoint(endpoint), ": ", listener.status().message(),
                                     "; the host must be an address of this machine, and the port free"));
  }
  RaiseDescriptorLimit();
  Rendezvous rendezvous;
  rendezvous.listener_ = *std::move(listener);
  rendezvous.port_ = PortOf(rendezvous.listener_.get());
  rendezvous.address_ = AddressOf(rendezvous.listener_.get());
  return rendezvous;
}

absl::StatusOr<std::vector<UniqueFd>> Rendezvous::Gather(const HelloEvent& own, const Patience& patience,
                                                         const std::function<void(const std::string&)>& report) const {
  Gathering gathering(own, listener_.get(), report);
  if (absl::Status status = gathering.Wait(patience); !status.ok()) {
    gathering.Dismiss(std::string(status.message()));
    return status;
  }
  return gathering.TakeRanks();
}

absl::StatusOr<UniqueFd> ConnectToRankZero(const Endpoint& endpoint, const HelloEvent& hello, absl::Time deadline) {
  absl::StatusOr<UniqueFd> connected = ConnectOnce(endpoint, deadline);
  while (!connected.ok() && absl::Now() < deadline) {
    absl::SleepFor(kRetry);
    connected = ConnectOnce(endpoint, deadline);
  }
  absl::Status status = connected.status();
  if (status.ok()) {
    SetLimits(connected->get());
    status = WriteAll(connected->get(), EncodeAs<Event>(hello), kHelloTimeout);
  }
  if (status.ok()) return connected;
  return absl::DeadlineExceededError(
      absl::StrCat("rank 0 does not answer at ", FormatEndpoint(endpoint), ": ", status.message()));
}

}  // namespace rails::ctl
