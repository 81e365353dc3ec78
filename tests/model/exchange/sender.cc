// The sender's engine: failures, REHOME, and the end of an exchange.

#include "tests/model/exchange/rules.h"

namespace model::exchange {
namespace {

// Names every connection that has failed.
void SendQuiesced(State* next, int e, bool had_ended) {
  int failed = 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Byte life = next->connections[c].life;
    if (life != kReported && life != kFailed) continue;
    if (Wrong(kQuiescedByRehome) && next->exchanges[e].shares[c].question == kToAsk) continue;
    failed |= Bit(c);
  }
  if (Wrong(kQuiescedNamesNothing) || (Wrong(kTombstoneNamesNothing) && had_ended)) failed = 0;
  Message message{};
  message.kind = kQuiesced;
  message.exchanges = Bit(e);
  message.connections = static_cast<Byte>(failed);
  Send(&next->to_receiver, message);
  if (!Wrong(kQuiescedStandsForRehome)) return;
  for (Exchange& other : next->exchanges) {
    for (int c = 0; c < ConnectionCount(); ++c) {
      if (!Has(failed, c) || other.shares[c].question != kToAsk) continue;
      other.pool_chunks |= other.shares[c].lost;
      other.shares[c].lost = 0;
      other.shares[c].question = kNothingToAsk;
    }
  }
}

void BeginAbort(State* next, int e) {
  Exchange& exchange = next->exchanges[e];
  exchange.sender = kAborting;
  exchange.spread_due = 0;
  exchange.pool_chunks = 0;
  exchange.pool_weight = 0;
  exchange.acknowledged = 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    Share& piece = exchange.shares[c];
    const Byte life = next->connections[c].life;
    if ((life == kUp || life == kFailed) && piece.was_given) PushCommand(&piece, {kCancel, 0, 0, 0});
    if (life == kReported) piece.lost = 0;
  }
  if (Wrong(kAbortEndsRehome) && exchange.asked) next->rehome_out = 0;
}

void TakeAbort(State* next, int e) {
  Exchange& exchange = next->exchanges[e];
  if (IsOver(exchange.sender)) return SendQuiesced(next, e, true);
  exchange.quiesced_owed = 1;
  if (exchange.sender == kRunning) BeginAbort(next, e);
}

void TakeOpen(State* next, int e, const Answer& answer) {
  Exchange& exchange = next->exchanges[e];
  exchange.round = answer.round;
  exchange.keys = answer.keys;
  exchange.acknowledged = 0;
  if (!Wrong(kPoolWeightKept)) exchange.pool_weight = 0;
  exchange.spread_due = 1;
  for (int c = 0; c < ConnectionCount(); ++c) {
    Share& piece = exchange.shares[c];
    if (piece.question != kAsked) continue;
    exchange.pool_chunks |= piece.lost;
    piece.lost = 0;
    piece.question = kNothingToAsk;
    // Books by rail and not by generation take the rail for one that carries nothing.
    const Connection& fresh = next->connections[options.rails];
    if (Wrong(kReuseBeforeAnswer) && options.returns > 0 && fresh.life != kAbsent && fresh.rail == c) {
      exchange.shares[options.rails].was_given = 0;
    }
  }
}

const char* TakeAnswer(State* next, const Message& message) {
  const char* violation = nullptr;
  next->rehome_out = 0;
  Answer first{};
  for (int e = 0; e < kExchanges; ++e) {
    if (!Has(message.exchanges, e)) continue;
    Exchange& exchange = next->exchanges[e];
    const Answer answer = Wrong(kFirstAnswerForAll) && first.kind != kNoAnswer ? first : message.answers[e];
    first = first.kind == kNoAnswer ? answer : first;
    exchange.asked = 0;
    if (exchange.sender != kRunning) continue;
    if (answer.kind == kOpen) TakeOpen(next, e, answer);
    if (answer.kind == kGone) violation = "S3: an exchange that nobody has aborted is answered ABORTED";
    if (answer.kind != kComplete) continue;
    exchange.complete = 1;
    for (Share& piece : exchange.shares) {
      piece.question = kNothingToAsk;
      piece.lost = 0;
    }
  }
  return violation;
}

bool RehomeUnderWay(const State& state) {
  for (const Queue* queue : {&state.to_receiver, &state.to_sender}) {
    for (int i = 0; i < queue->count; ++i) {
      if (queue->messages[i].kind == kRehome || queue->messages[i].kind == kAnswer) return true;
    }
  }
  return false;
}

}  // namespace

void Rules::HearFailure(int c) {
  if (s_.connections[c].life != kFailed) return;
  for (int e = 0; e < kExchanges; ++e) {
    if (share(e, c).answer.kind != kNoCommand) return;  // the rail's messages come in order
  }
  State next = s_;
  next.connections[c].life = kReported;
  for (int e = 0; e < kExchanges; ++e) {
    const Exchange& exchange = s_.exchanges[e];
    const Share& old = share(e, c);
    Exchange& x = next.exchanges[e];
    Share& n = x.shares[c];
    n.unposted = n.weight = n.must_fence = n.has_posted = n.was_given = n.lost_weight = 0;
    if (!Running(e) || exchange.complete) {
      n.question = kNothingToAsk;
      n.lost = 0;
      continue;
    }
    x.pool_chunks |= old.unposted;
    // The weight stays behind if anything posted is not acknowledged or a fence is owed: then the round cannot end
    // before the answer.
    int weight = 0;
    if (old.round == exchange.round && !exchange.spread_due) {
      weight = old.question == kNothingToAsk ? old.weight : 0;
      if (Wrong(kDeadRailReturnsWeight) && old.unposted != 0) weight = old.weight;
      if (Wrong(kDeadRailKeepsOne) && old.unposted != 0 && weight == 0 && old.weight > 1) weight = old.weight - 1;
      if (Wrong(kRepostUnasked)) weight = old.lost_weight;
    }
    x.pool_weight = static_cast<Byte>(x.pool_weight + weight);
    if (!Wrong(kRepostUnasked)) continue;
    x.pool_chunks |= old.lost;
    n.question = kNothingToAsk;
    n.lost = 0;
  }
  Add(next, kMust, nullptr, [&] {
    std::string text = Format("the engine hears that %s has failed;", ConnectionName(s_, c).c_str());
    for (int e = 0; e < kExchanges; ++e) {
      text += Format(" %s: chunks %s come back, chunks %s are in doubt%s;", ExchangeNames(Bit(e)).c_str(),
                     ChunkNames(share(e, c).unposted).c_str(), ChunkNames(share(e, c).lost).c_str(),
                     next.exchanges[e].shares[c].question == kToAsk ? "" : ", nothing to ask");
    }
    return text;
  });
}

// A failed rail gives back the commands that it finds.
void Rules::Bounce(int e, int c) {
  if (s_.connections[c].life != kReported || share(e, c).command_count == 0) return;
  const Exchange& exchange = s_.exchanges[e];
  const Command command = share(e, c).commands[0];
  State next = s_;
  Exchange& x = next.exchanges[e];
  PopCommand(&x.shares[c]);
  int weight = 0;
  if (command.kind == kRelease) x.release_from = 0;
  if (command.kind == kGive && Running(e) && !exchange.complete) {
    x.pool_chunks |= command.chunks;
    if (command.round == exchange.round && !exchange.spread_due) {
      weight = share(e, c).question == kNothingToAsk || Wrong(kBounceReturnsWeight) ? command.weight : 0;
    }
    if (Wrong(kSpreadDuringBounce)) weight = command.weight;
    x.pool_weight = static_cast<Byte>(x.pool_weight + weight);
  }
  Add(next, kMust, nullptr, [&] {
    return Format("%s gives a command back: chunks %s of %s with weight %d", ConnectionName(s_, c).c_str(),
                  ChunkNames(command.chunks).c_str(), ExchangeNames(Bit(e)).c_str(), weight);
  });
}

// One REHOME for all exchanges of which a failed connection leaves anything in doubt.
void Rules::SendRehome() {
  if (s_.rehome_out && !Wrong(kSecondRehome)) return;
  State next = s_;
  Message message{};
  message.kind = kRehome;
  for (int e = 0; e < kExchanges; ++e) {
    if (!Running(e) || s_.exchanges[e].complete) continue;
    for (int c = 0; c < ConnectionCount(); ++c) {
      if (s_.connections[c].life != kReported || share(e, c).question != kToAsk) continue;
      message.connections |= Bit(c);
      message.exchanges |= Bit(e);
      next.exchanges[e].shares[c].question = kAsked;
      next.exchanges[e].asked = 1;
    }
  }
  if (message.exchanges == 0) return;
  if (Wrong(kRehomeNamesOne) && message.exchanges == 3) message.exchanges = 1;
  next.rehome_out = 1;
  Send(&next.to_receiver, message);
  Add(next, kMust, RehomeUnderWay(s_) && options.sums != 0 ? "S7: two REHOMEs are outstanding" : nullptr, [&] {
    return Format("the sender sends REHOME: %s failed, %s", ConnectionNames(s_, message.connections).c_str(),
                  ExchangeNames(message.exchanges).c_str());
  });
}

// Only a generation without keys lives, and the exchange has something for it.
bool Rules::NeedsKeys(int e) const {
  const Exchange& exchange = s_.exchanges[e];
  if (!Running(e) || exchange.complete || exchange.asked || exchange.keys_asked || Asking(e)) return false;
  if (Has(exchange.keys, options.rails)) return false;
  return exchange.pool_chunks != 0 || exchange.pool_weight != 0 || exchange.spread_due;
}

// A REHOME that names no failed connection asks for keys.
void Rules::AskForKeys() {
  if (options.transport != kKeys || options.returns == 0 || s_.rehome_out || Wrong(kNoRekey)) return;
  if (!BelievedUp(options.rails)) return;
  for (int c = 0; c < options.rails; ++c) {
    if (BelievedUp(c)) return;
  }
  State next = s_;
  Message message{};
  message.kind = kRehome;
  for (int e = 0; e < kExchanges; ++e) {
    if (!NeedsKeys(e)) continue;
    message.exchanges |= Bit(e);
    next.exchanges[e].asked = 1;
    next.exchanges[e].keys_asked = 1;
  }
  if (message.exchanges == 0) return;
  next.rehome_out = 1;
  Send(&next.to_receiver, message);
  Add(next, kMust, nullptr, [&] {
    return Format("the sender asks for keys: REHOME without failed rails, %s",
                  ExchangeNames(message.exchanges).c_str());
  });
}

void Rules::TakeAtSender() {
  if (s_.to_sender.count == 0) return;
  const Message message = s_.to_sender.messages[0];
  State next = s_;
  Take(&next.to_sender);
  const char* violation = nullptr;
  if (message.kind == kAnswer) {
    violation = TakeAnswer(&next, message);
  } else {
    TakeAbort(&next, message.exchanges == 1 ? 0 : kExchanges - 1);
  }
  Add(next, kMust, violation, [&] {
    return Format("the sender takes %s of %s", message.kind == kAnswer ? "the answer" : "ABORT",
                  ExchangeNames(message.exchanges).c_str());
  });
}

bool Rules::ReadsMemory(int e) const {
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Share& piece = share(e, c);
    if (s_.connections[c].life != kUp) continue;
    if (piece.unposted != 0) return true;
    for (int i = 0; i < piece.posted_count; ++i) {
      if (!IsFence(piece.posted[i])) return true;
    }
    for (int i = 0; i < piece.command_count; ++i) {
      if (piece.commands[i].kind == kGive && piece.commands[i].chunks != 0) return true;
    }
  }
  return false;
}

// Returns whether every chunk is acknowledged, whatever fences say; for a wrong variant.
bool Rules::AllAcknowledged(int e) const {
  bool all = s_.exchanges[e].pool_chunks == 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Share& piece = share(e, c);
    all &= piece.unposted == 0 && piece.lost == 0 && piece.command_count == 0 && piece.answer.kind == kNoCommand;
    for (int i = 0; i < piece.posted_count; ++i) all &= s_.connections[c].life != kUp || IsFence(piece.posted[i]);
  }
  return all;
}

void Rules::FinishSender(int e) {
  const Exchange& exchange = s_.exchanges[e];
  if (!Running(e)) return;
  bool done = exchange.acknowledged == options.weight && !exchange.spread_due;
  if (Wrong(kDoneByChunks)) done = AllAcknowledged(e);
  bool outstanding = false;
  for (int c = 0; c < ConnectionCount(); ++c) {
    outstanding |= s_.connections[c].life == kUp && share(e, c).posted_count > 0;
  }
  if (exchange.complete) done = !outstanding || Wrong(kCompleteAtOnce);
  for (const Share& piece : exchange.shares) done &= piece.lost_fence == 0;
  if (!done) return;
  State next = s_;
  next.exchanges[e].sender = kDone;
  const bool in_round = exchange.receiver_round == exchange.round && !exchange.asked;
  const bool stopped = exchange.receiver == kAborting || exchange.receiver == kAborted;
  const bool certain = exchange.receiver == kDone || (exchange.whole && (stopped || in_round)) ||
                       (options.transport == kKeys && stopped);
  const char* violation = nullptr;
  if (ReadsMemory(e)) violation = "S3: the sender's memory is still read after it is done";
  if (!certain)
    violation = stopped ? "S3: the sender is done with bytes that the receiver has refused"
                        : "S3: the sender is done and the receiver may never be";
  Add(next, kMust, violation, [&] { return Format("the sender is done with %s", ExchangeNames(Bit(e)).c_str()); });
}

void Rules::AbortSender(int e) {
  if (!Running(e) || s_.aborts == 0) return;
  State next = s_;
  --next.aborts;
  next.exchanges[e].aborted = 1;
  BeginAbort(&next, e);
  Message message{};
  message.kind = kAbort;
  message.exchanges = Bit(e);
  Send(&next.to_receiver, message);
  Add(next, kMay, nullptr,
      [&] { return Format("the sender aborts %s, and sends ABORT", ExchangeNames(Bit(e)).c_str()); });
}

// All rails have stopped: their posts are acknowledged, or the connection has been ended.
void Rules::SettleAbort(int e) {
  const Exchange& exchange = s_.exchanges[e];
  if (exchange.sender != kAborting) return;
  for (int c = 0; c < ConnectionCount() && !Wrong(kQuiescedEarly); ++c) {
    const Share& piece = share(e, c);
    if (s_.connections[c].life == kFailed) return;
    if (s_.connections[c].life == kUp && piece.was_given && (!piece.cancelled || piece.posted_count > 0)) return;
  }
  State next = s_;
  const bool says = exchange.quiesced_owed || options.unasked != 0;
  next.exchanges[e].sender = kAborted;
  next.exchanges[e].quiesced_owed = 0;
  if (says) SendQuiesced(&next, e, false);
  Add(next, kMust, ReadsMemory(e) ? "S3: the sender's memory is still read after it has aborted" : nullptr, [&] {
    return Format("the sender has stopped %s%s", ExchangeNames(Bit(e)).c_str(), says ? ", and says QUIESCED" : "");
  });
}

}  // namespace model::exchange
