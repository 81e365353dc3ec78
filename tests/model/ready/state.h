// The state of a few nodes that run jobs of one or two groups; ../README.md says what is modelled.
//
// Every node is a member of every group, and each group runs one job. A *pair* is all that one node has to do with
// another node in one job.

#pragma once

#include <cstdint>
#include <string>

#include "tests/model/search.h"

namespace model::ready {

using Byte = std::uint8_t;

constexpr int kMaxNodes = 3;
constexpr int kMaxJobs = 2;
constexpr int kMaxMessages = 8;

// A job at one node.
enum Life : Byte {
  kIdle,       // not all local ranks have submitted
  kSubmitted,  // READY is sent
  kDone,       // reported done, and the memory is given back
  kAborting,   // waits for QUIESCED
  kFailed,     // reported failed, and the memory is given back
};

struct Member {
  Byte life;
  Byte knows;      // the group's epoch
  Byte submitted;  // local ranks have submitted, whatever came of it
  Byte tombstone;  // the job has been aborted
};

enum PeerReady : Byte { kNotHere, kKept, kCompared };
enum Grant : Byte { kUngranted, kGranted, kReturned };

// Bytes from the node to the peer: one exchange.
enum Data : Byte {
  kNothing,
  kPosted,
  kPlaced,        // in the peer's memory, not acknowledged
  kRefused,       // drained by the peer, not acknowledged
  kAcknowledged,  // the sender holds them for placed
  kDrained,       // the sender knows that they were refused
  // Of an eager exchange, whose bytes ride in READY:
  kRiding,     // on the link
  kDelivered,  // the peer's daemon has READY; the sender has not heard so
};

enum Arrival : Byte {
  kMissing,
  kKeptEager,  // in READY, which waits for the comparison
  kLanded,     // all bytes are in memory; the engine has not heard of it
  kHeard,      // the engine has heard of it, and the grant is returned
};

struct Pair {
  Byte ready;     // PeerReady: READY of the peer
  Byte grant;     // Grant: the node's permission for the peer to write; a granted one takes credit
  Byte holds;     // the peer's grant has come
  Byte data;      // Data, to the peer
  Byte arrived;   // Arrival, of the exchange from the peer
  Byte owes;      // the peer has asked for QUIESCED
  Byte said;      // QUIESCED was said to the peer
  Byte quiesced;  // the peer has said QUIESCED
};

enum MessageKind : Byte {
  kNoMessage,
  kReady,
  kReadyWithGrant,
  kEagerReady,
  kEagerReadyWithGrant,
  kGrant,
  kAbort,
  kQuiesced,
};

inline bool IsReady(Byte kind) { return kind >= kReady && kind <= kEagerReadyWithGrant; }
inline bool IsEager(Byte kind) { return kind == kEagerReady || kind == kEagerReadyWithGrant; }
inline bool BringsGrant(Byte kind) { return kind == kReadyWithGrant || kind == kEagerReadyWithGrant; }

struct Message {
  Byte kind;
  Byte job;
};

// Messages of one link in one direction, oldest first.
struct Queue {
  Byte count;
  Message messages[kMaxMessages];
};

// The order in which the ranks of a node submit their jobs.
struct Program {
  Byte first;  // job
  Byte waits;  // the other job is submitted when the first has ended
};

struct State {
  Member members[kMaxJobs][kMaxNodes];
  Pair pairs[kMaxJobs][kMaxNodes][kMaxNodes];
  Queue links[kMaxNodes][kMaxNodes];  // from, to
  Program programs[kMaxNodes];
  Byte aborted[kMaxJobs];
  // Events that may still happen.
  Byte aborts;
  Byte expiries;
};

struct Options {
  int nodes = 2;
  int jobs = 2;
  int credit = 2;    // of each node, for grants
  int eager = 0;     // whose bytes ride in READY: 1: those of node 0; 2: everybody's; 3: everybody's in job 0
  int device = 0;    // 1: node 1 receives into memory of a device, and its READY says that only rails reach it
  int size = 1;      // units of credit that a grant of job 1 takes; one of job 0 takes 1
  int traffic = 0;   // 0: every node sends to every other; 1: nodes 0 and 1 to each other; 2: each node to the next
  int unknown = 0;   // nodes that do not know the epochs at first
  int mistake = 0;   // 1: nodes 0 and 1 disagree on lengths in job 0
  int aborts = 0;    // by any node, at any moment
  int expiries = 0;  // READYs of unknown epochs that are dropped
  int unasked = 0;   // 1: QUIESCED is said unasked, and ABORT is not returned to the member that told
  int strict = 0;    // 1: no member at all may be done with a job in which lengths differ
  int reduce = 1;    // 0: also states that differ only in the order of moves that commute
  int limit = 60'000'000;
  int quiet = 0;
  std::uint64_t variants = 0;
};
extern Options options;

// Variants leave one rule out each. README.md says which rule, and what goes wrong.
#define READY_VARIANTS(V)                                                                                    \
  V(kReadyWaitsForCredit, "ready_waits_for_credit")   /* READY is sent when it can carry every grant. */     \
  V(kReadyToPartners, "ready_to_partners")            /* READY goes only to nodes with bytes in common. */   \
  V(kGrantAlwaysRides, "grant_always_rides")          /* The grant rides while any credit is left. */        \
  V(kHalfBefore, "half_before")                       /* Half is looked at before the grant, not with it. */ \
  V(kHalfPerJob, "half_per_job")                      /* Half is looked at once for all grants of a job. */  \
  V(kSendingWaitsForZones, "sending_waits_for_zones") /* A node sends when it has granted all. */            \
  V(kSendUncompared, "send_uncompared")               /* Bytes do not wait for the comparison. */            \
  V(kEarlyReadyLost, "early_ready_lost")              /* READY of an unknown epoch is dropped silently. */   \
  V(kKnownReadyExpires, "known_ready_expires")        /* READY of a known epoch is dropped silently. */      \
  V(kParsedOutOfOrder, "parsed_out_of_order")         /* Short messages overtake READYs. */                  \
  V(kRefusedCounts, "refused_counts")                 /* Acknowledgements do not say "refused". */           \
  V(kMemoryBackAtOnce, "memory_back_at_once")         /* The memory of an aborted job does not wait. */      \
  V(kQuiescedEarly, "quiesced_early")                 /* QUIESCED does not wait for posts. */                \
  V(kNoTombstone, "no_tombstone")                     /* An ABORT of an unknown job is forgotten. */         \
  V(kUnknownAbortIgnored, "unknown_abort_ignored")    /* An ABORT of an unknown job is not answered. */      \
  V(kDoneAbortIgnored, "done_abort_ignored")          /* An ABORT of a done job is not answered. */          \
  V(kAbortNotRelayed, "abort_not_relayed")            /* ABORT goes only to the member that told. */         \
  V(kAbortNotReturned, "abort_not_returned")          /* ABORT goes to all but the member that told. */      \
  V(kHoldersOnly, "holders_only")                     /* Only holders of a grant say QUIESCED unasked. */    \
  V(kTombstoneSilent, "tombstone_silent")             /* READYs that meet a tombstone are not answered. */   \
  V(kEagerDoneAtOnce, "eager_done_at_once")           /* The sender does not wait until READY is taken. */   \
  V(kEagerUncompared, "eager_uncompared")             /* Eager bytes are copied when READY comes. */         \
  V(kEagerUnsubmitted, "eager_unsubmitted")           /* They are copied before local ranks submit. */       \
  V(kEagerAndGrant, "eager_and_grant")                /* A grant is used though the bytes rode along. */     \
  V(kEagerKeepsGrant, "eager_keeps_grant")            /* A grant that was not needed is not returned. */     \
  V(kEagerGuessed, "eager_guessed")                   /* A receiver that expects such bytes never grants. */ \
  V(kEagerNotTakenBack, "eager_not_taken_back")       /* A device does not change that. */

enum Variant {
#define V(name, text) name,
  READY_VARIANTS(V)
#undef V
      kVariants
};

inline bool Wrong(Variant variant) { return (options.variants >> variant & 1) != 0; }

inline bool HasBytes(int from, int to) {
  if (options.traffic == 1) return from < 2 && to < 2;
  if (options.traffic == 2) return to == (from + 1) % options.nodes;
  return true;
}

inline bool LengthsDiffer(int job, int a, int b) { return options.mistake != 0 && job == 0 && a < 2 && b < 2; }

// The bytes that the node sends in the job ride in READY. It also expects such bytes before it knows better.
inline bool SendsEagerly(int job, int node) {
  return options.eager == 2 || (options.eager == 1 && node == 0) || (options.eager == 3 && job == 0);
}

// Eager bytes for the node are ignored, and rails carry them.
inline bool RailsOnly(int node) { return options.device != 0 && node == 1; }

inline int SizeOfGrant(int job) { return job == 1 ? options.size : 1; }

// Credit that the grants of a node take.
int UsedCredit(const State& state, int node);

// Adds every move that is possible in a state.
void AddMoves(const State& state, Moves<State>* moves);

// One state for all that differ in names of nodes or jobs, or in what cannot matter any more.
State Canonical(const State& state);

}  // namespace model::ready
