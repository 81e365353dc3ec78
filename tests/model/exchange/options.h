// Sizes of a run, and the rules that it leaves out.

#pragma once

#include <cstdint>

#include "tests/model/exchange/state.h"

namespace model::exchange {

enum Transport {
  kKeys,  // The sender's device writes: bytes on a failed wire land until the receiver has ended its end (verbs).
  kGate,  // The receiver's thread places the bytes and looks at the zone's gate first (TCP).
};

struct Options {
  int transport = kKeys;
  int rails = 2;
  int chunks[2] = {2, 1};  // of each exchange
  int weight = 3;          // of each exchange
  int failures = 1;        // of connections, at either end
  int returns = 0;         // of a failed rail as a new generation: 0 or 1
  int releases = 0;        // requests to release
  int aborts = 0;
  int force = 0;    // 1: an aborting receiver may end all connections instead of waiting for QUIESCED
  int unasked = 1;  // 0: senders say QUIESCED only after an ABORT, and so receivers send ABORT back
  int rounds = 8;   // numbers of rounds that there are
  int sums = 1;     // 0: only damage is looked for, not sums of weights, credit or the number of REHOMEs
  int limit = 60'000'000;
  int quiet = 0;
  std::uint64_t variants = 0;
};
extern Options options;

// Variants leave one rule out each. README.md says which rule, and what goes wrong.
#define EXCHANGE_VARIANTS(V)                                                                                           \
  V(kSplitKeepsWeight, "split_keeps_weight")                /* A released piece takes no weight along. */              \
  V(kReleaseLastWeight, "release_last_weight")              /* A rail that must fence releases all of its weight. */   \
  V(kFenceWithoutCredit, "fence_without_credit")            /* A fence is posted before the last is acknowledged. */   \
  V(kDoneByChunks, "done_by_chunks")                        /* All chunks are acknowledged, so the sender is done. */  \
  V(kRefusedCounts, "refused_counts")                       /* Acknowledgements do not say "refused". */               \
  V(kEveryFenceAcknowledged, "every_fence_acknowledged")    /* Fences on failed rails are waited for, too. */          \
  V(kLandedBytesExact, "landed_bytes_exact")                /* Landed bytes must equal the length in every round. */   \
  V(kRepostUnasked, "repost_unasked")                       /* Lost chunks are posted again without REHOME. */         \
  V(kDeadRailReturnsWeight, "dead_rail_returns_weight")     /* Unposted chunks bring their weight back. */             \
  V(kBounceReturnsWeight, "bounce_returns_weight")          /* Commands to a failed rail bring their weight back. */   \
  V(kRehomeByChunks, "rehome_by_chunks")                    /* REHOME looks at chunks only, not at fences. */          \
  V(kFirstFenceSettles, "first_fence_settles")              /* REHOME leaves out a rail with a fence acknowledged. */  \
  V(kReuseBeforeAnswer, "reuse_before_answer")              /* A rail that is back is used before the answer. */       \
  V(kSecondRehome, "second_rehome")                         /* REHOME is sent while another is outstanding. */         \
  V(kReceiverDoesNotEnd, "receiver_does_not_end")           /* OPEN is answered without ending connections. */         \
  V(kRoundNotRaised, "round_not_raised")                    /* OPEN keeps the round. */                                \
  V(kArrivedWeightKept, "arrived_weight_kept")              /* OPEN raises the round and keeps the weights. */         \
  V(kRoundReused, "round_reused")                           /* Round numbers wrap around. */                           \
  V(kUseWithoutKey, "use_without_key")                      /* A new generation is used with the old keys. */          \
  V(kNoRekey, "no_rekey")                                   /* Keys are never asked for. */                            \
  V(kCompleteAtOnce, "complete_at_once")                    /* COMPLETE ends a sender that has posts outstanding. */   \
  V(kCompleteForgotten, "complete_forgotten")               /* A receiver that is done keeps no tombstone. */          \
  V(kSpreadDespiteFailure, "spread_despite_failure")        /* Weight is spread though a failure is unasked. */        \
  V(kSpreadDuringRelease, "spread_during_release")          /* Weight is spread during a release. */                   \
  V(kSpreadDuringBounce, "spread_during_bounce")            /* Weight is spread while commands are coming back. */     \
  V(kOldWeightKept, "old_weight_kept")                      /* A rail adds new weight to that of an old round. */      \
  V(kPoolWeightKept, "pool_weight_kept")                    /* The engine's own weight survives a new round. */        \
  V(kNoSecondFence, "no_second_fence")                      /* Rails that have fenced do not fence again. */           \
  V(kQuiescedEarly, "quiesced_early")                       /* QUIESCED does not wait until the posts have stopped. */ \
  V(kQuiescedNamesNothing, "quiesced_names_nothing")        /* QUIESCED names no failed generation. */                 \
  V(kQuiescedByRehome, "quiesced_by_rehome")                /* QUIESCED names only failures that a REHOME named. */    \
  V(kTombstoneNamesNothing, "tombstone_names_nothing")      /* A sender that has ended names no failure. */            \
  V(kAbortNotReturned, "abort_not_returned")                /* Nobody asks for QUIESCED, nobody says it unasked. */    \
  V(kAbortedBlocksAnswer, "aborted_blocks_answer")          /* No answer to a REHOME that names an aborted one. */     \
  V(kAbortEndsRehome, "abort_ends_rehome")                  /* An abort forgets the REHOME that names it. */           \
  V(kRehomeNamesOne, "rehome_names_one")                    /* REHOME names one exchange only. */                      \
  V(kFirstAnswerForAll, "first_answer_for_all")             /* The first exchange's answer is taken for all. */        \
  V(kQuiescedStandsForRehome, "quiesced_stands_for_rehome") /* Failures in a QUIESCED are not asked about. */          \
  /* Not wrong. */                                                                                                     \
  V(kReuseByGeneration, "reuse_by_generation") /* Books by generation, so reuse need not wait. */                      \
  V(kDeadRailKeepsOne, "dead_rail_keeps_one")  /* Unposted chunks bring all weight but one back. */

enum Variant {
#define V(name, text) name,
  EXCHANGE_VARIANTS(V)
#undef V
      kVariants
};

inline bool Wrong(Variant variant) { return (options.variants >> variant & 1) != 0; }

inline int AllChunks(int exchange) { return (1 << options.chunks[exchange]) - 1; }
inline int ConnectionCount() { return options.rails + options.returns; }

}  // namespace model::exchange
