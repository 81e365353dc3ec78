#include "common/json/json.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/match.h"
#include "common/json/names.h"

namespace rails {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

constexpr int kMaxDepth = 16;  // of objects and arrays; messages have 5

// One value: of a field, or of the element of a list at `index`.
class Value {
 public:
  Value(const Message& message, const FieldDescriptor* field, int index = -1)
      : message_(message), field_(field), index_(index) {}

  Json ToJson() const {
    switch (field_->cpp_type()) {
      case FieldDescriptor::CPPTYPE_BOOL:
        return Get(&Reflection::GetBool, &Reflection::GetRepeatedBool);
      case FieldDescriptor::CPPTYPE_INT32:
        return Int32();
      case FieldDescriptor::CPPTYPE_INT64:
        return Get(&Reflection::GetInt64, &Reflection::GetRepeatedInt64);
      case FieldDescriptor::CPPTYPE_UINT32:
        return Get(&Reflection::GetUInt32, &Reflection::GetRepeatedUInt32);
      case FieldDescriptor::CPPTYPE_UINT64:
        return UInt64();
      case FieldDescriptor::CPPTYPE_FLOAT:
        return Get(&Reflection::GetFloat, &Reflection::GetRepeatedFloat);
      case FieldDescriptor::CPPTYPE_DOUBLE:
        return Get(&Reflection::GetDouble, &Reflection::GetRepeatedDouble);
      case FieldDescriptor::CPPTYPE_ENUM:
        return EnumWord(*field_->enum_type(), Get(&Reflection::GetEnumValue, &Reflection::GetRepeatedEnumValue));
      case FieldDescriptor::CPPTYPE_STRING:
        return Get(&Reflection::GetString, &Reflection::GetRepeatedString);
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (index_ >= 0) return MessageJson(reflection().GetRepeatedMessage(message_, field_, index_));
        return reflection().HasField(message_, field_) ? MessageJson(reflection().GetMessage(message_, field_))
                                                       : Json();
    }
    return {};
  }

 private:
  using Reflection = google::protobuf::Reflection;

  const Reflection& reflection() const { return *message_.GetReflection(); }

  template <typename T>
  T Get(T (Reflection::*one)(const Message&, const FieldDescriptor*) const,
        T (Reflection::*element)(const Message&, const FieldDescriptor*, int) const) const {
    return index_ < 0 ? (reflection().*one)(message_, field_) : (reflection().*element)(message_, field_, index_);
  }
  Json Int32() const {
    const int32_t value = Get(&Reflection::GetInt32, &Reflection::GetRepeatedInt32);
    return field_->name() == "code" ? Json(CodeName(value)) : Json(value);
  }
  Json UInt64() const {
    const uint64_t value = Get(&Reflection::GetUInt64, &Reflection::GetRepeatedUInt64);
    return absl::EndsWith(field_->name(), "_id") ? Json(FormatId(value)) : Json(value);
  }

  const Message& message_;
  const FieldDescriptor* const field_;
  const int index_;  // -1: the field is no list
};

// True if a list of these messages stands for an object. The protos do not use maps for this, because protobuf's code
// for maps in a program with ThreadSanitizer does not match the system's library.
bool IsEntry(const FieldDescriptor* field) {
  const auto* const type = field->message_type();
  return field->is_repeated() && type != nullptr && type->field_count() == 2 && type->field(0)->name() == "name" &&
         type->field(1)->name() == "value";
}

Json EntriesJson(const Message& message, const FieldDescriptor* field) {
  Json json = Json::object();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    const Message& entry = message.GetReflection()->GetRepeatedMessage(message, field, i);
    const auto* const type = field->message_type();
    json[entry.GetReflection()->GetString(entry, type->field(0))] = Value(entry, type->field(1)).ToJson();
  }
  return json;
}

Json FieldJson(const Message& message, const FieldDescriptor* field) {
  if (IsEntry(field)) return EntriesJson(message, field);
  if (!field->is_repeated()) return Value(message, field).ToJson();
  Json list = Json::array();
  for (int i = 0; i < message.GetReflection()->FieldSize(message, field); ++i) {
    list.push_back(Value(message, field, i).ToJson());
  }
  return list;
}

}  // namespace

bool IsDeepJson(absl::string_view json) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < json.size() && depth <= kMaxDepth; ++i) {
    if (quoted && json[i] == '\\') {
      ++i;
    } else if (json[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      depth += json[i] == '[' || json[i] == '{' ? 1 : json[i] == ']' || json[i] == '}' ? -1 : 0;
    }
  }
  return depth > kMaxDepth;
}

Json MessageJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) json[type.field(i)->name()] = FieldJson(message, type.field(i));
  return json;
}

}  // namespace rails
