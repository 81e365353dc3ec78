// Which rank of a group is on which node.
#ifndef RAILSD_AGENT_GROUPS_LAYOUT_H_
#define RAILSD_AGENT_GROUPS_LAYOUT_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "agent/base/ids.h"

namespace railsd {

struct Group;

// Immutable, so that other threads may read it.
struct GroupLayout {
  static constexpr uint32_t kLocal = UINT32_MAX;
  struct Place {
    uint32_t node = kLocal;   // index of the remote node, as in `peers`
    uint32_t order = 0;       // of a remote rank among all of them: by node, then rank
    uint32_t local_rank = 0;  // place among the ranks of its node
  };
  std::vector<Place> ranks;
  std::vector<PeerIndex> peers;   // remote nodes with members, in the order of their first ranks
  std::vector<uint32_t> nodes;    // by PeerIndex: as in Place; kLocal: no member
  uint32_t self = 0;              // place of this node among `peers`
  uint32_t most_local_ranks = 0;  // the most that one node has

  // kLocal: the peer has no member.
  uint32_t NodeOf(PeerIndex peer) const { return peer.value() < nodes.size() ? nodes[peer.value()] : kLocal; }
};

std::shared_ptr<const GroupLayout> LayOut(const Group& group);

}  // namespace railsd

#endif  // RAILSD_AGENT_GROUPS_LAYOUT_H_
