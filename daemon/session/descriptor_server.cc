#include "daemon/session/descriptor_server.h"

#include <pthread.h>
#include <spdlog/logger.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/base/steady_now.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/ring/ring_server.h"
#include "daemon/session/answer_mailbox.h"
#include "daemon/session/packet_socket.h"
#include "rails/v1/descriptor.pb.h"

namespace railsd {
namespace {

using rails::v1::DescriptorRequest;
using rails::v1::DescriptorResponse;

constexpr uint32_t kProtocolVersion = 1;
constexpr size_t kMaxClientName = 128;
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// The source of an epoll event: a listening socket, the wake-up, a connection or its process. Connection numbers are
// not reused, so a late event finds nothing.
enum class Source : uint64_t { kListen, kWake, kSocket, kProcess };
uint64_t EventKey(Source source, uint64_t number) { return number << 2 | static_cast<uint64_t>(source); }

struct Connection {
  UniqueFd socket;
  UniqueFd process;
  size_t listener = 0;  // index of its listening socket
  PeerCredentials peer;
  std::string tenant;  // set when it asks for a session
  bool busy = false;   // the agent works on its request; reading pauses
  bool open = false;
  bool has_ring = false;
  SessionId session;
  std::string client_name;
  absl::Time hello_deadline;
};

class Server final : public DescriptorServer {
 public:
  Server(DescriptorServerOptions options, Agent* agent, SessionRegistry* registry, std::vector<UniqueFd> listeners,
         UniqueFd epoll, WakeEvent wake)
      : options_(std::move(options)),
        agent_(agent),
        registry_(registry),
        listeners_(std::move(listeners)),
        epoll_(std::move(epoll)),
        mailbox_(std::make_shared<AnswerMailbox>(std::move(wake))),
        max_connections_(options_.max_connections) {}

  ~Server() override {
    stop_ = true;
    mailbox_->wake.Wake();
    if (thread_.joinable()) thread_.join();
    for (const DescriptorSocket& socket : options_.sockets) unlink(socket.path.c_str());
  }

  bool Run() {
    if (!WatchListeners() || !Watch(mailbox_->wake.fd(), EventKey(Source::kWake, 0))) return false;
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "descriptors");
      Loop();
    });
    return true;
  }

  void StopAccepting() override { refuse_ = true; }
  void SetMaxConnections(size_t connections) override { max_connections_ = connections; }
  const DescriptorCounters& counters() const override { return counters_; }

 private:
  using Connections = absl::flat_hash_map<uint64_t, std::unique_ptr<Connection>>;

  bool Watch(int fd, uint64_t key) {
    epoll_event event = {};
    event.events = EPOLLIN;
    event.data.u64 = key;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
  }

  bool WatchListeners() {
    bool all = true;
    for (size_t i = 0; i < listeners_.size(); ++i) {
      all = Watch(listeners_[i].get(), EventKey(Source::kListen, i)) && all;
    }
    return all;
  }

  // Turns reading off while the agent works on a request. EPOLLHUP cannot be masked, so the end is still seen.
  void SetBusy(uint64_t id, Connection& connection, bool busy) {
    connection.busy = busy;
    epoll_event event = {};
    event.events = busy ? 0u : uint32_t{EPOLLIN};
    event.data.u64 = EventKey(Source::kSocket, id);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
  }

  void Loop() {
    std::array<epoll_event, 64> events;
    while (!stop_) {
      mailbox_->wake.BeginSleep();
      const int limit = stop_ || !mailbox_->empty() ? 0 : NextTimeoutMilliseconds();
      const int count = epoll_wait(epoll_.get(), events.data(), events.size(), limit);
      mailbox_->wake.EndSleep();
      TakeAnswers();
      for (int i = 0; i < count; ++i) Handle(events[i]);
      ExpireHellos();
    }
    while (!connections_.empty()) End(connections_.begin()->first, "the daemon is stopping");
  }

  int NextTimeoutMilliseconds() const {
    absl::Time next = accept_paused_until_;
    for (const auto& [id, connection] : connections_) {
      if (!connection->open) next = std::min(next, connection->hello_deadline);
    }
    if (next == absl::InfiniteFuture()) return -1;
    return static_cast<int>(absl::ToInt64Milliseconds(std::max(next - SteadyNow(), absl::ZeroDuration()))) + 1;
  }

  void ExpireHellos() {
    const absl::Time now = SteadyNow();
    if (now >= accept_paused_until_) {
      accept_paused_until_ = absl::InfiniteFuture();
      WatchListeners();
    }
    std::vector<uint64_t> expired;
    for (const auto& [id, connection] : connections_) {
      if (!connection->open && !connection->busy && now >= connection->hello_deadline) expired.push_back(id);
    }
    for (const uint64_t id : expired) {
      ++counters_.bad_packets;
      options_.refused->Count(Limit::kHandshake);
      End(id, "no session was opened in time");
    }
  }

  void Handle(const epoll_event& event) {
    const Source source = static_cast<Source>(event.data.u64 & 3);
    const uint64_t id = event.data.u64 >> 2;
    if (source == Source::kListen) return AcceptAll(id);
    if (source == Source::kWake) return;
    const auto it = connections_.find(id);
    if (it == connections_.end()) return;
    if (source == Source::kProcess) return End(id, "the process ended");
    Connection& connection = *it->second;
    if (connection.busy) return End(id, "the connection was closed");  // while busy only EPOLLHUP is reported
    ReadOne(id, connection);
  }

  void AcceptAll(size_t listener) {
    while (true) {
      UniqueFd socket(accept4(listeners_[listener].get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (socket.valid()) {
        Admit(std::move(socket), listener);
        continue;
      }
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN) return;
      // Out of descriptors or memory: pauses accepting instead of spinning.
      options_.log->error("descriptor_accept_failed errno={}", errno);
      for (const UniqueFd& any : listeners_) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, any.get(), nullptr);
      accept_paused_until_ = SteadyNow() + kAcceptPause;
      return;
    }
  }

  void Admit(UniqueFd socket, size_t listener) {
    auto connection = std::make_unique<Connection>();
    connection->listener = listener;
    absl::Status refused;
    if (refuse_) {
      refused = absl::UnavailableError(absl::StrCat("node ", options_.node, " drains: no new sessions"));
    } else if (const size_t limit = max_connections_; connections_.size() >= limit) {
      refused = options_.refused->Refuse(Limit::kSessions,
                                         absl::StrCat("more than ", limit, " connections to the descriptor socket"));
    } else if (absl::StatusOr<PeerCredentials> peer = CredentialsOfPeer(socket.get()); !peer.ok()) {
      refused = peer.status();
    } else {
      connection->peer = *std::move(peer);
      absl::StatusOr<UniqueFd> process = PidfdOfPeer(socket.get(), connection->peer.pid);
      refused = process.status();
      if (process.ok()) connection->process = *std::move(process);
    }
    const uint64_t id = next_connection_++;
    if (refused.ok() && !(Watch(socket.get(), EventKey(Source::kSocket, id)) &&
                          Watch(connection->process.get(), EventKey(Source::kProcess, id)))) {
      refused = absl::ErrnoToStatus(errno, "epoll");
    }
    if (!refused.ok()) {
      ++counters_.refused_connections;
      options_.log->warn("session_refused pid={} uid={} reason={}", connection->peer.pid, connection->peer.uid,
                         LogValue(std::string(refused.message())));
      Reply(socket.get(), refused);
      return;
    }
    connection->socket = std::move(socket);
    connection->hello_deadline = SteadyNow() + options_.hello_timeout;
    connections_.emplace(id, std::move(connection));
    counters_.open_connections = connections_.size();
  }

  static bool Reply(int socket, const absl::Status& status, const DescriptorResponse& ok = {},
                    absl::Span<const int> fds = {}) {
    DescriptorResponse response;
    if (status.ok()) {
      response = ok;
    } else {
      response.set_code(static_cast<int32_t>(status.code()));
      response.set_message(std::string(status.message()));
    }
    return SendPacket(socket, response.SerializeAsString(), fds);
  }

  // Answers a refused request. Nothing has changed, and the connection stays usable.
  void Refuse(uint64_t id, Connection& connection, absl::string_view reason,
              absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    ++counters_.bad_packets;
    if (!Reply(connection.socket.get(), absl::Status(code, reason))) End(id, "it does not read its answers");
  }

  void ReadOne(uint64_t id, Connection& connection) {
    Packet packet = ReceivePacket(connection.socket.get());
    if (packet.kind == Packet::Kind::kNothing) return;
    if (packet.kind == Packet::Kind::kEnd) return End(id, "the connection was closed");
    DescriptorRequest request;
    const bool too_many = packet.fds.size() > kMaxPacketDescriptors;
    if (packet.truncated || too_many || !request.ParseFromString(packet.bytes)) {
      const std::string reason = packet.truncated ? absl::StrCat("packet: longer than ", kMaxPacketBytes, " bytes")
                                 : too_many       ? absl::StrCat("packet: carries ", packet.fds.size(),
                                                                 " descriptors, more than ", kMaxPacketDescriptors)
                                                  : "packet: not a rails.v1.DescriptorRequest";
      ++counters_.bad_packets;
      packet.fds.clear();
      Reply(connection.socket.get(), absl::InvalidArgumentError(reason));
      return End(id, reason);
    }
    if (packet.none_left) {
      options_.log->error("descriptors_exhausted");
      return Refuse(id, connection,
                    absl::StrCat("descriptor: the daemon of node ", options_.node, " can open no more files",
                                 AdviceOnDescriptors(EMFILE)),
                    absl::StatusCode::kResourceExhausted);
    }
    Serve(id, connection, request, std::move(packet.fds));
  }

  void Serve(uint64_t id, Connection& connection, const DescriptorRequest& request, std::vector<UniqueFd> fds) {
    // Closes the descriptors before the answer, so that they are closed once the client has the answer.
    const auto refuse = [&](const std::string& why, absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
      fds.clear();
      Refuse(id, connection, why, code);
    };
    const bool add = request.has_add_segment();
    const std::string name = add                          ? "add_segment"
                             : request.has_open_session() ? "open_session"
                             : request.has_open_ring()    ? "open_ring"
                                                          : "reserve_segment";
    if (request.request_case() == DescriptorRequest::REQUEST_NOT_SET) {
      return refuse("request: empty or of an unknown kind");
    }
    if (fds.size() != (add ? 1 : 0)) {
      return refuse(absl::StrCat(name, ": carries ", fds.size(), " descriptors, wants ", add ? "1" : "none"));
    }
    if (request.has_open_session()) return Open(id, connection, request.open_session());
    if (!connection.open) {
      return refuse(name + ": no session; send open_session first", absl::StatusCode::kFailedPrecondition);
    }
    if (request.has_open_ring()) return OpenRing(id, connection, request.open_ring());
    const auto& reserved = request.reserve_segment();
    const uint64_t bytes = add ? request.add_segment().length_bytes() : reserved.length_bytes();
    if (bytes == 0) return refuse(name + ": length_bytes: 0");
    SetBusy(id, connection, true);
    if (add) {
      agent_->AddSegment(connection.session, SegmentId(request.add_segment().segment_id()), std::move(fds[0]), bytes,
                         AnswerTo(id, Answer::Kind::kAdd));
    } else {
      agent_->ReserveSegment(connection.session, SegmentId(reserved.segment_id()), bytes,
                             AnswerTo(id, Answer::Kind::kReserve));
    }
  }

  void Open(uint64_t id, Connection& connection, const rails::v1::OpenSessionRequest& request) {
    if (connection.open) {
      return Refuse(id, connection, "open_session: this connection has a session already",
                    absl::StatusCode::kFailedPrecondition);
    }
    if (!SpeaksVersion(id, connection, request, "open_session")) return;
    if (request.client_name().size() > kMaxClientName) {
      return Refuse(id, connection,
                    absl::StrCat("open_session: client_name: ", request.client_name().size(), " bytes, more than ",
                                 kMaxClientName));
    }
    absl::StatusOr<std::string> tenant =
        options_.tenants.TenantOf(connection.peer, options_.sockets[connection.listener].tenant);
    if (!tenant.ok()) return Deny(id, connection, tenant.status());
    connection.tenant = *std::move(tenant);
    connection.client_name = request.client_name();
    SetBusy(id, connection, true);
    agent_->OpenSession(InfoOf(connection), [mailbox = mailbox_, id](absl::StatusOr<SessionId> session) {
      mailbox->Push({id, Answer::Kind::kOpen, session.status(), session.ok() ? *session : SessionId()});
    });
  }

  // Checks the client's versions; both protocols have one version. False: the request is refused and answered.
  template <typename Request>
  bool SpeaksVersion(uint64_t id, Connection& connection, const Request& request, absl::string_view name) {
    if (request.min_version() <= kProtocolVersion && request.max_version() >= kProtocolVersion) return true;
    Refuse(id, connection,
           absl::StrCat(name, ": versions ", request.min_version(), " to ", request.max_version(), " do not include ",
                        kProtocolVersion),
           absl::StatusCode::kFailedPrecondition);
    return false;
  }

  void OpenRing(uint64_t id, Connection& connection, const rails::v1::OpenRingRequest& request) {
    if (!SpeaksVersion(id, connection, request, "open_ring")) return;
    if (connection.has_ring) {
      return Refuse(id, connection, "open_ring: this session has a ring already",
                    absl::StatusCode::kFailedPrecondition);
    }
    if (options_.rings == nullptr)
      return Refuse(id, connection, "open_ring: this daemon offers no rings", absl::StatusCode::kUnimplemented);
    const absl::StatusOr<RingDescriptors> ring =
        options_.rings->Open(connection.session, [mailbox = mailbox_, id](const std::string& why) {
          mailbox->Push({id, Answer::Kind::kRingFailed, absl::AbortedError(why), SessionId()});
        });
    if (!ring.ok()) return Refuse(id, connection, ring.status().message(), ring.status().code());
    connection.has_ring = true;
    DescriptorResponse response;
    response.mutable_open_ring()->set_version(kProtocolVersion);
    const int fds[] = {ring->requests.get(), ring->answers.get(), ring->doorbell.get()};
    if (!Reply(connection.socket.get(), absl::OkStatus(), response, fds)) End(id, "it does not read its answers");
  }

  // Answers a client that has no tenant and ends its connection.
  void Deny(uint64_t id, const Connection& connection, const absl::Status& why) {
    ++counters_.denied_sessions;
    options_.log->warn("session_denied pid={} uid={} gid={} socket={}", connection.peer.pid, connection.peer.uid,
                       connection.peer.gid, LogValue(options_.sockets[connection.listener].path));
    Reply(connection.socket.get(), why);
    End(id, "it is of no tenant");
  }

  static SessionInfo InfoOf(const Connection& connection) {
    return {connection.peer.pid, connection.peer.uid, connection.peer.gid, connection.tenant, connection.client_name};
  }

  Callback<absl::Status> AnswerTo(uint64_t id, Answer::Kind kind) {
    return [mailbox = mailbox_, id, kind](absl::Status status) {
      mailbox->Push({id, kind, std::move(status), SessionId()});
    };
  }

  void TakeAnswers() {
    for (Answer& answer : mailbox_->TakeAll()) {
      const auto it = connections_.find(answer.connection);
      if (it == connections_.end()) {
        // The trainer left before its session was open.
        if (answer.kind == Answer::Kind::kOpen && answer.status.ok())
          CloseSession(answer.session, "the trainer disconnected before its session was open");
        continue;
      }
      if (answer.kind == Answer::Kind::kRingFailed) {
        End(answer.connection, std::string(answer.status.message()));
        continue;
      }
      Connection& connection = *it->second;
      SetBusy(answer.connection, connection, false);
      const bool open = answer.kind == Answer::Kind::kOpen;
      const bool sent = open ? AnswerOpen(connection, answer) : AnswerSegment(connection, answer);
      if (!sent) End(answer.connection, "it does not read its answers");
    }
  }

  bool AnswerOpen(Connection& connection, const Answer& answer) {
    if (!answer.status.ok()) return Reply(connection.socket.get(), answer.status);
    const UniqueFd self = OwnPidfd();
    if (const absl::string_view advice = AdviceOnDescriptors(self.valid() ? 0 : errno); !advice.empty()) {
      const std::string reason = absl::StrCat("the daemon of node ", options_.node, " can open no more files", advice);
      CloseSession(answer.session, reason);
      return Reply(connection.socket.get(), absl::ResourceExhaustedError(reason));
    }
    connection.open = true;
    connection.session = answer.session;
    DescriptorResponse response;
    auto& opened = *response.mutable_open_session();
    opened.set_version(kProtocolVersion);
    opened.set_session_id(answer.session.value());
    opened.set_token(registry_->Add({answer.session, InfoOf(connection)}));
    opened.set_node(options_.node);
    opened.set_boot_id(options_.boot.value());
    options_.log->info("session_opened session={} pid={} uid={} tenant={} client={}", answer.session.value(),
                       connection.peer.pid, connection.peer.uid, connection.tenant, LogValue(connection.client_name));
    const int fd = self.get();
    return Reply(connection.socket.get(), absl::OkStatus(), response, {&fd, self.valid() ? 1u : 0u});
  }

  bool AnswerSegment(Connection& connection, const Answer& answer) {
    if (!answer.status.ok()) ++counters_.bad_packets;
    DescriptorResponse response;
    if (answer.kind == Answer::Kind::kAdd) {
      response.mutable_add_segment();
    } else {
      response.mutable_reserve_segment();
    }
    return Reply(connection.socket.get(), answer.status, response);
  }

  void End(uint64_t id, const std::string& why) {
    const auto it = connections_.find(id);
    const std::unique_ptr<Connection> connection = std::move(it->second);
    connections_.erase(it);
    counters_.open_connections = connections_.size();
    DropUnread(connection->socket.get());
    if (!connection->open) return;
    registry_->Remove(connection->session);
    if (connection->has_ring) options_.rings->Close(connection->session);
    const std::string who = connection->client_name.empty() ? "" : absl::StrCat(" (", connection->client_name, ")");
    CloseSession(connection->session,
                 absl::StrCat("trainer process ", connection->peer.pid, who, " on node ", options_.node, ": ", why));
  }

  void CloseSession(SessionId session, const std::string& reason) {
    options_.log->info("session_closing session={} reason={}", session.value(), LogValue(reason));
    agent_->CloseSession(
        session, reason, [session, log = options_.log, closed = options_.on_session_closed](absl::Status status) {
          if (closed) closed(session);
          log->info("session_closed session={} status={}", session.value(), LogValue(status.ToString()));
        });
  }

  const DescriptorServerOptions options_;
  Agent* const agent_;
  SessionRegistry* const registry_;
  const std::vector<UniqueFd> listeners_;  // one for each of options_.sockets
  const UniqueFd epoll_;
  const std::shared_ptr<AnswerMailbox> mailbox_;
  DescriptorCounters counters_;
  std::atomic<bool> stop_{false};
  std::atomic<bool> refuse_{false};
  std::atomic<size_t> max_connections_;
  // Only the server's thread uses the rest.
  Connections connections_;
  uint64_t next_connection_ = 1;
  absl::Time accept_paused_until_ = absl::InfiniteFuture();
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DescriptorServer>> DescriptorServer::Start(DescriptorServerOptions options, Agent* agent,
                                                                          SessionRegistry* registry) {
  std::vector<UniqueFd> listeners;
  for (const DescriptorSocket& socket : options.sockets) {
    absl::StatusOr<UniqueFd> listener = ListenAt(socket.path, socket.mode);
    if (!listener.ok()) return listener.status();
    listeners.push_back(*std::move(listener));
  }
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll.valid()) return absl::ErrnoToStatus(errno, "descriptor socket: epoll");
  absl::StatusOr<WakeEvent> wake = WakeEvent::Create();
  if (!wake.ok()) return wake.status();
  auto server = std::make_unique<Server>(std::move(options), agent, registry, std::move(listeners), std::move(epoll),
                                         *std::move(wake));
  if (!server->Run()) return absl::ErrnoToStatus(errno, "descriptor socket: epoll");
  return server;
}

}  // namespace railsd
