// The two ends of a control stream over gRPC, without its types. Private to daemon/peer.
//
// A stream calls its handler from gRPC's threads, one call at a time for reads and one for writes, never from inside
// one of its own methods and never with its lock held; so a handler may call methods with its own lock held.
#ifndef RAILSD_DAEMON_PEER_STREAMS_H_
#define RAILSD_DAEMON_PEER_STREAMS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agent/base/limit.h"

namespace grpc {
class Service;
}
namespace rails::peer::v1 {
class ExchangeRequest;
class ExchangeResponse;
}  // namespace rails::peer::v1

namespace railsd {

class ConnectionLedger;
class TlsFiles;

// A stream that this node dialled: writes requests, reads responses.
class OutboundStream {
 public:
  virtual ~OutboundStream() = default;
  // At most one write may be under way; OnWritten() ends it. Ignored after the end.
  virtual void Write(std::shared_ptr<const rails::peer::v1::ExchangeRequest> request) = 0;
  virtual bool writing() const = 0;
  virtual void Cancel() = 0;
  // Where it is connected, "ip:port" or "[ip6]:port"; once the first response has come.
  virtual std::string RemoteAddress() const = 0;
  // The DNS names of the certificate that the peer has shown, once the first response has come. Empty over plain text.
  virtual std::vector<std::string> CertificateNames() const = 0;
};

// A stream that a peer dialled: reads requests, writes responses.
class InboundStream {
 public:
  virtual ~InboundStream() = default;
  virtual void Write(std::shared_ptr<const rails::peer::v1::ExchangeResponse> response) = 0;
  virtual bool writing() const = 0;
  // Asks for the next request; the first is asked for already. Until then nothing is read from the peer.
  virtual void ReadNext() = 0;
  // Ends the stream with a status, after the write under way. `stopping`: tells the peer that this daemon ends.
  virtual void Finish(absl::Status status, bool stopping = false) = 0;
  virtual void Cancel() = 0;
  // As of OutboundStream; only before OnEnded().
  virtual std::vector<std::string> CertificateNames() const = 0;
};

class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  virtual void OnResponse(const std::shared_ptr<OutboundStream>& stream,
                          const rails::peer::v1::ExchangeResponse& response) = 0;
  virtual void OnWritten(const std::shared_ptr<OutboundStream>& stream) = 0;
  // The last call for this stream. `stopping`: the peer said that its daemon ends.
  virtual void OnEnded(const std::shared_ptr<OutboundStream>& stream, absl::Status status, bool stopping) = 0;

  // False refuses the stream before anything is read; OnEnded() does not follow then.
  virtual bool OnAccepted(const std::shared_ptr<InboundStream>& stream) = 0;
  // The handler calls ReadNext() when it can take another one.
  virtual void OnRequest(const std::shared_ptr<InboundStream>& stream,
                         const rails::peer::v1::ExchangeRequest& request) = 0;
  virtual void OnWritten(const std::shared_ptr<InboundStream>& stream) = 0;
  virtual void OnEnded(const std::shared_ptr<InboundStream>& stream) = 0;
};

// One channel to one address. Streams outlive it.
class Dialler {
 public:
  // `tls`: mutual TLS, with what is in force in it at each dial; it outlives the dialler. Null: plain text.
  static std::unique_ptr<Dialler> Make(const std::string& address, uint64_t max_message_bytes, const TlsFiles* tls);
  virtual ~Dialler() = default;
  virtual std::shared_ptr<OutboundStream> Dial(StreamHandler* handler) = 0;
};

struct PeerServiceOptions {
  uint64_t max_message_bytes = 16 << 20;  // a longer one ends its stream
  std::shared_ptr<LimitCounters> refused = std::make_shared<LimitCounters>();
  // Told of each message that the handler has taken, and whose connection brought it. Null: none.
  std::shared_ptr<ConnectionLedger> ledger = nullptr;
};

// The server's end. `handler` outlives the server that it is registered with.
std::shared_ptr<grpc::Service> MakePeerService(StreamHandler* handler, PeerServiceOptions options);

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_STREAMS_H_
