// Reads a matrix from lines of numbers.
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "client/workload/content.h"

namespace rails::workload {
namespace {

absl::Status AddField(absl::string_view field, MatrixBuilder* builder) {
  if (field.empty()) return builder->ErrorHere("the cell is empty");
  uint64_t whole = 0;
  if (absl::ascii_isdigit(static_cast<unsigned char>(field[0])) && absl::SimpleAtoi(field, &whole)) {
    return builder->AddCell(whole, field);
  }
  double value = 0;
  if (!absl::SimpleAtod(field, &value)) return builder->ErrorHere(absl::StrCat(Quoted(field), " is not a number"));
  return builder->AddCell(value, field);
}

// Commas or semicolons separate cells; blanks do in lines without them.
absl::Status AddLine(absl::string_view line, MatrixBuilder* builder) {
  builder->StartRow();
  const bool marked = line.find_first_of(",;") != absl::string_view::npos;
  absl::Status status;
  const auto add = [&](const auto& fields) {
    for (const absl::string_view field : fields) {
      if (status = AddField(absl::StripAsciiWhitespace(field), builder); !status.ok()) return;
    }
  };
  if (marked) {
    add(absl::StrSplit(line, absl::ByAnyChar(",;")));
  } else {
    add(absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipWhitespace()));
  }
  return status.ok() ? builder->EndRow() : status;
}

}  // namespace

absl::StatusOr<TrafficMatrix> ParseTextMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits) {
  MatrixBuilder builder(name, limits);
  absl::string_view rest = Abs(content);
  absl::string_view line;
  for (uint64_t number = 1; NextLine(&rest, &line); ++number) {
    if (line.size() > limits.line_bytes) {
      return absl::InvalidArgumentError(
          absl::StrCat(Abs(name), ": line ", number, " is longer than the limit of ", limits.line_bytes, " bytes"));
    }
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    if (absl::Status status = AddLine(line, &builder); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(status.message(), " (line ", number, ")"));
    }
  }
  return builder.Finish();
}

}  // namespace rails::workload
