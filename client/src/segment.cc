#include "client/src/segment.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace rails::internal {

SegmentCore::~SegmentCore() { table_->Release(id_); }

void SegmentCore::Poison(std::shared_ptr<DaemonLife> daemon) {
  absl::MutexLock lock(&mutex_);
  if (std::find(poisoned_by_.begin(), poisoned_by_.end(), daemon) == poisoned_by_.end()) {
    poisoned_by_.push_back(std::move(daemon));
  }
}

absl::Status SegmentCore::CheckUsable() {
  absl::MutexLock lock(&mutex_);
  std::erase_if(poisoned_by_, [](const std::shared_ptr<DaemonLife>& daemon) { return daemon->Ended(); });
  if (poisoned_by_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("segment ", id_,
                   " is poisoned: a job used it whose end this client did not see, and that railsd process still runs "
                   "and may write into it. Use another segment, or wait until the process has ended"));
}

absl::StatusOr<std::shared_ptr<SegmentCore>> SegmentTable::Add(SharedMemory memory, bool prefault,
                                                               absl::Duration timeout) {
  const uint32_t id = TakeId();
  absl::Status status = prefault ? PrefaultInReserve(id, memory, timeout) : absl::OkStatus();
  if (status.ok()) {
    absl::StatusOr<std::shared_ptr<SegmentCore>> core = Share(id, std::move(memory), timeout);
    if (core.ok()) return core;
    status = core.status();
  }
  Release(id);  // also frees its reservation
  return status;
}

uint32_t SegmentTable::TakeId() {
  absl::MutexLock lock(&mutex_);
  do {
    ++last_id_;
  } while (last_id_ == 0 || living_.contains(last_id_));
  living_[last_id_] = {};
  return last_id_;
}

absl::Status SegmentTable::PrefaultInReserve(uint32_t id, const SharedMemory& memory, absl::Duration timeout) {
  {
    // If a new session replaces this one, the segment is reserved there when it is shared.
    absl::MutexLock sharing(&sharing_);
    const std::shared_ptr<Session> session = this->session();
    if (session == nullptr) return absl::CancelledError("the client is closed");
    absl::Status status = session->ReserveSegment(id, memory.mapped_bytes(), timeout);
    if (!status.ok()) return status;
  }
  return memory.Prefault();
}

absl::StatusOr<std::shared_ptr<SegmentCore>> SegmentTable::Share(uint32_t id, SharedMemory memory,
                                                                 absl::Duration timeout) {
  absl::MutexLock sharing(&sharing_);
  const std::shared_ptr<Session> session = this->session();
  if (session == nullptr) return absl::CancelledError("the client is closed");
  absl::Status status = session->ShareSegment(id, memory.fd(), memory.mapped_bytes(), timeout);
  if (!status.ok()) return status;
  auto core = std::make_shared<SegmentCore>(id, std::move(memory), shared_from_this());
  absl::MutexLock lock(&mutex_);
  living_[id] = core;
  return core;
}

absl::Status SegmentTable::Use(std::shared_ptr<Session> session) {
  std::vector<std::shared_ptr<SegmentCore>> cores;  // outlives the lock: dropping a last reference makes a call
  absl::MutexLock sharing(&sharing_);
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, weak] : living_) {
      if (std::shared_ptr<SegmentCore> core = weak.lock()) cores.push_back(std::move(core));
    }
  }
  for (const auto& core : cores) {
    absl::Status status =
        session->ShareSegment(core->id(), core->memory().fd(), core->memory().mapped_bytes(), SegmentOptions().timeout);
    if (!status.ok()) {
      return absl::Status(status.code(),
                          absl::StrCat("registering segment ", core->id(), " again: ", status.message()));
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    session_.swap(session);
  }
  return absl::OkStatus();
}

void SegmentTable::Clear() {
  std::shared_ptr<Session> dropped;
  absl::MutexLock lock(&mutex_);
  session_.swap(dropped);
}

void SegmentTable::Release(uint32_t id) {
  if (!owner_.IsThis()) return;
  std::shared_ptr<Session> session;
  {
    absl::MutexLock lock(&mutex_);
    living_.erase(id);
    session = session_;
  }
  if (session != nullptr) session->DropSegment(id);
}

std::shared_ptr<Session> SegmentTable::session() const {
  absl::MutexLock lock(&mutex_);
  return session_;
}

}  // namespace rails::internal
