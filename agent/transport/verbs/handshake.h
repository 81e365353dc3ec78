// How one end of a rail agrees with the other: a state machine without a device, a clock or a wire.
//
// Each end counts generations: one for every set of queue pairs that it makes. It tells its state (Signal::state, with
// the generation of the peer that it is connected to) after every change, answers whatever shows that the peer does not
// know that both are connected, and repeats itself until it is up, so that a lost signal costs time only. Both ends are
// up exactly when both are connected to each other's present generation and have heard so.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "agent/base/ids.h"
#include "agent/transport/verbs/signal.h"

namespace railsd::verbs {

// This end, for checks and for what it says of itself.
struct LocalEnd {
  std::string node;
  BootId boot;
  RailIndex rail;
  std::string port;  // "device/port"
};

// Why a peer's signal may not be acted on; reason kNone: it may. `text` names both ends.
struct Refusal {
  RefusalReason reason = RefusalReason::kNone;
  std::string text;
};

// Judges a signal of `node` (as configured, with `boot` from the control stream) for an endpoint with `own` address.
Refusal JudgeSignal(const LocalEnd& local, const EndpointAddress& own, const std::string& node, BootId boot,
                    const Signal& signal);

class Handshake {
 public:
  enum class State { kDown, kInit, kConnected, kUp };
  // A task of the owner; several are done in their order.
  struct Action {
    bool fail = false;                       // the present queue pairs are of no use: Break() them
    std::optional<EndpointAddress> connect;  // then Connected() or Break()
    bool reply = false;                      // tell the peer the state
    bool up = false;                         // orders may be posted
  };

  State state() const { return state_; }
  uint64_t generation() const { return generation_; }
  // The generation that the queue pairs are connected to; 0: none.
  uint64_t answers() const { return link_state() == LinkState::kInit ? 0 : peer_generation_; }

  // Numbers the connection: the same at both ends, and more than that of any before between the two boots, because no
  // generation serves two connections. Valid from Connected() until Begin().
  uint64_t connection() const { return generation_ + peer_generation_; }

  // A new set of queue pairs stands in INIT; `generation` is more than any that this end has named to the peer. A hello
  // that came too early is acted on now.
  Action Begin(uint64_t generation);
  // They are in RTS, connected to the address that the last Action named.
  Action Connected();
  // They are of no use any more; Begin() comes when there are others.
  void Break();
  // A kHello or kDown that was not refused.
  Action OnSignal(const Signal& signal);
  // The state for Signal::state: without queue pairs as with new ones.
  LinkState link_state() const {
    return state_ == State::kUp          ? LinkState::kUp
           : state_ == State::kConnected ? LinkState::kConnected
                                         : LinkState::kInit;
  }

 private:
  Action Consider(const Signal& hello);
  State state_ = State::kDown;
  uint64_t generation_ = 0;
  uint64_t peer_generation_ = 0;  // newest one connected to
  std::optional<Signal> latest_;  // newest hello while there is nothing to connect, or being connected
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_
