// The messages between the coordinator and its workers (one process per rank) over two pipes: one JSON object a line.
#ifndef RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_
#define RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace rails::ctl {

// --- Commands to a worker. It answers with the event named below, or with Failed and then ends.

// Connect, make two segments, join the group. Answer: Joined.
struct StartCommand {
  std::string socket_dir;
  std::string group, join_key;
  uint32_t rank = 0, world_size = 0;
  uint64_t send_bytes = 0, receive_bytes = 0;  // sizes of the segments
  bool huge_pages = false;
  uint64_t seed = 0;
  uint64_t timeout_milliseconds = 60'000;  // of the join and of each job
};

// Lay out one exchange and fill the buffers. Answer: Ready.
struct PrepareCommand {
  uint64_t job = 0;                   // number of the payload
  std::vector<uint64_t> row, column;  // bytes to and from each rank
  uint32_t ranges_per_flow = 1;
  bool fill = true;       // fill the send buffer with the pattern, the receive buffer with poison
  bool prepared = false;  // submit by Group::Prepare()
};

// Submit the prepared exchange (again) and wait. Answer: Accepted if asked for, then Done.
struct GoCommand {
  bool tell_accepted = false;
  int64_t at_ns = 0;  // start time by the monotonic clock, by which all ranks have the command
};

// Compare every byte of the receive segment. Answer: Checked.
struct CheckCommand {};

// Leave and end. Answer: the end of the pipe.
struct QuitCommand {};

using Command = std::variant<StartCommand, PrepareCommand, GoCommand, CheckCommand, QuitCommand>;

// --- Events from a worker.

struct JoinedEvent {
  std::string node;
};

struct ReadyEvent {};

struct AcceptedEvent {};

struct DoneEvent {
  absl::Status status;  // of the job
  // CLOCK_MONOTONIC right before Submit(), at its return, and when the job was terminal.
  int64_t submit_ns = 0, accepted_ns = 0, done_ns = 0;
  double waiting_for_ranks_seconds = 0, waiting_for_peers_seconds = 0, elapsed_seconds = 0;
  double to_first_chunk_seconds = 0;                        // from acceptance until a rail got the job's first chunk
  std::vector<uint64_t> rail_tx_bytes, rail_rx_bytes;       // of the whole job on the rank's node
  uint64_t eager_sent_bytes = 0, eager_received_bytes = 0;  // of it
};

struct WrongByte {
  bool guard = false;  // outside all ranges; source and flow_offset then mean nothing
  uint32_t source_rank = 0;
  uint64_t flow_offset = 0, segment_offset = 0;
  uint32_t expected = 0, got = 0;
};

struct CheckedEvent {
  uint64_t wrong_bytes = 0;
  std::optional<WrongByte> first;
};

struct FailedEvent {
  std::string doing;  // "connect", "join", ...
  absl::Status status;
};

using Event = std::variant<JoinedEvent, ReadyEvent, AcceptedEvent, DoneEvent, CheckedEvent, FailedEvent>;

// Encodes one line, without the line end.
std::string Encode(const Command& command);
std::string Encode(const Event& event);

// INVALID_ARGUMENT: the line is no JSON object, has an unknown kind, or a field is missing, has the wrong type or is
// out of range. Names the field.
absl::StatusOr<Command> ParseCommand(absl::string_view line);
absl::StatusOr<Event> ParseEvent(absl::string_view line);

// "ready", "done", ...
absl::string_view EventName(const Event& event);

inline constexpr size_t kMaxLineBytes = 8 << 20;

// Reads lines from a descriptor. The caller keeps the descriptor.
class LineReader {
 public:
  explicit LineReader(int fd) : fd_(fd) {}
  // Reads once; may block if the descriptor does. False: the end of the stream. INVALID_ARGUMENT: no line end within
  // kMaxLineBytes. INTERNAL: the system's error.
  absl::StatusOr<bool> Fill();
  // Returns the next complete line, if any.
  std::optional<std::string> Next();
  // Bytes that belong to no returned line yet.
  size_t pending() const { return buffer_.size() - begin_; }
  int fd() const { return fd_; }

 private:
  int fd_;
  std::string buffer_;
  size_t begin_ = 0;
  size_t scanned_ = 0;  // there is no line end before this
};

// Writes the line and a line end. UNAVAILABLE: the other end has closed.
absl::Status WriteLine(int fd, std::string line);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_REPLAY_WORKER_PROTOCOL_H_
