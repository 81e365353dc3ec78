// Converts the rows of routing traces into steps.
#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <tuple>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "client/workload/content.h"

namespace rails::workload {
namespace {

enum Column : size_t { kRank, kModel, kLayer, kIteration, kTokens, kColumns };
constexpr std::array<const char*, kColumns> kNames = {"rank", "model", "layer", "iter", "tokens"};

struct Row {
  uint32_t model = 0;  // in order of appearance
  uint32_t iteration = 0;
  uint32_t layer = 0;
  uint32_t rank = 0;
  uint64_t tokens = 0;
  uint64_t line = 0;
  auto Step() const { return std::tie(model, iteration, layer); }
};

class Reader {
 public:
  Reader(std::string_view name, const TraceOptions& options) : name_(name), options_(options) {}

  absl::StatusOr<Trace> Read(absl::string_view content) {
    if (absl::Status status = ReadRows(content); !status.ok()) return status;
    if (rows_.empty()) return Error("holds no row after the header");
    std::sort(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) {
      return std::tie(a.model, a.iteration, a.layer, a.rank, a.line) <
             std::tie(b.model, b.iteration, b.layer, b.rank, b.line);
    });
    return MakeSteps();
  }

 private:
  template <typename... Parts>
  absl::Status Error(const Parts&... parts) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", parts...));
  }

  absl::Status ReadRows(absl::string_view content) {
    if (content.size() > options_.limits.content_bytes) {
      return Error("larger than the limit of ", options_.limits.content_bytes, " bytes");
    }
    absl::ConsumePrefix(&content, kByteOrderMark);
    absl::string_view line;
    bool header = false;
    for (line_ = 1; NextLine(&content, &line); ++line_) {
      if (line.size() > options_.limits.line_bytes) {
        return Error("line ", line_, " is longer than the limit of ", options_.limits.line_bytes, " bytes");
      }
      if (absl::StripAsciiWhitespace(line).empty()) continue;
      const absl::Status status = header ? ReadRow(line) : ReadHeader(line);
      if (!status.ok()) return status;
      header = true;
    }
    return header ? absl::OkStatus() : Error("is empty; a trace starts with the header ", absl::StrJoin(kNames, ","));
  }

  absl::Status ReadHeader(absl::string_view line) {
    place_.fill(0);
    for (const absl::string_view field : absl::StrSplit(line, ',')) {
      ++fields_;
      const auto name = std::find(kNames.begin(), kNames.end(), absl::StripAsciiWhitespace(field));
      if (name == kNames.end()) continue;
      size_t& place = place_[static_cast<size_t>(name - kNames.begin())];
      if (place != 0) return Error("line ", line_, ": column ", *name, " is there twice");
      place = fields_;
    }
    for (size_t c = 0; c < kColumns; ++c) {
      if (place_[c] == 0) {
        return Error("line ", line_, ": the header ", Quoted(line), " has no column ", kNames[c], "; a trace has ",
                     absl::StrJoin(kNames, ","));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadNumber(absl::string_view field, Column column, uint64_t most, uint64_t* value) const {
    const bool digits = !field.empty() &&
                        std::all_of(field.begin(), field.end(), [](unsigned char c) { return absl::ascii_isdigit(c); });
    if (!digits) {
      return Error("line ", line_, ", column ", place_[column], " (", kNames[column], "): ", Quoted(field),
                   " is not a whole number");
    }
    if (!absl::SimpleAtoi(field, value) || *value > most) {
      return Error("line ", line_, ", column ", place_[column], " (", kNames[column], "): ", Quoted(field),
                   " is over the limit of ", most);
    }
    return absl::OkStatus();
  }

  absl::Status ReadRow(absl::string_view line) {
    std::array<absl::string_view, kColumns> field;
    size_t fields = 0;
    for (const absl::string_view text : absl::StrSplit(line, ',')) {
      ++fields;
      for (size_t c = 0; c < kColumns; ++c) {
        if (place_[c] == fields) field[c] = absl::StripAsciiWhitespace(text);
      }
    }
    if (fields != fields_) {
      return Error("line ", line_, ": ", fields, " columns where the header has ", fields_, ": ", Quoted(line));
    }
    if (rows_.size() >= options_.limits.rows) return Error("more rows than the limit of ", options_.limits.rows);
    constexpr uint64_t kMostIndex = 1'000'000'000;
    uint64_t rank = 0;
    uint64_t layer = 0;
    uint64_t iteration = 0;
    Row row{.line = line_};
    for (const absl::Status& status : {ReadNumber(field[kRank], kRank, options_.limits.ranks - 1, &rank),
                                       ReadNumber(field[kLayer], kLayer, kMostIndex, &layer),
                                       ReadNumber(field[kIteration], kIteration, kMostIndex, &iteration),
                                       ReadNumber(field[kTokens], kTokens, options_.limits.cell_tokens, &row.tokens)}) {
      if (!status.ok()) return status;
    }
    row.rank = static_cast<uint32_t>(rank);
    row.layer = static_cast<uint32_t>(layer);
    row.iteration = static_cast<uint32_t>(iteration);
    if (absl::Status status = ReadModel(field[kModel], &row.model); !status.ok()) return status;
    ranks_ = std::max<size_t>(ranks_, rank + 1);
    rows_.push_back(row);
    return absl::OkStatus();
  }

  absl::Status ReadModel(absl::string_view field, uint32_t* model) {
    constexpr size_t kMostModels = 1000;
    constexpr size_t kLongestName = 200;
    if (field.empty() || field.size() > kLongestName) {
      return Error("line ", line_, ", column ", place_[kModel], " (model): ", Quoted(field),
                   " is empty or longer than ", kLongestName, " bytes");
    }
    const auto [at, added] = model_index_.try_emplace(std::string(field), static_cast<uint32_t>(models_.size()));
    if (added) models_.push_back(at->first);
    if (models_.size() > kMostModels) return Error("line ", line_, ": more than ", kMostModels, " models");
    *model = at->second;
    return absl::OkStatus();
  }

  absl::Status CheckShape() const {
    if (options_.ranks_per_node == 0) return absl::InvalidArgumentError("ranks_per_node of the trace is 0");
    if (ranks_ % options_.ranks_per_node != 0) {
      return Error("has ", ranks_, " ranks, which is no multiple of ", options_.ranks_per_node, " ranks per node");
    }
    const size_t nodes = ranks_ / options_.ranks_per_node;
    if (options_.ranks_per_node % nodes != 0) {
      return Error("has ", nodes, " nodes of ", options_.ranks_per_node,
                   " ranks; the expert bins of a node's ranks can be put on nodes only where the number of ranks is a "
                   "multiple of the number of nodes");
    }
    if (options_.bytes_per_token == 0 || options_.bytes_per_token > (1 << 20)) {
      return absl::InvalidArgumentError(
          absl::StrCat("bytes_per_token ", options_.bytes_per_token, " is not between 1 and 1048576"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Trace> MakeSteps() const {
    if (absl::Status status = CheckShape(); !status.ok()) return status;
    std::optional<uint32_t> only;
    if (!options_.model.empty()) {
      const auto at = model_index_.find(options_.model);
      if (at == model_index_.end()) {
        return absl::NotFoundError(absl::StrCat(name_, ": no model ", Quoted(options_.model), "; it has ",
                                                absl::StrJoin(models_.begin(), models_.end(), ", ")));
      }
      only = at->second;
    }
    Trace trace;
    trace.nodes = ranks_ / options_.ranks_per_node;
    trace.rows = rows_.size();
    for (size_t begin = 0, end = 0; begin < rows_.size(); begin = end) {
      while (end < rows_.size() && rows_[end].Step() == rows_[begin].Step()) ++end;
      // Checks every step, also steps that are not wanted.
      if (absl::Status status = CheckStep(begin, end); !status.ok()) return status;
      if (only.has_value() && rows_[begin].model != *only) continue;
      if (options_.max_steps > 0 && trace.steps.size() >= options_.max_steps) continue;
      trace.steps.push_back(MakeStep(begin));
    }
    return trace;
  }

  absl::Status CheckStep(size_t begin, size_t end) const {
    const Row& first = rows_[begin];
    const std::string step =
        absl::StrCat("model ", models_[first.model], ", layer ", first.layer, ", iter ", first.iteration);
    for (size_t i = begin; i < end; ++i) {
      const size_t expected = i - begin;
      if (rows_[i].rank == expected) continue;
      if (i > begin && rows_[i].rank == rows_[i - 1].rank) {
        return Error("line ", rows_[i].line, ", column ", place_[kRank], " (rank): \"", rows_[i].rank, "\" of ", step,
                     " is already on line ", rows_[i - 1].line);
      }
      return Error(step, " has no row for rank ", expected, "; the trace has ", ranks_, " ranks");
    }
    if (end - begin != ranks_) {
      return Error(step, " has no row for rank ", end - begin, "; the trace has ", ranks_, " ranks");
    }
    return absl::OkStatus();
  }

  Step MakeStep(size_t begin) const {
    const Row& first = rows_[begin];
    const size_t nodes = ranks_ / options_.ranks_per_node;
    Step step{.model = models_[first.model],
              .layer = first.layer,
              .iteration = first.iteration,
              .dispatch = TrafficMatrix(nodes)};
    for (size_t rank = 0; rank < ranks_; ++rank) {
      const size_t bin = rank % options_.ranks_per_node % nodes;
      step.dispatch.at(rank / options_.ranks_per_node, bin) += rows_[begin + rank].tokens * options_.bytes_per_token;
    }
    return step;
  }

  const std::string name_;
  const TraceOptions& options_;
  std::vector<Row> rows_;
  std::vector<std::string> models_;
  std::map<std::string, uint32_t> model_index_;
  std::array<size_t, kColumns> place_;  // column in the file, from 1
  size_t fields_ = 0;
  size_t ranks_ = 0;
  uint64_t line_ = 0;
};

}  // namespace

absl::StatusOr<Trace> ParseTrace(std::string_view content, std::string_view name, const TraceOptions& options) {
  return Reader(name, options).Read(Abs(content));
}

}  // namespace rails::workload
