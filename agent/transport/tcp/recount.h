// What the two ends of a broken connection tell each other over the link: how many whole frames its receiver
// had when it closed its end. Only then does the sender know which orders have arrived, and that the others never will:
// they may go another way without a byte landing twice, or late.
#ifndef RAILSD_AGENT_TRANSPORT_TCP_RECOUNT_H_
#define RAILSD_AGENT_TRANSPORT_TCP_RECOUNT_H_

#include <cstdint>
#include <string>

#include "agent/base/ids.h"

namespace railsd::tcp {

struct Recount {
  enum class Kind : uint8_t {
    kAsk = 1,      // sender to receiver: my end is closed; close yours and say what arrived
    kAnswer = 2,   // receiver to sender, asked or not: my end is closed, `frames` were whole
    kUnknown = 3,  // receiver to sender: I do not remember that connection
  };
  Kind kind = Kind::kAsk;
  BootId from = {}, to = {};  // the daemons that are meant; a signal may outlive either
  uint64_t generation = 0;    // of the connection, as its sender counts
  uint64_t frames = 0;        // kAnswer
};

std::string EncodeRecount(const Recount& recount);
// Hostile bytes. False for whatever EncodeRecount() could not have produced.
bool DecodeRecount(const std::string& bytes, Recount* recount);

}  // namespace railsd::tcp

#endif  // RAILSD_AGENT_TRANSPORT_TCP_RECOUNT_H_
