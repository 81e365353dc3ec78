// The rail's thread at the sender, the wire, and the receiver's end of a connection.

#include "tests/model/exchange/rules.h"

namespace model::exchange {
namespace {

// The rail's thread ends its end of an exchange's share and knows what was not acknowledged.
void EndShare(Share* share, bool receives) {
  int lost = 0;
  int weight = share->weight;
  for (int i = 0; i < share->posted_count; ++i) {
    const Byte item = share->posted[i];
    if (IsFence(item) && Wrong(kEveryFenceAcknowledged)) share->lost_fence = 1;
    if (!IsFence(item)) {
      lost |= Bit(item);
    } else if (RoundOf(item) == share->round) {
      weight += WeightOf(item);
    }
  }
  share->lost = static_cast<Byte>(lost);
  share->lost_weight = static_cast<Byte>(weight);
  const bool in_doubt = Wrong(kRehomeByChunks) ? lost != 0 : share->posted_count > 0 || share->must_fence;
  share->question = in_doubt && !share->settled ? kToAsk : kNothingToAsk;
  for (; share->landed > 0; --share->landed) RemovePosted(share, 0);
  if (!receives) ClearPosted(share);
}

void EndSendersEnd(State* next, int c) {
  next->connections[c].life = kFailed;
  for (Exchange& exchange : next->exchanges) EndShare(&exchange.shares[c], next->connections[c].receives);
}

}  // namespace

void Rules::TakeCommand(int e, int c) {
  if (share(e, c).command_count == 0) return;
  const Command command = share(e, c).commands[0];
  State next = s_;
  Share& n = next.exchanges[e].shares[c];
  PopCommand(&n);
  if (command.kind == kRelease) return AnswerRelease(e, c, next);
  if (command.kind == kCancel) {
    n.unposted = 0;
    n.weight = 0;
    n.must_fence = 0;
    n.cancelled = 1;
    return Add(next, kMust, nullptr,
               [&] { return Format("%s cancels %s", ConnectionName(s_, c).c_str(), ExchangeNames(Bit(e)).c_str()); });
  }
  if (command.round != n.round) {
    // The weight of an older round is void. A rail that has posted anything fences in every round.
    n.round = command.round;
    n.settled = 0;
    if (!Wrong(kOldWeightKept)) n.weight = 0;
    n.must_fence = Wrong(kReleaseLastWeight) ? 0 : n.has_posted;
  }
  n.weight = static_cast<Byte>(n.weight + command.weight);
  n.unposted |= command.chunks;
  Add(next, kMust, nullptr, [&] {
    return Format("%s takes up chunks %s of %s with weight %d of round %d", ConnectionName(s_, c).c_str(),
                  ChunkNames(command.chunks).c_str(), ExchangeNames(Bit(e)).c_str(), command.weight, command.round);
  });
}

// Any part of the unposted chunks, with a part of the weight. Weight 1 is not split.
void Rules::AnswerRelease(int e, int c, const State& base) {
  const Share& piece = base.exchanges[e].shares[c];
  const std::size_t before = moves_->list().size();
  for (int part = piece.unposted; part > 0; part = (part - 1) & piece.unposted) {
    if (Wrong(kSplitKeepsWeight)) {
      AddRelease(e, c, base, part, 0);
    } else if (part == piece.unposted && piece.must_fence == 0) {
      AddRelease(e, c, base, part, piece.weight);
    } else {
      if (piece.weight > 1) AddRelease(e, c, base, part, 1);
      if (piece.weight > 2) AddRelease(e, c, base, part, piece.weight - 1);
    }
  }
  if (moves_->list().size() == before) AddRelease(e, c, base, 0, 0);
}

void Rules::AddRelease(int e, int c, const State& base, int chunks, int weight) {
  State next = base;
  Share& n = next.exchanges[e].shares[c];
  n.unposted = static_cast<Byte>(n.unposted & ~chunks);
  n.weight = static_cast<Byte>(n.weight - weight);
  n.answer = {kReleased, n.round, static_cast<Byte>(weight), static_cast<Byte>(chunks)};
  Add(next, kMust, nullptr, [&] {
    return Format("%s releases chunks %s of %s with weight %d of round %d", ConnectionName(s_, c).c_str(),
                  ChunkNames(chunks).c_str(), ExchangeNames(Bit(e)).c_str(), weight, n.round);
  });
}

void Rules::PostChunks(int e, int c) {
  for (int chunk = 0; chunk < options.chunks[e]; ++chunk) {
    if (!Has(share(e, c).unposted, chunk)) continue;
    State next = s_;
    Share& n = next.exchanges[e].shares[c];
    n.unposted = static_cast<Byte>(n.unposted & ~Bit(chunk));
    n.must_fence = 1;
    n.has_posted = 1;
    Post(&n, static_cast<Byte>(chunk));
    Add(next, kMust, nullptr, [&] {
      return Format("%s posts chunk %c of %s", ConnectionName(s_, c).c_str(), 'a' + chunk,
                    ExchangeNames(Bit(e)).c_str());
    });
  }
}

// The fence follows the last chunk, once the fence before it is acknowledged.
void Rules::PostFence(int e, int c) {
  const Share& piece = share(e, c);
  if (piece.unposted != 0 || piece.weight == 0) return;
  bool credit = true;
  for (int i = 0; i < piece.posted_count; ++i) credit &= !IsFence(piece.posted[i]);
  if (!credit && !Wrong(kFenceWithoutCredit)) return;
  State next = s_;
  Share& n = next.exchanges[e].shares[c];
  Post(&n, Fence(piece.round, piece.weight));
  n.weight = 0;
  n.must_fence = 0;
  Add(next, kMust, credit || options.sums == 0 ? nullptr : "S6: more fences than credit", [&] {
    return Format("%s posts its fence of %s: round %d, weight %d", ConnectionName(s_, c).c_str(),
                  ExchangeNames(Bit(e)).c_str(), piece.round, piece.weight);
  });
}

void Rules::Acknowledge(int e, int c) {
  const Exchange& exchange = s_.exchanges[e];
  if (share(e, c).landed == 0) return;
  const Byte item = share(e, c).posted[0];
  State next = s_;
  Share& n = next.exchanges[e].shares[c];
  RemovePosted(&n, 0);
  --n.landed;
  if (IsFence(item)) {
    if (Wrong(kFirstFenceSettles)) n.settled = 1;
    if (RoundOf(item) == exchange.round && !exchange.spread_due && exchange.sender == kRunning) {
      next.exchanges[e].acknowledged = static_cast<Byte>(exchange.acknowledged + WeightOf(item));
    }
  }
  Add(next, kMust, nullptr, [&] {
    return Format("%s: %s of %s is acknowledged", ConnectionName(s_, c).c_str(), ItemName(item).c_str(),
                  ExchangeNames(Bit(e)).c_str());
  });
}

void Rules::Land(int e, int c) {
  const Exchange& exchange = s_.exchanges[e];
  const Connection& connection = s_.connections[c];
  if (!connection.receives || share(e, c).landed == share(e, c).posted_count) return;
  const Byte item = share(e, c).posted[share(e, c).landed];
  const bool up = connection.life == kUp;
  State next = s_;
  Exchange& x = next.exchanges[e];
  const char* violation = nullptr;
  if (exchange.receiver == kDone && exchange.sender == kRunning && up) {
    violation = "S5: the receiver is done and refuses what comes over a living connection";
  }
  bool refused = false;
  if (IsFence(item)) {
    refused = options.transport == kGate && exchange.receiver != kRunning && !Wrong(kRefusedCounts);
    if (exchange.receiver == kRunning && RoundOf(item) == exchange.receiver_round) {
      x.arrived_weight = static_cast<Byte>(x.arrived_weight + WeightOf(item));
      x.whole = x.arrived_weight >= options.weight;
    }
  } else if (exchange.receiver == kRunning || (exchange.receiver == kAborting && options.transport == kKeys)) {
    x.in_memory |= Bit(item);
    if (Wrong(kLandedBytesExact)) ++x.landings;
  } else if (options.transport == kKeys) {
    violation = "S1: a chunk lands in memory that was given back";
  }
  Share& n = x.shares[c];
  if (!up) {
    RemovePosted(&n, 0);
  } else {
    // The acknowledgement of a refused fence settles no weight.
    if (refused) n.posted[n.landed] = Fence(RoundOf(item), 0);
    ++n.landed;
  }
  Add(next, kMust, violation, [&] {
    return Format("%s: %s of %s %s%s", ConnectionName(s_, c).c_str(), ItemName(item).c_str(),
                  ExchangeNames(Bit(e)).c_str(), refused ? "is refused" : "lands",
                  up ? "" : " late, after the failure");
  });
}

// The sender's end fails, or the receiver's. Items on the wire may land until the receiver's end is ended, too.
void Rules::Fail(int c) {
  bool over = true;
  for (const Exchange& exchange : s_.exchanges) over &= IsOver(exchange.sender);
  if (s_.failures == 0 || over) return;
  State next = s_;
  --next.failures;
  EndSendersEnd(&next, c);
  Add(next, kMay, nullptr, [&] { return Format("%s fails at the sender", ConnectionName(s_, c).c_str()); });
  if (!s_.connections[c].receives) return;
  next = s_;
  --next.failures;
  next.connections[c].receives = 0;
  Add(next, kMay, nullptr, [&] { return Format("%s fails at the receiver", ConnectionName(s_, c).c_str()); });
}

// The receiver's end is gone; the sender's end breaks. Acknowledgements under way may have come before or not.
void Rules::NoticeFailure(int c) {
  if (s_.connections[c].receives) return;
  State next = s_;
  EndSendersEnd(&next, c);
  Add(next, kMust, nullptr, [&] { return Format("%s breaks at the sender, too", ConnectionName(s_, c).c_str()); });
}

void Rules::ReturnRail() {
  bool over = true;
  for (const Exchange& exchange : s_.exchanges) over &= IsOver(exchange.sender);
  if (s_.returns == 0 || over) return;
  for (int rail = 0; rail < options.rails; ++rail) {
    if (s_.connections[rail].life != kReported) continue;
    State next = s_;
    --next.returns;
    next.connections[options.rails] = {kUp, 1, static_cast<Byte>(rail)};
    Add(next, kMay, nullptr, [&] { return Format("rail %d comes back as a new generation", rail); });
  }
}

}  // namespace model::exchange
