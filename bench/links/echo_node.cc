#include "bench/links/echo_node.h"

#include <stdlib.h>
#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "daemon/lifecycle/logging.h"
#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"

namespace railsd::bench {

void Must(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_links: %s\n", status.ToString().c_str());
  std::_Exit(1);
}

namespace {

size_t BytesOf(const ControlMessage& message) {
  rails::peer::v1::Message out;
  MessageTo(message, &out);
  return out.ByteSizeLong();
}

void Write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::trunc) << text;
  if (::chmod(path.c_str(), 0600) != 0) Must(absl::ErrnoToStatus(errno, path));
}

rails::ctl::pki::Pair NewPair() {
  const absl::Time now = absl::Now();
  auto pair = rails::ctl::pki::MakeAuthority("bench", {now - absl::Hours(1), now + absl::Hours(24)});
  Must(pair.status());
  return *std::move(pair);
}

}  // namespace

ControlMessage ReadyOfMessageBytes() {
  Ready ready;
  ready.job = {{BootId(0x1234567890abcdef), 3}, JobSeq(1000)};
  ready.tag = 7;
  ready.rails = {.bytes_per_s = BytesByRail(4, 50'000'000'000), .backlog_bytes = 1 << 20};
  std::vector<Ready::Flow> sends, receives;
  while (BytesOf(ready) + 30 < kMessageBytes) {
    const uint32_t rank = static_cast<uint32_t>(sends.size());
    sends.push_back({Rank(rank), Rank(rank + 32), 1 << 20});
    receives.push_back({Rank(rank + 32), Rank(rank), 1 << 20});
    ready.sends = sends;
    ready.receives = receives;
  }
  while (BytesOf(ready) < kMessageBytes) ready.planned_bytes.push_back(1);
  if (BytesOf(ready) != kMessageBytes) Must(absl::InternalError("no READY has the wanted length"));
  return ready;
}

Authority::Authority() : pair_(NewPair()) {
  if (::mkdtemp(folder_.data()) == nullptr) Must(absl::ErrnoToStatus(errno, folder_));
  Write(folder_ + "/ca.pem", pair_.certificate);
}

Authority::~Authority() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::unique_ptr<TlsFiles> Authority::FilesOf(const std::string& node) const {
  const absl::Time now = absl::Now();
  const auto pair = rails::ctl::pki::IssueCertificate(pair_, node, {now - absl::Hours(1), now + absl::Hours(24)});
  Must(pair.status());
  TlsConfig config;
  config.mode = TlsMode::kMutual;
  config.certificate = absl::StrCat(folder_, "/", node, ".pem");
  config.key = absl::StrCat(folder_, "/", node, ".key");
  config.ca = folder_ + "/ca.pem";
  config.refresh = absl::Hours(1);
  Write(config.certificate, pair->certificate);
  Write(config.key, pair->key);
  absl::StatusOr<std::unique_ptr<TlsFiles>> files = TlsFiles::Open(config, node, NullLogger());
  Must(files.status());
  return *std::move(files);
}

class ForwardingAgent final : public Agent {
 public:
  ForwardingAgent(EngineThread* engine, EchoNode::OnMessage on_message)
      : engine_(*engine), on_message_(std::move(on_message)) {
    hello_.rails.push_back({RailIndex(0), "127.0.0.1:1", 1000});
  }
  int links() const { return links_.load(std::memory_order_acquire); }

  void AddSource(EventSource* source) override { engine_.AddSource(source); }
  void RemoveSource(EventSource* source) override { engine_.RemoveSource(source); }
  const PeerHello& Hello() const override { return hello_; }
  void OnPeerUp(PeerHello) override { links_.fetch_add(1, std::memory_order_acq_rel); }
  void OnPeerDown(std::string, std::string, bool) override { links_.fetch_sub(1, std::memory_order_acq_rel); }
  bool OnPeerMessage(std::string node, BootId, ControlMessage message) override {
    engine_.Push([this, node = std::move(node), message = std::move(message)] { on_message_(node); });
    return true;
  }

  void OnPeerSilent(std::string, std::string) override {}
  void OnPeerForgotten(std::string) override {}
  void OnReadyTaken(std::string, BootId, std::vector<JobKey>) override {}
  void OpenSession(SessionInfo, Callback<absl::StatusOr<SessionId>>) override {}
  void CloseSession(SessionId, std::string, Callback<absl::Status>) override {}
  void ReserveSegment(SessionId, SegmentId, uint64_t, Callback<absl::Status>) override {}
  void AddSegment(SessionId, SegmentId, UniqueFd, uint64_t, Callback<absl::Status>) override {}
  void RemoveSegment(SessionId, SegmentId, Callback<absl::Status>) override {}
  void Join(JoinRequest, Callback<absl::StatusOr<GroupView>>) override {}
  void Leave(SessionId, Epoch, Rank, Callback<absl::Status>) override {}
  absl::Status Submit(Submission, Callback<absl::Status>) override { return absl::OkStatus(); }
  bool IsQuickToCheck(SessionId) const override { return true; }
  absl::Status Prepare(Submission, Callback<absl::Status>) override { return absl::OkStatus(); }
  void ReleasePrepared(SessionId, PreparedId, Callback<absl::Status>) override {}
  void Wait(SessionId, JobKey, Rank, absl::Duration, Callback<absl::StatusOr<JobReport>>) override {}
  void Cancel(SessionId, JobKey, Rank, Callback<absl::Status>) override {}
  void Drain(absl::Duration, Callback<absl::Status>) override {}
  void Undrain(Callback<absl::Status>) override {}
  void DrainRail(std::string, bool, Callback<absl::Status>) override {}
  void Retune(AgentTuning, Callback<absl::Status>) override {}
  void Snapshot(Callback<AgentSnapshot>) override {}
  std::vector<ThreadProgress> Progress() const override { return {}; }
  void Explain(WantedJob, Callback<absl::StatusOr<JobExplanation>>) override {}

 private:
  EngineThread& engine_;
  const EchoNode::OnMessage on_message_;
  PeerHello hello_;
  std::atomic<int> links_{0};
};

EchoNode::EchoNode(std::string node, uint64_t boot, const Authority* authority, EngineThread* engine,
                   OnMessage on_message)
    : message_(ReadyOfMessageBytes()),
      tls_(authority == nullptr ? nullptr : authority->FilesOf(node)),
      agent_(std::make_unique<ForwardingAgent>(engine, std::move(on_message))) {
  PeerHubOptions options;
  options.node = std::move(node);
  options.boot = BootId(boot);
  options.version = "bench";
  options.links.listen = "127.0.0.1:0";
  options.links.tls = tls_.get();
  options.links.max_per_address = options.links.max_half_open = 1024;  // all peers share one address
  options.log = NullLogger();
  hub_ = std::make_unique<PeerHub>(std::move(options));
  Must(hub_->Start(agent_.get()));
}

EchoNode::~EchoNode() { hub_->Stop(); }

std::string EchoNode::address() const { return absl::StrCat("127.0.0.1:", hub_->port()); }

void EchoNode::AwaitLinks(int count) const {
  for (const absl::Time limit = absl::Now() + absl::Minutes(1); agent_->links() < count;) {
    if (absl::Now() > limit) Must(absl::DeadlineExceededError(absl::StrCat(agent_->links(), " links are up")));
    absl::SleepFor(absl::Milliseconds(10));
  }
}

}  // namespace railsd::bench
