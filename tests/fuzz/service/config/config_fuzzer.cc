// Any bytes as a configuration file: refused with a message or accepted, and what is accepted prints and reads back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "daemon/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<railsd::Config> config = railsd::ParseConfig(text, "fuzz.yaml");
  if (!config.ok()) return 0;
  const std::string printed = railsd::PrintConfig(*config);
  const absl::StatusOr<railsd::Config> again = railsd::ParseConfig(printed, "printed.yaml");
  if (!again.ok() || railsd::PrintConfig(*again) != printed) abort();
  return 0;
}
