// Any bytes as the query of a request for the status: refused, or a number of jobs that is not too large; and what else
// the query says changes nothing.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/metrics/status_query.h"

namespace {

void Require(bool ok) {
  if (!ok) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  const std::string query(reinterpret_cast<const char*>(bytes), size);
  const std::optional<uint32_t> wanted = railsd::FinishedWanted(query);
  Require(!wanted || *wanted <= railsd::kMaxFinished);
  if (!wanted) return 0;
  Require(railsd::FinishedWanted(absl::StrCat("other=1&", query, "&finishe=x")) == wanted);
  Require(railsd::FinishedWanted(absl::StrCat("finished=7&", query, "&finished=", *wanted)) == wanted);
  Require(!railsd::FinishedWanted(absl::StrCat(query, "&finished=many")));
  return 0;
}
