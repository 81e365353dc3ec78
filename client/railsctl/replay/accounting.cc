#include "client/railsctl/replay/accounting.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace rails::ctl {
namespace {

// Values of the rails that are not drained or that carried bytes.
std::vector<uint64_t> Values(const std::vector<RailBytes>& rails, uint64_t RailBytes::*field) {
  std::vector<uint64_t> values;
  for (const RailBytes& rail : rails) {
    if (!rail.drained || rail.tx_bytes + rail.rx_bytes > 0) values.push_back(rail.*field);
  }
  return values;
}

uint64_t Sum(const std::vector<uint64_t>& values) { return std::accumulate(values.begin(), values.end(), uint64_t{0}); }

}  // namespace

double MaxOverMean(const std::vector<uint64_t>& values) {
  const uint64_t sum = Sum(values);
  if (sum == 0) return 1;
  const uint64_t max = *std::max_element(values.begin(), values.end());
  return static_cast<double>(max) * static_cast<double>(values.size()) / static_cast<double>(sum);
}

double NodeRails::SpeedSum() const {
  double sum = 0;
  for (const RailBytes& rail : rails) sum += rail.drained ? 0 : static_cast<double>(rail.speed_bytes_per_second);
  return sum;
}
uint64_t NodeRails::TxSum() const { return eager_tx_bytes + Sum(Values(rails, &RailBytes::tx_bytes)); }
uint64_t NodeRails::RxSum() const { return eager_rx_bytes + Sum(Values(rails, &RailBytes::rx_bytes)); }
double NodeRails::TxMaxOverMean() const { return MaxOverMean(Values(rails, &RailBytes::tx_bytes)); }
double NodeRails::RxMaxOverMean() const { return MaxOverMean(Values(rails, &RailBytes::rx_bytes)); }

absl::StatusOr<std::vector<NodeRails>> Difference(const std::vector<NodeRails>& before,
                                                  const std::vector<NodeRails>& after) {
  std::vector<NodeRails> difference = after;
  for (size_t node = 0; node < after.size(); ++node) {
    if (node >= before.size() || before[node].rails.size() != after[node].rails.size()) {
      return absl::AbortedError(absl::StrCat("the rails of node ", after[node].node, " changed meanwhile"));
    }
    const auto fell = [&] {
      return absl::AbortedError(
          absl::StrCat("the counters of node ", after[node].node, " fell; was its daemon started again meanwhile?"));
    };
    NodeRails& of_node = difference[node];
    if (of_node.eager_tx_bytes < before[node].eager_tx_bytes || of_node.eager_rx_bytes < before[node].eager_rx_bytes) {
      return fell();
    }
    of_node.eager_tx_bytes -= before[node].eager_tx_bytes;
    of_node.eager_rx_bytes -= before[node].eager_rx_bytes;
    for (size_t rail = 0; rail < after[node].rails.size(); ++rail) {
      const RailBytes& old = before[node].rails[rail];
      RailBytes& now = of_node.rails[rail];
      if (now.tx_bytes < old.tx_bytes || now.rx_bytes < old.rx_bytes) return fell();
      now.tx_bytes -= old.tx_bytes;
      now.rx_bytes -= old.rx_bytes;
    }
  }
  return difference;
}

Balance WorstBalance(const std::vector<NodeRails>& nodes) {
  Balance worst;
  for (const NodeRails& node : nodes) {
    worst.tx_max_over_mean = std::max(worst.tx_max_over_mean, node.TxMaxOverMean());
    worst.rx_max_over_mean = std::max(worst.rx_max_over_mean, node.RxMaxOverMean());
  }
  return worst;
}

}  // namespace rails::ctl
