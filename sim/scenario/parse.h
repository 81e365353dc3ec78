// Setters of a scenario's fields. Each returns "" or the reason why the text is no such value: "is below zero", or, if
// only a part of the text is wrong, "'-1us' is below zero". Private to sim/scenario.
#ifndef RAILSD_SIM_SCENARIO_PARSE_H_
#define RAILSD_SIM_SCENARIO_PARSE_H_

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/time/time.h"
#include "sim/fabric.h"

namespace railsd::sim {

std::string ParseInteger(const std::string& text, uint64_t least, uint64_t most, uint64_t* value);
std::string ParseReal(const std::string& text, double least, double most, double* value);
std::string ParseSize(const std::string& text, uint64_t least, uint64_t* value);    // "16MiB"
std::string ParseSpeed(const std::string& text, bool zero_allowed, double* value);  // "400gbit"
// "400gbit", or one for each rail: "400gbit,400gbit,0".
std::string ParseSpeeds(const std::string& text, std::vector<double>* speeds);
std::string ParseTime(const std::string& text, absl::Duration* value,
                      absl::Duration most = absl::Hours(24));      // "15.7us", "0"
std::string ParseSeconds(const std::string& text, double* value);  // the same
std::string ParseFlag(const std::string& text, bool* value);       // "true", "false"
std::string ParseFlops(const std::string& text, double* value);    // "989tflops", "1.9e15"
// "3:1ms:0", "3@5:1ms:200gbit": rail, node, time, speed; separated by commas.
std::string ParseChanges(const std::string& text, std::vector<RailChange>* changes);
// One of `names`; the value is its place among them.
std::string ParseWord(const std::string& text, const std::vector<std::string>& names, size_t* place);

// The same for a field of any unsigned type.
template <typename T>
std::string SetInteger(const std::string& text, uint64_t least, uint64_t most, T* field) {
  uint64_t value = 0;
  std::string mistake = ParseInteger(text, least, most, &value);
  if (mistake.empty()) *field = static_cast<T>(value);
  return mistake;
}

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_PARSE_H_
