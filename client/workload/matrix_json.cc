// Reads a matrix from JSON event by event. Values outside the matrix build nothing, however deep they nest.
#include <nlohmann/json.hpp>

#include "client/workload/content.h"

namespace rails::workload {
namespace {

class MatrixEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  MatrixEvents(std::string_view name, const ReadLimits& limits) : name_(name), builder_(name, limits) {}

  bool null() override { return Other("null"); }
  bool boolean(bool value) override { return Other(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override {
    // Only negative numbers come here.
    return InRow() ? Check(builder_.AddCell(static_cast<double>(value), absl::StrCat(value))) : Other("a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    return InRow() ? Check(builder_.AddCell(uint64_t{value}, absl::StrCat(value))) : Other("a number");
  }
  bool number_float(number_float_t value, const string_t& text) override {
    return InRow() ? Check(builder_.AddCell(value, text)) : Other("a number");
  }
  bool string(string_t& value) override { return Other(Quoted(value)); }
  bool binary(binary_t&) override { return Other("binary data"); }

  bool start_object(size_t) override {
    if (depth_ == 0) {
      matrix_depth_ = 2;
      in_matrix_ = false;
    } else if (in_matrix_) {
      return Other("an object");
    }
    ++depth_;
    return true;
  }
  bool key(string_t& value) override {
    if (depth_ != 1) return true;
    in_matrix_ = value == "matrix";
    if (in_matrix_ && seen_)
      return Check(absl::InvalidArgumentError(absl::StrCat(name_, ": \"matrix\" is there twice")));
    return true;
  }
  bool end_object() override {
    --depth_;
    return true;
  }
  bool start_array(size_t) override {
    ++depth_;
    if (!in_matrix_) return true;
    seen_ = true;
    if (depth_ == matrix_depth_ + 1) builder_.StartRow();
    if (depth_ > matrix_depth_ + 1) return Other("an array");
    return true;
  }
  bool end_array() override {
    --depth_;
    if (!in_matrix_) return true;
    if (depth_ == matrix_depth_) return Check(builder_.EndRow());
    if (depth_ < matrix_depth_) in_matrix_ = false;
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const nlohmann::json::exception& error) override {
    return Check(absl::InvalidArgumentError(
        absl::StrCat(name_, ": not JSON at byte ", position, " near ", Quoted(token), ": ", Quoted(error.what()))));
  }

  absl::StatusOr<TrafficMatrix> Result() const {
    if (!status_.ok()) return status_;
    if (!seen_) return absl::InvalidArgumentError(absl::StrCat(name_, ": the object has no \"matrix\""));
    return builder_.Finish();
  }

 private:
  bool InRow() const { return in_matrix_ && depth_ == matrix_depth_ + 1; }
  bool Other(absl::string_view what) {
    if (!in_matrix_) return true;
    return Check(InRow() ? builder_.ErrorHere(absl::StrCat(what, " is not a number"))
                         : absl::InvalidArgumentError(
                               absl::StrCat(name_, ": ", what, " where a matrix is an array of arrays of numbers")));
  }
  bool Check(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return status_.ok();
  }

  const std::string name_;
  MatrixBuilder builder_;
  absl::Status status_;
  size_t depth_ = 0;
  size_t matrix_depth_ = 1;  // depth inside the array of rows
  bool in_matrix_ = true;
  bool seen_ = false;
};

}  // namespace

absl::StatusOr<TrafficMatrix> ParseJsonMatrix(std::string_view content, std::string_view name,
                                              const ReadLimits& limits) {
  MatrixEvents events(name, limits);
  nlohmann::json::sax_parse(content.begin(), content.end(), &events);
  return events.Result();
}

}  // namespace rails::workload
