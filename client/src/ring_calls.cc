#include "client/src/ring_calls.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::internal {
namespace {

// How long the watcher waits for room for a posted request.
constexpr absl::Duration kPostTimeout = absl::Seconds(10);

v1::RingAnswer NotSent(const absl::Status& why) {
  v1::RingAnswer answer;
  answer.set_code(static_cast<int>(absl::StatusCode::kUnavailable));
  answer.set_message(absl::StrCat("the request was not sent: ", why.message()));
  return answer;
}

}  // namespace

absl::StatusOr<RingMemory> RingMemory::Map(int fd, int protection) {
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) != 0 || info.st_size < static_cast<off_t>(ring::kMemoryBytes) || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    return absl::InternalError(absl::StrCat("railsd sent no sealed memory of ", ring::kMemoryBytes, " bytes"));
  }
  void* const base = mmap(nullptr, ring::kMemoryBytes, protection, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap of the ring");
  RingMemory memory(base);
  if (madvise(base, ring::kMemoryBytes, MADV_DONTFORK) != 0) return absl::ErrnoToStatus(errno, "madvise of the ring");
  return memory;
}

RingMemory::~RingMemory() {
  // A forked child may have mapped other memory at this address.
  if (base_ != nullptr && owner_.IsThis()) munmap(base_, ring::kMemoryBytes);
}

absl::StatusOr<std::shared_ptr<RingCalls>> RingCalls::Create(RingDescriptors descriptors, absl::Duration spin,
                                                             std::shared_ptr<Watcher> watcher, RingListener* listener) {
  absl::StatusOr<RingMemory> requests = RingMemory::Map(descriptors.requests.get(), PROT_READ | PROT_WRITE);
  if (!requests.ok()) return requests.status();
  absl::StatusOr<RingMemory> answers = RingMemory::Map(descriptors.answers.get(), PROT_READ);
  if (!answers.ok()) return answers.status();
  UniqueFd interrupt(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!interrupt.valid()) return absl::ErrnoToStatus(errno, "eventfd");
  return std::make_shared<RingCalls>(*std::move(requests), *std::move(answers), std::move(descriptors.doorbell),
                                     std::move(interrupt), spin, std::move(watcher), listener);
}

RingCalls::RingCalls(RingMemory requests, RingMemory answers, UniqueFd doorbell, UniqueFd interrupt,
                     absl::Duration spin, std::shared_ptr<Watcher> watcher, RingListener* listener)
    : requests_(std::move(requests)),
      answers_(std::move(answers)),
      doorbell_(std::move(doorbell)),
      interrupt_(std::move(interrupt)),
      own_(requests_.control<ring::RequestControl>()),
      daemons_(answers_.control<const ring::AnswerControl>()),
      spin_(spin),
      watcher_(std::move(watcher)),
      listener_(listener),
      writer_(requests_.data(), &own_->written, &daemons_->taken),
      reader_(answers_.data(), &daemons_->written, &own_->taken) {
  absl::MutexLock lock(&mutex_);
  calls_.reserve(32);  // a table this large is tidied in place
}

std::unique_ptr<RingCalls::Pending> RingCalls::NewCall() {
  if (idle_.empty()) return std::make_unique<Pending>();
  std::unique_ptr<Pending> call = std::move(idle_.back());
  idle_.pop_back();
  call->waiter = nullptr;
  call->caller = nullptr;
  call->given_up = call->answered = false;
  return call;
}

absl::StatusOr<v1::RingAnswer> RingCalls::Call(ring::Kind kind, const google::protobuf::MessageLite& request,
                                               Deadline deadline, CallOptions options) {
  Waiter waiter;
  uint64_t id = 0;
  Pending* call = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return ended_;
    id = ++last_id_;
    call = (calls_[id] = NewCall()).get();
    call->waiter = &waiter;
    call->caller = options.caller;
  }
  request.SerializeToString(&call->payload);
  const absl::Status written = Write(kind, id, std::move(call->payload), deadline);
  if (written.ok()) Wait(waiter, deadline);
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (call->answered || !written.ok() || !ended_.ok()) {
      std::unique_ptr<Pending> ended = std::move(calls_.extract(id).mapped());
      if (ended->answered) {
        v1::RingAnswer answer = std::move(ended->answer);
        constexpr size_t kKept = 4;
        if (idle_.size() < kKept) idle_.push_back(std::move(ended));
        return answer;
      }
      if (!ended_.ok()) return ended_;
      if (kind != ring::Kind::kSubmit && kind != ring::Kind::kSubmitPrepared) return written;
      return NotSent(written);
    }
    status = call->given_up ? absl::CancelledError("the call was cancelled")
                            : absl::DeadlineExceededError("railsd does not answer");
    if (options.on_late == nullptr) {
      calls_.erase(id);
      return status;
    }
    call->waiter = nullptr;
    call->done = std::move(options.on_late);
    call->followed = true;
    ++followed_;
    if (!leading_) PassOn();
  }
  WriteOrPost(ring::Kind::kGiveUp, id, "");
  return status;
}

void RingCalls::Post(ring::Kind kind, const google::protobuf::MessageLite& request, Done done) {
  uint64_t id = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (!ended_.ok()) return;
    id = ++last_id_;
    (calls_[id] = std::make_unique<Pending>())->done = std::move(done);
  }
  WriteOrPost(kind, id, request.SerializeAsString());
}

void RingCalls::GiveUp(const void* caller) {
  absl::MutexLock lock(&mutex_);
  for (const auto& [id, call] : calls_) {
    if (call->caller != caller || call->waiter == nullptr) continue;
    call->given_up = true;
    call->waiter->Wake();
  }
}

absl::Status RingCalls::Write(ring::Kind kind, uint64_t id, std::string&& payload, Deadline deadline) {
  absl::MutexLock writing(&writing_);
  if (absl::Status status = WriteRest(deadline); !status.ok()) return status;
  const size_t first_bytes = std::min(payload.size(), ring::kMaxPayloadBytes);
  if (absl::Status status = AwaitRoom(ring::RecordBytes(first_bytes), deadline); !status.ok()) return status;
  WriteRecord(kind, first_bytes < payload.size() ? ring::kMore : 0, id,
              absl::string_view(payload).substr(0, first_bytes));
  if (first_bytes == payload.size()) return absl::OkStatus();
  rest_ = {kind, id, std::move(payload), first_bytes};
  WriteRest(deadline).IgnoreError();  // on an error the next writer writes the rest
  return absl::OkStatus();
}

absl::Status RingCalls::WriteRest(Deadline deadline) {
  while (rest_.written_bytes < rest_.payload.size()) {
    const absl::string_view left = absl::string_view(rest_.payload).substr(rest_.written_bytes);
    const absl::string_view part = left.substr(0, ring::kMaxPayloadBytes);
    if (absl::Status status = AwaitRoom(ring::RecordBytes(part.size()), deadline); !status.ok()) return status;
    WriteRecord(rest_.kind, part.size() < left.size() ? ring::kMore : 0, rest_.id, part);
    rest_.written_bytes += part.size();
  }
  rest_ = {};
  return absl::OkStatus();
}

bool RingCalls::TryWrite(ring::Kind kind, uint64_t id, absl::string_view payload) {
  if (!writing_.TryLock()) return false;
  const bool room = rest_.payload.empty() && payload.size() <= ring::kMaxPayloadBytes &&
                    writer_.Room() >= static_cast<int64_t>(ring::RecordBytes(payload.size()));
  if (room) WriteRecord(kind, 0, id, payload);
  writing_.Unlock();
  return room;
}

void RingCalls::WriteOrPost(ring::Kind kind, uint64_t id, std::string payload) {
  // Keeps the order of posted requests: a segment cannot be removed before the prepared ranges in it are released.
  if (posted_.load(std::memory_order_acquire) == 0 && TryWrite(kind, id, payload)) return;
  posted_.fetch_add(1, std::memory_order_relaxed);
  watcher_->Post(absl::ZeroDuration(), [weak = weak_from_this(), kind, id, payload = std::move(payload)] {
    if (const std::shared_ptr<RingCalls> self = weak.lock()) {
      self->Write(kind, id, std::string(payload), Deadline::After(kPostTimeout)).IgnoreError();
      self->posted_.fetch_sub(1, std::memory_order_release);
    }
  });
}

absl::Status RingCalls::AwaitRoom(size_t bytes, Deadline deadline) {
  const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(writing_) {
    return writer_.Room() >= static_cast<int64_t>(bytes);
  };
  while (!enough()) {
    if (writer_.Room() < 0) {
      const absl::Status broken = absl::InternalError("railsd counts more requests than this client sent");
      HangUp(broken);
      return broken;
    }
    Waiter waiter;
    {
      absl::MutexLock lock(&mutex_);
      if (!ended_.ok()) return ended_;
      room_waiter_ = &waiter;
      room_bytes_ = bytes;
    }
    own_->wants_room.store(1, std::memory_order_seq_cst);
    const bool in_time = enough() || Wait(waiter, deadline);
    absl::MutexLock lock(&mutex_);
    room_waiter_ = nullptr;
    if (!in_time) return absl::DeadlineExceededError("railsd reads no requests");
  }
  return absl::OkStatus();
}

void RingCalls::WriteRecord(ring::Kind kind, uint16_t flags, uint64_t id, absl::string_view payload) {
  writer_.Write(kind, flags, id, payload);
  if (daemons_->sleeps.load(std::memory_order_seq_cst) == 0) return;
  static_cast<void>(send(doorbell_.get(), "", 1, MSG_DONTWAIT | MSG_NOSIGNAL));  // a full socket wakes it as well
}

bool RingCalls::Wait(Waiter& waiter, Deadline deadline) {
  for (bool done = waiter.done(), late = false; !done && !late;) {
    bool lead = false;
    {
      absl::MutexLock lock(&mutex_);
      lead = !leading_ && !closed_;
      if (lead) {
        leading_ = true;
      } else {
        others_.push_back(&waiter);
      }
    }
    if (lead) {
      Lead(waiter, deadline);
    } else {
      waiter.Sleep(deadline);
    }
    absl::MutexLock lock(&mutex_);
    if (lead) {
      leading_ = false;
    } else {
      std::erase(others_, &waiter);
    }
    done = waiter.done();
    late = deadline.passed();
    // If this thread goes on waiting, it leads itself.
    if (!leading_ && (done || late)) PassOn();
  }
  return waiter.done();
}

void RingCalls::PassOn() {
  if (closed_) return;
  if (!others_.empty()) return others_.front()->Nudge();
  if (followed_ == 0) return;
  // If the watcher polls already, wake it only if there is something to read for which the doorbell may not ring.
  if (std::exchange(watched_, true) && !AskForBell()) return;
  watcher_->WatchBell(doorbell_.get(), [weak = weak_from_this()] {
    const std::shared_ptr<RingCalls> self = weak.lock();
    return self != nullptr && self->OnBell();
  });
}

void RingCalls::Lead(Waiter& waiter, Deadline deadline) {
  bool rang = false;
  for (;;) {
    {
      absl::MutexLock reading(&reading_);
      if (rang) EmptyBell();
      Read();
      if (bell_closed_) break;
    }
    if (waiter.done() || deadline.passed()) return;
    if (Spin(waiter, deadline) || AskForBell()) continue;
    if (!waiter.BeginPoll(interrupt_.get())) return;
    pollfd entries[2] = {{doorbell_.get(), POLLIN, 0}, {interrupt_.get(), POLLIN, 0}};
    const int64_t left = absl::ToInt64Nanoseconds(std::max(deadline.left(), absl::ZeroDuration()));
    const timespec limit = {left / 1'000'000'000, left % 1'000'000'000};
    const int ready = ppoll(entries, 2, deadline == Deadline::Never() ? nullptr : &limit, nullptr);
    waiter.EndPoll();
    rang = ready > 0 && entries[0].revents != 0;
    if (ready > 0 && entries[1].revents != 0) {
      eventfd_t ignored = 0;
      eventfd_read(interrupt_.get(), &ignored);
    }
  }
  HangUp(absl::OkStatus());
}

bool RingCalls::Spin(const Waiter& waiter, Deadline deadline) const {
  if (spin_ <= absl::ZeroDuration()) return false;
  const Deadline end = std::min(deadline, Deadline::After(spin_));
  while (!Unread() && !waiter.done()) {
    if (end.passed()) return false;
  }
  return true;
}

bool RingCalls::Unread() const {
  return daemons_->written.load(std::memory_order_seq_cst) != own_->taken.load(std::memory_order_seq_cst) ||
         daemons_->missed.load(std::memory_order_seq_cst) != missed_.load(std::memory_order_relaxed);
}

bool RingCalls::AskForBell() {
  own_->sleeps.store(1, std::memory_order_seq_cst);
  return Unread();
}

bool RingCalls::OnBell() {
  for (;;) {
    {
      absl::MutexLock reading(&reading_);
      {
        absl::MutexLock lock(&mutex_);
        if (closed_ || leading_) return watched_ = false;
      }
      EmptyBell();
      Read();
      if (bell_closed_) break;
    }
    const bool more = AskForBell();
    absl::MutexLock lock(&mutex_);
    if (followed_ == 0) return watched_ = false;
    if (!more) return true;
  }
  HangUp(absl::OkStatus());
  return false;
}

void RingCalls::EmptyBell() {
  char rings[64];
  ssize_t got = 0;
  do {
    got = recv(doorbell_.get(), rings, sizeof(rings), MSG_DONTWAIT);
  } while (got == sizeof(rings) || (got < 0 && errno == EINTR));
  if (got == 0 || (got < 0 && errno != EAGAIN)) bell_closed_ = true;
}

void RingCalls::Read() {
  ring::RecordHeader header;
  for (;;) {
    const ring::Reader::Result result = reader_.Next(&header, &payload_);
    if (result == ring::Reader::Result::kNothing) break;
    bool broken = result == ring::Reader::Result::kBroken || header.flags != 0;
    const auto kind = static_cast<ring::Kind>(header.kind);
    if (!broken && kind == ring::Kind::kAnswer) broken = !answer_.ParseFromString(payload_);
    if (!broken && kind == ring::Kind::kReport) broken = !report_.ParseFromString(payload_);
    if (broken) {
      HangUp(absl::InternalError("railsd wrote no valid record into the ring"));
      break;
    }
    if (kind == ring::Kind::kAnswer) OnAnswer(header.id, &answer_);
    if (kind == ring::Kind::kReport) listener_->OnReport(report_);
  }
  const uint64_t missed = daemons_->missed.load(std::memory_order_seq_cst);
  if (missed_.exchange(missed, std::memory_order_relaxed) != missed) listener_->OnMissed();
  absl::MutexLock lock(&mutex_);
  const uint64_t untaken = own_->written.load(std::memory_order_relaxed) - daemons_->taken.load();
  if (room_waiter_ != nullptr && untaken <= ring::kDataBytes - room_bytes_) room_waiter_->Wake();
}

void RingCalls::OnAnswer(uint64_t id, v1::RingAnswer* answer) {
  std::unique_ptr<Pending> ended;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(id);
    if (found == calls_.end()) return;  // Call() has returned without the answer
    Pending& call = *found->second;
    if (call.waiter != nullptr) {
      call.answer.Swap(answer);
      call.answered = true;
      return call.waiter->Wake();
    }
    ended = std::move(found->second);
    calls_.erase(found);
    if (ended->followed) --followed_;
  }
  if (ended->done != nullptr) ended->done(*answer);
}

void RingCalls::Follow() {
  absl::MutexLock lock(&mutex_);
  ++followed_;
  if (!leading_) PassOn();
}

void RingCalls::Unfollow() {
  absl::MutexLock lock(&mutex_);
  --followed_;
}

void RingCalls::HangUp(const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    if (std::exchange(closed_, true)) return;
  }
  listener_->OnHangUp(why);
}

void RingCalls::Shutdown() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  shutdown(doorbell_.get(), SHUT_RDWR);
}

void RingCalls::Drain() {
  absl::MutexLock reading(&reading_);
  Read();
}

void RingCalls::End(const absl::Status& why) {
  absl::flat_hash_map<uint64_t, std::unique_ptr<Pending>> dropped;
  absl::MutexLock lock(&mutex_);
  if (!ended_.ok()) return;
  ended_ = why;
  closed_ = true;
  for (auto it = calls_.begin(); it != calls_.end();) {
    if (it->second->waiter == nullptr) {
      dropped.insert(calls_.extract(it++));
    } else {
      (it++)->second->waiter->Wake();
    }
  }
  if (room_waiter_ != nullptr) room_waiter_->Wake();
}

}  // namespace rails::internal
