// A client's end of a ring, made by hand. One thread.
#ifndef RAILSD_TESTS_UNIT_DAEMON_RING_RING_CLIENT_H_
#define RAILSD_TESTS_UNIT_DAEMON_RING_RING_CLIENT_H_

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/ring/ring.h"
#include "daemon/ring/ring_memory.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/ring.pb.h"

namespace railsd::testing {

class RingClient {
 public:
  struct Record {
    rails::ring::RecordHeader header;
    std::string payload;
  };

  explicit RingClient(RingDescriptors descriptors)
      : descriptors_(std::move(descriptors)),
        requests_(Map(descriptors_.requests.get(), PROT_READ | PROT_WRITE)),
        answers_(Map(descriptors_.answers.get(), PROT_READ)),
        writer_(requests_ + rails::ring::kDataOffset, &control().written, &answer_control().taken),
        reader_(answers_ + rails::ring::kDataOffset, &answer_control().written, &control().taken) {}
  ~RingClient() {
    munmap(requests_, rails::ring::kMemoryBytes);
    munmap(answers_, rails::ring::kMemoryBytes);
  }
  RingClient(const RingClient&) = delete;
  RingClient& operator=(const RingClient&) = delete;

  rails::ring::RequestControl& control() { return *reinterpret_cast<rails::ring::RequestControl*>(requests_); }
  rails::ring::AnswerControl& answer_control() { return *reinterpret_cast<rails::ring::AnswerControl*>(answers_); }
  std::byte* request_data() { return requests_ + rails::ring::kDataOffset; }
  int doorbell() const { return descriptors_.doorbell.get(); }
  const RingDescriptors& descriptors() const { return descriptors_; }
  void CloseDoorbell() { descriptors_.doorbell.Reset(); }
  uint64_t rings() const { return rings_; }  // of the daemon, heard so far

  // Writes one record, after waiting for room.
  void Write(rails::ring::Kind kind, uint64_t id, absl::string_view payload, uint16_t flags = 0) {
    const auto needed = static_cast<int64_t>(rails::ring::RecordBytes(payload.size()));
    while (writer_.Room() < needed) {
      control().wants_room.store(1);
      if (writer_.Room() < needed && !Listen()) return;
      control().wants_room.store(0);
    }
    writer_.Write(kind, flags, id, payload);
    if (answer_control().sleeps.load() == 1) Ring();
  }
  // Writes a request, in parts if it is long. Returns its id.
  uint64_t Send(rails::ring::Kind kind, absl::string_view payload) {
    const uint64_t id = next_id_++;
    for (; payload.size() > rails::ring::kMaxPayloadBytes; payload.remove_prefix(rails::ring::kMaxPayloadBytes)) {
      Write(kind, id, payload.substr(0, rails::ring::kMaxPayloadBytes), rails::ring::kMore);
    }
    Write(kind, id, payload);
    return id;
  }
  int64_t Room() const { return writer_.Room(); }
  void Ring() { static_cast<void>(send(doorbell(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL)); }

  // The next record that is there.
  std::optional<Record> ReadNow() {
    Record record;
    if (reader_.Next(&record.header, &record.payload) != rails::ring::Reader::Result::kRecord) return std::nullopt;
    return record;
  }
  // The same, after waiting for one. Nullopt: the daemon has closed the doorbell, or nothing came.
  std::optional<Record> Read() {
    while (true) {
      if (std::optional<Record> record = ReadNow()) return record;
      control().sleeps.store(1);
      if (!reader_.Pending() && !Listen()) return std::nullopt;
      control().sleeps.store(0);
    }
  }
  // The answer to a call; keeps other answers and reports. Code -1: none came.
  rails::v1::RingAnswer AnswerTo(uint64_t id) {
    while (answered_.find(id) == answered_.end()) {
      std::optional<Record> record = Read();
      rails::v1::RingAnswer none;
      none.set_code(-1);
      if (!record) return none;
      Keep(*record);
    }
    return std::move(answered_.extract(id).mapped());
  }
  // The oldest report that AnswerTo() did not need. Nullopt: none came.
  std::optional<rails::v1::JobReport> Report() {
    while (reports_.empty()) {
      std::optional<Record> record = Read();
      if (!record) return std::nullopt;
      Keep(*record);
    }
    rails::v1::JobReport report = std::move(reports_.front());
    reports_.erase(reports_.begin());
    return report;
  }
  // True when the daemon has closed its end of the doorbells.
  bool Closed() {
    while (Listen()) {
    }
    return closed_;
  }

 private:
  static std::byte* Map(int fd, int protection) {
    return static_cast<std::byte*>(mmap(nullptr, rails::ring::kMemoryBytes, protection, MAP_SHARED, fd, 0));
  }

  // Waits for a ring. False: the doorbell is closed, or nothing rang for 10 s.
  bool Listen() {
    pollfd entry = {doorbell(), POLLIN, 0};
    if (poll(&entry, 1, 10'000) != 1) return false;
    char bytes[64];
    const ssize_t received = recv(doorbell(), bytes, sizeof(bytes), MSG_DONTWAIT);
    closed_ = received <= 0;
    if (!closed_) rings_ += static_cast<uint64_t>(received);
    return !closed_;
  }

  void Keep(const Record& record) {
    if (record.header.kind == static_cast<uint16_t>(rails::ring::Kind::kReport)) {
      reports_.emplace_back().ParseFromString(record.payload);
    } else {
      answered_[record.header.id].ParseFromString(record.payload);
    }
  }

  RingDescriptors descriptors_;
  std::byte* const requests_;
  std::byte* const answers_;
  rails::ring::Writer writer_;
  rails::ring::Reader reader_;
  uint64_t next_id_ = 1;
  uint64_t rings_ = 0;
  bool closed_ = false;
  std::map<uint64_t, rails::v1::RingAnswer> answered_;
  std::vector<rails::v1::JobReport> reports_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_DAEMON_RING_RING_CLIENT_H_
