// Visits every state of a few nodes that run jobs. run.py beside this folder names the checks and what must come of
// them; ../README.md says what the properties S1 to L2 are.
//
// Use:   check [NAME=NUMBER ...] [variant=NAME ...] [quiet=1]
//        The names are those of `Options` (state.h).
// Exit:  0 every property holds, 1 one is broken, 2 the search did not end or an argument is wrong.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/model/ready/state.h"
#include "tests/model/search.h"

namespace model::ready {

Options options;

namespace {

void Tidy(State* state) {
  for (int j = 0; j < options.jobs; ++j) {
    bool over = true;
    for (int n = 0; n < options.nodes; ++n) {
      const Byte life = state->members[j][n].life;
      over &= life == kDone || life == kFailed;
      if (life != kDone && life != kFailed && life != kAborting) continue;
      for (Pair& pair : state->pairs[j][n]) {
        pair.ready = pair.holds = 0;
        if (pair.arrived == kKeptEager) pair.arrived = kMissing;
      }
      if (life == kAborting) continue;
      for (Pair& pair : state->pairs[j][n]) pair.quiesced = 0;
    }
    // A job that is over everywhere can only bring QUIESCED.
    if (!over) continue;
    for (auto& pairs : state->pairs[j]) {
      for (Pair& pair : pairs) pair.data = pair.arrived = 0;
    }
  }
}

State Rename(const State& state, const int* nodes, bool swap_jobs) {
  State renamed = state;
  for (int j = 0; j < options.jobs; ++j) {
    const int old = swap_jobs ? 1 - j : j;
    renamed.aborted[j] = state.aborted[old];
    for (int n = 0; n < options.nodes; ++n) {
      renamed.members[j][n] = state.members[old][nodes[n]];
      for (int p = 0; p < options.nodes; ++p) renamed.pairs[j][n][p] = state.pairs[old][nodes[n]][nodes[p]];
    }
  }
  for (int n = 0; n < options.nodes; ++n) {
    renamed.programs[n] = state.programs[nodes[n]];
    if (swap_jobs) renamed.programs[n].first ^= 1;
    for (int p = 0; p < options.nodes; ++p) {
      Queue& queue = renamed.links[n][p];
      queue = state.links[nodes[n]][nodes[p]];
      for (int i = 0; i < queue.count && swap_jobs; ++i) queue.messages[i].job ^= 1;
    }
  }
  return renamed;
}

// Renaming these nodes leaves the traffic and the mistake as they are.
bool MayRename(const int* nodes) {
  for (int n = 0; n < options.nodes; ++n) {
    if (SendsEagerly(0, n) != SendsEagerly(0, nodes[n]) || RailsOnly(n) != RailsOnly(nodes[n])) return false;
    for (int p = 0; p < options.nodes; ++p) {
      if (n == p) continue;
      if (HasBytes(n, p) != HasBytes(nodes[n], nodes[p])) return false;
      if (LengthsDiffer(0, n, p) != LengthsDiffer(0, nodes[n], nodes[p])) return false;
    }
  }
  return true;
}

// Two programs that wait for each other's second job would never end, whatever the protocol does.
bool IsPossible(const State& state) {
  for (const Program& a : state.programs) {
    for (const Program& b : state.programs) {
      if (a.waits && b.waits && a.first != b.first) return false;
    }
  }
  return true;
}

struct Model {
  using State = ready::State;

  static void Roots(std::vector<State>* roots) {
    State empty;
    std::memset(&empty, 0, sizeof empty);
    empty.aborts = static_cast<Byte>(options.aborts);
    empty.expiries = static_cast<Byte>(options.expiries);
    for (int j = 0; j < options.jobs; ++j) {
      for (int n = 0; n < options.nodes; ++n) empty.members[j][n].knows = n < options.nodes - options.unknown;
    }
    const int programs = options.jobs == 1 ? 1 : 1 << 2 * options.nodes;
    for (int choice = 0; choice < programs; ++choice) {
      for (int n = 0; n < options.nodes; ++n) {
        empty.programs[n] = {static_cast<Byte>(choice >> 2 * n & 1), static_cast<Byte>(choice >> (2 * n + 1) & 1)};
      }
      if (IsPossible(empty)) roots->push_back(empty);
    }
  }

  static void AddMoves(const State& state, Moves<State>* moves) { ready::AddMoves(state, moves); }

  static State Canonical(const State& state) {
    State tidy = state;
    Tidy(&tidy);
    int nodes[kMaxNodes] = {0, 1, 2};
    State best = tidy;
    do {
      if (!MayRename(nodes)) continue;
      for (const bool swap_jobs : {false, true}) {
        const bool same = options.mistake == 0 && options.size == 1 && options.eager != 3;
        if (swap_jobs && (options.jobs == 1 || !same)) continue;
        const State renamed = Rename(tidy, nodes, swap_jobs);
        if (std::memcmp(&renamed, &best, sizeof best) < 0) best = renamed;
      }
    } while (std::next_permutation(nodes, nodes + options.nodes));
    return best;
  }

  static const char* Violation(const State& state) {
    for (int n = 0; n < options.nodes; ++n) {
      if (UsedCredit(state, n) > options.credit) return "S5: more grants than credit";
    }
    return nullptr;
  }

  static const char* Stuck(const State& state) {
    for (int j = 0; j < options.jobs; ++j) {
      for (int n = 0; n < options.nodes; ++n) {
        const Byte life = state.members[j][n].life;
        if (!state.aborted[j] && life != kDone) return "L1: stuck without an abort";
        if (state.aborted[j] && life != kDone && life != kFailed) return "L2: stuck after an abort";
      }
    }
    return nullptr;
  }

  static std::string Describe(const State& state) {
    std::string text = "no node has submitted anything; ";
    for (int n = 0; n < options.nodes && options.jobs > 1; ++n) {
      const Program& program = state.programs[n];
      text += "node " + std::to_string(n) + " submits job " + std::to_string(program.first) + " first" +
              (program.waits ? " and waits for its end; " : "; ");
    }
    return text;
  }
};

bool ReadArgument(std::string_view argument) {
  const struct {
    const char* name;
    int least;
    int most;
    int* value;
  } numbers[] = {
      {"nodes", 2, kMaxNodes, &options.nodes}, {"jobs", 1, kMaxJobs, &options.jobs},
      {"credit", 1, 99, &options.credit},      {"size", 1, 9, &options.size},
      {"traffic", 0, 2, &options.traffic},     {"unknown", 0, kMaxNodes, &options.unknown},
      {"mistake", 0, 1, &options.mistake},     {"aborts", 0, 9, &options.aborts},
      {"expiries", 0, 9, &options.expiries},   {"unasked", 0, 1, &options.unasked},
      {"eager", 0, 3, &options.eager},         {"strict", 0, 1, &options.strict},
      {"reduce", 0, 1, &options.reduce},       {"limit", 1, 100'000'000, &options.limit},
      {"quiet", 0, 1, &options.quiet},         {"device", 0, 1, &options.device},
  };
  for (const auto& number : numbers) {
    if (ReadNumber(argument, number.name, number.least, number.most, number.value)) return true;
  }
  const char* const variants[] = {
#define V(name, text) text,
      READY_VARIANTS(V)
#undef V
  };
  for (unsigned variant = 0; variant < kVariants; ++variant) {
    if (argument != std::string("variant=") + variants[variant]) continue;
    options.variants |= std::uint64_t{1} << variant;
    return true;
  }
  return false;
}

}  // namespace
}  // namespace model::ready

int main(int count, char** arguments) {
  for (int i = 1; i < count; ++i) {
    if (!model::ready::ReadArgument(arguments[i])) {
      std::fprintf(stderr, "unknown argument: %s\n", arguments[i]);
      return 2;
    }
  }
  const auto& options = model::ready::options;
  return model::Search<model::ready::Model>().Run(static_cast<std::uint64_t>(options.limit), options.quiet == 0);
}
