// Any bytes as a file given to plan or replay: refused with a message, or a workload whose sums hold. The decompressor
// and both readers see all of it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client/workload/content.h"
#include "client/workload/workload.h"

namespace rails::workload {
namespace {

void Require(bool condition) {
  if (!condition) abort();
}

ReadLimits SmallLimits() {
  return {.file_bytes = 1 << 20, .content_bytes = 1 << 20, .rows = 10'000, .line_bytes = 4096, .matrix_size = 64};
}

void CheckMatrix(const TrafficMatrix& matrix) {
  Require(matrix.Total() <= uint64_t{1} << 62);
  Require(matrix.Transposed().Transposed() == matrix);
  const absl::StatusOr<TrafficMatrix> ranks = SpreadToRanks(matrix, 2, Spread::kSkewed);
  if (ranks.ok()) Require(ranks->Total() == matrix.Total());
}

void Check(const std::string& content) {
  TraceOptions options{.ranks_per_node = 2};
  options.limits = SmallLimits();
  absl::StatusOr<Trace> trace = ParseTrace(content, "fuzz", options);
  if (trace.ok()) {
    Require(!trace->steps.empty());
    for (const Step& step : trace->steps) CheckMatrix(step.dispatch);
    (void)ScaleToBytesPerRank(12345, 2, &trace->steps);
  } else {
    Require(!trace.status().message().empty());
  }
  const absl::StatusOr<TrafficMatrix> matrix = ParseMatrix(content, "fuzz", options.limits);
  if (matrix.ok()) CheckMatrix(*matrix);
}

}  // namespace
}  // namespace rails::workload

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto content = rails::workload::Decompress(std::string(reinterpret_cast<const char*>(data), size), "fuzz",
                                                   rails::workload::SmallLimits());
  if (content.ok()) rails::workload::Check(*content);
  return 0;
}
