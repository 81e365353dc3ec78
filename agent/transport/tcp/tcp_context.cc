#include "agent/transport/tcp/tcp_context.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace railsd::tcp {
namespace {

constexpr size_t kScratchBytes = 64 << 10;

}  // namespace

Context::Context(TcpOptions wanted)
    : options(std::move(wanted)),
      events(options.max_posted_orders, options.max_receive_events),
      orders(options.max_posted_orders) {
  if (options.tls) scratch.resize(kScratchBytes);
}

void Context::Notice(std::string* last, const std::string& text) const {
  if (!options.on_notice || *last == text) return;
  *last = text;
  options.on_notice(absl::StrCat("rail ", options.rail.value(), " of ", options.node, text));
}

}  // namespace railsd::tcp
