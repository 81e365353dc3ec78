#include "daemon/service/call_counters.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace railsd {

CallCounters::CallCounters(const std::vector<std::string>& services) {
  size_t count = 0;
  const google::protobuf::DescriptorPool* pool = google::protobuf::DescriptorPool::generated_pool();
  for (const std::string& name : services) {
    const google::protobuf::ServiceDescriptor* service = pool->FindServiceByName(name);
    if (service != nullptr) count += static_cast<size_t>(service->method_count());
  }
  methods_ = std::vector<Method>(count);
  size_t at = 0;
  for (const std::string& name : services) {
    const google::protobuf::ServiceDescriptor* service = pool->FindServiceByName(name);
    for (int i = 0; service != nullptr && i < service->method_count(); ++i, ++at) {
      methods_[at].name = absl::StrCat(service->name(), "/", service->method(i)->name());
      by_name_[methods_[at].name] = at;
    }
  }
}

void CallCounters::Count(absl::string_view method, absl::StatusCode code) {
  const auto found = by_name_.find(method);
  if (found == by_name_.end()) return;
  methods_[found->second].by_code[static_cast<size_t>(code)].fetch_add(1, std::memory_order_relaxed);
}

void CallCounters::ForEach(const std::function<void(const std::string&, const std::string&, uint64_t)>& each) const {
  for (const Method& method : methods_) {
    for (int code = 0; code < kCodes; ++code) {
      const uint64_t count = method.by_code[static_cast<size_t>(code)].load(std::memory_order_relaxed);
      if (count == 0) continue;
      each(method.name, absl::AsciiStrToLower(absl::StatusCodeToString(static_cast<absl::StatusCode>(code))), count);
    }
  }
}

}  // namespace railsd
