// The sender's engine: pieces that it gives to rails, and the weight of a new round.

#include "tests/model/exchange/rules.h"

namespace model::exchange {
namespace {

void Give(State* next, int e, int c, int chunks, int weight) {
  Exchange& exchange = next->exchanges[e];
  exchange.shares[c].was_given = 1;
  PushCommand(&exchange.shares[c], {kGive, exchange.round, static_cast<Byte>(weight), static_cast<Byte>(chunks)});
}

}  // namespace

// A REHOME is due or outstanding, so the round cannot end, or ends with COMPLETE.
bool Rules::Asking(int e) const {
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (s_.connections[c].life == kReported && share(e, c).question != kNothingToAsk) return true;
  }
  return false;
}

// The engine may give something of the exchange to the connection.
bool Rules::Usable(int e, int c) const {
  if (!BelievedUp(c)) return false;
  if (c < options.rails) return true;
  if (options.transport == kKeys && !Wrong(kUseWithoutKey) && !Has(s_.exchanges[e].keys, c)) return false;
  return Wrong(kReuseBeforeAnswer) || Wrong(kReuseByGeneration) ||
         share(e, s_.connections[c].rail).question == kNothingToAsk;
}

void Rules::AskToRelease(int e, int c) {
  const Exchange& exchange = s_.exchanges[e];
  if (s_.releases == 0 || exchange.release_from != 0 || !Running(e) || exchange.complete) return;
  // The counters that the rail publishes say that it has unposted chunks.
  if (!share(e, c).was_given || (share(e, c).unposted == 0 && share(e, c).command_count == 0)) return;
  State next = s_;
  --next.releases;
  next.exchanges[e].release_from = static_cast<Byte>(c + 1);
  PushCommand(&next.exchanges[e].shares[c], {kRelease, 0, 0, 0});
  Add(next, kMay, nullptr, [&] {
    return Format("the engine asks %s to release of %s", ConnectionName(s_, c).c_str(), ExchangeNames(Bit(e)).c_str());
  });
}

void Rules::HearRelease(int e, int c) {
  const Exchange& exchange = s_.exchanges[e];
  const Command answer = share(e, c).answer;
  if (answer.kind == kNoCommand) return;
  State next = s_;
  Exchange& x = next.exchanges[e];
  x.shares[c].answer = {};
  x.release_from = 0;
  if (Running(e)) {
    x.pool_chunks |= answer.chunks;
    // The weight of an older round is void.
    if ((answer.round == exchange.round && !exchange.spread_due) || Wrong(kSpreadDuringRelease)) {
      x.pool_weight = static_cast<Byte>(x.pool_weight + answer.weight);
    }
  }
  Add(next, kMust, nullptr, [&] {
    return Format("the engine takes what %s has released of %s", ConnectionName(s_, c).c_str(),
                  ExchangeNames(Bit(e)).c_str());
  });
}

// All that the engine holds goes to one rail. Chunks may go without weight while the round cannot end anyway.
void Rules::GivePool(int e) {
  const Exchange& exchange = s_.exchanges[e];
  if (!Running(e) || exchange.complete) return;
  const bool weightless = exchange.pool_chunks != 0 && (Asking(e) || Wrong(kSplitKeepsWeight));
  const bool weighted = exchange.pool_weight > 0 && !exchange.spread_due;
  if (!weightless && !weighted) return;
  const int weight = exchange.spread_due ? 0 : exchange.pool_weight;
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (!Usable(e, c)) continue;
    State next = s_;
    Give(&next, e, c, exchange.pool_chunks, weight);
    next.exchanges[e].pool_chunks = 0;
    next.exchanges[e].pool_weight = 0;
    Add(next, kMust, nullptr, [&] {
      return Format("the engine gives %s chunks %s of %s with weight %d of round %d", ConnectionName(s_, c).c_str(),
                    ChunkNames(exchange.pool_chunks).c_str(), ExchangeNames(Bit(e)).c_str(), weight, exchange.round);
    });
  }
}

// The whole weight of a new round goes to the rails that must fence in it: living ones that were given anything, and
// those that take the chunks that no rail holds. The engine waits until no failure is unasked, every release is
// answered and every command to a failed rail has come back.
void Rules::Spread(int e) {
  const Exchange& exchange = s_.exchanges[e];
  if (!exchange.spread_due || !Running(e) || exchange.asked) return;
  if (exchange.release_from != 0 && !Wrong(kSpreadDuringRelease)) return;
  int required = 0;
  int usable = 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Share& piece = share(e, c);
    const bool reported = s_.connections[c].life == kReported;
    if (reported && piece.question == kToAsk && !Wrong(kSpreadDespiteFailure)) return;
    if (reported && piece.command_count > 0 && !Wrong(kSpreadDuringBounce)) return;
    if (!BelievedUp(c)) continue;
    const bool holds = piece.unposted != 0 || piece.must_fence || piece.command_count > 0;
    if (piece.was_given && (!Wrong(kNoSecondFence) || holds)) required |= Bit(c);
    if (Usable(e, c)) usable |= Bit(c);
  }
  const int pool = exchange.pool_chunks;
  if (pool == 0 && required != 0) return SpreadOver(e, required, -1, 0, -1);
  for (int first = 0; first < ConnectionCount(); ++first) {
    if (!Has(usable, first)) continue;
    SpreadOver(e, required | Bit(first), first, pool, -1);
    // One chunk to another rail than the rest.
    for (int second = 0; second < ConnectionCount(); ++second) {
      if (!Has(usable, second) || second == first) continue;
      for (int chunk = 0; chunk < options.chunks[e]; ++chunk) {
        if (!Has(pool, chunk) || pool == Bit(chunk)) continue;
        SpreadOver(e, required | Bit(first) | Bit(second), first, pool & ~Bit(chunk), second);
      }
    }
  }
}

// Each of `connections` gets weight 1, one of them the rest too. `first` gets the chunks `part`, `second` the others.
void Rules::SpreadOver(int e, int connections, int first, int part, int second) {
  const int spare = options.weight - CountBits(connections);
  if (spare < 0) Die("weight for the rails of a round");
  for (int rich = 0; rich < ConnectionCount(); ++rich) {
    if (!Has(connections, rich)) continue;
    State next = s_;
    Exchange& exchange = next.exchanges[e];
    std::string text;
    for (int c = 0; c < ConnectionCount(); ++c) {
      if (!Has(connections, c)) continue;
      const int chunks = c == first ? part : c == second ? exchange.pool_chunks & ~part : 0;
      Give(&next, e, c, chunks, 1 + (c == rich ? spare : 0));
    }
    exchange.pool_chunks = 0;
    exchange.spread_due = 0;
    Add(next, kMust, nullptr, [&] {
      std::string line = Format("the engine spreads round %d of %s:", exchange.round, ExchangeNames(Bit(e)).c_str());
      for (int c = 0; c < ConnectionCount(); ++c) {
        if (!Has(connections, c)) continue;
        const Share& piece = exchange.shares[c];
        const Command& command = piece.commands[piece.command_count - 1];
        line += Format(" %s chunks %s weight %d;", ConnectionName(s_, c).c_str(), ChunkNames(command.chunks).c_str(),
                       command.weight);
      }
      return line;
    });
    if (spare == 0) return;
  }
}

}  // namespace model::exchange
