// Files into text, within limits. Internal to the library.
#ifndef RAILS_WORKLOAD_CONTENT_H_
#define RAILS_WORKLOAD_CONTENT_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "client/workload/workload.h"

namespace rails::workload {

inline absl::string_view Abs(std::string_view text) { return {text.data(), text.size()}; }

// At most 60 bytes of a value from a file, quoted, bytes that are not printable ASCII shown as `?`.
std::string Quoted(absl::string_view value);

// The text of a file; gzip is known by its first two bytes. Errors: of the file system; INVALID_ARGUMENT for what is
// over a limit or damaged.
absl::StatusOr<std::string> ReadContent(const std::string& path, const ReadLimits& limits);
// The same of what a file holds.
absl::StatusOr<std::string> Decompress(std::string stored, std::string_view name, const ReadLimits& limits);

// Takes the next line off `rest`: without its end, CR removed. False when there is none.
bool NextLine(absl::string_view* rest, absl::string_view* line);

// True when the first line that says something is the header of a trace.
bool LooksLikeTrace(std::string_view content);

absl::StatusOr<TrafficMatrix> ParseJsonMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits);
absl::StatusOr<TrafficMatrix> ParseTextMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits);

// Collects the cells of a matrix of unknown size, checking each; used by both readers.
class MatrixBuilder {
 public:
  MatrixBuilder(std::string_view name, const ReadLimits& limits) : name_(name), limits_(limits) {}
  void StartRow() { ++rows_, columns_ = 0; }
  absl::Status AddCell(double value, absl::string_view text);
  absl::Status AddCell(uint64_t value, absl::string_view text);
  absl::Status EndRow();
  absl::StatusOr<TrafficMatrix> Finish() const;
  // An error at the cell that would come next.
  absl::Status ErrorHere(absl::string_view what) const;

 private:
  absl::Status CheckPlace() const;

  const std::string name_;
  const ReadLimits limits_;
  std::vector<uint64_t> cells_;
  uint64_t rows_ = 0;
  uint64_t columns_ = 0;
  uint64_t first_row_columns_ = 0;
  uint64_t total_ = 0;
};

}  // namespace rails::workload

#endif  // RAILS_WORKLOAD_CONTENT_H_
