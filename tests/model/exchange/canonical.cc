// One state for all that differ only in the names of chunks, rails or exchanges, or in what cannot matter any more.

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/model/exchange/options.h"
#include "tests/model/exchange/state.h"

namespace model::exchange {
namespace {

// A late chunk that is in memory already changes nothing, nor does a fence of an older round.
void DropHarmless(const Exchange& exchange, Share* share) {
  if (Wrong(kRoundReused) || Wrong(kLandedBytesExact)) return;
  for (int i = share->posted_count - 1; i >= 0; --i) {
    const Byte item = share->posted[i];
    const bool old = IsFence(item) ? RoundOf(item) < exchange.receiver_round : Has(exchange.in_memory, item);
    if (old) RemovePosted(share, i);
  }
}

void TidyShare(const Exchange& exchange, const Connection& connection, Share* share) {
  const bool up = connection.life == kUp;
  if (!up && !connection.receives) ClearPosted(share);
  if (!up && options.transport == kGate) {
    if (IsOver(exchange.receiver)) ClearPosted(share);
    DropHarmless(exchange, share);
  }
  if (connection.life != kFailed) share->lost_weight = 0;
  if (!up) share->has_posted = share->must_fence = share->settled = 0;
  if (connection.life == kReported) share->round = 0;
  if (exchange.sender != kRunning) {
    share->lost = share->lost_weight = share->lost_fence = 0;
    if (!Wrong(kQuiescedByRehome)) share->question = kNothingToAsk;
    if (share->answer.kind != kNoCommand) share->answer = {kReleased, 0, 0, 0};
  }
  if (IsOver(exchange.sender)) {
    share->was_given = share->has_posted = share->must_fence = share->settled = share->cancelled = share->round = 0;
  }
}

void TidyExchange(State* state, Exchange* exchange) {
  if (exchange->receiver != kRunning) {
    exchange->in_memory = exchange->arrived_weight = exchange->receiver_round = 0;
    if (exchange->receiver == kDone) exchange->whole = 0;
  }
  if (exchange->sender != kRunning) {
    exchange->pool_chunks = exchange->pool_weight = exchange->acknowledged = 0;
    exchange->keys = exchange->keys_asked = exchange->complete = exchange->spread_due = 0;
    exchange->whole = exchange->asked = 0;
  }
  if (IsOver(exchange->sender)) exchange->round = 0;
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (state->connections[c].life != kAbsent) TidyShare(*exchange, state->connections[c], &exchange->shares[c]);
  }
}

void Tidy(State* state) {
  bool running = false;
  bool over = true;
  for (Exchange& exchange : state->exchanges) {
    TidyExchange(state, &exchange);
    running |= exchange.sender == kRunning;
    over &= IsOver(exchange.sender);
  }
  if (!running) state->releases = state->rehome_out = 0;
  if (over) state->failures = state->returns = 0;
}

// A number that does not depend on names: rails with different ones are different.
std::uint64_t KeyOf(const State& state, int c) {
  unsigned char bytes[sizeof(Connection) + kExchanges * (sizeof(Share) + 2) + 2 * kMaxMessages + 1] = {};
  unsigned char* at = bytes;
  const auto add = [&](const void* data, std::size_t size) {
    std::memcpy(at, data, size);
    at += size;
  };
  add(&state.connections[c], sizeof(Connection));
  std::uint64_t sum = 0;
  for (int e = 0; e < kExchanges; ++e) {
    const Exchange& exchange = state.exchanges[e];
    Share share = exchange.shares[c];
    const auto count = [&](Byte mask) {
      const int in_memory = CountBits(mask & exchange.in_memory);
      return static_cast<Byte>(CountBits(mask) | in_memory << 4);
    };
    share.unposted = count(share.unposted);
    share.lost = count(share.lost);
    share.answer.chunks = count(share.answer.chunks);
    for (int i = 0; i < share.command_count; ++i) share.commands[i].chunks = count(share.commands[i].chunks);
    for (int i = 0; i < share.posted_count; ++i) {
      if (!IsFence(share.posted[i])) share.posted[i] = Has(exchange.in_memory, share.posted[i]);
    }
    const Byte rest[2] = {static_cast<Byte>(exchange.release_from == c + 1), static_cast<Byte>(Has(exchange.keys, c))};
    unsigned char part[sizeof share + sizeof rest];
    std::memcpy(part, &share, sizeof share);
    std::memcpy(part + sizeof share, rest, sizeof rest);
    sum += HashBytes(part, sizeof part);  // a sum, because exchanges may change places
  }
  add(&sum, sizeof sum);
  for (const Queue* queue : {&state.to_receiver, &state.to_sender}) {
    for (int i = 0; i < queue->count; ++i) {
      const Message& message = queue->messages[i];
      Byte named = Has(message.connections, c);
      for (const Answer& answer : message.answers) named = static_cast<Byte>(named + (Has(answer.keys, c) ? 2 : 0));
      add(&named, 1);
    }
  }
  const Connection& last = state.connections[options.rails];
  const Byte returned = options.returns > 0 && last.life != kAbsent && last.rail == c;
  add(&returned, 1);
  return HashBytes(bytes, sizeof bytes);
}

// order[i]: the rail that becomes rail i.
State RenameRails(const State& state, const int* order) {
  State renamed = state;
  int name[kMaxConnections] = {0, 1, 2, 3};
  for (int i = 0; i < options.rails; ++i) name[order[i]] = i;
  const auto mask = [&](Byte old) {
    Byte fresh = 0;
    for (int c = 0; c < kMaxConnections; ++c) {
      if (Has(old, c)) fresh |= Bit(name[c]);
    }
    return fresh;
  };
  for (int i = 0; i < options.rails; ++i) renamed.connections[i] = state.connections[order[i]];
  Connection& last = renamed.connections[options.rails];
  if (options.returns > 0 && last.life != kAbsent) last.rail = static_cast<Byte>(name[last.rail]);
  for (int e = 0; e < kExchanges; ++e) {
    Exchange& exchange = renamed.exchanges[e];
    for (int i = 0; i < options.rails; ++i) exchange.shares[i] = state.exchanges[e].shares[order[i]];
    if (exchange.release_from != 0) exchange.release_from = static_cast<Byte>(1 + name[exchange.release_from - 1]);
    exchange.keys = mask(exchange.keys);
  }
  for (Queue* queue : {&renamed.to_receiver, &renamed.to_sender}) {
    for (int i = 0; i < queue->count; ++i) {
      queue->messages[i].connections = mask(queue->messages[i].connections);
      for (Answer& answer : queue->messages[i].answers) answer.keys = mask(answer.keys);
    }
  }
  return renamed;
}

// The place of each chunk as a number: chunks with equal numbers can be exchanged for each other.
void FindPlaces(const Exchange& exchange, int chunks, std::uint64_t* places) {
  const auto mix = [&](int chunk, std::uint64_t value) {
    places[chunk] = (places[chunk] ^ value) * 0x9fb21c651e98df25u;
    places[chunk] ^= places[chunk] >> 29;
  };
  for (int chunk = 0; chunk < chunks; ++chunk) {
    mix(chunk, 1u + Has(exchange.in_memory, chunk) * 2u + Has(exchange.pool_chunks, chunk) * 4u);
    for (int c = 0; c < ConnectionCount(); ++c) {
      const Share& share = exchange.shares[c];
      mix(chunk,
          1u + Has(share.unposted, chunk) * 2u + Has(share.lost, chunk) * 4u + Has(share.answer.chunks, chunk) * 8u);
      for (int i = 0; i < share.command_count; ++i) mix(chunk, 1u + Has(share.commands[i].chunks, chunk));
      for (int i = 0; i < share.posted_count; ++i) mix(chunk, share.posted[i] == chunk ? 2 : 1);
    }
  }
}

void RenameChunks(Exchange* exchange, int chunks) {
  if (chunks < 2) return;
  std::uint64_t places[8] = {};
  FindPlaces(*exchange, chunks, places);
  Byte name[8] = {};
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int other = 0; other < chunks; ++other) {
      const bool before = places[other] < places[chunk] || (places[other] == places[chunk] && other < chunk);
      name[chunk] = static_cast<Byte>(name[chunk] + before);
    }
  }
  const auto rename = [&](Byte* mask) {
    int fresh = 0;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (Has(*mask, chunk)) fresh |= Bit(name[chunk]);
    }
    *mask = static_cast<Byte>(fresh);
  };
  rename(&exchange->in_memory);
  rename(&exchange->pool_chunks);
  for (int c = 0; c < ConnectionCount(); ++c) {
    Share& share = exchange->shares[c];
    rename(&share.unposted);
    rename(&share.lost);
    rename(&share.answer.chunks);
    for (int i = 0; i < share.command_count; ++i) rename(&share.commands[i].chunks);
    for (int i = 0; i < share.posted_count; ++i) {
      if (!IsFence(share.posted[i])) share.posted[i] = name[share.posted[i]];
    }
  }
}

State SwapExchanges(const State& state) {
  State swapped = state;
  std::swap(swapped.exchanges[0], swapped.exchanges[kExchanges - 1]);
  for (Queue* queue : {&swapped.to_receiver, &swapped.to_sender}) {
    for (int i = 0; i < queue->count; ++i) {
      Message& message = queue->messages[i];
      message.exchanges = static_cast<Byte>(message.exchanges >> 1 | (message.exchanges & 1) << 1);
      std::swap(message.answers[0], message.answers[kExchanges - 1]);
    }
  }
  return swapped;
}

void KeepSmaller(State candidate, State* best) {
  for (int e = 0; e < kExchanges; ++e) RenameChunks(&candidate.exchanges[e], options.chunks[e]);
  if (std::memcmp(&candidate, best, sizeof candidate) < 0) *best = candidate;
}

}  // namespace

State Canonical(const State& state) {
  State tidy = state;
  Tidy(&tidy);
  const int rails = options.rails;
  std::uint64_t keys[kMaxConnections] = {};
  for (int c = 0; c < rails; ++c) keys[c] = KeyOf(tidy, c);
  int order[kMaxConnections] = {0, 1, 2, 3};
  State best;
  std::memset(&best, 0xff, sizeof best);
  // Every order of rails that look alike, and both orders of exchanges.
  do {
    if (!std::is_sorted(order, order + rails, [&](int a, int b) { return keys[a] < keys[b]; })) continue;
    const State renamed = RenameRails(tidy, order);
    KeepSmaller(renamed, &best);
    if (kExchanges == 2 && options.chunks[0] == options.chunks[1]) KeepSmaller(SwapExchanges(renamed), &best);
  } while (std::next_permutation(order, order + rails));
  return best;
}

}  // namespace model::exchange
