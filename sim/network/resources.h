// Numbers for what transfers share, the same for both network models: NICs that send, NICs that receive, links from
// rail switches up to spines, links from spines down to rail switches.
#ifndef RAILSD_SIM_NETWORK_RESOURCES_H_
#define RAILSD_SIM_NETWORK_RESOURCES_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "sim/fabric.h"
#include "sim/network/transfer.h"

namespace railsd::sim {

class Resources {
 public:
  explicit Resources(const Fabric& fabric) : rails_(fabric.rails()), nics_(fabric.nics()), spines_(fabric.spines) {}

  uint32_t Sender(size_t node, size_t rail) const { return static_cast<uint32_t>(node * rails_ + rail); }
  uint32_t Receiver(size_t node, size_t rail) const { return static_cast<uint32_t>(nics_ + node * rails_ + rail); }
  uint32_t Up(size_t rail, size_t spine) const { return static_cast<uint32_t>(2 * nics_ + rail * spines_ + spine); }
  uint32_t Down(size_t rail, size_t spine) const {
    return static_cast<uint32_t>(2 * nics_ + (rails_ + rail) * spines_ + spine);
  }
  size_t count() const { return 2 * (nics_ + rails_ * spines_); }
  size_t nics() const { return nics_; }
  bool IsSender(uint32_t resource) const { return resource < nics_; }
  std::array<uint32_t, 2> Links(const Path& path) const {
    return {Up(path.source_rail, path.spine), Down(path.destination_rail, path.spine)};
  }

 private:
  const size_t rails_, nics_, spines_;
};

// Seconds that a bit takes over the links of a path.
inline double PropagationSeconds(const Path& path, const Fabric& fabric) {
  return absl::ToDoubleSeconds(fabric.propagation) * (path.spine == Path::kNoSpine ? 2 : 4);
}

// Names a path that stays on one rail.
inline uint64_t RailPathKey(const Path& path) {
  return (uint64_t{path.source_node} << 36) + (uint64_t{path.destination_node} << 16) + path.source_rail;
}

}  // namespace railsd::sim

#endif  // RAILSD_SIM_NETWORK_RESOURCES_H_
