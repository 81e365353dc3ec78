// Draws what a hostile peer does and says from the bytes of an input: the first byte makes the first choice, so that a
// change of one byte changes little. After the last byte every choice is 0.
#ifndef RAILSD_TESTS_FUZZ_SERVICE_AGENT_CHOICES_H_
#define RAILSD_TESTS_FUZZ_SERVICE_AGENT_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "agent/control/messages.h"

namespace railsd::testing {

class Choices {
 public:
  Choices(const uint8_t* bytes, size_t size) : left_(bytes, size) {}
  bool empty() const { return left_.empty(); }
  uint8_t Byte();
  // 0 to count - 1; `count` is at most 256.
  size_t Below(size_t count) { return Byte() % count; }
  bool Flip() { return Byte() % 2 != 0; }
  std::string Bytes(size_t count);

 private:
  absl::Span<const uint8_t> left_;
};

// Names that a peer has seen from the others and can use.
struct Known {
  std::vector<Epoch> epochs;
  std::vector<GroupKey> keys;
  std::vector<std::string> nodes;
  std::vector<BootId> boots;
};

// A message of any kind: mostly about what is known, with small numbers, and now and then with extreme ones.
ControlMessage DrawMessage(const Known& known, Choices* choices);
// Changes one field of it.
void ChangeMessage(const Known& known, Choices* choices, ControlMessage* message);

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_FUZZ_SERVICE_AGENT_CHOICES_H_
