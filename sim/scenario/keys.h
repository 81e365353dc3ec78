// The keys of a scenario: one line each, which the YAML file, the command line and the documentation share.
#ifndef RAILSD_SIM_SCENARIO_KEYS_H_
#define RAILSD_SIM_SCENARIO_KEYS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "sim/scenario/scenario.h"

namespace railsd::sim {

// Workloads or settings with which a key has an effect.
enum class KeyUse : uint8_t {
  kAlways,
  kZipf,
  kSparse,
  kFile,
  kTrace,    // a file, or the generator of Mixtral's routing
  kNoModel,  // generated or from a file
  kModel,
  kPacket,     // network.mode: packet
  kEcn,        // and network.full: ecn
  kFluid,      // network.mode: fluid
  kFixedCost,  // fixed_cost.count: true
};

struct Key {
  std::string_view name;      // "workload.zipf_exponent": section and key in YAML
  std::string_view flag;      // "--zipf-exponent"
  std::string_view type;      // "SIZE", "RATE", ...
  std::string_view standard;  // the default, as printed; may be a text that is no value
  std::string_view help;      // a sentence
  KeyUse use = KeyUse::kAlways;
  // Sets the field, or returns why the text is no such value.
  std::string (*set)(const std::string& text, Scenario* scenario) = nullptr;
};

// In the order of the documentation. `policy` is a key with no field: its values are the policies of every point.
absl::Span<const Key> Keys();
const Key* FindKey(std::string_view name);

// True if a key with this use has an effect at this point.
bool Applies(KeyUse use, const Scenario& scenario);
std::string_view DescribeUse(KeyUse use);  // "needs workload zipf"

// The candidate with the fewest letters to change, if they are few.
std::optional<std::string_view> Nearest(std::string_view text, absl::Span<const std::string_view> candidates);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_KEYS_H_
