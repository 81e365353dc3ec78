// The receiver's engine.

#include "tests/model/exchange/rules.h"

namespace model::exchange {
namespace {

// Makes sure that nothing of these connections lands later. On TCP the gates of the zones do that.
void EndReceiversEnds(State* next, int connections) {
  if (options.transport == kGate) return;
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (!Has(connections, c)) continue;
    next->connections[c].receives = 0;
    if (next->connections[c].life == kUp) continue;
    for (Exchange& exchange : next->exchanges) ClearPosted(&exchange.shares[c]);
  }
}

void SendAbort(State* next, int e) {
  Message message{};
  message.kind = kAbort;
  message.exchanges = Bit(e);
  Send(&next->to_sender, message);
}

// An exchange that has used up its rounds fails its job.
bool RoundsAreUsedUp(const Exchange& exchange) {
  return exchange.receiver_round + 1 >= options.rounds && !Wrong(kRoundReused) && !Wrong(kRoundNotRaised);
}

Answer AnswerOne(State* next, int e) {
  Exchange& exchange = next->exchanges[e];
  if (exchange.receiver == kDone && !Wrong(kCompleteForgotten)) return {kComplete, 0, 0};
  if (exchange.receiver == kRunning && RoundsAreUsedUp(exchange)) {
    exchange.receiver = kAborting;
    exchange.aborted = 1;
    SendAbort(next, e);
  }
  if (exchange.receiver != kRunning) return {kGone, 0, 0};
  if (!Wrong(kRoundNotRaised)) {
    exchange.receiver_round = static_cast<Byte>((exchange.receiver_round + 1) % options.rounds);
  }
  if (!Wrong(kArrivedWeightKept)) exchange.arrived_weight = 0;
  exchange.whole = exchange.arrived_weight >= options.weight;
  int keys = 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (next->connections[c].life != kAbsent && next->connections[c].receives) keys |= Bit(c);
  }
  return {kOpen, exchange.receiver_round, static_cast<Byte>(keys)};
}

void TakeRehome(State* next, const Message& question) {
  if (!Wrong(kReceiverDoesNotEnd)) EndReceiversEnds(next, question.connections);
  Message message{};
  message.kind = kAnswer;
  message.exchanges = question.exchanges;
  bool blocked = false;
  for (int e = 0; e < kExchanges; ++e) {
    if (!Has(question.exchanges, e)) continue;
    message.answers[e] = AnswerOne(next, e);
    blocked |= Wrong(kAbortedBlocksAnswer) && message.answers[e].kind == kGone;
  }
  if (!blocked) Send(&next->to_sender, message);
}

std::string AnswerText(const State& next, const Message& question) {
  std::string text =
      Format("the receiver takes REHOME of %s%s; answers:", ConnectionNames(next, question.connections).c_str(),
             options.transport == kKeys && question.connections != 0 ? ", ends its ends" : "");
  const Queue& queue = next.to_sender;
  const Message& answer = queue.messages[queue.count - 1];
  if (queue.count == 0 || answer.kind != kAnswer) return text + " none";
  for (int e = 0; e < kExchanges; ++e) {
    const char* const kinds[] = {nullptr, "OPEN", "COMPLETE", "ABORTED"};
    if (answer.answers[e].kind == kNoAnswer) continue;
    text += Format(" %s %s", ExchangeNames(Bit(e)).c_str(), kinds[answer.answers[e].kind]);
    if (answer.answers[e].kind == kOpen) text += Format(" with round %d", answer.answers[e].round);
    text += ";";
  }
  return text;
}

}  // namespace

void Rules::FinishReceiver(int e) {
  const Exchange& exchange = s_.exchanges[e];
  if (exchange.receiver != kRunning || exchange.arrived_weight < options.weight) return;
  State next = s_;
  next.exchanges[e].receiver = kDone;
  const char* violation = nullptr;
  if (exchange.in_memory != AllChunks(e)) violation = "S2: the receiver is done and a chunk is missing";
  if (Wrong(kLandedBytesExact) && exchange.landings != options.chunks[e]) {
    violation = "S2: the receiver has all chunks and counts more bytes than the length";
  }
  Add(next, kMust, violation,
      [&] { return Format("the receiver is done with %s and gives its memory back", ExchangeNames(Bit(e)).c_str()); });
}

void Rules::AbortReceiver(int e) {
  if (s_.exchanges[e].receiver != kRunning || s_.aborts == 0) return;
  State next = s_;
  --next.aborts;
  next.exchanges[e].aborted = 1;
  next.exchanges[e].receiver = kAborting;
  SendAbort(&next, e);
  Add(next, kMay, nullptr,
      [&] { return Format("the receiver aborts %s, and sends ABORT", ExchangeNames(Bit(e)).c_str()); });
}

// QUIESCED takes too long: the receiver ends every connection.
void Rules::ForceReceiver(int e) {
  if (s_.exchanges[e].receiver != kAborting || options.force == 0) return;
  State next = s_;
  EndReceiversEnds(&next, 0xff);
  next.exchanges[e].receiver = kAborted;
  Add(next, kMay, nullptr, [&] {
    return Format("the receiver ends all connections, gives the memory of %s back", ExchangeNames(Bit(e)).c_str());
  });
}

void Rules::TakeAtReceiver() {
  if (s_.to_receiver.count == 0) return;
  const Message message = s_.to_receiver.messages[0];
  State next = s_;
  Take(&next.to_receiver);
  if (message.kind == kRehome) {
    TakeRehome(&next, message);
    return Add(next, kMust, nullptr, [&] { return AnswerText(next, message); });
  }
  const int e = message.exchanges == 1 ? 0 : kExchanges - 1;
  Exchange& exchange = next.exchanges[e];
  if (message.kind == kAbort) {
    if (exchange.receiver == kRunning) {
      exchange.receiver = kAborting;
      if (options.unasked == 0 && !Wrong(kAbortNotReturned)) SendAbort(&next, e);
    }
  } else if (exchange.receiver == kAborting) {
    EndReceiversEnds(&next, message.connections);
    exchange.receiver = kAborted;
  }
  Add(next, kMust, nullptr, [&] {
    const std::string name = ExchangeNames(Bit(e));
    if (message.kind == kAbort) return Format("the receiver takes ABORT of %s", name.c_str());
    return Format("the receiver takes QUIESCED of %s that names %s, and gives its memory back", name.c_str(),
                  ConnectionNames(s_, message.connections).c_str());
  });
}

}  // namespace model::exchange
