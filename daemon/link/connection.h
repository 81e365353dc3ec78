// A connection to another daemon, and who hears of it. No sockets here: tests have connections of their own.
#ifndef RAILSD_DAEMON_LINK_CONNECTION_H_
#define RAILSD_DAEMON_LINK_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/frame.h"

namespace railsd {

// Any thread. Its methods call no handler.
class Connection {
 public:
  virtual ~Connection() = default;
  // Takes a frame when nothing is on its way into the socket; else false, and OnWritable() follows. A connection that
  // has ended takes everything.
  virtual bool Write(std::shared_ptr<const std::string> frame) = 0;
  // What was written last may yet arrive; nothing comes from it any more but OnEnd().
  virtual void Close() = 0;
  // The other end's HELLO was accepted: it has no handshake's time limit any more.
  virtual void SetGreeted() = 0;
  virtual bool dialled_here() const = 0;
  // Where it leads, or comes from: "ip:port" or "[ip6]:port".
  virtual const std::string& address() const = 0;
  // The DNS names of the certificate that the other end has proven to own. Empty over plain text.
  virtual std::vector<std::string> certificate_names() const = 0;
};
using ConnectionPtr = std::shared_ptr<Connection>;

// Called on one thread, without any lock of the caller's.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;
  // Connected, and with TLS the other end has a certificate of the CA. Frames follow.
  virtual void OnOpen(const ConnectionPtr& connection) = 0;
  virtual void OnFrame(const ConnectionPtr& connection, const Frame& frame) = 0;
  virtual void OnWritable(const ConnectionPtr& connection) = 0;
  // The last call for a connection, also for one that has never opened. INVALID_ARGUMENT: for what it carried.
  virtual void OnEnd(const ConnectionPtr& connection, const absl::Status& why) = 0;
  // Now and then.
  virtual void OnTick(absl::Time now) = 0;
};

// Makes connections. Only from the handler's calls.
class Dialler {
 public:
  virtual ~Dialler() = default;
  // `address`: numbers and a port. OnOpen() or OnEnd() follows.
  virtual ConnectionPtr Dial(const std::string& address) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_CONNECTION_H_
