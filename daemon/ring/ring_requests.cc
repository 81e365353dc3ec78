#include "daemon/ring/ring_requests.h"

#include <google/protobuf/arena.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/services/calls.h"

namespace railsd {
namespace {

using rails::ring::Kind;
using rails::ring::kMore;

// Most requests and bytes of one session in its turn.
constexpr int kRequestsPerTurn = 16;
constexpr size_t kBytesPerTurn = 128 << 10;
// Most capacity of `parts_` that is kept after a request.
constexpr size_t kKeptBytes = 64 << 10;
constexpr size_t kMaxArenaBlock = 1 << 20;

}  // namespace

RingRequests::RingRequests(SessionId session, std::shared_ptr<RingMemory> memory, std::shared_ptr<RingAnswers> answers,
                           RingShared* shared)
    : session_(session),
      memory_(std::move(memory)),
      answers_(std::move(answers)),
      shared_(shared),
      reader_(memory_->MakeReader()) {
  memory_->answers().sleeps.store(1);  // before the client has the memory
}

RingRequests::~RingRequests() { DropParts(); }

bool RingRequests::Wake() {
  if (!memory_->TakeRings()) return false;
  memory_->answers().sleeps.store(0);
  return true;
}

RingRequests::Turn RingRequests::Serve(absl::Span<char> block, size_t most_bytes) {
  size_t bytes = 0;
  for (int i = 0; i < kRequestsPerTurn && bytes < kBytesPerTurn; ++i) {
    if (in_parts_ && most_bytes < rails::ring::kMaxPayloadBytes) return Turn::kLong;
    switch (reader_.Next(&header_, &payload_, most_bytes)) {
      case rails::ring::Reader::Result::kLong:
        return Turn::kLong;
      case rails::ring::Reader::Result::kNothing:
        memory_->answers().sleeps.store(1);
        if (!reader_.Pending()) return Turn::kSleeps;
        memory_->answers().sleeps.store(0);
        break;
      case rails::ring::Reader::Result::kBroken:
        Break("ring: an impossible counter or length of requests");
        return Turn::kBroken;
      case rails::ring::Reader::Result::kRecord:
        bytes += payload_.size();
        memory_->RingIfAsked(memory_->requests().wants_room);
        if (!Take(block)) return Turn::kBroken;
    }
  }
  return Turn::kGoesOn;
}

bool RingRequests::Break(const std::string& why) {
  answers_->Break(why);
  return false;
}

bool RingRequests::Take(absl::Span<char> block) {
  if ((header_.flags & ~kMore) != 0) return Break(absl::StrCat("ring: flags ", header_.flags));
  if (in_parts_ && (header_.kind != first_.kind || header_.id != first_.id)) {
    return Break(absl::StrCat("ring: request ", header_.id, " before the last part of request ", first_.id));
  }
  if (!in_parts_ && header_.flags == 0) return Run(block, payload_, absl::OkStatus());
  TakePart();
  if (header_.flags == kMore) return true;
  const bool good = Run(block, parts_, std::exchange(parts_refused_, absl::OkStatus()));
  in_parts_ = false;
  DropParts();
  return good;
}

void RingRequests::TakePart() {
  if (!std::exchange(in_parts_, true)) first_ = header_;
  if (!parts_refused_.ok()) return;
  LimitCounters& limits = *shared_->context->refused;
  const RingServerOptions& options = shared_->options;
  if (payload_.size() > options.max_message_bytes - parts_.size()) {
    parts_refused_ =
        limits.Refuse(Limit::kMessage, absl::StrCat("a request of more than ", options.max_message_bytes, " bytes"));
  } else if (shared_->part_bytes.fetch_add(payload_.size()) + payload_.size() > options.max_memory_bytes) {
    shared_->part_bytes -= payload_.size();
    parts_refused_ = limits.Refuse(Limit::kGrpcMemory, "too many long requests at once");
  }
  if (parts_refused_.ok()) {
    parts_ += payload_;
  } else {
    DropParts();
  }
}

void RingRequests::DropParts() {
  shared_->part_bytes -= parts_.size();
  parts_.clear();
  if (parts_.capacity() > kKeptBytes) parts_.shrink_to_fit();
}

bool RingRequests::Run(absl::Span<char> block, const std::string& payload, const absl::Status& refused) {
  switch (static_cast<Kind>(header_.kind)) {
    case Kind::kSubmit:
      return RunCall(kSubmitAllToAll, block, payload, refused);
    case Kind::kPrepare:
      return RunCall(kPrepareAllToAll, block, payload, refused);
    case Kind::kSubmitPrepared:
      return RunCall(kSubmitPrepared, block, payload, refused);
    case Kind::kReleasePrepared:
      return RunCall(kReleasePrepared, block, payload, refused);
    case Kind::kWaitJob:
      return RunCall(kWaitJob, block, payload, refused);
    case Kind::kCancelJob:
      return RunCall(kCancelJob, block, payload, refused);
    case Kind::kJoinGroup:
      return RunCall(kJoinGroup, block, payload, refused);
    case Kind::kLeaveGroup:
      return RunCall(kLeaveGroup, block, payload, refused);
    case Kind::kRemoveSegment:
      return RunCall(kRemoveSegment, block, payload, refused);
    case Kind::kGiveUp:
      answers_->GiveUp(header_.id);
      return true;
    default:
      return Break(absl::StrCat("ring: a request of the unknown kind ", header_.kind));
  }
}

template <typename CallKind>
bool RingRequests::RunCall(const CallKind& kind, absl::Span<char> block, const std::string& payload,
                           const absl::Status& refused) {
  const ServiceContext& context = *shared_->context;
  const auto call =
      answers_->Begin(header_.id, kind.method, CallKind::Response::default_instance(), context.ring_calls);
  if (call == nullptr) return Break(absl::StrCat("ring: request ", header_.id, " while an earlier one has that id"));
  const auto refuse = [&call](const absl::Status& status) {
    call->Answer(status);
    return true;
  };
  if (!refused.ok()) return refuse(refused);
  if (const uint32_t limit = shared_->options.max_calls_per_session; answers_->unanswered() > limit) {
    const std::string text = absl::StrCat("more than ", limit, " calls of the session without an answer");
    return refuse(context.refused->Refuse(Limit::kCallsPerClientConnection, text));
  }
  google::protobuf::ArenaOptions options;
  options.initial_block = block.data();
  options.initial_block_size = block.size();
  options.max_block_size = kMaxArenaBlock;
  google::protobuf::Arena arena(options);
  auto* const request = google::protobuf::Arena::CreateMessage<typename CallKind::Request>(&arena);
  if (!request->ParseFromString(payload)) {
    const std::string text = absl::StrCat("request: not a ", request->GetTypeName());
    return refuse(absl::InvalidArgumentError(text));
  }
  kind.run(shared_->context, session_, *request, absl::InfiniteDuration(), call);
  return true;
}

}  // namespace railsd
