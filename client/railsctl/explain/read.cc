#include "client/railsctl/explain/read.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/railsctl/printable.h"
#include "common/json/json.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMaxSeconds = 1e11;  // since 1970

// Replaces the texts that MessageJson() writes for a boot id, a code and a state by the numbers that protobuf reads.
void ToProtobuf(Json* report) {
  const Json::json_pointer path("/job/epoch/boot_id");
  if (!report->contains(path)) return;
  Json& boot_id = (*report)[path];
  uint64_t number = 0;
  if (!boot_id.is_string() || !absl::SimpleHexAtoi(boot_id.get<std::string>(), &number)) return;
  boot_id = number;
  for (int code = 0; code <= static_cast<int>(absl::StatusCode::kUnauthenticated); ++code) {
    if ((*report)["code"] == CodeName(code)) (*report)["code"] = code;
  }
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if ((*report)["state"] == JobStateName(static_cast<v1::JobState>(state))) (*report)["state"] = state;
  }
}

// Makes all texts printable. False: a time is no number or out of range.
bool Tame(google::protobuf::Message* message) {
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(*message, &fields);
  bool tame = true;
  for (const auto* field : fields) {
    const bool message_field = field->cpp_type() == field->CPPTYPE_MESSAGE;
    if (field->is_repeated()) {  // lists hold no times: their numbers are bytes and ranks
      for (int i = 0; message_field && i < reflection.FieldSize(*message, field); ++i) {
        tame = Tame(reflection.MutableRepeatedMessage(message, field, i)) && tame;
      }
    } else if (message_field) {
      tame = Tame(reflection.MutableMessage(message, field)) && tame;
    } else if (field->cpp_type() == field->CPPTYPE_STRING) {
      reflection.SetString(message, field, Printable(reflection.GetString(*message, field)));
    } else if (field->cpp_type() == field->CPPTYPE_DOUBLE) {
      tame = std::abs(reflection.GetDouble(*message, field)) <= kMaxSeconds && tame;
    }
  }
  return tame;
}

// True if every record of a chunk names a rail and an exchange of the job.
bool ChunksFit(const v1::ExplainJobResponse& job) {
  return std::all_of(job.chunks().begin(), job.chunks().end(), [&job](const v1::ChunkRecord& chunk) {
    return chunk.rail() < static_cast<uint32_t>(job.rails_size()) &&
           chunk.exchange() < static_cast<uint32_t>(job.exchanges_size());
  });
}

}  // namespace

absl::StatusOr<v1::ExplainJobResponse> ReadExplanation(absl::string_view json) {
  const absl::Status wrong = absl::InvalidArgumentError("not the output of `railsctl explain --json`");
  if (IsDeepJson(json)) return wrong;
  Json job = Json::parse(json.begin(), json.end(), nullptr, /*allow_exceptions=*/false);
  if (!job.is_object() || !job.contains("report") || !job["report"].is_object()) return wrong;
  ToProtobuf(&job["report"]);
  v1::ExplainJobResponse out;
  google::protobuf::util::JsonParseOptions options;
  options.ignore_unknown_fields = true;
  const std::string text = DumpJson(job);
  if (!google::protobuf::util::JsonStringToMessage(text, &out, options).ok() || out.node().empty()) return wrong;
  if (!Tame(&out) || !ChunksFit(out))
    return absl::InvalidArgumentError("a time, a rail or an exchange in it is impossible");
  return out;
}

}  // namespace rails::ctl
