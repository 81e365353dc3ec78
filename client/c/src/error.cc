#include "client/c/src/error.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rails/client.h"

namespace rails::c {
namespace {

struct Error : rails_error {
  std::string text_storage{}, node_storage{};
  std::vector<uint32_t> ranks_storage{};
};

Error& NoMemory() {
  static Error error{{RAILS_RESOURCE_EXHAUSTED, "this process has no memory left", nullptr, nullptr, 0}};
  return error;
}

// The node of all `ranks`; empty if they are on several nodes, or a node is not known.
std::string NodeOf(const std::vector<uint32_t>& ranks, const Members& members) {
  std::string node;
  for (uint32_t rank : ranks) {
    if (rank >= members.size() || (!node.empty() && members[rank] != node)) return "";
    node = members[rank];
  }
  return node;
}

}  // namespace

rails_error* OutOfMemory() noexcept { return &NoMemory(); }

rails_error* ToError(const absl::Status& status, const Members* members) noexcept {
  if (status.ok()) return nullptr;
  try {
    auto error = std::make_unique<Error>();
    error->code = static_cast<int32_t>(status.code());
    error->text_storage = std::string(status.message());
    error->text = error->text_storage.c_str();
    error->ranks_storage = FailedRanks(status);
    error->ranks = error->ranks_storage.data();
    error->rank_count = error->ranks_storage.size();
    if (members != nullptr) error->node_storage = NodeOf(error->ranks_storage, *members);
    if (!error->node_storage.empty()) error->node = error->node_storage.c_str();
    return error.release();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace rails::c

void rails_error_free(rails_error* error) {
  if (error != rails::c::OutOfMemory()) delete static_cast<rails::c::Error*>(error);
}

const char* rails_code_name(int32_t code) {
  static constexpr const char* kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  return code >= RAILS_OK && code <= RAILS_UNAUTHENTICATED ? kNames[code] : kNames[RAILS_UNKNOWN];
}

const char* rails_version(void) { return RAILS_VERSION; }
