#include "agent/groups/layout.h"

#include <algorithm>

#include "agent/groups/groups.h"

namespace railsd {

std::shared_ptr<const GroupLayout> LayOut(const Group& group) {
  auto layout = std::make_shared<GroupLayout>();
  layout->peers = group.peers;
  std::vector<uint32_t> first = {0};  // of the remote ranks of each node
  for (uint32_t n = 0; n < group.peers.size(); ++n) {
    const uint32_t peer = group.peers[n].value();
    if (peer >= layout->nodes.size()) layout->nodes.resize(peer + 1, GroupLayout::kLocal);
    layout->nodes[peer] = n;
    first.push_back(first.back() + group.ranks_on[n]);
  }
  bool before_self = true;
  for (const Group::Member& member : group.ranks) {
    GroupLayout::Place& place = layout->ranks.emplace_back();
    before_self = before_self && !member.local;
    place.local_rank = member.place;
    layout->most_local_ranks = std::max(layout->most_local_ranks, member.place + 1);
    if (member.local) continue;
    place.node = layout->nodes[member.peer.value()];
    if (before_self) layout->self = std::max(layout->self, place.node + 1);
    place.order = first[place.node] + member.place;
  }
  return layout;
}

}  // namespace railsd
