// The daemon's side of one ring, for a fake daemon. Not thread-safe.
#ifndef RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_RING_H_
#define RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_RING_H_

#include <fcntl.h>
#include <google/protobuf/message_lite.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "client/src/unique_fd.h"
#include "common/ring/ring.h"
#include "rails/v1/job.pb.h"
#include "rails/v1/ring.pb.h"

namespace rails::testing {

class FakeRing {
 public:
  using OnRequest = std::function<void(ring::Kind kind, uint64_t id, const std::string& payload)>;

  FakeRing() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) abort();
    doorbell_.Reset(ends[0]);
    client_fds_[2].Reset(ends[1]);
    own().sleeps = 1;
  }
  FakeRing(const FakeRing&) = delete;
  ~FakeRing() {
    munmap(requests_, ring::kMemoryBytes);
    munmap(answers_, ring::kMemoryBytes);
  }

  int doorbell() const { return doorbell_.get(); }
  const internal::UniqueFd* client_fds() const { return client_fds_; }
  void CloseClientFds() {
    for (internal::UniqueFd& fd : client_fds_) fd.Reset();
  }

  // Takes all requests. False: the client has closed its end, or broke the rules.
  bool Take(const OnRequest& on_request) {
    char rings[64];
    if (recv(doorbell_.get(), rings, sizeof(rings), MSG_DONTWAIT) == 0) return false;
    ring::RecordHeader header;
    std::string payload;
    for (;;) {
      const ring::Reader::Result result = reader_.Next(&header, &payload);
      if (result != ring::Reader::Result::kRecord) return result == ring::Reader::Result::kNothing;
      Bell(&clients().wants_room);
      ++records_;
      if (!parts_.empty() && header.id != parts_id_) return false;
      parts_id_ = header.id;
      parts_ += payload;
      if ((header.flags & ring::kMore) != 0) continue;
      on_request(static_cast<ring::Kind>(header.kind), header.id, std::exchange(parts_, ""));
    }
  }
  uint64_t records() const { return records_; }
  uint64_t untaken_bytes() const { return clients().written - own().taken; }

  void Answer(uint64_t id, const absl::Status& status, const google::protobuf::MessageLite* response = nullptr) {
    v1::RingAnswer answer;
    answer.set_code(static_cast<int>(status.code()));
    answer.set_message(std::string(status.message()));
    if (status.ok() && response != nullptr) answer.set_response(response->SerializeAsString());
    Write(ring::Kind::kAnswer, id, answer.SerializeAsString(), 0);
  }
  void Report(const v1::JobReport& report) {
    if (!Write(ring::Kind::kReport, 0, report.SerializeAsString(), ring::kReservedForAnswersBytes)) Miss();
  }
  void Miss() {
    ++own().missed;
    Bell(&clients().sleeps);
  }
  // Makes the answers impossible to read.
  void Break() {
    own().written += 8;
    Bell(&clients().sleeps);
  }

 private:
  static std::byte* Make(const char* name, int seals, internal::UniqueFd* fd) {
    fd->Reset(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (ftruncate(fd->get(), ring::kMemoryBytes) != 0) abort();
    void* const base = mmap(nullptr, ring::kMemoryBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd->get(), 0);
    if (base == MAP_FAILED) abort();
    if (fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | seals) != 0) abort();
    return static_cast<std::byte*>(base);
  }
  ring::RequestControl& clients() const { return *reinterpret_cast<ring::RequestControl*>(requests_); }
  ring::AnswerControl& own() const { return *reinterpret_cast<ring::AnswerControl*>(answers_); }

  void Bell(std::atomic<uint32_t>* flag) const {
    if (flag->exchange(0) == 1) static_cast<void>(send(doorbell_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL));
  }
  bool Write(ring::Kind kind, uint64_t id, const std::string& payload, size_t reserve) {
    if (writer_.Room() < static_cast<int64_t>(ring::RecordBytes(payload.size()) + reserve)) return false;
    writer_.Write(kind, 0, id, payload);
    Bell(&clients().sleeps);
    return true;
  }

  internal::UniqueFd client_fds_[3], doorbell_;
  std::byte* const requests_ = Make("fake-requests", 0, &client_fds_[0]);
  std::byte* const answers_ = Make("fake-answers", F_SEAL_FUTURE_WRITE, &client_fds_[1]);
  ring::Reader reader_{requests_ + ring::kDataOffset, &clients().written, &own().taken};
  ring::Writer writer_{answers_ + ring::kDataOffset, &own().written, &clients().taken};
  std::string parts_;
  uint64_t parts_id_ = 0, records_ = 0;
};

}  // namespace rails::testing

#endif  // RAILS_TESTS_UNIT_CLIENT_LIBRARY_FAKE_RING_H_
