#include <cmath>

#include "client/workload/content.h"

namespace rails::workload {

uint64_t TrafficMatrix::RowSum(size_t source) const {
  uint64_t sum = 0;
  for (size_t d = 0; d < size_; ++d) sum += at(source, d);
  return sum;
}

uint64_t TrafficMatrix::ColumnSum(size_t destination) const {
  uint64_t sum = 0;
  for (size_t s = 0; s < size_; ++s) sum += at(s, destination);
  return sum;
}

uint64_t TrafficMatrix::Total() const {
  uint64_t sum = 0;
  for (const uint64_t cell : cells_) sum += cell;
  return sum;
}

TrafficMatrix TrafficMatrix::Transposed() const {
  TrafficMatrix result(size_);
  for (size_t s = 0; s < size_; ++s) {
    for (size_t d = 0; d < size_; ++d) result.at(d, s) = at(s, d);
  }
  return result;
}

absl::Status MatrixBuilder::ErrorHere(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(name_, ": row ", rows_, ", column ", columns_ + 1, ": ", what));
}

absl::Status MatrixBuilder::CheckPlace() const {
  if (rows_ > limits_.matrix_size || columns_ >= limits_.matrix_size) {
    return ErrorHere(absl::StrCat("the matrix is larger than the limit of ", limits_.matrix_size, " rows and columns"));
  }
  return absl::OkStatus();
}

absl::Status MatrixBuilder::AddCell(double value, absl::string_view text) {
  if (!std::isfinite(value)) return ErrorHere(absl::StrCat(Quoted(text), " is not a finite number of bytes"));
  if (value < 0) return ErrorHere(absl::StrCat(Quoted(text), " is negative"));
  if (value > static_cast<double>(limits_.cell_bytes)) {
    return ErrorHere(absl::StrCat(Quoted(text), " is over the limit of ", limits_.cell_bytes, " bytes"));
  }
  return AddCell(static_cast<uint64_t>(std::llround(value)), text);
}

absl::Status MatrixBuilder::AddCell(uint64_t value, absl::string_view text) {
  if (absl::Status status = CheckPlace(); !status.ok()) return status;
  if (value > limits_.cell_bytes) {
    return ErrorHere(absl::StrCat(Quoted(text), " is over the limit of ", limits_.cell_bytes, " bytes"));
  }
  constexpr uint64_t kMostInAll = uint64_t{1} << 62;
  if (value > kMostInAll - total_) return ErrorHere("the sum of all cells is over the limit of 2^62 bytes");
  total_ += value;
  cells_.push_back(value);
  ++columns_;
  return absl::OkStatus();
}

absl::Status MatrixBuilder::EndRow() {
  if (rows_ == 1) first_row_columns_ = columns_;
  if (columns_ == first_row_columns_ && columns_ > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name_, ": row ", rows_, " has ", columns_,
                                                 " columns, the first row has ", first_row_columns_,
                                                 "; a matrix has at least one and all the same"));
}

absl::StatusOr<TrafficMatrix> MatrixBuilder::Finish() const {
  if (rows_ == 0) return absl::InvalidArgumentError(absl::StrCat(name_, ": holds no matrix: it has no row of numbers"));
  if (rows_ != first_row_columns_) {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": not square: ", rows_, " rows and ", first_row_columns_,
                                                   " columns; row and column i are the same node"));
  }
  TrafficMatrix matrix(rows_);
  for (size_t i = 0; i < cells_.size(); ++i) matrix.at(i / rows_, i % rows_) = cells_[i];
  return matrix;
}

absl::StatusOr<TrafficMatrix> ParseMatrix(std::string_view content, std::string_view name, const ReadLimits& limits) {
  if (content.size() > limits.content_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(Abs(name), ": larger than the limit of ", limits.content_bytes, " bytes"));
  }
  const size_t start = content.find_first_not_of(" \t\r\n");
  const bool json = start != std::string_view::npos && (content[start] == '[' || content[start] == '{');
  return json ? ParseJsonMatrix(content, name, limits) : ParseTextMatrix(content, name, limits);
}

}  // namespace rails::workload
