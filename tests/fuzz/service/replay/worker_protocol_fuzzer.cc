// Any bytes as a message between the coordinator of a replay and its workers: refused with a reason, or taken; and what
// is taken is written as a message that means the same. A hello is admitted or refused with a reason, and no hello is
// admitted twice.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "client/railsctl/replay/admission.h"
#include "client/railsctl/replay/worker_protocol.h"

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

template <typename Parse>
void ReadMessage(const std::string& bytes, Parse parse) {
  const auto read = parse(bytes);
  if (!read.ok()) return Require(!read.status().message().empty());
  const std::string written = read->SerializeAsString();
  const auto again = parse(written);
  Require(again.ok() && again->SerializeAsString() == written);
}

void Admit(const std::string& bytes) {
  const absl::StatusOr<rails::ctl::Event> event = rails::ctl::ParseEvent(bytes);
  if (!event.ok() || !event->has_hello()) return;
  const rails::ctl::HelloEvent& hello = event->hello();
  rails::ctl::HelloEvent own;
  own.set_token("token");
  own.set_version("1");
  own.set_world_size(4);
  own.add_options("--seed 7");
  rails::ctl::Admission admission(own);
  const absl::Status status = admission.Admit(hello);
  Require(status.ok() || !status.message().empty());
  Require(!status.ok() ||
          (hello.token() == "token" && hello.world_size() == 4 && hello.rank() < 4 && hello.rank() > 0));
  Require(!admission.Admit(hello).ok());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string message(reinterpret_cast<const char*>(bytes), size);
  ReadMessage(message, rails::ctl::ParseCommand);
  ReadMessage(message, rails::ctl::ParseEvent);
  Admit(message);
  return 0;
}
