#include "agent/transport/verbs/handshake.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::verbs {
namespace {

std::string Name(LinkLayer layer) { return layer == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand"; }

std::string Both(const LocalEnd& local, const Signal& signal) {
  return absl::StrCat("node '", signal.node, "' rail ", signal.rail.value(), " (", signal.port, ") to node '",
                      local.node, "' rail ", local.rail.value(), " (", local.port, ")");
}

}  // namespace

Refusal JudgeSignal(const LocalEnd& local, const EndpointAddress& own, const std::string& node, BootId boot,
                    const Signal& signal) {
  if (signal.version != kSignalVersion) {
    return {RefusalReason::kVersion,
            absl::StrCat("node '", node, "' speaks version ", signal.version, " of the rails' signals, node '",
                         local.node, "' version ", kSignalVersion, ": run the same release on both")};
  }
  if (signal.node != node) {
    return {RefusalReason::kUnknownNode, absl::StrCat(Both(local, signal), ": expected from node '", node, "'")};
  }
  if (signal.boot != boot || signal.to_boot != local.boot) {
    return {RefusalReason::kBoot,
            absl::StrCat(Both(local, signal), ": the boot ids are of another start of a daemon (boot ids ",
                         absl::Hex(signal.boot.value(), absl::kZeroPad16), " to ",
                         absl::Hex(signal.to_boot.value(), absl::kZeroPad16), ", expected ",
                         absl::Hex(boot.value(), absl::kZeroPad16), " to ",
                         absl::Hex(local.boot.value(), absl::kZeroPad16), ")")};
  }
  if (signal.rail != local.rail) {
    return {RefusalReason::kRail, absl::StrCat(Both(local, signal), ": the rails would cross; rail ",
                                               local.rail.value(), " of every node must be on the same switch")};
  }
  if (signal.kind != Signal::Kind::kHello) return {};
  if (signal.endpoint.link_layer != own.link_layer) {
    return {RefusalReason::kLinkLayer, absl::StrCat(Both(local, signal), ": ", Name(signal.endpoint.link_layer),
                                                    " there, ", Name(own.link_layer), " here")};
  }
  if (signal.endpoint.queue_pairs.size() != own.queue_pairs.size()) {
    return {RefusalReason::kQueuePairs,
            absl::StrCat(Both(local, signal), ": ", signal.endpoint.queue_pairs.size(), " queue pairs there, ",
                         own.queue_pairs.size(), " here; verbs.queue_pairs_per_peer must be equal")};
  }
  return {};
}

Handshake::Action Handshake::Begin(uint64_t generation) {
  generation_ = generation;
  state_ = State::kInit;
  Action action;
  if (latest_.has_value()) action = Consider(*std::exchange(latest_, std::nullopt));
  action.reply = true;
  return action;
}

Handshake::Action Handshake::Connected() {
  state_ = State::kConnected;
  Action action;
  action.reply = true;
  const std::optional<Signal> hello = std::exchange(latest_, std::nullopt);
  if (hello.has_value() && hello->answers == generation_) {
    state_ = State::kUp;
    action.up = true;
  }
  return action;
}

void Handshake::Break() { state_ = State::kDown; }

Handshake::Action Handshake::OnSignal(const Signal& signal) {
  if (signal.kind == Signal::Kind::kHello) return Consider(signal);
  Action action;
  if (signal.kind != Signal::Kind::kDown) return action;
  if (latest_.has_value() && latest_->generation <= signal.generation) latest_.reset();
  const bool connected = state_ == State::kConnected || state_ == State::kUp;
  action.fail = connected && signal.generation == peer_generation_;
  return action;
}

Handshake::Action Handshake::Consider(const Signal& hello) {
  Action action;
  if (hello.generation < peer_generation_) return action;  // sent before the peer made newer queue pairs
  switch (state_) {
    case State::kDown:
      latest_ = hello;
      return action;
    case State::kInit:
      // A hello that answers an older generation is not acted on: the peer's queue pairs belong to our former ones. The
      // peer makes others when it hears of our present ones.
      action.reply = true;
      if (hello.answers != 0 && hello.answers != generation_) return action;
      peer_generation_ = hello.generation;
      latest_ = hello;
      action.connect = hello.endpoint;
      return action;
    case State::kConnected:
    case State::kUp:
      break;
  }
  if (hello.generation != peer_generation_) {
    latest_ = hello;
    action.fail = true;
    return action;
  }
  if (hello.answers == generation_ && state_ == State::kConnected) {
    state_ = State::kUp;
    action.up = true;
  }
  action.reply = hello.state != LinkState::kUp;
  return action;
}

}  // namespace railsd::verbs
