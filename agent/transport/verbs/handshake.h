// How one end of a rail agrees with the other: a state machine without a device, a clock or a wire.
//
// Each end gives a new generation to every set of queue pairs that it makes. It sends its state (Signal::state, with
// the peer's generation that it is connected to) after every change, and in answer to each hello of a peer that is not
// up. It repeats its state until it is up, so a lost signal only costs time. Both ends are up when each is connected to
// the other's present generation and has heard that the other is, too.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "agent/base/ids.h"
#include "agent/transport/verbs/signal.h"

namespace railsd::verbs {

// This end, for checks and for the signals that it sends.
struct LocalEnd {
  std::string node;
  BootId boot;
  RailIndex rail;
  std::string port;  // "device/port"
};

// Why a peer's signal is refused; reason kNone: it is not. `text` names both ends.
struct Refusal {
  RefusalReason reason = RefusalReason::kNone;
  std::string text;
};

// Judges a signal of `node`, whose daemon has `boot`, for an endpoint with `own` address.
Refusal JudgeSignal(const LocalEnd& local, const EndpointAddress& own, const std::string& node, BootId boot,
                    const Signal& signal);

class Handshake {
 public:
  enum class State { kDown, kInit, kConnected, kUp };
  // Tasks of the owner, which it does in this order.
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

  // Numbers the connection. Both ends compute the same number. It is higher than that of any earlier connection between
  // the two boots, because no generation serves two connections. Valid from Connected() until Begin().
  uint64_t connection() const { return generation_ + peer_generation_; }

  // Tells that a new set of queue pairs is in INIT; `generation` is higher than any that this end has named to the
  // peer. A hello that came too early is acted on now.
  Action Begin(uint64_t generation);
  // Tells that the queue pairs are in RTS, connected to the address in the last Action.
  Action Connected();
  // Tells that the queue pairs are of no use any more. Begin() follows when there are others.
  void Break();
  // A kHello or kDown that was not refused.
  Action OnSignal(const Signal& signal);
  // The state for Signal::state; kInit also without queue pairs.
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
  std::optional<Signal> latest_;  // newest hello, kept while there are no queue pairs or they are being connected
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_HANDSHAKE_H_
