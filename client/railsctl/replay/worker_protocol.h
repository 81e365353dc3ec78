// The messages between the coordinator of a replay and its workers (rails/replay/v1/replay.proto): parts of a Command
// or an Event, how they are checked, written and read.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_

#include <google/protobuf/descriptor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "rails/replay/v1/replay.pb.h"

namespace rails::ctl {

using replay::v1::AcceptedEvent;
using replay::v1::CheckCommand;
using replay::v1::CheckedEvent;
using replay::v1::ClockCommand;
using replay::v1::ClockEvent;
using replay::v1::Command;
using replay::v1::ConnectedEvent;
using replay::v1::DoneEvent;
using replay::v1::Event;
using replay::v1::FailedEvent;
using replay::v1::GoCommand;
using replay::v1::HelloEvent;
using replay::v1::JoinCommand;
using replay::v1::JoinedEvent;
using replay::v1::LeaveCommand;
using replay::v1::LeftEvent;
using replay::v1::Outcome;
using replay::v1::PrepareCommand;
using replay::v1::QuitCommand;
using replay::v1::RailsCommand;
using replay::v1::RailsEvent;
using replay::v1::ReadyEvent;
using replay::v1::StartCommand;
using replay::v1::WrongByte;

// The part's field of Command or Event.
template <typename Whole, typename Part>
const google::protobuf::FieldDescriptor* FieldOf() {
  const google::protobuf::OneofDescriptor& parts = *Whole::descriptor()->oneof_decl(0);
  for (int i = 0; i < parts.field_count(); ++i) {
    if (parts.field(i)->message_type() == Part::descriptor()) return parts.field(i);
  }
  return nullptr;
}

// The part, if that is what the message is; otherwise null.
template <typename Part, typename Whole>
Part* PartOf(Whole* whole) {
  const google::protobuf::Reflection& reflection = *Whole::GetReflection();
  const google::protobuf::FieldDescriptor* const field = FieldOf<Whole, Part>();
  return reflection.HasField(*whole, field) ? static_cast<Part*>(reflection.MutableMessage(whole, field)) : nullptr;
}

// "ready", "done", ...; "nothing" if no event is set.
std::string NameOf(const Event& event);

Outcome OutcomeOf(const absl::Status& status);
absl::Status StatusOf(const Outcome& outcome);

inline constexpr size_t kMaxCommandBytes = 8 << 20;
inline constexpr size_t kMaxEventBytes = 1 << 20;
inline constexpr size_t kMaxHelloBytes = 64 << 10;

// Returns the length and then the message, which is a Command or an Event.
std::string Encode(const google::protobuf::Message& message);
// Encodes a Command or an Event that holds this part.
template <typename Whole, typename Part>
std::string EncodeAs(const Part& part) {
  Whole whole;
  Whole::GetReflection()->MutableMessage(&whole, FieldOf<Whole, Part>())->CopyFrom(part);
  return Encode(whole);
}

// A QuitCommand.
std::string EncodeQuit(int exit_code, const std::string& why);

// `bytes`: one message, without its length. INVALID_ARGUMENT: `bytes` are no message, or a field is out of range; the
// text names it.
absl::StatusOr<Command> ParseCommand(const std::string& bytes);
absl::StatusOr<Event> ParseEvent(const std::string& bytes);

// Reads messages from a descriptor. The caller keeps the descriptor.
class MessageReader {
 public:
  explicit MessageReader(int fd, size_t max_message_bytes = kMaxCommandBytes)
      : fd_(fd), max_message_bytes_(max_message_bytes) {}
  // Reads once; may block if the descriptor does. False: the end of the stream, or the connection is lost.
  // Errors of CheckLength(). INTERNAL: the system's error.
  absl::StatusOr<bool> Fill();
  // Returns the next message that is complete, without its length, if any.
  std::optional<std::string> Next();
  // INVALID_ARGUMENT: the next length is above `max_message_bytes`; the text shows the first bytes.
  absl::Status CheckLength() const;
  // Bytes that belong to no returned message yet.
  size_t pending() const { return buffer_.size() - begin_; }
  int fd() const { return fd_; }

 private:
  // The length of the next message; nullopt until it has arrived.
  std::optional<size_t> NextLength() const;

  int fd_;
  size_t max_message_bytes_;
  std::string buffer_;
  size_t begin_ = 0;
};

// Writes all bytes. UNAVAILABLE: the other end has closed. DEADLINE_EXCEEDED: the other end does not read; only for
// descriptors whose write() returns after a while (SO_SNDTIMEO).
absl::Status WriteAll(int fd, absl::string_view bytes, absl::Duration timeout = absl::InfiniteDuration());

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_
