#include "client/cuda/driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace rails::cuda {
namespace {

constexpr Result kOutOfMemory = 2, kNoDevice = 100;

absl::Status Missing(const std::string& library, const char* function) {
  return absl::UnimplementedError(
      absl::StrCat(library, " has no function ", function, ": it needs a driver of CUDA 11 or later"));
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Driver>> Driver::Open(const std::string& library) {
  void* const loaded = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (loaded == nullptr) {
    return absl::NotFoundError(absl::StrCat("the NVIDIA driver's library cannot be loaded: ", dlerror(),
                                            "; install the driver, or use memory of the host"));
  }
  auto driver = std::make_shared<Driver>();
#define RAILS_CUDA_LOAD(name, type) driver->name = reinterpret_cast<decltype(driver->name)>(dlsym(loaded, #name));
  RAILS_CUDA_FUNCTIONS(RAILS_CUDA_LOAD, RAILS_CUDA_LOAD)
#undef RAILS_CUDA_LOAD
#define RAILS_CUDA_NEED(name, type) \
  if (driver->name == nullptr) return Missing(library, #name);
#define RAILS_CUDA_MAY_LACK(name, type)
  RAILS_CUDA_FUNCTIONS(RAILS_CUDA_NEED, RAILS_CUDA_MAY_LACK)
#undef RAILS_CUDA_NEED
#undef RAILS_CUDA_MAY_LACK
  const Result result = driver->cuInit(0);
  if (result == kSuccess) return driver;
  const absl::Status status = driver->Check(result, "cuInit");
  if (result == kNoDevice) return absl::NotFoundError(status.message());
  return absl::UnavailableError(status.message());
}

absl::Status Driver::Check(Result result, absl::string_view function) const {
  if (result == kSuccess) return absl::OkStatus();
  const char *name = nullptr, *text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const std::string what = absl::StrCat(function, " failed: ", name == nullptr ? "error" : name, " (", result, ")",
                                        text == nullptr ? "" : absl::StrCat(", ", text));
  if (result == kOutOfMemory) return absl::ResourceExhaustedError(what);
  return absl::InternalError(what);
}

}  // namespace rails::cuda
