// Reads files as text, within limits. Internal to the library.
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

// Quotes at most 60 bytes of a value from a file. Bytes that are not printable ASCII become `?`.
std::string Quoted(absl::string_view value);

// Reads the text of a file. Detects gzip by its first two bytes. Errors of the file system. INVALID_ARGUMENT: over a
// limit, or damaged.
absl::StatusOr<std::string> ReadContent(const std::string& path, const ReadLimits& limits);
// ReadContent() for bytes that were read from a file.
absl::StatusOr<std::string> Decompress(std::string stored, std::string_view name, const ReadLimits& limits);

// Some editors write this at the beginning of a file.
inline constexpr absl::string_view kByteOrderMark = "\xef\xbb\xbf";

// Removes the next line from `rest`. `line` has neither the line end nor CR. False: there is no line.
bool NextLine(absl::string_view* rest, absl::string_view* line);

// True if the first line with contents is the header of a trace.
bool LooksLikeTrace(std::string_view content);

absl::StatusOr<TrafficMatrix> ParseJsonMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits);
absl::StatusOr<TrafficMatrix> ParseTextMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits);

// Collects and checks the cells of a matrix of unknown size, for both readers.
class MatrixBuilder {
 public:
  MatrixBuilder(std::string_view name, const ReadLimits& limits) : name_(name), limits_(limits) {}
  void StartRow() { ++rows_, columns_ = 0; }
  absl::Status AddCell(double value, absl::string_view text);
  absl::Status AddCell(uint64_t value, absl::string_view text);
  absl::Status EndRow();
  absl::StatusOr<TrafficMatrix> Finish() const;
  // Makes an error for the next cell.
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
