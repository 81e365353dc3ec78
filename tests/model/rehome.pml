/* One flow over rails that write into remote memory: rails die at any moment, the receiver's trainer may give up, and
 * no byte may land after the memory was given back (docs/failover.md).
 *
 * CHUNKS chunks go over RAILS rails; at most FAULTS of them die at their sender, at least one lives. A rail delivers in
 * order. A connection that is in error at its sender may still deliver what is on the wire, until its receiver's end is
 * in error too.
 *
 *   -DWEAK       no key of its own opens the zone: writes land as long as the receiver's end of the connection lives
 *   -DCANCEL     the receiver may abort at any moment
 * Wrong on purpose; the check must find it out:
 *   -DNAIVE      what was not acknowledged is posted again without asking
 *   -DNO_ROUNDS  the receiver is asked, but does not tell fences of before from fences of after
 *   -DTRUSTING   a sender that says it has stopped is believed about rails that have failed, too
 */
#define RAILS 3
#define CHUNKS 2
#define FAULTS 2
#define FENCE CHUNKS

mtype = { REHOME, COMPLETE, OPEN, ABORT, QUIESCED };

bool sender_up[RAILS] = true;
bool receiver_up[RAILS] = true;
/* chunk or FENCE, round, fences in it */
chan wire[RAILS] = [6] of { byte, byte, byte };
/* the same, as completions */
chan completions[RAILS] = [6] of { byte, byte };
/* kind, round, mask of rails that have failed at the sender */
chan to_receiver = [4] of { mtype, byte, byte };
/* kind, round */
chan to_sender = [4] of { mtype, byte };

bool owned = true;     /* the memory is the job's; after that the trainer's */
bool key_open = true;
bool landed[CHUNKS];
byte round_now;        /* the receiver's */
byte fences_seen;      /* mask of rails, in this round */
byte fences_expected;
bool receiver_done, sender_done;

inline invalidate() {
  key_open = false
}

/* Delivers what is on the wire of one rail. */
proctype Wire(byte r) {
  byte what, round, fences;
end:
  do
  :: atomic {
       wire[r]?what, round, fences ->
       if
       :: !receiver_up[r] -> skip
       :: receiver_up[r] && what == FENCE ->
          if
          :: round == round_now -> fences_seen = fences_seen | (1 << r); fences_expected = fences
          :: else -> skip
          fi;
          if
          :: sender_up[r] -> completions[r]!what, round
          :: else -> skip
          fi
       :: receiver_up[r] && what != FENCE ->
#ifdef WEAK
          assert(owned);
          landed[what] = true;
#else
          if
          :: key_open -> assert(owned); landed[what] = true
          :: else -> receiver_up[r] = false /* a wrong key: the connection goes into error */
          fi;
#endif
          if
          :: sender_up[r] && receiver_up[r] -> completions[r]!what, round
          :: else -> skip
          fi
       fi;
       what = 0; round = 0; fences = 0
     }
  od
}

#define BIT(mask, r) (((mask) >> (r)) & 1)
#define COUNT(mask) (BIT(mask, 0) + BIT(mask, 1) + BIT(mask, 2))

active proctype Receiver() {
  byte r, round, failed, rehomed;
  bool told;
  do
  :: atomic { /* k of k fences of this round */
       fences_expected > 0 && COUNT(fences_seen) == fences_expected ->
       assert(landed[0] && landed[1]);
       /* Keys end before the memory does; where there are none, connections that failed at their sender. */
       invalidate();
       r = 0;
       do
       :: r < RAILS ->
          if
          :: BIT(rehomed, r) -> receiver_up[r] = false
          :: else -> skip
          fi;
          r++
       :: else -> break
       od;
       r = 0;
       owned = false;
       receiver_done = true
     };
     break
  :: atomic {
       to_receiver?REHOME(round, failed) ->
       rehomed = rehomed | failed;
#ifndef NO_ROUNDS
       round_now = round_now + 1;
       fences_seen = 0;
       fences_expected = 0;
#endif
       to_sender!OPEN(round_now)
     }
#ifdef CANCEL
  :: to_sender!ABORT(0) ->
     do
     :: atomic {
          to_receiver?QUIESCED(round, failed) ->
          told = true;
#ifndef TRUSTING
          rehomed = rehomed | failed;
#endif
        };
        break
     :: to_receiver?REHOME(_, failed) -> rehomed = rehomed | failed
     :: break /* it takes too long */
     od;
     atomic {
       invalidate();
       r = 0;
       do
       :: r < RAILS ->
          if
          :: !told || BIT(rehomed, r) -> receiver_up[r] = false
          :: else -> skip
          fi;
          r++
       :: else -> break
       od;
       r = 0;
       owned = false;
       receiver_done = true
     };
     break
#endif
  od;
  /* A late question is answered: it is complete. */
end:
  do
  :: to_receiver?REHOME(_, _) -> to_sender!COMPLETE(0)
  :: to_receiver?QUIESCED(_, _)
  od
}

active proctype Sender() {
  byte where[CHUNKS] = RAILS; /* rail that has carried, or carries, the chunk */
  bool acked[CHUNKS];
  byte round, used, fences_left, failed, lost, asked, faults, c, r, what, said;
  bool aborting;

#define POSTED (where[0] < RAILS && where[1] < RAILS)
#define OUTSTANDING(r) (sender_up[r] && (len(wire[r]) > 0 || len(completions[r]) > 0))

  do
  /* Late binding: a chunk takes any rail that lives. */
  :: atomic {
       !aborting && asked == 0 && lost == 0 && !POSTED ->
       c = (where[0] < RAILS -> 1 : 0);
       if
       :: sender_up[0] -> r = 0
       :: sender_up[1] -> r = 1
       :: sender_up[2] -> r = 2
       fi;
       where[c] = r;
       used = used | (1 << r);
       wire[r]!c, round, 0;
       if
       :: POSTED -> /* nothing is left to post on any rail: the fences follow */
          fences_left = COUNT(used);
          r = 0;
          do
          :: r < RAILS ->
             if
             :: BIT(used, r) -> wire[r]!FENCE, round, COUNT(used)
             :: else -> skip
             fi;
             r++
          :: else -> break
          od
       :: else -> skip
       fi;
       r = 0; c = 0
     }
  :: atomic {
       nempty(completions[0]) && sender_up[0] -> completions[0]?what, said; r = 0; goto completed
     }
  :: atomic {
       nempty(completions[1]) && sender_up[1] -> completions[1]?what, said; r = 1; goto completed
     }
  :: atomic {
       nempty(completions[2]) && sender_up[2] -> completions[2]?what, said; r = 2;
completed:
       if
       :: what == FENCE && said == round && asked == 0 && lost == 0 -> fences_left--
       :: what == FENCE && (said != round || asked != 0 || lost != 0) -> skip
       :: else -> acked[what] = true
       fi;
       what = 0; said = 0; r = 0
     }
  /* A rail dies: what is on its wire may land or not, and nobody says so. */
  :: atomic {
       faults < FAULTS && !sender_done ->
       if
       :: sender_up[0] -> r = 0
       :: sender_up[1] -> r = 1
       :: sender_up[2] -> r = 2
       fi;
       faults++;
       sender_up[r] = false;
       failed = failed | (1 << r);
       do
       :: completions[r]?_, _
       :: empty(completions[r]) -> break
       od;
       if
       :: BIT(used, r) -> lost = lost | (1 << r)
       :: else -> skip
       fi;
       r = 0
     }
  /* All of the flow that went over it comes back: rounds say it again on those that live. */
  :: atomic {
       lost != 0 && asked == 0 && !aborting ->
#ifdef NAIVE
       goto again;
#else
       asked = lost;
       to_receiver!REHOME(round, failed);
#endif
     }
  :: atomic {
       to_sender?OPEN(c) ->
       round = c;
       c = 0;
       if
       :: asked != lost -> asked = 0; goto next /* another has died since: it is asked again */
       :: else -> asked = 0
       fi;
again:
       do
       :: c < CHUNKS ->
          if
          :: where[c] < RAILS && BIT(lost, where[c]) && !acked[c] -> where[c] = RAILS
          :: else -> skip
          fi;
          c++
       :: else -> break
       od;
       /* What was acknowledged on a rail that died needs no fence of it: the receiver's memory has it. */
       used = used & ~failed;
       lost = 0;
       fences_left = 0;
       c = 0;
       if
       :: POSTED ->
          if
          :: used == 0 ->
             if
             :: sender_up[0] -> used = 1
             :: sender_up[1] -> used = 2
             :: sender_up[2] -> used = 4
             fi
          :: else -> skip
          fi;
          fences_left = COUNT(used);
          r = 0;
          do
          :: r < RAILS ->
             if
             :: BIT(used, r) -> wire[r]!FENCE, round, COUNT(used)
             :: else -> skip
             fi;
             r++
          :: else -> break
          od;
          r = 0
       :: else -> skip
       fi;
next:
       skip
     }
  :: to_sender?COMPLETE(_) -> break
  :: atomic { to_sender?ABORT(_) -> aborting = true; asked = 0 }
  /* Nothing of its own is outstanding any more. */
  :: atomic {
       aborting && !OUTSTANDING(0) && !OUTSTANDING(1) && !OUTSTANDING(2) ->
       to_receiver!QUIESCED(0, failed)
     };
     break
  :: !aborting && POSTED && lost == 0 && asked == 0 && fences_left == 0 && used != 0 -> break
  od;
  sender_done = true;
end:
  do
  :: to_sender?ABORT(_) -> to_receiver!QUIESCED(0, failed)
  :: to_sender?OPEN(_)
  :: to_sender?COMPLETE(_)
  od
}

init {
  atomic { run Wire(0); run Wire(1); run Wire(2) }
}
