#include "client/railsctl/replay/worker_protocol.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace rails::ctl {
namespace {

// Bounds of what a message may say, so that sums and differences do not overflow.
constexpr int64_t kMaxNanoseconds = int64_t{1} << 60;
constexpr uint64_t kMaxWrongBytes = uint64_t{1} << 46;
constexpr double kMaxSeconds = 1e9;
constexpr size_t kLengthBytes = sizeof(uint32_t);
constexpr int kMaxRails = 1024;
constexpr size_t kMostShownBytes = 60;  // of bytes that are no message

absl::Status OutOfRange(const char* field) {
  return absl::InvalidArgumentError(absl::StrCat("field '", field, "' is out of range"));
}

absl::Status Missing(const char* field) {
  return absl::InvalidArgumentError(absl::StrCat("field '", field, "' is missing"));
}

bool IsTime(int64_t ns) { return ns >= -kMaxNanoseconds && ns <= kMaxNanoseconds; }
bool IsDuration(double seconds) { return std::abs(seconds) <= kMaxSeconds; }
bool IsCode(const Outcome& outcome) { return outcome.code() >= 0 && outcome.code() <= 16; }

absl::Status Check(const Command& command) {
  if (command.command_case() == Command::COMMAND_NOT_SET) return absl::InvalidArgumentError("no command");
  if (command.has_go() && !IsTime(command.go().at_ns())) return OutOfRange("at_ns");
  if (command.has_quit() && command.quit().exit_code() > 255) return OutOfRange("exit_code");
  return absl::OkStatus();
}

absl::Status CheckDone(const DoneEvent& done) {
  if (!done.has_outcome()) return Missing("outcome");
  if (!IsCode(done.outcome())) return OutOfRange("outcome.code");
  if (!IsTime(done.submit_ns())) return OutOfRange("submit_ns");
  if (!IsTime(done.accepted_ns())) return OutOfRange("accepted_ns");
  if (!IsTime(done.done_ns())) return OutOfRange("done_ns");
  if (!IsDuration(done.waiting_for_ranks_seconds())) return OutOfRange("waiting_for_ranks_seconds");
  if (!IsDuration(done.waiting_for_peers_seconds())) return OutOfRange("waiting_for_peers_seconds");
  if (!IsDuration(done.elapsed_seconds())) return OutOfRange("elapsed_seconds");
  if (!IsDuration(done.to_first_chunk_seconds())) return OutOfRange("to_first_chunk_seconds");
  return absl::OkStatus();
}

absl::Status Check(const Event& event) {
  switch (event.event_case()) {
    case Event::EVENT_NOT_SET:
      return absl::InvalidArgumentError("no event");
    case Event::kDone:
      return CheckDone(event.done());
    case Event::kConnected:
      return event.connected().node().empty() ? Missing("node") : absl::OkStatus();
    case Event::kChecked:
      if (!event.checked().has_wrong_bytes()) return Missing("wrong_bytes");
      if (event.checked().wrong_bytes() > kMaxWrongBytes) return OutOfRange("wrong_bytes");
      if (event.checked().has_first() != (event.checked().wrong_bytes() > 0)) return OutOfRange("first");
      return absl::OkStatus();
    case Event::kFailed:
      return IsCode(event.failed().outcome()) ? absl::OkStatus() : OutOfRange("outcome.code");
    case Event::kRails:
      if (event.rails().node().empty()) return Missing("node");
      return event.rails().rails_size() <= kMaxRails ? absl::OkStatus() : OutOfRange("rails");
    case Event::kClock:
      return IsTime(event.clock().now_ns()) ? absl::OkStatus() : OutOfRange("now_ns");
    default:
      return absl::OkStatus();
  }
}

template <typename Whole>
absl::StatusOr<Whole> Parse(const std::string& bytes) {
  absl::StatusOr<Whole> message(absl::in_place);
  if (!message->ParseFromString(bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(bytes.size(), " bytes that are no message of a replay"));
  }
  if (absl::Status status = Check(*message); !status.ok()) return status;
  return message;
}

}  // namespace

std::string NameOf(const Event& event) {
  const auto* field = Event::GetReflection()->GetOneofFieldDescriptor(event, Event::descriptor()->oneof_decl(0));
  return field == nullptr ? "nothing" : field->name();
}

Outcome OutcomeOf(const absl::Status& status) {
  Outcome outcome;
  outcome.set_code(static_cast<int32_t>(status.code()));
  outcome.set_message(std::string(status.message()));
  return outcome;
}

absl::Status StatusOf(const Outcome& outcome) {
  return {static_cast<absl::StatusCode>(outcome.code()), outcome.message()};
}

std::string Encode(const google::protobuf::Message& message) {
  std::string bytes(kLengthBytes, '\0');
  message.AppendToString(&bytes);
  const uint32_t length = htonl(static_cast<uint32_t>(bytes.size() - kLengthBytes));
  std::memcpy(bytes.data(), &length, sizeof(length));
  return bytes;
}

std::string EncodeQuit(int exit_code, const std::string& why) {
  QuitCommand quit;
  quit.set_exit_code(static_cast<uint32_t>(exit_code));
  quit.set_message(why);
  return EncodeAs<Command>(quit);
}

absl::StatusOr<Command> ParseCommand(const std::string& bytes) { return Parse<Command>(bytes); }
absl::StatusOr<Event> ParseEvent(const std::string& bytes) { return Parse<Event>(bytes); }

std::optional<size_t> MessageReader::NextLength() const {
  if (pending() < kLengthBytes) return std::nullopt;
  uint32_t length;
  std::memcpy(&length, buffer_.data() + begin_, sizeof(length));
  return ntohl(length);
}

absl::Status MessageReader::CheckLength() const {
  if (NextLength().value_or(0) <= max_message_bytes_) return absl::OkStatus();
  const absl::string_view begins = absl::string_view(buffer_).substr(begin_, kMostShownBytes);
  return absl::InvalidArgumentError(
      absl::StrCat("the input is no message of a replay: \"", absl::CEscape(begins), "\""));
}

absl::StatusOr<bool> MessageReader::Fill() {
  buffer_.erase(0, std::exchange(begin_, 0));
  if (absl::Status status = CheckLength(); !status.ok()) return status;
  const size_t old_size = buffer_.size();
  buffer_.resize(old_size + 64 * 1024);
  ssize_t count;
  do {
    count = read(fd_, buffer_.data() + old_size, buffer_.size() - old_size);
  } while (count < 0 && errno == EINTR);
  const int error = errno;
  buffer_.resize(old_size + static_cast<size_t>(std::max<ssize_t>(count, 0)));
  if (count > 0) {
    absl::Status status = CheckLength();
    return status.ok() ? absl::StatusOr<bool>(true) : status;
  }
  if (count == 0) return false;
  if (error == EAGAIN) return true;
  if (error == ECONNRESET || error == ETIMEDOUT || error == EHOSTUNREACH) return false;
  return absl::InternalError(absl::StrCat("read: ", std::strerror(error)));
}

std::optional<std::string> MessageReader::Next() {
  const std::optional<size_t> length = NextLength();
  if (!length || *length > max_message_bytes_ || pending() < kLengthBytes + *length) return std::nullopt;
  std::string bytes = buffer_.substr(begin_ + kLengthBytes, *length);
  begin_ += kLengthBytes + *length;
  return bytes;
}

absl::Status WriteAll(int fd, absl::string_view bytes, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  for (size_t done = 0; done < bytes.size();) {
    if (done > 0 && absl::Now() >= deadline) return absl::DeadlineExceededError("write: the other end does not read");
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count >= 0) {
      done += static_cast<size_t>(count);
    } else if (errno == EAGAIN && absl::Now() >= deadline) {
      return absl::DeadlineExceededError("write: the other end does not read");
    } else if (errno != EINTR && errno != EAGAIN) {
      return absl::UnavailableError(absl::StrCat("write: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace rails::ctl
