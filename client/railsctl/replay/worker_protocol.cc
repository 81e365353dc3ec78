#include "client/railsctl/replay/worker_protocol.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "absl/strings/str_cat.h"

namespace rails::ctl {
namespace {

using Json = nlohmann::json;

// Reads fields and keeps the first error, so that a parser is a list of fields.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  template <typename T>
  void Get(const char* name, T* out) {
    const auto field = object_.find(name);
    if (field == object_.end()) return Complain(name, "is missing");
    if (!Read(*field, out)) Complain(name, "has the wrong type or is out of range");
  }
  void GetStatus(absl::Status* out) {
    int64_t code = 0;
    std::string message;
    Get("code", &code);
    Get("message", &message);
    if (code < 0 || code > 16) return Complain("code", "is no status code");
    *out = absl::Status(static_cast<absl::StatusCode>(code), message);
  }
  bool Has(const char* name) const { return object_.contains(name); }
  const absl::Status& status() const { return status_; }

 private:
  static bool Read(const Json& field, std::string* out) {
    if (!field.is_string()) return false;
    *out = field.get<std::string>();
    return true;
  }
  static bool Read(const Json& field, bool* out) {
    if (!field.is_boolean()) return false;
    *out = field.get<bool>();
    return true;
  }
  static bool Read(const Json& field, double* out) {
    if (!field.is_number()) return false;
    *out = field.get<double>();
    return true;
  }
  static bool Read(const Json& field, int64_t* out) {
    if (!field.is_number_integer()) return false;
    if (field.is_number_unsigned() && field.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()})
      return false;
    *out = field.get<int64_t>();
    return true;
  }
  static bool Read(const Json& field, uint64_t* out) {
    if (!field.is_number_unsigned()) return false;
    *out = field.get<uint64_t>();
    return true;
  }
  static bool Read(const Json& field, uint32_t* out) {
    uint64_t value = 0;
    if (!Read(field, &value) || value > std::numeric_limits<uint32_t>::max()) return false;
    *out = static_cast<uint32_t>(value);
    return true;
  }
  static bool Read(const Json& field, std::vector<uint64_t>* out) {
    if (!field.is_array()) return false;
    out->clear();
    for (const Json& element : field) {
      if (!Read(element, &out->emplace_back())) return false;
    }
    return true;
  }

  void Complain(const char* name, const char* what) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat("field '", name, "' ", what));
  }

  const Json& object_;
  absl::Status status_;
};

Json ToJson(const StartCommand& c) {
  return {{"do", "start"},
          {"socket_dir", c.socket_dir},
          {"group", c.group},
          {"join_key", c.join_key},
          {"rank", c.rank},
          {"world_size", c.world_size},
          {"send_bytes", c.send_bytes},
          {"receive_bytes", c.receive_bytes},
          {"huge_pages", c.huge_pages},
          {"seed", c.seed},
          {"timeout_milliseconds", c.timeout_milliseconds}};
}
Json ToJson(const PrepareCommand& c) {
  return {{"do", "prepare"},
          {"job", c.job},
          {"row", c.row},
          {"column", c.column},
          {"ranges_per_flow", c.ranges_per_flow},
          {"fill", c.fill},
          {"prepared", c.prepared}};
}
Json ToJson(const GoCommand& c) { return {{"do", "go"}, {"tell_accepted", c.tell_accepted}, {"at_ns", c.at_ns}}; }
Json ToJson(const CheckCommand&) { return {{"do", "check"}}; }
Json ToJson(const QuitCommand&) { return {{"do", "quit"}}; }

void AddStatus(const absl::Status& status, Json* json) {
  (*json)["code"] = static_cast<int>(status.code());
  (*json)["message"] = std::string(status.message());
}

Json ToJson(const JoinedEvent& e) { return {{"event", "joined"}, {"node", e.node}}; }
Json ToJson(const ReadyEvent&) { return {{"event", "ready"}}; }
Json ToJson(const AcceptedEvent&) { return {{"event", "accepted"}}; }
Json ToJson(const DoneEvent& e) {
  Json json = {{"event", "done"},
               {"submit_ns", e.submit_ns},
               {"accepted_ns", e.accepted_ns},
               {"done_ns", e.done_ns},
               {"waiting_for_ranks_seconds", e.waiting_for_ranks_seconds},
               {"waiting_for_peers_seconds", e.waiting_for_peers_seconds},
               {"elapsed_seconds", e.elapsed_seconds},
               {"to_first_chunk_seconds", e.to_first_chunk_seconds},
               {"rail_tx_bytes", e.rail_tx_bytes},
               {"rail_rx_bytes", e.rail_rx_bytes},
               {"eager_sent_bytes", e.eager_sent_bytes},
               {"eager_received_bytes", e.eager_received_bytes}};
  AddStatus(e.status, &json);
  return json;
}
Json ToJson(const CheckedEvent& e) {
  Json json = {{"event", "checked"}, {"wrong_bytes", e.wrong_bytes}};
  if (e.first.has_value()) {
    json["guard"] = e.first->guard;
    json["source_rank"] = e.first->source_rank;
    json["flow_offset"] = e.first->flow_offset;
    json["segment_offset"] = e.first->segment_offset;
    json["expected"] = e.first->expected;
    json["got"] = e.first->got;
  }
  return json;
}
Json ToJson(const FailedEvent& e) {
  Json json = {{"event", "failed"}, {"doing", e.doing}};
  AddStatus(e.status, &json);
  return json;
}

template <typename Variant>
std::string EncodeAny(const Variant& message) {
  const Json json = std::visit([](const auto& alternative) { return ToJson(alternative); }, message);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Read(Fields& f, StartCommand* c) {
  f.Get("socket_dir", &c->socket_dir);
  f.Get("group", &c->group);
  f.Get("join_key", &c->join_key);
  f.Get("rank", &c->rank);
  f.Get("world_size", &c->world_size);
  f.Get("send_bytes", &c->send_bytes);
  f.Get("receive_bytes", &c->receive_bytes);
  f.Get("huge_pages", &c->huge_pages);
  f.Get("seed", &c->seed);
  f.Get("timeout_milliseconds", &c->timeout_milliseconds);
}
void Read(Fields& f, PrepareCommand* c) {
  f.Get("job", &c->job);
  f.Get("row", &c->row);
  f.Get("column", &c->column);
  f.Get("ranges_per_flow", &c->ranges_per_flow);
  f.Get("fill", &c->fill);
  f.Get("prepared", &c->prepared);
}
void Read(Fields& f, GoCommand* c) {
  f.Get("tell_accepted", &c->tell_accepted);
  f.Get("at_ns", &c->at_ns);
}
void Read(Fields&, CheckCommand*) {}
void Read(Fields&, QuitCommand*) {}

void Read(Fields& f, JoinedEvent* e) { f.Get("node", &e->node); }
void Read(Fields&, ReadyEvent*) {}
void Read(Fields&, AcceptedEvent*) {}
void Read(Fields& f, DoneEvent* e) {
  f.GetStatus(&e->status);
  f.Get("submit_ns", &e->submit_ns);
  f.Get("accepted_ns", &e->accepted_ns);
  f.Get("done_ns", &e->done_ns);
  f.Get("waiting_for_ranks_seconds", &e->waiting_for_ranks_seconds);
  f.Get("waiting_for_peers_seconds", &e->waiting_for_peers_seconds);
  f.Get("elapsed_seconds", &e->elapsed_seconds);
  f.Get("to_first_chunk_seconds", &e->to_first_chunk_seconds);
  f.Get("rail_tx_bytes", &e->rail_tx_bytes);
  f.Get("rail_rx_bytes", &e->rail_rx_bytes);
  f.Get("eager_sent_bytes", &e->eager_sent_bytes);
  f.Get("eager_received_bytes", &e->eager_received_bytes);
}
void Read(Fields& f, CheckedEvent* e) {
  f.Get("wrong_bytes", &e->wrong_bytes);
  if (e->wrong_bytes == 0) return;
  WrongByte& first = e->first.emplace();
  f.Get("guard", &first.guard);
  f.Get("source_rank", &first.source_rank);
  f.Get("flow_offset", &first.flow_offset);
  f.Get("segment_offset", &first.segment_offset);
  f.Get("expected", &first.expected);
  f.Get("got", &first.got);
}
void Read(Fields& f, FailedEvent* e) {
  f.Get("doing", &e->doing);
  f.GetStatus(&e->status);
  if (e->status.ok()) e->status = absl::UnknownError("failed without saying why");
}

// Sets `*out` to the alternative with this name. Works in place, because a move makes GCC 12 with sanitizers warn
// wrongly of uninitialized members.
template <typename Variant, size_t kIndex = 0>
absl::Status Dispatch(const char* key, const std::string& name, const Json& json, Variant* out) {
  if constexpr (kIndex == std::variant_size_v<Variant>) {
    return absl::InvalidArgumentError(absl::StrCat("unknown ", key, " '", name.substr(0, 40), "'"));
  } else {
    using Alternative = std::variant_alternative_t<kIndex, Variant>;
    static const std::string own_name = ToJson(Alternative{})[key].template get<std::string>();
    if (name != own_name) return Dispatch<Variant, kIndex + 1>(key, name, json, out);
    Fields fields(json);
    Read(fields, &out->template emplace<kIndex>());
    if (fields.status().ok()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", fields.status().message()));
  }
}

template <typename Variant>
absl::StatusOr<Variant> ParseAny(const char* key, absl::string_view line) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  const auto name = json.is_object() ? json.find(key) : json.end();
  if (name == json.end() || !name->is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("no JSON object with '", key, "': ", line.substr(0, 80)));
  }
  absl::StatusOr<Variant> message(absl::in_place);
  absl::Status status = Dispatch(key, name->template get<std::string>(), json, &*message);
  if (!status.ok()) return status;
  return message;
}

}  // namespace

std::string Encode(const Command& command) { return EncodeAny(command); }
std::string Encode(const Event& event) { return EncodeAny(event); }
absl::StatusOr<Command> ParseCommand(absl::string_view line) { return ParseAny<Command>("do", line); }
absl::StatusOr<Event> ParseEvent(absl::string_view line) { return ParseAny<Event>("event", line); }

absl::string_view EventName(const Event& event) {
  static constexpr absl::string_view kNames[] = {"joined", "ready", "accepted", "done", "checked", "failed"};
  static_assert(std::size(kNames) == std::variant_size_v<Event>);
  return kNames[event.index()];
}

absl::StatusOr<bool> LineReader::Fill() {
  if (begin_ > 0) {
    buffer_.erase(0, begin_);
    scanned_ -= begin_;
    begin_ = 0;
  }
  if (buffer_.size() > kMaxLineBytes) {
    return absl::InvalidArgumentError(absl::StrCat("a line has more than ", kMaxLineBytes, " bytes"));
  }
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + 64 * 1024);
  ssize_t count;
  do {
    count = read(fd_, buffer_.data() + old_size, buffer_.size() - old_size);
  } while (count < 0 && errno == EINTR);
  const int error = errno;
  buffer_.resize(old_size + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count >= 0) return count > 0;
  if (error == EAGAIN) return true;
  return absl::InternalError(absl::StrCat("read of a pipe: ", std::strerror(error)));
}

std::optional<std::string> LineReader::Next() {
  const size_t end = buffer_.find('\n', scanned_);
  if (end == std::string::npos) {
    scanned_ = buffer_.size();
    return std::nullopt;
  }
  std::string line = buffer_.substr(begin_, end - begin_);
  begin_ = scanned_ = end + 1;
  return line;
}

absl::Status WriteLine(int fd, std::string line) {
  line += '\n';
  for (size_t done = 0; done < line.size();) {
    const ssize_t count = write(fd, line.data() + done, line.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("write to a pipe: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace rails::ctl
