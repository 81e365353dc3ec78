// The sockets of all links: listens, accepts, dials, reads and writes, on a thread of its own ("links").
#ifndef RAILSD_DAEMON_LINK_LINKS_H_
#define RAILSD_DAEMON_LINK_LINKS_H_

#include <spdlog/fwd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agent/base/limit.h"
#include "daemon/link/connection.h"

namespace railsd {

class TlsFiles;

// Read by anybody, relaxed.
struct LinkCounters {
  std::atomic<uint64_t> open{0};               // connections whose HELLO was accepted
  std::atomic<uint64_t> half_open{0};          // others that were accepted
  std::atomic<uint64_t> failed_handshakes{0};  // of TLS, both directions
};

struct LinksOptions {
  std::string listen;             // "host:port"; all addresses of IPv4 mean those of IPv6 as well
  const TlsFiles* tls = nullptr;  // of mutual TLS, with what is in force at each connection. Null: plain text
  absl::Duration handshake = absl::Seconds(10);  // from the beginning until SetGreeted()
  absl::Duration silence = absl::Seconds(5);     // that the other end's kernel may keep
  absl::Duration tick = absl::Milliseconds(100);
  size_t max_connections = 1024;  // accepted ones
  size_t max_per_address = 64;
  size_t max_half_open = 64;  // a further one takes the place of the oldest
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  std::shared_ptr<LinkCounters> counters = std::make_shared<LinkCounters>();
  std::shared_ptr<spdlog::logger> log;
};

class Links : public Dialler {
 public:
  // `handler` outlives the links. UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Links>> Start(LinksOptions options, ConnectionHandler* handler);
  // Joins the thread and closes everything; no call follows.
  ~Links() override = default;
  virtual int port() const = 0;  // bound
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LINKS_H_
