#include "client/cuda/worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {
namespace {

// How often the device is asked whether it has failed, while copies are under way: it calls nobody then.
constexpr absl::Duration kLookAtDevice = absl::Seconds(1);
// For the jobs of a dropped group.
constexpr absl::Duration kStopLimit = absl::Seconds(10);
// Beyond this a rank's word is taken for a mistake: 2^24 pieces of 16 MiB are more than any memory has.
constexpr uint64_t kMaxPieces = 1 << 24;

std::byte* SlotBytes(const SlotSpan& slot, uint64_t offset_bytes) {
  return slot.segment->bytes().data() + offset_bytes;
}

uint64_t BytesOf(const std::vector<Copy>& copies) {
  uint64_t bytes = 0;
  for (const Copy& copy : copies) bytes += copy.bytes;
  return bytes;
}

}  // namespace

absl::Status WorkerState::Submit(std::shared_ptr<Operation> operation, Inbox* inbox, internal::Deadline deadline) {
  absl::MutexLock lock(&mutex_);
  const auto room = [this]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unfinished_ < kMaxUnfinished || !over_.ok(); };
  if (!changed_.Await(mutex_, room, deadline)) {
    return absl::UnavailableError(
        absl::StrCat("the group has ", kMaxUnfinished, " unfinished jobs, and none has ended in time"));
  }
  if (!over_.ok()) return absl::FailedPreconditionError(absl::StrCat("the group is over: ", over_.message()));
  ++unfinished_;
  operation->set_seq(++last_seq_);
  inbox->Put({.kind = Message::Kind::kSubmitted, .operation = std::move(operation)});
  return absl::OkStatus();
}

void WorkerState::OnFinished() {
  absl::MutexLock lock(&mutex_);
  --unfinished_;
  changed_.WakeAll();
}

void WorkerState::End(const absl::Status& why) {
  absl::MutexLock lock(&mutex_);
  over_.Update(why);
  changed_.WakeAll();
}

void Worker::Run() {
  while (!stopping_) {
    const internal::Deadline look =
        AnyActive() && broken_.ok() ? internal::Deadline::After(kLookAtDevice) : internal::Deadline::Never();
    if (std::optional<Message> message = inbox_->Take(look)) {
      Handle(*std::move(message));
    } else if (absl::Status status = copier_->Check(); !status.ok()) {
      Break(status);
    }
    Advance();
  }
  Stop();
}

void Worker::Handle(Message message) {
  switch (message.kind) {
    case Message::Kind::kSubmitted:
      if (over_.ok()) {
        starting_.push_back(std::move(message.operation));
      } else {
        Finish(message.operation, absl::FailedPreconditionError(absl::StrCat("the group is over: ", over_.message())));
      }
      break;
    case Message::Kind::kCopiedOut:
      OnCopiedOut(message.slot);
      break;
    case Message::Kind::kEnded:
      OnEnded(message.slot, message.report);
      break;
    case Message::Kind::kCopiedIn:
      EndPiece(message.slot);
      break;
    case Message::Kind::kCancel:
      // A job that has ended has no memory in use, and its group goes on.
      if (!message.operation->ended()) Fail(*message.operation, absl::CancelledError("the job was cancelled here"));
      break;
    case Message::Kind::kStop:
      stopping_ = true;
      break;
  }
}

void Worker::Advance() {
  while (!starting_.empty() && over_.ok()) {
    const std::shared_ptr<Operation> operation = starting_.front();
    Operation::Course& course = operation->course;
    if (course.started > 0 && course.pieces == 0) return;  // its first piece will tell
    if (course.started > 0 && course.started == course.pieces) {
      starting_.pop_front();
      continue;
    }
    if (slots_->full()) return;
    if (absl::Status status = StartPiece(operation); !status.ok()) Break(status);
  }
}

absl::Status Worker::StartPiece(const std::shared_ptr<Operation>& operation) {
  Operation::Course& course = operation->course;
  const Flows& flows = operation->flows;
  if (course.started == 0) {
    if (absl::Status status = copier_->Begin(operation->start()); !status.ok()) return status;
  }
  const uint32_t slot = slots_->Take();
  const uint32_t number = course.started++;
  const uint32_t pieces = std::max(course.pieces, 2u);  // where the first one ends does not depend on the others
  const bool prefixed = number == 0 && operation->capacities();
  ++course.active;
  Piece& piece = active_[slot];
  piece = {.operation = operation, .number = number};
  piece.sends = LayOut(flows.sends, sizes_, number, pieces, /*into_slot=*/true, prefixed, slots_->Send(slot));
  piece.receives = LayOut(flows.receives, sizes_, number, pieces, /*into_slot=*/false, prefixed, slots_->Receive(slot));
  operation->AddCopies({.to_host_bytes = piece.sends.staged_bytes, .pieces = 1});
  return copier_->Out(slot, piece.sends.copies);
}

void Worker::OnCopiedOut(uint32_t slot) {
  Piece& piece = active_[slot];
  if (piece.operation == nullptr) return;  // the device failed meanwhile
  Operation& operation = *piece.operation;
  if (!over_.ok()) return DropPiece(slot);
  if (piece.number == 0) {  // the job's stream has come to it
    operation.AddCopies({.own_bytes = BytesOf(operation.flows.own)});
    if (absl::Status status = copier_->Own(operation.flows.own); !status.ok()) return Break(status);
  }
  for (size_t i = 0; i < piece.sends.prefixes.size(); ++i) {
    const uint64_t length_bytes = operation.flows.sends[i].total_bytes;
    std::memcpy(SlotBytes(slots_->Send(slot), piece.sends.prefixes[i]), &length_bytes, sizeof(length_bytes));
  }
  AllToAllv exchange{.sends = piece.sends.flows,
                     .receives = piece.receives.flows,
                     .tag = operation.tag(),
                     .timeout = operation.timeout(),
                     .capacities = piece.number == 0 && operation.capacities()};
  if (piece.number == 0) {
    exchange.vote =
        std::max(sizes_.FurtherPieces(operation.flows.sends), sizes_.FurtherPieces(operation.flows.receives));
  }
  absl::StatusOr<std::shared_ptr<rails::Job>> job = group_.Submit(exchange);
  if (!job.ok()) {
    Fail(operation, job.status());
    return DropPiece(slot);
  }
  piece.job = *std::move(job);
  piece.job->OnDone([inbox = inbox_, slot](const absl::StatusOr<JobReport>& result) {
    Message message{.kind = Message::Kind::kEnded, .slot = slot};
    if (result.ok()) {
      message.report = *result;
    } else {
      message.report.status = result.status();
    }
    inbox->Put(std::move(message));
  });
}

void Worker::OnEnded(uint32_t slot, const JobReport& report) {
  Piece& piece = active_[slot];
  if (piece.operation == nullptr) return;  // it was given up
  Operation& operation = *piece.operation;
  piece.job = nullptr;
  AddReport(report, &operation.course.sum);
  absl::Status status = report.status;
  if (status.ok() && piece.number == 0) status = TakeFirst(piece, slot, report);
  if (!status.ok()) Fail(operation, status);
  if (!over_.ok()) return DropPiece(slot);
  operation.AddCopies({.to_device_bytes = BytesOf(piece.receives.copies)});
  status = copier_->In(slot, piece.receives.copies);
  if (!status.ok()) Break(status);
}

absl::Status Worker::TakeFirst(Piece& piece, uint32_t slot, const JobReport& report) {
  Operation& operation = *piece.operation;
  if (report.highest_vote >= kMaxPieces) {
    return absl::InternalError(absl::StrCat("job ", operation.seq(), ": a rank wants ", report.highest_vote,
                                            " further pieces; at most ", kMaxPieces, " make sense"));
  }
  operation.course.pieces = 1 + static_cast<uint32_t>(report.highest_vote);
  if (!operation.capacities()) return absl::OkStatus();
  if (absl::Status status = TakeLengths(piece, report); !status.ok()) return status;
  // The same places, with copies of what has come.
  piece.receives =
      LayOut(operation.flows.receives, sizes_, 0, 2, /*into_slot=*/false, /*prefixed=*/true, slots_->Receive(slot));
  return absl::OkStatus();
}

absl::Status Worker::TakeLengths(Piece& piece, const JobReport& report) {
  Operation& operation = *piece.operation;
  std::vector<uint64_t>& by_rank = operation.course.sum.received_by_rank;
  by_rank.assign(group_.world_size(), 0);
  for (size_t i = 0; i < operation.flows.receives.size(); ++i) {
    Flow& flow = operation.flows.receives[i];
    uint64_t length_bytes = 0;  // a source that sends nothing sends no prefix either
    const uint64_t came = flow.rank < report.received_by_rank.size() ? report.received_by_rank[flow.rank] : 0;
    if (came >= PieceSizes::kPrefixBytes) {
      std::memcpy(&length_bytes, SlotBytes(slots_->Receive(0), piece.receives.prefixes[i]), sizeof(length_bytes));
    }
    if (length_bytes > flow.room_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("job ", operation.seq(), ": rank ", flow.rank, " sends ",
                                                     length_bytes, " bytes, more than the capacity of ",
                                                     flow.room_bytes));
    }
    const uint64_t expected = came == 0 ? 0 : PieceSizes::kPrefixBytes + sizes_.Begin(length_bytes, 1, 2);
    if (came != expected) {
      return absl::InternalError(absl::StrCat("job ", operation.seq(), ": rank ", flow.rank, " has sent ", came,
                                              " bytes of its first piece, and its length ", length_bytes, " needs ",
                                              expected));
    }
    flow.total_bytes = length_bytes;
    by_rank[flow.rank] = length_bytes;
  }
  by_rank[group_.rank()] = operation.flows.own_bytes;
  return absl::OkStatus();
}

void Worker::DropPiece(uint32_t slot) {
  const Piece& piece = active_[slot];
  if (piece.number == 0 && !piece.operation->flows.own.empty() && broken_.ok() && copier_->In(slot, {}).ok()) return;
  EndPiece(slot);
}

void Worker::EndPiece(uint32_t slot) {
  Piece& piece = active_[slot];
  if (piece.operation == nullptr) return;
  const std::shared_ptr<Operation> operation = std::move(piece.operation);
  piece = {};
  slots_->Give(slot);
  Operation::Course& course = operation->course;
  --course.active;
  ++course.done;
  if (!course.failed.ok() ? course.active == 0 : course.done == course.pieces) Finish(operation, course.failed);
}

void Worker::Fail(Operation& operation, const absl::Status& why) {
  operation.course.failed.Update(why);
  if (!over_.ok()) return;
  over_ = why;
  state_->End(why);
  group_.Leave().IgnoreError();  // ends the jobs of all pieces, here and at the other ranks
  const absl::Status later = absl::FailedPreconditionError(absl::StrCat("the group is over: ", why.message()));
  for (const Piece& piece : active_) {
    if (piece.operation != nullptr) piece.operation->course.failed.Update(why);
  }
  for (const std::shared_ptr<Operation>& waiting : starting_) {
    if (waiting->course.started == 0) {
      Finish(waiting, waiting.get() == &operation ? why : later);
    } else if (waiting->course.active == 0) {
      Finish(waiting, waiting->course.failed.ok() ? later : waiting->course.failed);
    }
  }
  starting_.clear();
}

void Worker::Break(const absl::Status& why) {
  if (!broken_.ok()) return;
  broken_ = why;
  // Streams that wait for these jobs may be what the copies wait for.
  for (const Piece& piece : active_) {
    if (piece.operation != nullptr) piece.operation->LetStreamsGo();
  }
  for (const std::shared_ptr<Operation>& waiting : starting_) waiting->LetStreamsGo();
  copier_->Settle();
  for (uint32_t slot = 0; slot < active_.size(); ++slot) {
    if (active_[slot].operation != nullptr) Fail(*active_[slot].operation, why);
  }
  if (over_.ok() && !starting_.empty()) Fail(*starting_.front(), why);
  for (uint32_t slot = 0; slot < active_.size(); ++slot) {
    if (active_[slot].job == nullptr) EndPiece(slot);
  }
}

void Worker::Finish(const std::shared_ptr<Operation>& operation, const absl::Status& status) {
  operation->Finish(status);
  state_->OnFinished();
}

void Worker::Stop() {
  const absl::Status why = absl::CancelledError("the group was dropped");
  state_->End(why);
  if (over_.ok()) {
    over_ = why;
    group_.Leave().IgnoreError();
  }
  for (const Piece& piece : active_) {
    if (piece.operation != nullptr) {
      piece.operation->course.failed.Update(why);
      piece.operation->LetStreamsGo();
    }
  }
  for (const std::shared_ptr<Operation>& waiting : starting_) {
    if (waiting->course.active == 0) Finish(waiting, why);
  }
  starting_.clear();
  copier_->Settle();  // its messages are in the inbox then
  const internal::Deadline deadline = internal::Deadline::After(kStopLimit);
  while (std::optional<Message> message = inbox_->Take(AnyActive() ? deadline : internal::Deadline::After({}))) {
    Handle(*std::move(message));
  }
  for (uint32_t slot = 0; slot < active_.size(); ++slot) EndPiece(slot);
}

bool Worker::AnyActive() const {
  return std::any_of(active_.begin(), active_.end(), [](const Piece& piece) { return piece.operation != nullptr; });
}

}  // namespace rails::cuda
