#include "client/c/src/error.h"

#include <memory>
#include <string>
#include <utility>

namespace rails::c {
namespace {

struct Error : rails_error {
  std::string text_storage{};
};

Error& NoMemory() {
  static Error error{{RAILS_RESOURCE_EXHAUSTED, "this process has no memory left", nullptr, nullptr, 0}};
  return error;
}

}  // namespace

rails_error* OutOfMemory() noexcept { return &NoMemory(); }

rails_error* ToError(const absl::Status& status) noexcept {
  if (status.ok()) return nullptr;
  try {
    auto error = std::make_unique<Error>();
    error->code = static_cast<int32_t>(status.code());
    error->text_storage = std::string(status.message());
    error->text = error->text_storage.c_str();
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
