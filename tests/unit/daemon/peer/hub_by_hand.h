// A hub whose streams and lanes are the test's: nothing happens that it is not told, and no thread runs. What gRPC
// never does the streams refuse, and what gRPC forbids they end the program for.
#ifndef RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_
#define RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/peer/hub.h"

namespace railsd {

inline void Must(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", what);
  std::abort();
}

class OutByHand final : public OutboundStream {
 public:
  explicit OutByHand(std::string address) : address_(std::move(address)) {}
  void Write(std::shared_ptr<const pb::ExchangeRequest> request) override {
    Must(!writing_, "a write while one is under way is lost");
    if (ended) return;
    writing_ = true;
    written.push_back(std::move(request));
  }
  bool writing() const override { return writing_; }
  void Cancel() override { cancelled = true; }
  std::string RemoteAddress() const override { return address_; }  // no number: nothing is probed
  std::vector<std::string> CertificateNames() const override { return names; }
  const std::string& address() const { return address_; }
  void WriteDone() { writing_ = false; }

  std::vector<std::shared_ptr<const pb::ExchangeRequest>> written;
  bool cancelled = false, ended = false;
  std::vector<std::string> names;   // of the other end's certificate
  std::optional<HelloFacts> hello;  // that the other end began with, if it was a good one
  bool begun = false;

 private:
  const std::string address_;
  bool writing_ = false;
};

class InByHand final : public InboundStream {
 public:
  void Write(std::shared_ptr<const pb::ExchangeResponse> response) override {
    if (ended || finished) return;
    Must(!writing_, "a write while one is under way is lost");
    writing_ = true;
    written.push_back(std::move(response));
  }
  bool writing() const override { return writing_; }
  void ReadNext() override {
    if (ended || finished) return;
    Must(!reading, "two reads at once");
    reading = true;
  }
  void Finish(absl::Status with, bool) override {
    if (finished) return;
    finished = true;
    status = std::move(with);
  }
  void Cancel() override { cancelled = true; }
  std::vector<std::string> CertificateNames() const override { return names; }
  void WriteDone() { writing_ = false; }

  std::vector<std::shared_ptr<const pb::ExchangeResponse>> written;
  bool reading = true;
  bool finished = false, cancelled = false, ended = false;
  absl::Status status;
  std::vector<std::string> names;
  std::optional<HelloFacts> hello;
  bool begun = false;

 private:
  bool writing_ = false;
};

class LanesByHand final : public Lanes {
 public:
  enum class State { kMaking, kOpen, kClosed };
  struct Lane {
    std::string address;  // empty: expected, by the share
    PublicShare share{};
    State state = State::kMaking;
    std::vector<std::string> written;
  };
  LaneId Dial(const std::string& address, const LaneKeys& keys) override { return Add(address, keys); }
  LaneId Expect(const LaneKeys& keys) override { return Add("", keys); }
  bool Take(UniqueFd) override { return false; }
  Written Write(LaneId id, size_t size, Fill fill) override {
    const auto it = lanes.find(id);
    if (it == lanes.end() || it->second.state != State::kOpen) return Written::kGone;
    if (busy) return Written::kBusy;
    std::string message(size, '\0');
    fill(message.data());
    it->second.written.push_back(std::move(message));
    return Written::kTaken;
  }
  void Close(LaneId id) override {
    if (const auto it = lanes.find(id); it != lanes.end()) it->second.state = State::kClosed;
  }

  std::map<LaneId, Lane> lanes;
  bool busy = false;

 private:
  LaneId Add(const std::string& address, const LaneKeys& keys) {
    Lane& lane = lanes[++last_];
    lane.address = address;
    lane.share = keys.dialler;
    return last_;
  }
  LaneId last_ = 0;
};

class HubByHand {
 public:
  // Knows `peers`, at addresses that are their names, and dials them at the first tick.
  HubByHand(PeerHubOptions options, const std::vector<std::string>& peers, Agent* agent)
      : hub_(std::make_unique<Hub>(std::move(options))) {
    Must(hub_->Start(agent).ok(), "a hub that does not listen cannot fail to start");
    auto lanes = std::make_unique<LanesByHand>();
    lanes_ = lanes.get();
    hub_->lanes_ = std::move(lanes);
    absl::MutexLock lock(&hub_->mutex_);
    for (const std::string& peer : peers) {
      hub_->FindOrAddPeer(peer)->config = StaticPeerConfig{peer, peer, {}};
      auto target = std::make_unique<Target>();
      target->address = target->expected_node = peer;
      target->dialler = std::make_unique<DiallerByHand>(peer, &dialled_);
      hub_->targets_.push_back(std::move(target));
    }
  }
  ~HubByHand() {
    for (const auto& out : std::exchange(dialled_, {})) End(out, absl::CancelledError("the test ends"));
    for (const auto& in : std::exchange(accepted_, {})) End(in);
    hub_->Stop();
  }

  Hub& hub() { return *hub_; }
  LanesByHand& lanes() { return *lanes_; }
  void Tick(absl::Time now) {
    absl::MutexLock lock(&hub_->mutex_);
    hub_->Tick(now);
  }

  // Every stream that was dialled, the oldest first.
  const std::vector<std::shared_ptr<OutByHand>>& dialled() const { return dialled_; }
  // The last one to an address that has not ended, or null.
  std::shared_ptr<OutByHand> DialledTo(const std::string& address) const {
    for (auto it = dialled_.rbegin(); it != dialled_.rend(); ++it) {
      if ((*it)->address() == address && !(*it)->ended) return *it;
    }
    return nullptr;
  }
  const std::vector<std::shared_ptr<InByHand>>& accepted() const { return accepted_; }
  // A stream that a peer dials; null when it is refused.
  std::shared_ptr<InByHand> Accept() {
    auto stream = std::make_shared<InByHand>();
    if (!hub_->OnAccepted(stream)) return nullptr;
    accepted_.push_back(stream);
    return stream;
  }
  // False: the hub does not read now, as it is.
  bool Request(const std::shared_ptr<InByHand>& stream, const pb::ExchangeRequest& request) {
    if (stream->ended || !std::exchange(stream->reading, false)) return false;
    Note(*stream, request.has_hello() ? &request.hello() : nullptr);
    hub_->OnRequest(stream, request);
    return true;
  }
  void Respond(const std::shared_ptr<OutByHand>& stream, const pb::ExchangeResponse& response) {
    if (stream->ended) return;
    Note(*stream, response.has_hello() ? &response.hello().hello() : nullptr);
    hub_->OnResponse(stream, response);
  }
  // The write under way is done, if there is one.
  template <typename Stream>
  void Written(const std::shared_ptr<Stream>& stream) {
    if (stream->ended || !stream->writing()) return;
    stream->WriteDone();
    hub_->OnWritten(stream);
  }
  void End(const std::shared_ptr<OutByHand>& stream, absl::Status status, bool stopping = false) {
    if (!std::exchange(stream->ended, true)) hub_->OnEnded(stream, std::move(status), stopping);
  }
  void End(const std::shared_ptr<InByHand>& stream) {
    if (!std::exchange(stream->ended, true)) hub_->OnEnded(stream);
  }

 private:
  template <typename Stream>
  void Note(Stream& stream, const pb::Hello* hello) {
    if (std::exchange(stream.begun, true) || hello == nullptr) return;
    absl::StatusOr<HelloFacts> facts = HelloFrom(*hello, hub_->options_.node, hub_->options_.max_world_size);
    if (facts.ok()) stream.hello = *std::move(facts);
  }

  class DiallerByHand final : public Dialler {
   public:
    DiallerByHand(std::string address, std::vector<std::shared_ptr<OutByHand>>* dialled)
        : address_(std::move(address)), dialled_(dialled) {}
    std::shared_ptr<OutboundStream> Dial(StreamHandler*) override {
      return dialled_->emplace_back(std::make_shared<OutByHand>(address_));
    }

   private:
    const std::string address_;
    std::vector<std::shared_ptr<OutByHand>>* const dialled_;
  };

  std::unique_ptr<Hub> hub_;
  LanesByHand* lanes_ = nullptr;
  std::vector<std::shared_ptr<OutByHand>> dialled_;
  std::vector<std::shared_ptr<InByHand>> accepted_;
};

// What a node says of itself, with the limits of a hub by default.
inline HelloFacts FactsOf(const std::string& node, uint64_t boot) {
  HelloFacts facts;
  facts.hello.node = node;
  facts.hello.boot = BootId(boot);
  facts.hello.rails = {{RailIndex(0), "127.0.0.1:1", 1000}};
  facts.max_message_bytes = 1 << 20;
  facts.max_world_size = PeerHubOptions().max_world_size;
  return facts;
}
inline pb::ExchangeRequest GreetingOf(const HelloFacts& facts) {
  pb::ExchangeRequest request;
  HelloTo(facts, request.mutable_hello());
  return request;
}
inline pb::ExchangeResponse AnswerOf(const HelloFacts& facts, uint64_t acknowledged = 0) {
  pb::ExchangeResponse response;
  response.mutable_hello()->set_version(kPeerProtocolVersion);
  response.mutable_hello()->set_acknowledged(acknowledged);
  HelloTo(facts, response.mutable_hello()->mutable_hello());
  return response;
}

}  // namespace railsd

#endif  // RAILSD_TESTS_UNIT_DAEMON_PEER_HUB_BY_HAND_H_
