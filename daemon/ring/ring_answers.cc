#include "daemon/ring/ring_answers.h"

#include <google/protobuf/arena.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/base/failed_ranks.h"
#include "daemon/services/conversion.h"

namespace railsd {

using google::protobuf::Message;
using rails::ring::kMaxPayloadBytes;
using rails::ring::RecordBytes;

class RingCall final : public Call {
 public:
  RingCall(std::shared_ptr<RingAnswers> answers, uint64_t id, absl::string_view method, const Message& prototype,
           std::shared_ptr<CallCounters> calls)
      : Call(std::move(calls), method), answers_(std::move(answers)), id_(id), prototype_(prototype) {}

 private:
  bool Deliver(const absl::Status& status, Fill fill) override {
    return answers_->WriteAnswer(id_, status, fill, prototype_);
  }

  const std::shared_ptr<RingAnswers> answers_;
  const uint64_t id_;
  const Message& prototype_;
};

RingAnswers::RingAnswers(std::shared_ptr<RingMemory> memory, RingCounters* counters,
                         std::function<void(const std::string&)> fail)
    : counters_(counters), fail_(std::move(fail)), memory_(std::move(memory)), writer_(memory_->MakeWriter()) {
  ++counters_->open;
}

RingAnswers::~RingAnswers() = default;

std::shared_ptr<Call> RingAnswers::Begin(uint64_t id, absl::string_view method, const Message& prototype,
                                         const std::shared_ptr<CallCounters>& calls) {
  auto call = std::make_shared<RingCall>(shared_from_this(), id, method, prototype, calls);
  absl::MutexLock lock(&mutex_);
  // After Close() a call would stay in the table for ever.
  if (memory_ == nullptr || !calls_.emplace(id, call).second) return nullptr;
  return call;
}

size_t RingAnswers::unanswered() const {
  absl::MutexLock lock(&mutex_);
  return calls_.size();
}

bool RingAnswers::closed() const {
  absl::MutexLock lock(&mutex_);
  return memory_ == nullptr;
}

void RingAnswers::GiveUp(uint64_t id) {
  std::shared_ptr<Call> call;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(id);
    if (found != calls_.end()) call = found->second;
  }
  if (call != nullptr) call->GiveUp();  // without the lock: the call's own mutex is locked before it
}

bool RingAnswers::WriteAnswer(uint64_t id, const absl::Status& status, Call::Fill fill, const Message& prototype) {
  const auto serialize = [&](const absl::Status& result) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    answer_.Clear();
    answer_.set_code(static_cast<int32_t>(result.code()));
    answer_.set_message(std::string(result.message()));
    for (Rank rank : FailedRanks(result)) answer_.add_failed_ranks(rank.value());
    if (result.ok()) {
      alignas(std::max_align_t) char block[1024];
      google::protobuf::ArenaOptions options;
      options.initial_block = block;
      options.initial_block_size = sizeof(block);
      google::protobuf::Arena arena(options);
      Message* const response = prototype.New(&arena);
      fill(response);
      response->SerializeToString(answer_.mutable_response());
    }
    answer_.SerializeToString(&payload_);
  };
  absl::MutexLock lock(&mutex_);
  if (memory_ == nullptr) return false;
  calls_.erase(id);
  if (muted_) return false;
  serialize(status);
  const bool fits = payload_.size() <= kMaxPayloadBytes;
  if (!fits) {
    serialize(absl::ResourceExhaustedError(
        absl::StrCat("the answer has ", payload_.size(), " bytes, more than the ring's ", kMaxPayloadBytes)));
  }
  const int64_t room = writer_.Room();
  if (room < static_cast<int64_t>(RecordBytes(payload_.size()))) {
    if (room < 0) {
      FailOnce(&counters_->broken, "ring: it wrote an impossible number of taken answers");
    } else {
      FailOnce(&counters_->full, "ring: it does not read its answers");
    }
    return false;
  }
  writer_.Write(rails::ring::Kind::kAnswer, 0, id, payload_);
  memory_->RingIfAsked(memory_->requests().sleeps);
  return fits;
}

void RingAnswers::Push(const JobReport& report) {
  absl::MutexLock lock(&mutex_);
  if (memory_ == nullptr || muted_) return;
  report_.Clear();
  ReportTo(report, &report_);
  report_.SerializeToString(&payload_);
  const int64_t needed = static_cast<int64_t>(RecordBytes(payload_.size()) + rails::ring::kReservedForAnswersBytes);
  if (writer_.Room() >= needed && payload_.size() <= kMaxPayloadBytes) {
    writer_.Write(rails::ring::Kind::kReport, 0, 0, payload_);
  } else {
    ++memory_->answers().missed;
    ++counters_->missed_reports;
  }
  memory_->RingIfAsked(memory_->requests().sleeps);
}

void RingAnswers::Mute() {
  absl::MutexLock lock(&mutex_);
  muted_ = true;
}

void RingAnswers::Break(const std::string& why) {
  absl::MutexLock lock(&mutex_);
  FailOnce(&counters_->broken, why);
}

void RingAnswers::FailOnce(std::atomic<uint64_t>* counter, const std::string& why) {
  if (fail_ == nullptr) return;
  ++*counter;
  std::exchange(fail_, nullptr)(why);
}

void RingAnswers::Close() {
  absl::flat_hash_map<uint64_t, std::shared_ptr<Call>> calls;
  std::shared_ptr<RingMemory> memory;
  {
    absl::MutexLock lock(&mutex_);
    if (memory_ == nullptr) return;
    fail_ = nullptr;
    memory = std::move(memory_);
    calls = std::move(calls_);
    calls_.clear();
  }
  --counters_->open;
  for (const auto& [id, call] : calls) call->GiveUp();
}

}  // namespace railsd
