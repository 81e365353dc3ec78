// A hub over loopback. Its stand-in for an agent only passes every message to an engine thread.
#ifndef RAILSD_BENCH_LINKS_ECHO_NODE_H_
#define RAILSD_BENCH_LINKS_ECHO_NODE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/agent.h"
#include "bench/links/engine_thread.h"
#include "client/railsctl/pki/certificate.h"
#include "daemon/peer/peer_hub.h"
#include "daemon/tls/tls_files.h"

namespace railsd::bench {

// Ends the program with a message when `status` is an error.
void Must(const absl::Status& status);

// Body size of a link's message.
inline constexpr size_t kMessageBytes = 200;
// Makes a READY of that size.
ControlMessage ReadyOfMessageBytes();

// A certificate authority in a folder that the destructor removes.
class Authority {
 public:
  Authority();
  ~Authority();
  // Issues a certificate for `node`.
  std::unique_ptr<TlsFiles> FilesOf(const std::string& node) const;

 private:
  std::string folder_ = "/tmp/railsd-bench-XXXXXX";
  rails::ctl::pki::Pair pair_;
};

class ForwardingAgent;

class EchoNode {
 public:
  // Called on the engine thread with the sender's name.
  using OnMessage = std::function<void(const std::string& node)>;

  // Listens on its own port. `authority` null: plain text. Several nodes may share `engine`.
  EchoNode(std::string node, uint64_t boot, const Authority* authority, EngineThread* engine, OnMessage on_message);
  ~EchoNode();

  std::string address() const;
  PeerHub& hub() { return *hub_; }
  void Connect(const std::vector<StaticPeerConfig>& peers) { hub_->SetStaticPeers(peers); }
  // Blocks until `count` links are up. Ends the program after a minute.
  void AwaitLinks(int count) const;
  void Send(const std::string& node) { hub_->Send(node, message_); }

 private:
  const ControlMessage message_;
  std::unique_ptr<TlsFiles> tls_;
  std::unique_ptr<ForwardingAgent> agent_;
  std::unique_ptr<PeerHub> hub_;
};

}  // namespace railsd::bench

#endif  // RAILSD_BENCH_LINKS_ECHO_NODE_H_
