// Visits every state of the exchanges from one node to another. run.py beside this folder names the checks and what
// must come of them; ../README.md says what the properties S1 to L2 are.
//
// Use:   check [NAME=NUMBER ...] [transport=keys|gate] [variant=NAME ...] [quiet=1]
//        The names are those of `Options` (options.h), and `chunks2` for the second exchange.
// Exit:  0 every property holds, 1 one is broken, 2 the search did not end or an argument is wrong.

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "tests/model/exchange/options.h"
#include "tests/model/exchange/rules.h"
#include "tests/model/exchange/state.h"
#include "tests/model/search.h"

namespace model::exchange {

Options options;

void Rules::AddAll() {
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Byte life = s_.connections[c].life;
    if (life == kAbsent) continue;
    for (int e = 0; e < kExchanges; ++e) {
      if (life == kUp) {
        TakeCommand(e, c);
        PostChunks(e, c);
        PostFence(e, c);
        Acknowledge(e, c);
        AskToRelease(e, c);
      }
      Land(e, c);
      HearRelease(e, c);
      Bounce(e, c);
    }
    if (life == kUp) {
      NoticeFailure(c);
      Fail(c);
    }
    HearFailure(c);
  }
  for (int e = 0; e < kExchanges; ++e) {
    GivePool(e);
    Spread(e);
    FinishSender(e);
    AbortSender(e);
    SettleAbort(e);
    FinishReceiver(e);
    AbortReceiver(e);
    ForceReceiver(e);
  }
  SendRehome();
  AskForKeys();
  TakeAtSender();
  TakeAtReceiver();
  ReturnRail();
}

namespace {

// Weight of the sender's round, wherever it is.
int SumOfWeights(const Exchange& exchange) {
  int sum = exchange.pool_weight;
  for (int c = 0; c < ConnectionCount(); ++c) {
    const Share& share = exchange.shares[c];
    if (share.round == exchange.round) sum += share.weight;
    if (share.answer.kind == kReleased && share.answer.round == exchange.round) sum += share.answer.weight;
    for (int i = 0; i < share.command_count; ++i) {
      const Command& command = share.commands[i];
      if (command.kind == kGive && command.round == exchange.round) sum += command.weight;
    }
    for (int i = share.landed; i < share.posted_count; ++i) {
      const Byte item = share.posted[i];
      if (IsFence(item) && RoundOf(item) == exchange.round) sum += WeightOf(item);
    }
  }
  if (exchange.receiver == kRunning && exchange.receiver_round == exchange.round) sum += exchange.arrived_weight;
  return sum;
}

bool OneLives(const State& state) {
  for (int c = 0; c < ConnectionCount(); ++c) {
    if (state.connections[c].life == kUp && state.connections[c].receives) return true;
  }
  return false;
}

// Adds every way to put the chunks and the weight of one exchange on rails.
void HandOut(const State& state, int e, int c, int chunks, int weight, std::vector<State>* roots) {
  if (c == options.rails) {
    if (chunks != options.chunks[e] || weight != 0) return;
    if (e + 1 == kExchanges) return roots->push_back(state);
    return HandOut(state, e + 1, 0, 0, options.weight, roots);
  }
  for (int count = 0; chunks + count <= options.chunks[e]; ++count) {
    const int least = count == 0 ? 0 : 1;
    const int most = count == 0 ? 0 : weight;
    for (int part = least; part <= most; ++part) {
      State next = state;
      Share& share = next.exchanges[e].shares[c];
      share.unposted = static_cast<Byte>(((1 << count) - 1) << chunks);
      share.weight = static_cast<Byte>(part);
      share.was_given = count > 0;
      HandOut(next, e, c + 1, chunks + count, weight - part, roots);
    }
  }
}

struct Model {
  using State = exchange::State;

  static void Roots(std::vector<State>* roots) {
    State empty;
    std::memset(&empty, 0, sizeof empty);
    empty.failures = static_cast<Byte>(options.failures);
    empty.returns = static_cast<Byte>(options.returns);
    empty.releases = static_cast<Byte>(options.releases);
    empty.aborts = static_cast<Byte>(options.aborts);
    for (int c = 0; c < options.rails; ++c) {
      empty.connections[c] = {kUp, 1, 0};
      for (Exchange& exchange : empty.exchanges) exchange.keys |= Bit(c);
    }
    HandOut(empty, 0, 0, 0, options.weight, roots);
  }

  static void AddMoves(const State& state, Moves<State>* moves) { Rules(state, moves).AddAll(); }

  static State Canonical(const State& state) { return exchange::Canonical(state); }

  static const char* Violation(const State& state) {
    if (options.sums == 0) return nullptr;
    for (const Exchange& exchange : state.exchanges) {
      if (exchange.sender != kRunning || exchange.spread_due) continue;
      const int sum = SumOfWeights(exchange);
      if (sum > options.weight) return "S4: the weights of a round add up to more than the whole";
      if (sum != options.weight && state.failures == options.failures && exchange.receiver == kRunning) {
        return "S4: weight is lost though no rail has failed";
      }
    }
    return nullptr;
  }

  static const char* Stuck(const State& state) {
    for (const Exchange& exchange : state.exchanges) {
      if (exchange.aborted && !(IsOver(exchange.sender) && IsOver(exchange.receiver))) {
        return "L2: stuck after an abort";
      }
      if (!exchange.aborted && !(exchange.sender == kDone && exchange.receiver == kDone) && OneLives(state)) {
        return "L1: stuck though a rail lives";
      }
    }
    return nullptr;
  }

  static std::string Describe(const State& state) {
    std::string text;
    for (int e = 0; e < kExchanges; ++e) {
      text += ExchangeNames(Bit(e)) + ":";
      for (int c = 0; c < options.rails; ++c) {
        const Share& share = state.exchanges[e].shares[c];
        text += Format(" rail %d has chunks %s with weight %d;", c, ChunkNames(share.unposted).c_str(), share.weight);
      }
      text += " ";
    }
    return text;
  }
};

struct Number {
  const char* name;
  int least;
  int most;
  int* value;
};

bool ReadArgument(std::string_view argument) {
  const Number numbers[] = {
      {"rails", 1, 3, &options.rails},           {"chunks", 1, 4, &options.chunks[0]},
      {"chunks2", 1, 4, &options.chunks[1]},     {"weight", 1, 15, &options.weight},
      {"failures", 0, 9, &options.failures},     {"returns", 0, 1, &options.returns},
      {"releases", 0, 9, &options.releases},     {"aborts", 0, 9, &options.aborts},
      {"force", 0, 1, &options.force},           {"unasked", 0, 1, &options.unasked},
      {"rounds", 1, 8, &options.rounds},         {"sums", 0, 1, &options.sums},
      {"limit", 1, 100'000'000, &options.limit}, {"quiet", 0, 1, &options.quiet},
  };
  for (const Number& number : numbers) {
    if (ReadNumber(argument, number.name, number.least, number.most, number.value)) return true;
  }
  const char* const variants[] = {
#define V(name, text) text,
      EXCHANGE_VARIANTS(V)
#undef V
  };
  for (unsigned variant = 0; variant < kVariants; ++variant) {
    if (argument != std::string("variant=") + variants[variant]) continue;
    options.variants |= std::uint64_t{1} << variant;
    return true;
  }
  options.transport = argument == "transport=gate" ? kGate : kKeys;
  return argument == "transport=gate" || argument == "transport=keys";
}

}  // namespace
}  // namespace model::exchange

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!model::exchange::ReadArgument(arguments[i])) {
      std::fprintf(stderr, "unknown argument: %s\n", arguments[i]);
      return 2;
    }
  }
  const auto& options = model::exchange::options;
  return model::Search<model::exchange::Model>().Run(static_cast<std::uint64_t>(options.limit), options.quiet == 0);
}
