// The ring between a client and its daemon: shared memory for calls, answers and reports of finished jobs.
//
// The daemon makes two memories and seals them against shrinking and growing. The client writes the request memory. It
// maps the answer memory for reading only, which F_SEAL_FUTURE_WRITE enforces. A pair of connected stream sockets, the
// doorbells, wakes a side that sleeps. All three descriptors come with OpenRingResponse (descriptor.proto); ring.proto
// has the messages.
//
// Each direction is a ring of bytes. A record is a RecordHeader and its payload, padded to 16 bytes; it may wrap around
// the end. Both counters of a direction only rise: `written` is in the memory of the writer, `taken` in the memory of
// the reader. The other side's memory is hostile: each side copies a value or record once, and then checks the copy.
#ifndef RAILS_COMMON_RING_RING_H_
#define RAILS_COMMON_RING_RING_H_

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace rails::ring {

inline constexpr size_t kDataBytes = size_t{1} << 20;  // of one direction; a power of 2
inline constexpr size_t kDataOffset = 4096;            // of the records in each memory
inline constexpr size_t kMemoryBytes = kDataOffset + kDataBytes;
// Longest payload of one record. A longer request travels in several records (kMore), an answer may not be longer.
inline constexpr size_t kMaxPayloadBytes = kDataBytes / 2;
// Room in the answer ring that reports of jobs leave free for answers.
inline constexpr size_t kReservedForAnswersBytes = kDataBytes / 2;

// At the begin of the request memory; the client writes it.
struct RequestControl {
  alignas(64) std::atomic<uint64_t> written;  // bytes of requests
  alignas(64) std::atomic<uint64_t> taken;    // bytes of answers and reports
  // 1: ring the doorbell after the next record. The daemon sets it to 0 when it rings.
  alignas(64) std::atomic<uint32_t> sleeps;
  // 1: ring the doorbell when requests have been taken. The daemon sets it to 0 when it rings.
  std::atomic<uint32_t> wants_room;
};

// At the begin of the answer memory; the daemon writes it.
struct AnswerControl {
  alignas(64) std::atomic<uint64_t> written;  // bytes of answers and reports
  alignas(64) std::atomic<uint64_t> taken;    // bytes of requests
  alignas(64) std::atomic<uint32_t> sleeps;   // 1: ring the doorbell after each request
  // Number of reports that found no room; WaitJob still answers for their jobs. The doorbell rings for them as for
  // records, so a client checks this, too, after it has set `sleeps` and before it sleeps.
  std::atomic<uint64_t> missed;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);
static_assert(sizeof(RequestControl) <= kDataOffset && sizeof(AnswerControl) <= kDataOffset);

// The kind of a record. The payload is the serialized message.
enum class Kind : uint16_t {
  // Requests. The client chooses the id of each; no unanswered request has the same id.
  kSubmit = 1,         // SubmitAllToAllRequest
  kWaitJob = 2,        // WaitJobRequest
  kCancelJob = 3,      // CancelJobRequest
  kJoinGroup = 4,      // JoinGroupRequest
  kLeaveGroup = 5,     // LeaveGroupRequest
  kRemoveSegment = 6,  // RemoveSegmentRequest
  // Gives up the unanswered call with this id, which is then answered with CANCELLED. The payload is empty. It gets no
  // answer of its own, and has no effect if the call's answer is already written: a client that gave up a join and then
  // reads OK must leave the group itself.
  kGiveUp = 7,
  kPrepare = 8,           // PrepareAllToAllRequest
  kSubmitPrepared = 9,    // SubmitPreparedRequest
  kReleasePrepared = 10,  // ReleasePreparedRequest
  // Answers and reports.
  kAnswer = 100,  // RingAnswer, to the request of that id; exactly one for each
  kReport = 101,  // JobReport of a job of the session that has become terminal; the id is 0
};

inline constexpr uint16_t kMore = 1;  // flag: the payload goes on in the next record, which has the same kind and id

struct RecordHeader {
  uint32_t length_bytes = 0;  // of the payload
  uint16_t kind = 0;
  uint16_t flags = 0;
  uint64_t id = 0;
};
static_assert(sizeof(RecordHeader) == 16);

// Bytes that a record with a payload of this length takes in the ring.
constexpr size_t RecordBytes(size_t payload_bytes) { return (sizeof(RecordHeader) + payload_bytes + 15) & ~size_t{15}; }

// Writes one direction. One thread at a time.
class Writer {
 public:
  // `data` has kDataBytes. `written` is in the own memory, `taken` in the other side's. All outlive the writer.
  Writer(std::byte* data, std::atomic<uint64_t>* written, const std::atomic<uint64_t>* taken)
      : data_(data), written_(written), taken_(taken) {}

  // Bytes that may be written now. -1: the other side's counter is impossible.
  int64_t Room() const {
    // Sequentially consistent with wants_room, as the store to `taken` in Next(): either the writer sees the room, or
    // the reader sees wants_room.
    const uint64_t used = end_ - taken_->load(std::memory_order_seq_cst);
    return used > kDataBytes ? -1 : static_cast<int64_t>(kDataBytes - used);
  }
  // Writes a record. The caller has checked that Room() is at least RecordBytes(payload). The record is visible on
  // return; the caller must then check whether the other side sleeps.
  void Write(Kind kind, uint16_t flags, uint64_t id, absl::string_view payload) {
    const RecordHeader header = {static_cast<uint32_t>(payload.size()), static_cast<uint16_t>(kind), flags, id};
    Put(end_, &header, sizeof(header));
    Put(end_ + sizeof(header), payload.data(), payload.size());
    end_ += RecordBytes(payload.size());
    // Sequentially consistent with the sleep flag: either the sleeper sees the record or the writer sees the flag.
    written_->store(end_, std::memory_order_seq_cst);
  }

 private:
  void Put(uint64_t at, const void* from, size_t length) {
    const size_t offset = at % kDataBytes, first = std::min(length, kDataBytes - offset);
    if (first > 0) std::memcpy(data_ + offset, from, first);
    if (length > first) std::memcpy(data_, static_cast<const std::byte*>(from) + first, length - first);
  }

  std::byte* const data_;
  std::atomic<uint64_t>* const written_;
  const std::atomic<uint64_t>* const taken_;
  uint64_t end_ = 0;  // own copy of `written`, which is never read back from shared memory
};

// Reads one direction. One thread at a time.
class Reader {
 public:
  enum class Result {
    kNothing,
    kRecord,
    kLong,    // the next record's payload is longer than asked for; the record stays in the ring
    kBroken,  // the other side's counter or a length is impossible; nothing more can be read
  };

  // `written` is in the other side's memory, `taken` in the own one.
  Reader(const std::byte* data, const std::atomic<uint64_t>* written, std::atomic<uint64_t>* taken)
      : data_(data), written_(written), taken_(taken) {}

  // Copies the next record out of the ring and frees its place. `payload` keeps its capacity between calls. Reads the
  // length once, so that a hostile writer that changes it meanwhile cannot exceed `most_bytes`.
  Result Next(RecordHeader* header, std::string* payload, size_t most_bytes = kMaxPayloadBytes) {
    const uint64_t present = written_->load(std::memory_order_seq_cst) - begin_;
    if (present == 0) return Result::kNothing;
    if (present < sizeof(RecordHeader) || present > kDataBytes) return Result::kBroken;
    Get(begin_, header, sizeof(*header));
    if (header->length_bytes > kMaxPayloadBytes || RecordBytes(header->length_bytes) > present) return Result::kBroken;
    if (header->length_bytes > most_bytes) return Result::kLong;
    payload->resize(header->length_bytes);
    Get(begin_ + sizeof(*header), payload->data(), payload->size());
    begin_ += RecordBytes(payload->size());
    taken_->store(begin_, std::memory_order_seq_cst);
    return Result::kRecord;
  }
  // True if Next() would not return kNothing.
  bool Pending() const { return written_->load(std::memory_order_seq_cst) != begin_; }

 private:
  void Get(uint64_t at, void* to, size_t length) const {
    const size_t offset = at % kDataBytes, first = std::min(length, kDataBytes - offset);
    if (first > 0) std::memcpy(to, data_ + offset, first);
    if (length > first) std::memcpy(static_cast<std::byte*>(to) + first, data_, length - first);
  }

  const std::byte* const data_;
  const std::atomic<uint64_t>* const written_;
  std::atomic<uint64_t>* const taken_;
  uint64_t begin_ = 0;
};

}  // namespace rails::ring

#endif  // RAILS_COMMON_RING_RING_H_
