/* One flow over rails that place the bytes at their receiver (TCP): connections break at any moment, on either side,
 * and no frame may be counted twice, nor land after the memory was given back (docs/failover.md).
 *
 * FRAMES frames go over RAILS connections, of which at most FAULTS break.
 *
 *   -DCANCEL    another node may abort the job at any moment. Its ABORT reaches both on streams of their own; the
 *               receiver closes the zone, drains what comes, and counts it
 * Wrong on purpose; the check must find it out:
 *   -DNAIVE     what was not acknowledged is sent again without asking
 *   -DOPEN_END  the receiver says what arrived, but goes on receiving from the connection
 *   -DSILENT    the receiver closes the zone and leaves it to the other node to say so
 */
#define RAILS 3
#define FRAMES 3
#ifdef CANCEL
#define FAULTS 1
#else
#define FAULTS 2
#endif
#define REFUSED FRAMES /* acknowledges a frame that was drained */

mtype = { ASK, COUNT, ABORT };

bool sender_up[RAILS] = true;
bool receiver_up[RAILS] = true;
chan wire[RAILS] = [FRAMES] of { byte };
chan acknowledgements[RAILS] = [FRAMES] of { byte };
chan to_receiver = [RAILS] of { mtype, byte };      /* kind, rail */
chan to_sender = [RAILS * 2] of { mtype, byte, byte }; /* kind, rail, frames */
chan abort_to_sender = [1] of { mtype };
chan abort_to_receiver = [1] of { mtype };

bool owned = true;     /* the memory is the job's; after that the trainer's */
bool closed;           /* the zone, before everything was there */
byte times[FRAMES];    /* that a frame was counted */
byte received[RAILS];  /* whole frames of a connection, at its receiver */
byte missing = FRAMES;
bool sender_done;

/* The receiver's end of one connection. */
proctype Rail(byte r) {
  byte frame;
end:
  do
  :: atomic {
       receiver_up[r] && wire[r]?[frame] ->
       wire[r]?frame;
       received[r]++;
       if
       :: closed -> frame = REFUSED
       :: else ->
          assert(owned);
          times[frame]++;
          assert(times[frame] == 1);
          missing--
       fi;
       if
       :: sender_up[r] -> acknowledgements[r]!frame
       :: else -> skip
       fi;
       if
       :: missing == 0 -> owned = false /* the job is complete: the trainer has its memory back */
       :: else -> skip
       fi;
       frame = 0
     }
  od
}

/* Answers what is asked over the link. */
active proctype Receiver() {
  byte r;
end:
  do
  :: atomic {
       to_receiver?ASK(r) ->
#ifndef OPEN_END
       receiver_up[r] = false;
#endif
       to_sender!COUNT(r, received[r]);
       r = 0
     }
#ifdef CANCEL
  :: atomic {
       abort_to_receiver?ABORT ->
       if
       :: missing > 0 ->
          closed = true;
          owned = false;
#ifndef SILENT
          to_sender!ABORT(0, 0)
#endif
       :: else -> skip
       fi
     }
#endif
  od
}

#ifdef CANCEL
active proctype Other() {
  abort_to_receiver!ABORT;
  abort_to_sender!ABORT
}
#endif

active proctype Sender() {
  byte where[FRAMES] = RAILS; /* connection that the frame was sent over */
  bool acked[FRAMES];
  byte sent[RAILS];           /* frames sent over a connection; its order is theirs */
  byte order[9];              /* RAILS * FRAMES: the frames of each connection, in order */
  byte faults, f, r, n, doubt;
  bool aborting;

#define ALL_ACKED (acked[0] && acked[1] && acked[2])
#define TODO(f) (where[f] == RAILS && !acked[f])

#define TAKE_ACK if :: f == REFUSED -> aborting = true :: else -> acked[f] = true fi; f = 0

  do
  :: atomic {
       !aborting && (TODO(0) || TODO(1) || TODO(2)) ->
       if
       :: TODO(0) -> f = 0
       :: TODO(1) -> f = 1
       :: TODO(2) -> f = 2
       fi;
       if
       :: sender_up[0] -> r = 0
       :: sender_up[1] -> r = 1
       :: sender_up[2] -> r = 2
       fi;
       where[f] = r;
       order[r * FRAMES + sent[r]] = f;
       sent[r]++;
       wire[r]!f;
       f = 0; r = 0
     }
  :: atomic { sender_up[0] && acknowledgements[0]?[_] -> acknowledgements[0]?f; TAKE_ACK }
  :: atomic { sender_up[1] && acknowledgements[1]?[_] -> acknowledgements[1]?f; TAKE_ACK }
  :: atomic { sender_up[2] && acknowledgements[2]?[_] -> acknowledgements[2]?f; TAKE_ACK }
  :: atomic { /* a connection breaks; what is on its wire may still be read by its receiver */
       faults < FAULTS ->
       faults++;
       if
       :: sender_up[0] -> r = 0
       :: sender_up[1] -> r = 1
       :: sender_up[2] -> r = 2
       fi;
       sender_up[r] = false;
       do
       :: acknowledgements[r]?_
       :: empty(acknowledgements[r]) -> break
       od;
#ifdef NAIVE
       f = 0;
       do
       :: f < FRAMES ->
          if
          :: where[f] == r && !acked[f] -> where[f] = RAILS
          :: else -> skip
          fi;
          f++
       :: else -> break
       od;
#else
       doubt++;
       to_receiver!ASK(r);
#endif
       f = 0; r = 0
     }
  :: atomic { /* frames below the count have arrived, the others never will */
       to_sender?COUNT(r, n) ->
       doubt--;
       f = 0;
       do
       :: f < sent[r] ->
          if
          :: f < n -> acked[order[r * FRAMES + f]] = true
          :: f >= n && !acked[order[r * FRAMES + f]] -> where[order[r * FRAMES + f]] = RAILS
          :: else -> skip
          fi;
          f++
       :: else -> break
       od;
       f = 0; r = 0; n = 0
     }
  :: atomic { to_sender?ABORT(_, _) -> aborting = true }
  :: abort_to_sender?ABORT -> aborting = true
  :: !aborting && ALL_ACKED && doubt == 0 ->
     assert(missing == 0);
     break
  :: aborting && doubt == 0 -> break
  od;
  sender_done = true;
end:
  do
  :: to_sender?_, _, _
  :: abort_to_sender?_
  od
}

init {
  atomic { run Rail(0); run Rail(1); run Rail(2) }
}
