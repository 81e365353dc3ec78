// Interfaces of a connection to another daemon and of its handler. No sockets here: tests bring their own connections.
#ifndef RAILSD_DAEMON_LINK_CONNECTION_H_
#define RAILSD_DAEMON_LINK_CONNECTION_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/link/frame.h"

namespace railsd {

// Any thread may call any method. No method calls the handler.
class Connection {
 public:
  virtual ~Connection() = default;
  // Takes a frame unless an earlier one is still being written: then false, and OnWritable() follows. A connection
  // that has ended takes and drops every frame.
  virtual bool Write(std::shared_ptr<const std::string> frame) = 0;
  // The last written frame may still arrive. Only OnEnd() follows.
  virtual void Close() = 0;
  // The other end's HELLO was accepted: lifts the handshake's time limit.
  virtual void SetGreeted() = 0;
  // True if received bytes wait to be read.
  virtual bool unread() const { return false; }
  virtual bool dialled_here() const = 0;
  // The other end: "ip:port" or "[ip6]:port".
  virtual const std::string& address() const = 0;
  // DNS names of the certificate whose key the other end has proven to hold. Empty over plain text.
  virtual std::vector<std::string> certificate_names() const = 0;
};
using ConnectionPtr = std::shared_ptr<Connection>;

// Called on two threads: the links' own, and the engine's, which reads connections that are greeted. Calls about one
// connection are never concurrent. The caller holds no lock that the handler could take.
class ConnectionHandler {
 public:
  virtual ~ConnectionHandler() = default;
  // Connected. With TLS, the other end has shown a certificate that the CA signed. Frames follow.
  virtual void OnOpen(const ConnectionPtr& connection) = 0;
  virtual void OnFrame(const ConnectionPtr& connection, const Frame& frame) = 0;
  virtual void OnWritable(const ConnectionPtr& connection) = 0;
  // The last call for a connection, also if it never opened. INVALID_ARGUMENT: it carried a malformed frame.
  virtual void OnEnd(const ConnectionPtr& connection, const absl::Status& why) = 0;
  // Called periodically.
  virtual void OnTick(absl::Time now) = 0;
};

// Makes connections. Called only from inside the handler's OnTick().
class Dialler {
 public:
  virtual ~Dialler() = default;
  // `address`: a numeric address with a port. OnOpen() or OnEnd() follows.
  virtual ConnectionPtr Dial(const std::string& address) = 0;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_LINK_CONNECTION_H_
