// The rules: moves that are possible in a state. `j` is always a job, `n` a node, `p` its peer.

#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/model/ready/state.h"

namespace model::ready {
namespace {

constexpr int kNobody = -1;

std::string Text(const char* format, int n, int j, int p = 0) {
  char text[200];
  std::snprintf(text, sizeof text, format, n, j, p);
  return text;
}

void Send(State* state, int from, int to, MessageKind kind, int j) {
  Queue& queue = state->links[from][to];
  if (queue.count == kMaxMessages) {
    std::fprintf(stderr, "the model is too small: messages\n");
    std::exit(2);
  }
  queue.messages[queue.count++] = {kind, static_cast<Byte>(j)};
}

void Take(Queue* queue, int at) {
  for (int i = at + 1; i < kMaxMessages; ++i) queue->messages[i - 1] = queue->messages[i];
  queue->messages[kMaxMessages - 1] = {};
  --queue->count;
}

// Posts are acknowledged, or nothing was posted.
bool HasStopped(const Pair& pair) {
  return pair.data == kNothing || pair.data == kAcknowledged || pair.data == kDrained || pair.data == kRiding ||
         pair.data == kDelivered;
}

bool IsOver(Byte life) { return life == kDone || life == kFailed; }

// A READY that meets a tombstone is dropped. Where nobody returns ABORTs, it is answered ABORT and QUIESCED.
void DropReady(State* state, int j, int n, int p) {
  Pair& pair = state->pairs[j][n][p];
  pair.ready = kNotHere;
  pair.holds = 0;
  if (pair.arrived == kKeptEager) pair.arrived = kMissing;
  if (options.unasked == 0 || Wrong(kTombstoneSilent)) return;
  pair.owes = 1;
  Send(state, n, p, kAbort, j);
}

void DropKeptReadys(State* state, int j, int n) {
  for (int p = 0; p < options.nodes; ++p) {
    if (p != n && state->pairs[j][n][p].ready != kNotHere) DropReady(state, j, n, p);
  }
}

// The job ends with an abort at a node that knows its members. `teller` has told it, or is kNobody.
void BeginAbort(State* state, int j, int n, int teller) {
  Member& member = state->members[j][n];
  state->aborted[j] = 1;
  member.tombstone = 1;
  if (member.life == kSubmitted) {
    member.life = kAborting;
  } else {
    DropKeptReadys(state, j, n);
  }
  for (int p = 0; p < options.nodes; ++p) {
    if (p == n) continue;
    bool tells = p != teller || (options.unasked == 0 && !Wrong(kAbortNotReturned));
    if (Wrong(kAbortNotRelayed) && teller != kNobody) tells = p == teller;
    if (tells) Send(state, n, p, kAbort, j);
    Pair& pair = state->pairs[j][n][p];
    if (options.unasked != 0 && (pair.holds || !Wrong(kHoldersOnly))) pair.owes = 1;
  }
}

class Rules {
 public:
  Rules(const State& state, Moves<State>* moves) : s_(state), moves_(moves) {}

  void AddAll() {
    if (options.reduce != 0 && AddUrgent()) return;
    for (int n = 0; n < options.nodes; ++n) {
      for (int j = 0; j < options.jobs; ++j) {
        Learn(j, n);
        Submit(j, n);
        Finish(j, n);
        Abort(j, n);
        GiveBack(j, n);
        for (int p = 0; p < options.nodes; ++p) {
          if (p != n) AddOfPair(j, n, p);
        }
      }
      for (int p = 0; p < options.nodes; ++p) {
        if (p != n) TakeMessages(n, p);
      }
    }
  }

 private:
  void AddOfPair(int j, int n, int p) {
    Compare(j, n, p);
    GiveGrant(j, n, p);
    PostBytes(j, n, p);
    Land(j, n, p);
    Acknowledge(j, n, p);
    HearFence(j, n, p);
    SayQuiesced(j, n, p);
    Expire(j, n, p);
  }

  // Adds the first move, if any, that commutes with every other one and disables none. To make it before all others
  // leaves no violation out, and far fewer states.
  bool AddUrgent() {
    const std::size_t before = moves_->list().size();
    const auto added = [&] { return moves_->list().size() > before; };
    for (int n = 0; n < options.nodes; ++n) {
      for (int j = 0; j < options.jobs; ++j) {
        if (CannotAbort(j)) Finish(j, n);
        if (added()) return true;
        for (int p = 0; p < options.nodes; ++p) {
          if (p == n) continue;
          if (!LengthsDiffer(j, n, p)) Compare(j, n, p);
          if (!added()) Acknowledge(j, n, p);
          if (!added() && CannotAbort(j)) PostBytes(j, n, p);
          if (!added() && CannotAbort(j)) Land(j, n, p);
          if (added()) return true;
        }
      }
      for (int p = 0; p < options.nodes; ++p) {
        if (p != n && IsUrgent(n, s_.links[p][n])) return TakeMessage(n, p, 0), true;
      }
    }
    return false;
  }

  bool CannotAbort(int j) const {
    return !s_.aborted[j] && s_.aborts == 0 && s_.expiries == 0 && (options.mistake == 0 || j != 0);
  }

  // A READY is urgent once the node's own grant does not depend on it.
  bool IsUrgent(int n, const Queue& queue) const {
    if (queue.count == 0 || Wrong(kParsedOutOfOrder) || Wrong(kHoldersOnly)) return false;
    const Message& message = queue.messages[0];
    const Member& m = member(message.job, n);
    if (IsReady(message.kind)) return m.submitted;
    return message.kind == kGrant || message.kind == kQuiesced;
  }

  const Member& member(int j, int n) const { return s_.members[j][n]; }
  const Pair& pair(int j, int n, int p) const { return s_.pairs[j][n][p]; }

  template <typename Describe>
  void Add(const State& next, Certainty certainty, const char* violation, const Describe& text) {
    moves_->Add(next, certainty, violation, text);
  }

  // --- The job at one node ---

  void Learn(int j, int n) {
    if (member(j, n).knows) return;
    State next = s_;
    next.members[j][n].knows = 1;
    Add(next, kMust, nullptr, [&] { return Text("node %d learns the epoch of job %d", n, j); });
  }

  bool MaySubmit(int j, int n) const {
    if (!member(j, n).knows || member(j, n).submitted) return false;
    const Program& program = s_.programs[n];
    if (options.jobs == 1 || program.first == j) return true;
    const Member& first = member(program.first, n);
    return first.submitted && (!program.waits || IsOver(first.life));
  }

  // The peer's bytes ride in its READY; a guess until that is here.
  bool ComesEagerly(int j, int n, int p) const {
    return !RailsOnly(n) && SendsEagerly(j, pair(j, n, p).ready != kNotHere && !Wrong(kEagerGuessed) ? p : n);
  }

  // A grant rides along in READY while, with it, at most half of the credit is in use.
  bool Rides(const State& state, int j, int n, int p, int used_before) const {
    const int used = UsedCredit(state, n);
    const int with_it = used + SizeOfGrant(j);
    if (with_it > options.credit) return false;
    if (pair(j, n, p).ready != kNotHere || Wrong(kGrantAlwaysRides)) return true;
    if (Wrong(kHalfPerJob)) return used_before * 2 < options.credit;
    if (Wrong(kHalfBefore)) return used * 2 < options.credit;
    return with_it * 2 <= options.credit;
  }

  // READY goes to every other node at once, also when nothing is exchanged with it.
  void Submit(int j, int n) {
    if (!MaySubmit(j, n)) return;
    State next = s_;
    Member& m = next.members[j][n];
    m.submitted = 1;
    m.life = m.tombstone ? kFailed : kSubmitted;
    const int used_before = UsedCredit(s_, n);
    for (int p = 0; p < options.nodes && !m.tombstone; ++p) {
      if (p == n || (Wrong(kReadyToPartners) && !HasBytes(n, p) && !HasBytes(p, n))) continue;
      const bool rides = HasBytes(p, n) && !ComesEagerly(j, n, p) && Rides(next, j, n, p, used_before);
      if (rides) next.pairs[j][n][p].grant = kGranted;
      if (HasBytes(p, n) && !rides && Wrong(kReadyWaitsForCredit)) return;
      const bool knows = RailsOnly(p) && pair(j, n, p).ready != kNotHere;
      const bool eager = HasBytes(n, p) && SendsEagerly(j, n) && !knows;
      if (eager) next.pairs[j][n][p].data = Wrong(kEagerDoneAtOnce) ? kAcknowledged : kRiding;
      Send(&next, n, p, eager ? (rides ? kEagerReadyWithGrant : kEagerReady) : (rides ? kReadyWithGrant : kReady), j);
    }
    Add(next, kMust, nullptr, [&] {
      if (m.tombstone) return Text("node %d submits job %d, which has been aborted", n, j);
      std::string text = Text("node %d submits job %d, sends READY", n, j);
      for (int p = 0; p < options.nodes; ++p) {
        if (next.pairs[j][n][p].grant == kGranted) text += Text(", with a grant to node %d", p, 0);
      }
      return text;
    });
  }

  void Finish(int j, int n) {
    if (member(j, n).life != kSubmitted) return;
    const char* violation = nullptr;
    for (int p = 0; p < options.nodes; ++p) {
      if (p == n) continue;
      const bool partner = HasBytes(n, p) || HasBytes(p, n);
      if (pair(j, n, p).ready != kCompared && (partner || !Wrong(kReadyToPartners))) return;
      if (HasBytes(n, p) && pair(j, n, p).data != kAcknowledged) return;
      if (HasBytes(p, n) && pair(j, n, p).arrived != kHeard) return;
      // A node that has aborted the job drains the bytes that the link brings; its report says so.
      const bool drained_eager = SendsEagerly(j, n) && !RailsOnly(p) && member(j, p).tombstone;
      if (HasBytes(n, p) && pair(j, p, n).arrived == kMissing && !drained_eager)
        violation = "S2: done with bytes that the receiver has drained";
      if (pair(j, n, p).grant == kGranted) violation = "S1: memory is given back while a grant is out";
      if (!member(j, p).submitted) violation = "S3: done before every member has submitted";
      if (LengthsDiffer(j, n, p)) violation = "S4: done though lengths differ";
    }
    if (options.strict != 0 && LengthsDiffer(j, 0, 1)) violation = "S4: a third member is done though lengths differ";
    State next = s_;
    next.members[j][n].life = kDone;
    Add(next, kMust, violation, [&] { return Text("node %d is done with job %d", n, j); });
  }

  void Abort(int j, int n) {
    const Member& m = member(j, n);
    if (s_.aborts == 0 || !m.knows || m.tombstone || (m.life != kIdle && m.life != kSubmitted)) return;
    State next = s_;
    --next.aborts;
    BeginAbort(&next, j, n, kNobody);
    Add(next, kMay, nullptr, [&] { return Text("node %d aborts job %d, and sends ABORT", n, j); });
  }

  // The memory of an aborted job is given back when every peer with a grant has said QUIESCED.
  void GiveBack(int j, int n) {
    if (member(j, n).life != kAborting) return;
    State next = s_;
    next.members[j][n].life = kFailed;
    for (int p = 0; p < options.nodes; ++p) {
      if (p == n) continue;
      Pair& mine = next.pairs[j][n][p];
      if (!HasStopped(mine)) return;
      if (mine.grant != kGranted) continue;
      if (!mine.quiesced && !Wrong(kMemoryBackAtOnce)) return;
      mine.grant = kReturned;
    }
    Add(next, kMust, nullptr, [&] { return Text("node %d gives the memory of job %d back", n, j); });
  }

  // --- A job between a node and a peer ---

  void Compare(int j, int n, int p) {
    if (member(j, n).life != kSubmitted || pair(j, n, p).ready != kKept) return;
    State next = s_;
    Pair& mine = next.pairs[j][n][p];
    mine.ready = kCompared;
    // All that was sent are eager bytes, since nothing was posted before.
    if (RailsOnly(p) && !Wrong(kEagerNotTakenBack)) mine.data = kNothing;
    const bool differ = LengthsDiffer(j, n, p);
    if (differ) {
      BeginAbort(&next, j, n, kNobody);
    } else if (mine.arrived == kKeptEager) {
      CopyEager(&mine);
    }
    Add(next, kMust, nullptr, [&] {
      return Text(differ ? "node %d finds that lengths of job %d differ from those of node %d, and sends ABORT"
                         : "node %d compares lengths of job %d with node %d",
                  n, j, p);
    });
  }

  // Eager bytes go into the memory. A grant that rode along for them was not needed, and is returned.
  static void CopyEager(Pair* mine) {
    mine->arrived = kHeard;
    if (mine->grant == kGranted && !Wrong(kEagerKeepsGrant)) mine->grant = kReturned;
  }

  // The grant that did not ride along follows once the peer's READY is here.
  void GiveGrant(int j, int n, int p) {
    const Pair& mine = pair(j, n, p);
    if (member(j, n).life != kSubmitted || !HasBytes(p, n) || mine.grant != kUngranted) return;
    if (mine.ready != kCompared || ComesEagerly(j, n, p)) return;
    if (UsedCredit(s_, n) + SizeOfGrant(j) > options.credit) return;
    State next = s_;
    next.pairs[j][n][p].grant = kGranted;
    Send(&next, n, p, kGrant, j);
    Add(next, kMust, nullptr, [&] { return Text("node %d sends a grant of job %d to node %d", n, j, p); });
  }

  void PostBytes(int j, int n, int p) {
    const Pair& mine = pair(j, n, p);
    const bool again = Wrong(kEagerAndGrant) && mine.data == kDelivered;
    if (member(j, n).life != kSubmitted || !HasBytes(n, p) || !mine.holds || (mine.data != kNothing && !again)) return;
    if (mine.ready != kCompared && !Wrong(kSendUncompared)) return;
    for (int q = 0; q < options.nodes && Wrong(kSendingWaitsForZones); ++q) {
      if (q != n && HasBytes(q, n) && pair(j, n, q).grant == kUngranted) return;
    }
    State next = s_;
    next.pairs[j][n][p].data = kPosted;
    Add(next, kMust, mine.said ? "S1: bytes are posted after QUIESCED" : nullptr,
        [&] { return Text("node %d posts its bytes of job %d to node %d", n, j, p); });
  }

  void Land(int j, int n, int p) {
    if (pair(j, n, p).data != kPosted) return;
    State next = s_;
    const Byte life = member(j, p).life;
    const char* violation = nullptr;
    if (life == kSubmitted) {
      if (LengthsDiffer(j, n, p)) violation = "S4: bytes land though lengths differ";
      next.pairs[j][n][p].data = kPlaced;
      next.pairs[j][p][n].arrived = kLanded;
    } else {
      if (life != kAborting) violation = "S1: bytes land in memory that was given back";
      next.pairs[j][n][p].data = kRefused;
    }
    Add(next, kMust, violation, [&] {
      return Text(life == kSubmitted ? "bytes of node %d land: job %d, to node %d"
                                     : "bytes of node %d are drained: job %d, to node %d",
                  n, j, p);
    });
  }

  void Acknowledge(int j, int n, int p) {
    const Byte data = pair(j, n, p).data;
    if (data != kPlaced && data != kRefused && data != kDelivered) return;
    State next = s_;
    next.pairs[j][n][p].data = data != kRefused || Wrong(kRefusedCounts) ? kAcknowledged : kDrained;
    Add(next, kMust, nullptr, [&] {
      if (data == kDelivered) return Text("node %d hears that its READY of job %d is at node %d", n, j, p);
      return Text(data == kPlaced ? "node %d hears that its bytes of job %d are in the memory of node %d"
                                  : "node %d hears that its bytes of job %d were refused by node %d",
                  n, j, p);
    });
  }

  // The engine hears of the fence, and takes its grant back.
  void HearFence(int j, int n, int p) {
    if (member(j, n).life != kSubmitted || pair(j, n, p).arrived != kLanded) return;
    State next = s_;
    next.pairs[j][n][p].arrived = kHeard;
    next.pairs[j][n][p].grant = kReturned;
    Add(next, kMust, nullptr, [&] { return Text("node %d has all bytes of job %d from node %d", n, j, p); });
  }

  // Once for each job and peer.
  void SayQuiesced(int j, int n, int p) {
    const Pair& mine = pair(j, n, p);
    if (!mine.owes || mine.said || (!HasStopped(mine) && !Wrong(kQuiescedEarly))) return;
    State next = s_;
    next.pairs[j][n][p].said = 1;
    Send(&next, n, p, kQuiesced, j);
    Add(next, kMust, nullptr, [&] { return Text("node %d says QUIESCED of job %d to node %d", n, j, p); });
  }

  // READY of an unknown epoch is dropped with an ABORT to its sender: too old, or one too many.
  void Expire(int j, int n, int p) {
    const Member& m = member(j, n);
    if (s_.expiries == 0 || pair(j, n, p).ready != kKept || m.life != kIdle) return;
    if (m.knows && !Wrong(kKnownReadyExpires)) return;
    State next = s_;
    --next.expiries;
    Pair& mine = next.pairs[j][n][p];
    mine.ready = kNotHere;
    mine.holds = 0;
    if (mine.arrived == kKeptEager) mine.arrived = kMissing;
    if (!Wrong(kKnownReadyExpires)) {
      next.aborted[j] = 1;
      Send(&next, n, p, kAbort, j);
      if (options.unasked != 0) next.pairs[j][n][p].owes = 1;
    }
    Add(next, kMay, nullptr, [&] { return Text("node %d drops READY of job %d from node %d", n, j, p); });
  }

  // --- Messages ---

  void TakeMessages(int n, int p) {
    const Queue& queue = s_.links[p][n];
    for (int at = 0; at < queue.count; ++at) {
      TakeMessage(n, p, at);
      const Byte kind = queue.messages[at].kind;
      if (!Wrong(kParsedOutOfOrder) || !IsReady(kind)) return;
    }
  }

  void TakeMessage(int n, int p, int at) {
    const Message message = s_.links[p][n].messages[at];
    const int j = message.job;
    State next = s_;
    Take(&next.links[p][n], at);
    Pair& mine = next.pairs[j][n][p];
    const Member& m = next.members[j][n];
    const char* violation = nullptr;
    switch (message.kind) {
      case kReady:
      case kReadyWithGrant:
      case kEagerReady:
      case kEagerReadyWithGrant:
        // The link acknowledges, whatever becomes of it.
        if (next.pairs[j][p][n].data == kRiding) next.pairs[j][p][n].data = kDelivered;
        if (m.tombstone) {
          DropReady(&next, j, n, p);
        } else if (m.knows || !Wrong(kEarlyReadyLost)) {
          mine.ready = kKept;
          mine.holds = BringsGrant(message.kind);
          if (IsEager(message.kind)) violation = KeepEager(m, j, n, p, &mine);
        }
        break;
      case kGrant:
        if (m.life == kSubmitted && mine.ready != kNotHere) mine.holds = 1;
        break;
      case kAbort:
        TakeAbort(&next, j, n, p);
        break;
      default:
        mine.quiesced = 1;
    }
    Add(next, kMust, violation, [&] {
      const char* const names[] = {
          "", "READY", "READY with a grant", "READY with bytes", "READY with both", "a grant", "ABORT", "QUIESCED"};
      return Text("node %d takes ", n, 0) + names[message.kind] + Text(" of job %d from node %d", j, p);
    });
  }

  // Eager bytes wait with their READY for the local ranks, and for the comparison.
  const char* KeepEager(const Member& m, int j, int n, int p, Pair* mine) const {
    if (RailsOnly(n)) return nullptr;
    mine->arrived = kKeptEager;
    if (Wrong(kEagerUnsubmitted) && !m.submitted) {
      CopyEager(mine);
      return "S1: bytes are copied into memory that no rank has given";
    }
    if (Wrong(kEagerUncompared) && m.life == kSubmitted) {
      CopyEager(mine);
      return LengthsDiffer(j, n, p) ? "S4: bytes are copied though lengths differ" : nullptr;
    }
    return nullptr;
  }

  // Every ABORT is answered, known job or not, and leaves a tombstone.
  static void TakeAbort(State* next, int j, int n, int p) {
    const Byte life = next->members[j][n].life;
    if (life == kDone ? !Wrong(kDoneAbortIgnored) : life != kIdle || !Wrong(kUnknownAbortIgnored)) {
      next->pairs[j][n][p].owes = 1;
    }
    if (life == kSubmitted) return BeginAbort(next, j, n, p);
    if (life != kIdle || Wrong(kNoTombstone)) return;
    next->members[j][n].tombstone = 1;
    DropKeptReadys(next, j, n);
  }

  const State& s_;
  Moves<State>* const moves_;
};

}  // namespace

int UsedCredit(const State& state, int node) {
  int used = 0;
  for (int j = 0; j < options.jobs; ++j) {
    for (int p = 0; p < options.nodes; ++p) {
      if (state.pairs[j][node][p].grant == kGranted) used += SizeOfGrant(j);
    }
  }
  return used;
}

void AddMoves(const State& state, Moves<State>* moves) { Rules(state, moves).AddAll(); }

}  // namespace model::ready
