// The state of the exchanges from one sending node to one receiving node; ../README.md says what is modelled.
//
// A *connection* is one generation of one rail: two ends with a wire between them. Connections 0 to rails - 1 exist
// from the start; the last one is the new generation of the rail that comes back. A *share* is all that one connection
// has to do with one exchange: the piece that its rail's thread holds, the wire, the commands, and the engine's books.

#pragma once

#include <cstdint>
#include <string>

#include "tests/model/search.h"

// The number of exchanges. A constant, because a smaller state makes the search quicker.
#ifndef EXCHANGES
#define EXCHANGES 1
#endif

namespace model::exchange {

using Byte = std::uint8_t;

constexpr int kExchanges = EXCHANGES;
constexpr int kMaxConnections = 4;
constexpr int kMaxPosted = 10;
constexpr int kMaxCommands = 5;
constexpr int kMaxMessages = 5;

// The sender's end of a connection.
enum Life : Byte {
  kAbsent,    // the rail has not come back
  kUp,        // both ends were connected, and the sender's end works
  kFailed,    // the rail's thread has ended its end; the engine has not heard of it
  kReported,  // the engine has heard of it
};

struct Connection {
  Byte life;
  Byte receives;  // the receiver's end lives
  Byte rail;      // only for the last connection: the rail of which it is a new generation
};

enum CommandKind : Byte { kNoCommand, kGive, kRelease, kCancel, kReleased };

// A command from the engine to a rail's thread, or the answer to a release request (kReleased).
struct Command {
  Byte kind;
  Byte round;
  Byte weight;
  Byte chunks;
};

enum Question : Byte {
  kNothingToAsk,
  kToAsk,  // the connection failed; a REHOME must name it
  kAsked,  // a REHOME that names it is outstanding
};

struct Share {
  // The rail's thread.
  Byte unposted;    // chunks of the piece
  Byte weight;      // weight of the piece
  Byte round;       // round of that weight
  Byte must_fence;  // something was posted that no fence of this round follows
  Byte has_posted;  // something was posted in any round
  Byte settled;     // for a wrong variant: a fence is acknowledged
  Byte cancelled;   // unposted chunks were dropped, because the job aborts
  // The wire, and acknowledgements under way: items [0, landed) have landed and are not acknowledged yet.
  Byte posted_count;
  Byte landed;
  Byte posted[kMaxPosted];
  // Between the engine and the thread.
  Byte command_count;
  Command commands[kMaxCommands];
  Command answer;  // to a release request
  // The engine's books.
  Byte was_given;  // the connection was given something of the exchange
  Byte question;
  Byte lost;         // chunks that were posted and not acknowledged when the connection failed
  Byte lost_weight;  // for a wrong variant: weight that did not come back
  Byte lost_fence;   // for a wrong variant: a fence was not acknowledged
};

enum End : Byte { kRunning, kAborting, kDone, kAborted };

struct Exchange {
  Share shares[kMaxConnections];
  // The sender's engine.
  Byte sender;  // End
  Byte round;
  Byte acknowledged;  // weight of fences that are acknowledged in this round
  Byte pool_chunks;   // chunks that no rail holds
  Byte pool_weight;   // weight of this round that no rail holds
  Byte spread_due;    // OPEN has come; the weight is not yet spread
  Byte asked;         // the outstanding REHOME names the exchange
  Byte release_from;  // 1 + the connection that was asked to release; 0: no request is out
  Byte complete;      // COMPLETE has come
  Byte quiesced_owed;
  Byte keys;        // connections of which the sender has keys
  Byte keys_asked;  // keys were asked for
  // The receiver's engine.
  Byte receiver;  // End
  Byte receiver_round;
  Byte arrived_weight;  // of this round
  Byte whole;           // the weights of the present round add up to the whole
  Byte in_memory;       // chunks that have landed
  Byte landings;        // for a wrong variant: how many chunks have landed
  Byte aborted;         // an end has aborted
};

enum MessageKind : Byte { kNoMessage, kRehome, kAnswer, kAbort, kQuiesced };
enum AnswerKind : Byte { kNoAnswer, kOpen, kComplete, kGone };

struct Answer {
  Byte kind;
  Byte round;
  Byte keys;  // connections that have keys
};

struct Message {
  Byte kind;
  Byte connections;  // REHOME and QUIESCED: failed ones
  Byte exchanges;    // REHOME and answer: those that it names. ABORT, QUIESCED: the one
  Answer answers[kExchanges];
};

struct Queue {
  Byte count;
  Message messages[kMaxMessages];
};

struct State {
  Connection connections[kMaxConnections];
  Exchange exchanges[kExchanges];
  Byte rehome_out;  // a REHOME is outstanding
  // The link.
  Queue to_receiver;
  Queue to_sender;
  // Events that may still happen.
  Byte failures;
  Byte returns;
  Byte releases;
  Byte aborts;
};

// Items on a wire: chunks are small numbers, fences have the top bit, a round and a weight.
constexpr Byte kFence = 0x80;
inline bool IsFence(Byte item) { return (item & kFence) != 0; }
inline Byte Fence(int round, int weight) { return static_cast<Byte>(kFence | round << 4 | weight); }
inline int RoundOf(Byte fence) { return fence >> 4 & 7; }
inline int WeightOf(Byte fence) { return fence & 15; }

inline Byte Bit(int index) { return static_cast<Byte>(1 << index); }
inline bool Has(int mask, int index) { return (mask >> index & 1) != 0; }
inline int CountBits(int mask) { return __builtin_popcount(static_cast<unsigned>(mask)); }
inline bool IsOver(Byte end) { return end == kDone || end == kAborted; }

// --- Changes of parts ---

void RemovePosted(Share* share, int at);
void ClearPosted(Share* share);
void Post(Share* share, Byte item);
void PushCommand(Share* share, Command command);
void PopCommand(Share* share);
void Send(Queue* queue, const Message& message);
void Take(Queue* queue);

// Ends the program: an array of the model is too small.
[[noreturn]] void Die(const char* what);

// --- Text for traces ---

__attribute__((format(printf, 1, 2))) std::string Format(const char* format, ...);
std::string ChunkNames(int chunks);
std::string ConnectionName(const State& state, int index);
std::string ConnectionNames(const State& state, int mask);
std::string ExchangeNames(int mask);
std::string ItemName(Byte item);

// States that differ only in the names of chunks, rails or exchanges become one.
State Canonical(const State& state);

}  // namespace model::exchange
