// The rules: moves that are possible in a state.

#pragma once

#include "tests/model/exchange/options.h"
#include "tests/model/exchange/state.h"
#include "tests/model/search.h"

namespace model::exchange {

// Adds every move that is possible in a state. `e` is always an exchange, `c` a connection.
class Rules {
 public:
  Rules(const State& state, Moves<State>* moves) : s_(state), moves_(moves) {}

  void AddAll();

 private:
  // rail.cc: the rail's thread at the sender, the wire, and the receiver's end of the connection.
  void TakeCommand(int e, int c);
  void AnswerRelease(int e, int c, const State& base);
  void AddRelease(int e, int c, const State& base, int chunks, int weight);
  void PostChunks(int e, int c);
  void PostFence(int e, int c);
  void Acknowledge(int e, int c);
  void Land(int e, int c);
  void Fail(int c);
  void NoticeFailure(int c);
  void ReturnRail();

  // sender.cc: the sender's engine, pieces and failures.
  void AskToRelease(int e, int c);
  void HearRelease(int e, int c);
  void GivePool(int e);
  void HearFailure(int c);
  void Bounce(int e, int c);
  void SendRehome();
  void AskForKeys();
  void TakeAtSender();
  void Spread(int e);
  void SpreadOver(int e, int connections, int first, int part, int second);
  void FinishSender(int e);
  void AbortSender(int e);
  void SettleAbort(int e);

  // receiver.cc: the receiver's engine.
  void FinishReceiver(int e);
  void AbortReceiver(int e);
  void ForceReceiver(int e);
  void TakeAtReceiver();

  // Questions about the state, from the sender's engine.
  const Share& share(int e, int c) const { return s_.exchanges[e].shares[c]; }
  bool Running(int e) const { return s_.exchanges[e].sender == kRunning; }
  bool BelievedUp(int c) const { return s_.connections[c].life == kUp || s_.connections[c].life == kFailed; }
  bool Asking(int e) const;
  bool NeedsKeys(int e) const;
  bool Usable(int e, int c) const;
  bool ReadsMemory(int e) const;
  bool AllAcknowledged(int e) const;

  template <typename Text>
  void Add(const State& next, Certainty certainty, const char* violation, const Text& text) {
    moves_->Add(next, certainty, violation, text);
  }

  const State& s_;
  Moves<State>* const moves_;
};

}  // namespace model::exchange
