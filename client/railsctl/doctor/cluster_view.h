// The answers of all daemons, by node and by pair of nodes.
#ifndef RAILS_RAILSCTL_DOCTOR_CLUSTER_VIEW_H_
#define RAILS_RAILSCTL_DOCTOR_CLUSTER_VIEW_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/railsctl/doctor/cluster.h"
#include "client/railsctl/doctor/cluster_graph.h"

namespace rails::ctl::doctor {

// Numbers the nodes: first the nodes that answered, in the order in which they were asked, then nodes that only other
// nodes list. The cluster must outlive the view.
class ClusterView {
 public:
  explicit ClusterView(const Cluster& cluster);

  size_t size() const { return names_.size(); }
  size_t answered() const { return nodes_.size(); }
  size_t rails() const { return rails_; }  // the most rails of any node
  const std::string& name(size_t node) const { return names_[node]; }
  // `node` must have answered.
  const ClusterNode& answer(size_t node) const { return *nodes_[node]; }
  // Null if the node does not have the rail, or did not answer.
  const ClusterRail* rail(size_t node, size_t rail) const;
  // `from`'s entry on `to`. Null if `from` did not answer, or does not list it.
  const ClusterPeer* entry(size_t from, size_t to) const;
  PathView path(size_t rail, size_t from, size_t to) const;

  // Combines the views of both daemons. Bad: at least one of them reports it as down. A path that one of them reports
  // as drained is unknown.
  Edge LinkBetween(size_t a, size_t b) const;
  Edge PathBetween(size_t rail, size_t a, size_t b) const;

  // Names of nodes: "n1, n2, n3, n4 and 5 more".
  std::string Names(const std::vector<size_t>& nodes) const;

 private:
  std::vector<std::string> names_;
  std::vector<const ClusterNode*> nodes_;
  std::vector<std::vector<const ClusterPeer*>> entries_;  // by `from` and `to`
  size_t rails_ = 0;
};

// "n1, n2, n3, n4 and 5 more". Five names are all listed, because "and 1 more" would not be shorter.
std::string NameList(const std::vector<std::string>& names);
// "rail 3", "rails 2 and 3", "rails 0, 2 and 5", "rails 0 to 7". `rails` is in order.
std::string RailList(const std::vector<size_t>& rails);

// Nodes that have the same value.
struct SameValue {
  std::string value;
  std::vector<size_t> nodes;
};
// Most nodes first. Nodes with an empty value are left out.
std::vector<SameValue> GroupByValue(const std::vector<std::pair<size_t, std::string>>& values);
// True if the first group has more nodes than any other.
bool HasMajority(const std::vector<SameValue>& groups);

}  // namespace rails::ctl::doctor

#endif  // RAILS_RAILSCTL_DOCTOR_CLUSTER_VIEW_H_
