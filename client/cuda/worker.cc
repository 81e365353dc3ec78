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
// Beyond this a rank's word is taken for a mistake: 2^24 slices of 16 MiB are more than any memory has.
constexpr uint64_t kMaxSlices = 1 << 24;

// The daemon numbers its own jobs. Keeps what FailedRanks() reads.
absl::Status InJob(const absl::Status& status, const Operation& operation) {
  if (status.ok()) return status;
  absl::Status told(status.code(), absl::StrCat("job ", operation.seq(), " on the device: ", status.message()));
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { told.SetPayload(url, payload); });
  return told;
}

uint64_t CameFrom(uint32_t rank, const JobReport& report) {
  return rank < report.received_by_rank.size() ? report.received_by_rank[rank] : 0;
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
        absl::StrCat("the group has ", kMaxUnfinished, " unfinished jobs, and none has ended in time: wait for one"));
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
      copied_.push_back(message.buffer);
      break;
    case Message::Kind::kEnded:
      OnEnded(message.buffer, message.report);
      break;
    case Message::Kind::kCopiedIn:
      if (const Slice& slice = active_[message.buffer]; slice.operation != nullptr && slice.number == 0) {
        slice.operation->course.read = true;
      }
      EndSlice(message.buffer);
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
  SubmitCopied();
  while (!starting_.empty() && over_.ok()) {
    const std::shared_ptr<Operation> operation = starting_.front();
    Operation::Course& course = operation->course;
    if (course.slices == 0 && course.started == course.may_start) return;  // the slices that lead will tell
    if (course.slices != 0 && course.started == course.slices) {
      starting_.pop_front();
      continue;
    }
    if (buffers_->full()) return;
    if (absl::Status status = StartSlice(operation); !status.ok()) Break(status);
  }
}

absl::Status Worker::StartSlice(const std::shared_ptr<Operation>& operation) {
  Operation::Course& course = operation->course;
  if (course.started == 0) {
    if (absl::Status status = BeginOperation(*operation); !status.ok()) return status;
  }
  const uint32_t buffer = buffers_->Take();
  SliceKind kind{.number = course.started++, .slices = course.slices, .leading = operation->leading(), .sent = true};
  kind.prefixed = kind.number == 0 && operation->capacities();
  ++course.active;
  Slice& slice = active_[buffer];
  slice = {.operation = operation, .number = kind.number};
  const Flows& flows = operation->flows;
  slice.sends = LayOut(flows.sends, flows.receives, sizes_, kind, buffers_->Send(buffer));
  kind.sent = false;
  slice.receives = LayOut(flows.receives, flows.sends, sizes_, kind, buffers_->Receive(buffer));
  if (kind.number == 0) {
    if (absl::Status status = WriteNotes(*operation, slice.sends); !status.ok()) return status;
  }
  operation->AddCopies({.to_host_bytes = slice.sends.staged_bytes, .slices = 1});
  return copier_->Out(buffer, slice.sends.copies);
}

absl::Status Worker::BeginOperation(Operation& operation) {
  for (Flow& flow : operation.flows.sends) {
    flow.local = peers_->IsReadBy(flow.rank);
    StageInNode(&flow);
  }
  for (Flow& flow : operation.flows.receives) {
    flow.local = peers_->Reads(flow.rank);
    StageInNode(&flow);
  }
  return copier_->Begin(operation.start());
}

void Worker::StageInNode(Flow* flow) const {
  if (group_.members()[flow->rank] != group_.members()[group_.rank()]) return;
  for (Part& part : flow->parts) {
    if (!part.on_device()) continue;
    part.range = {};
    flow->staged = true;
  }
}

absl::Status Worker::WriteNotes(Operation& operation, const SliceFlows& sends) {
  for (size_t i = 0; i < sends.heads.size(); ++i) {
    const Flow& flow = operation.flows.sends[i];
    if (sends.heads[i] == nullptr) continue;
    if (!flow.local) {
      std::memcpy(sends.heads[i], &flow.total_bytes, sizeof(flow.total_bytes));
      continue;
    }
    const Memory* const gathered = operation.gathered.empty() ? nullptr : operation.gathered[i].get();
    const absl::StatusOr<LocalNote> note = peers_->Write(flow, gathered, copier_->out());
    if (!note.ok()) return note.status();
    std::memcpy(sends.heads[i], &*note, sizeof(*note));
  }
  return absl::OkStatus();
}

void Worker::SubmitCopied() {
  while (!copied_.empty()) {
    const uint32_t buffer = copied_.front();
    const Slice& slice = active_[buffer];
    // The last slice acknowledges what was read of other ranks of this node.
    const bool early = slice.operation != nullptr && over_.ok() && slice.number > 0 &&
                       slice.number + 1 == slice.operation->course.slices && !slice.operation->course.read;
    if (early) return;
    copied_.pop_front();
    if (slice.operation == nullptr) continue;  // the device has failed
    if (!over_.ok()) {
      DropSlice(buffer);
    } else if (!SubmitSlice(buffer)) {
      copied_.push_front(buffer);
      return;
    }
  }
}

bool Worker::SubmitSlice(uint32_t buffer) {
  Slice& slice = active_[buffer];
  Operation& operation = *slice.operation;
  if (slice.number == 0 && !operation.course.began) {  // the job's stream has come to it
    operation.course.began = true;
    operation.AddCopies({.own_bytes = BytesOf(operation.flows.own)});
    if (absl::Status status = copier_->Own(operation.flows.own); !status.ok()) {
      Break(status);
      return true;
    }
  }
  AllToAllv exchange{.sends = slice.sends.flows,
                     .receives = slice.receives.flows,
                     .tag = operation.tag(),
                     .timeout = operation.timeout(),
                     .capacities = slice.number == 0 && operation.capacities(),
                     .urgent = operation.urgent()};
  if (slice.number < operation.leading()) exchange.vote = operation.course.vote = VoteIn(slice);
  absl::StatusOr<std::shared_ptr<rails::Job>> job = group_.Submit(exchange);
  if (!job.ok()) {
    // The group is over, and a slice that is under way knows why, or a message that waits (Cancel() ends the group when
    // its own is there); or the daemon takes more when one has ended.
    const bool later = absl::IsFailedPrecondition(job.status()) || absl::IsResourceExhausted(job.status());
    if (later && (AnySubmitted() || !inbox_->empty())) return false;
    Fail(operation, InJob(job.status(), operation));
    DropSlice(buffer);
    return true;
  }
  slice.job = *std::move(job);
  slice.job->OnDone([inbox = inbox_, buffer](const absl::StatusOr<JobReport>& result) {
    Message message{.kind = Message::Kind::kEnded, .buffer = buffer};
    if (result.ok()) {
      message.report = *result;
    } else {
      message.report.status = result.status();
    }
    inbox->Put(std::move(message));
  });
  return true;
}

void Worker::OnEnded(uint32_t buffer, const JobReport& report) {
  Slice& slice = active_[buffer];
  if (slice.operation == nullptr) return;  // it was given up
  Operation& operation = *slice.operation;
  slice.job = nullptr;
  AddReport(report, &operation.course.sum);
  absl::Status status = InJob(report.status, operation);
  if (status.ok() && over_.ok() && slice.number < operation.leading()) status = TakeVote(operation, slice, report);
  if (status.ok() && over_.ok() && slice.number == 0) status = TakeFirst(slice, buffer, report);
  if (!status.ok()) Fail(operation, status);
  if (!over_.ok()) return DropSlice(buffer);
  operation.AddCopies({.to_device_bytes = BytesOf(slice.receives.copies)});
  status = copier_->In(buffer, slice.receives.copies);
  if (!status.ok()) Break(status);
}

// Slice 0 of flows with capacities only asks for more.
uint32_t Worker::VoteIn(const Slice& slice) const {
  const Operation& operation = *slice.operation;
  const uint32_t sends = sizes_.FurtherSlices(operation.flows.sends, slice.number + 1);
  if (slice.number + 1 < operation.leading()) return std::min(sends, 1u);
  return std::max(sends, sizes_.FurtherSlices(operation.flows.receives, slice.number + 1));
}

absl::Status Worker::TakeVote(Operation& operation, const Slice& slice, const JobReport& report) {
  Operation::Course& course = operation.course;
  if (report.highest_vote >= kMaxSlices) {
    return absl::InternalError(absl::StrCat("job ", operation.seq(), ": a rank wants ", report.highest_vote,
                                            " further slices; at most ", kMaxSlices, " are possible"));
  }
  if (report.highest_vote < course.vote) {
    return absl::InternalError(absl::StrCat("job ", operation.seq(), ": this rank has voted ", course.vote,
                                            ", and the highest vote is ", report.highest_vote,
                                            ": a daemon of the group has a version without votes; upgrade it"));
  }
  const auto further = static_cast<uint32_t>(report.highest_vote);
  if (slice.number + 1 < operation.leading() && further > 0) {
    course.may_start = operation.leading();
  } else {
    course.slices = slice.number + 1 + further;
  }
  return absl::OkStatus();
}

absl::Status Worker::TakeFirst(Slice& slice, uint32_t buffer, const JobReport& report) {
  Operation& operation = *slice.operation;
  if (operation.capacities()) {
    if (absl::Status status = TakeLengths(slice, report); !status.ok()) return status;
  }
  if (absl::Status status = ReadNotes(slice, report); !status.ok()) return status;
  if (!operation.capacities()) return absl::OkStatus();
  std::vector<uint64_t>& by_rank = operation.course.sum.received_by_rank;
  by_rank.assign(group_.world_size(), 0);
  for (const Flow& flow : operation.flows.receives) by_rank[flow.rank] = flow.total_bytes;
  by_rank[group_.rank()] = operation.flows.own_bytes;
  // The same places, with copies of what has come.
  slice.receives = LayOut(operation.flows.receives, operation.flows.sends, sizes_,
                          {.leading = operation.leading(), .prefixed = true}, buffers_->Receive(buffer));
  return absl::OkStatus();
}

absl::Status Worker::TakeLengths(Slice& slice, const JobReport& report) {
  Operation& operation = *slice.operation;
  for (size_t i = 0; i < operation.flows.receives.size(); ++i) {
    Flow& flow = operation.flows.receives[i];
    uint64_t length_bytes = 0;  // a source that sends nothing sends no prefix either
    const uint64_t came = CameFrom(flow.rank, report);
    if (!flow.local && came >= SliceSizes::kPrefixBytes) {
      std::memcpy(&length_bytes, slice.receives.heads[i], sizeof(length_bytes));
    }
    if (length_bytes > flow.room_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("job ", operation.seq(), ": rank ", flow.rank, " sends ",
                                                     length_bytes, " bytes, more than the capacity of ",
                                                     flow.room_bytes));
    }
    const uint64_t head_bytes = flow.local ? sizes_.note_bytes() : SliceSizes::kPrefixBytes;
    const uint64_t expected = came == 0 ? 0 : head_bytes + sizes_.Begin(length_bytes, 1, 0, operation.leading());
    if (came != expected) {
      return absl::InternalError(absl::StrCat("job ", operation.seq(), ": rank ", flow.rank, " has sent ", came,
                                              " bytes of its first slice, and its length ", length_bytes, " needs ",
                                              expected));
    }
    flow.total_bytes = length_bytes;
  }
  return absl::OkStatus();
}

absl::Status Worker::ReadNotes(Slice& slice, const JobReport& report) {
  Operation& operation = *slice.operation;
  for (size_t i = 0; i < operation.flows.receives.size(); ++i) {
    Flow& flow = operation.flows.receives[i];
    if (!flow.local || (operation.capacities() && CameFrom(flow.rank, report) == 0)) continue;
    LocalNote note;
    std::memcpy(&note, slice.receives.heads[i], sizeof(note));
    const absl::StatusOr<uint64_t> bytes = peers_->Read(note, &flow, copier_->in());
    if (!bytes.ok()) return bytes.status();
    operation.AddCopies({.local_bytes = *bytes});
    if (!operation.capacities() && *bytes != flow.room_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("job ", operation.seq(), ": rank ", flow.rank, " sends ", *bytes,
                                                     " bytes, and this rank expects ", flow.room_bytes));
    }
  }
  return absl::OkStatus();
}

void Worker::DropSlice(uint32_t buffer) {
  const Slice& slice = active_[buffer];
  if (slice.number == 0 && broken_.ok() && copier_->In(buffer, {}).ok()) return;
  EndSlice(buffer);
}

void Worker::EndSlice(uint32_t buffer) {
  Slice& slice = active_[buffer];
  if (slice.operation == nullptr) return;
  const std::shared_ptr<Operation> operation = std::move(slice.operation);
  slice = {};
  buffers_->Give(buffer);
  Operation::Course& course = operation->course;
  --course.active;
  ++course.done;
  if (!course.failed.ok()) {
    if (course.active == 0) Finish(operation, course.failed);
  } else if (course.done == course.slices) {
    const absl::Status visible = copier_->MakeVisible(operation->flows.receives);
    if (!visible.ok()) Fail(*operation, visible);
    Finish(operation, visible);
  }
}

void Worker::Fail(Operation& operation, const absl::Status& why) {
  operation.course.failed.Update(why);
  if (!over_.ok()) return;
  over_ = why;
  state_->End(why);
  group_.Leave().IgnoreError();  // ends the jobs of all slices, here and at the other ranks
  const absl::Status later = absl::FailedPreconditionError(absl::StrCat("the group is over: ", why.message()));
  for (const Slice& slice : active_) {
    if (slice.operation != nullptr) slice.operation->course.failed.Update(why);
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
  for (const Slice& slice : active_) {
    if (slice.operation != nullptr) slice.operation->LetStreamsGo();
  }
  for (const std::shared_ptr<Operation>& waiting : starting_) waiting->LetStreamsGo();
  copier_->Settle();
  for (uint32_t buffer = 0; buffer < active_.size(); ++buffer) {
    if (active_[buffer].operation != nullptr) Fail(*active_[buffer].operation, why);
  }
  if (over_.ok() && !starting_.empty()) Fail(*starting_.front(), why);
  for (uint32_t buffer = 0; buffer < active_.size(); ++buffer) {
    if (active_[buffer].job == nullptr) EndSlice(buffer);
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
  for (const Slice& slice : active_) {
    if (slice.operation != nullptr) {
      slice.operation->course.failed.Update(why);
      slice.operation->LetStreamsGo();
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
    SubmitCopied();
  }
  for (uint32_t buffer = 0; buffer < active_.size(); ++buffer) EndSlice(buffer);
}

bool Worker::AnySubmitted() const {
  return std::any_of(active_.begin(), active_.end(), [](const Slice& slice) { return slice.job != nullptr; });
}

bool Worker::AnyActive() const {
  return std::any_of(active_.begin(), active_.end(), [](const Slice& slice) { return slice.operation != nullptr; });
}

}  // namespace rails::cuda
