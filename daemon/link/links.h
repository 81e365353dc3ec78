// Owns the sockets of all links. Listens, accepts, dials and greets on its thread "links". The engine's thread reads
// the greeted connections, unless they are many.
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
#include "agent/base/event_source.h"
#include "agent/base/limit.h"
#include "daemon/link/connection.h"

namespace railsd {

class TlsFiles;

// Any thread reads these, relaxed.
struct LinkCounters {
  std::atomic<uint64_t> open{0};               // connections whose HELLO was accepted
  std::atomic<uint64_t> half_open{0};          // accepted connections whose HELLO was not accepted yet
  std::atomic<uint64_t> failed_handshakes{0};  // TLS handshakes, of dialled and accepted connections
};

struct LinksOptions {
  std::string listen;             // "host:port"; "0.0.0.0" means all IPv6 addresses as well
  const TlsFiles* tls = nullptr;  // for mutual TLS; a connection uses the files in force at its start. Null: plain text
  absl::Duration handshake = absl::Seconds(10);  // from accept() or connect() until SetGreeted()
  absl::Duration silence = absl::Seconds(5);     // of the other end's kernel, until the connection ends
  absl::Duration tick = absl::Milliseconds(100);
  size_t max_connections = 1024;  // accepted
  size_t max_per_address = 64;    // half-open, from one address
  size_t max_half_open = 64;      // one more ends the oldest
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  std::shared_ptr<LinkCounters> counters = std::make_shared<LinkCounters>();
  std::shared_ptr<spdlog::logger> log;
};

class Links : public Dialler {
 public:
  // `handler` and `engine` outlive the links. UNAVAILABLE: the address cannot be bound.
  static absl::StatusOr<std::unique_ptr<Links>> Start(LinksOptions options, ConnectionHandler* handler,
                                                      EventHost* engine);
  // Joins the thread and closes all sockets. The handler is not called afterwards.
  ~Links() override = default;
  virtual int port() const = 0;  // bound
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_LINKS_H_
