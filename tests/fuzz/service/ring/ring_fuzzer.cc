// Any bytes as what a client does to its ring: records, bytes and counters in the memory that it writes, rings of the
// doorbell, while the agent answers and reports. The daemon reads nothing outside of the ring, ends the session of a
// client that breaks the rules, and answers each call of one that does not exactly once. An act is a byte that names it
// and bytes that it takes; what they are is in Act().
#include <google/protobuf/stubs/logging.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "daemon/ring/ring_answers.h"
#include "daemon/ring/ring_memory.h"
#include "daemon/ring/ring_requests.h"
#include "daemon/services/services.h"
#include "tests/fuzz/service/agent/choices.h"
#include "tests/fuzz/service/descriptors.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/ring/ring_client.h"

namespace {

using rails::ring::Kind;
using rails::ring::kMore;
using railsd::testing::Choices;
using railsd::testing::Require;

constexpr size_t kMaxActs = 200;
constexpr size_t kMaxCalls = 8;
constexpr size_t kMaxMessage = 600 << 10;
constexpr size_t kShortBytes = 2048;

uint64_t Number(Choices& input, size_t length) {
  uint64_t number = 0;
  const std::string bytes = input.Bytes(length);
  memcpy(&number, bytes.data(), bytes.size());
  return number;
}

class Session {
 public:
  Session() : block_(4096) {
    context_->agent = &agent_;
    shared_.context = context_;
    shared_.options.max_message_bytes = kMaxMessage;
    shared_.options.max_memory_bytes = kMaxMessage;
    shared_.options.max_calls_per_session = kMaxCalls;
    railsd::RingDescriptors descriptors;
    auto memory = railsd::RingMemory::Make(&descriptors);
    Require(memory.ok(), "no memory");
    answers_ = std::make_shared<railsd::RingAnswers>(*memory, &shared_.counters, [this](const std::string& why) {
      Require(!ended_ && !why.empty(), "ended twice, or for no reason");
      ended_ = true;
    });
    requests_ = std::make_unique<railsd::RingRequests>(railsd::SessionId(1), *memory, answers_, &shared_);
    client_ = std::make_unique<railsd::testing::RingClient>(std::move(descriptors));
  }

  void Act(Choices& input) {
    rails::ring::RequestControl& control = client_->control();
    switch (Number(input, 1) % 10) {
      case 0: {  // a record; the client keeps to the rules unless the numbers do not
        const uint64_t kind = Number(input, 1), flags = Number(input, 1), id = Number(input, 1);
        std::string payload = input.Bytes(Number(input, 2));
        if (flags >= 128) payload.resize(payload.size() << (flags & 7), 'x');
        payload.resize(std::min(payload.size(), rails::ring::kMaxPayloadBytes));
        return Send(static_cast<Kind>(kind), id, payload, flags & 1);
      }
      case 1:  // any bytes anywhere
        honest_ = false;
        {
          const uint64_t at = Number(input, 3) % rails::ring::kDataBytes;
          const std::string bytes = input.Bytes(Number(input, 1));
          memcpy(client_->request_data() + at, bytes.data(), std::min(bytes.size(), rails::ring::kDataBytes - at));
        }
        return;
      case 2:
        honest_ = false;
        control.written = Number(input, 1) % 2 == 0 ? control.written + Number(input, 3) : Number(input, 8);
        return;
      case 3:
        honest_ = false;
        control.taken = Number(input, 8);
        return;
      case 4:
        control.sleeps = static_cast<uint32_t>(Number(input, 1));
        control.wants_room = static_cast<uint32_t>(Number(input, 1));
        return;
      case 5:
        return client_->Ring();
      case 6:
        return Serve();
      case 7:
        return Answer(Number(input, 1));
      case 8: {
        railsd::JobReport report;
        report.group = std::string(Number(input, 2), 'g');
        return answers_->Push(report);
      }
      default:
        return Read();
    }
  }

  void End() {
    Serve();
    while (agent_.joins.size() + agent_.waits.size() > 0) Answer(0);
    Read();
    if (honest_ && !in_parts_ && shared_.counters.full == 0) {
      Require(!ended_, "an honest client was ended");
      Require(unanswered_.empty(), "a call without an answer");
    }
    answers_->Close();
    Require(answers_->unanswered() == 0, "a call is left");
    requests_.reset();
    Require(shared_.part_bytes == 0, "memory of parts is left");
  }

 private:
  void Send(Kind kind, uint64_t id, const std::string& payload, bool more) {
    const bool call = kind >= Kind::kSubmit && kind <= Kind::kReleasePrepared && kind != Kind::kGiveUp;
    if (in_parts_) {
      kind = parts_kind_;
      id = parts_id_;
    } else if (call ? !unanswered_.insert(id).second : kind != Kind::kGiveUp) {
      honest_ = false;
    }
    // A client that waits for room would wait for the daemon, which has no thread here.
    if (client_->Room() < static_cast<int64_t>(rails::ring::RecordBytes(payload.size()))) Serve();
    if (client_->Room() < static_cast<int64_t>(rails::ring::RecordBytes(payload.size()))) {
      honest_ = false;
      return;
    }
    client_->Write(kind, id, payload, more ? kMore : 0);
    in_parts_ = more;
    parts_kind_ = kind;
    parts_id_ = id;
  }

  void Serve() {
    if (ended_ || broken_) return;
    Require(requests_->Wake(), "the doorbell is closed");
    railsd::RingRequests::Turn turn;
    do {
      turn = requests_->Serve(absl::MakeSpan(block_), kShortBytes);  // as the engine's thread
      if (turn == railsd::RingRequests::Turn::kLong) {               // and as one that gets the session from it
        turn = requests_->Serve(absl::MakeSpan(block_), rails::ring::kMaxPayloadBytes);
      }
    } while (turn == railsd::RingRequests::Turn::kGoesOn);
    broken_ = turn == railsd::RingRequests::Turn::kBroken;
    Require(!broken_ || ended_, "broken without an end");
    Require(client_->answer_control().sleeps == (broken_ ? 0 : 1), "it neither reads nor sleeps");
  }

  // The agent answers its oldest call.
  void Answer(uint64_t how) {
    if (agent_.joins.size() > 0) {
      railsd::GroupView group;
      group.epoch = {railsd::BootId(1), how};
      if (how % 2 == 0) return std::move(agent_.joins.Take().done)(absl::UnavailableError("no"));
      return std::move(agent_.joins.Take().done)(group);
    }
    if (agent_.waits.size() == 0) return;
    railsd::JobReport report;
    report.state = railsd::JobState::kDone;
    if (how % 2 == 0) return std::move(agent_.waits.Take().done)(absl::NotFoundError(std::string(how * 100, 'x')));
    std::move(agent_.waits.Take().done)(report);
  }

  // The client reads what there is.
  void Read() {
    if (!honest_) return;
    for (std::optional<railsd::testing::RingClient::Record> record; (record = client_->ReadNow());) {
      if (record->header.kind == static_cast<uint16_t>(Kind::kReport)) continue;
      rails::v1::RingAnswer answer;
      Require(record->header.kind == static_cast<uint16_t>(Kind::kAnswer) && answer.ParseFromString(record->payload),
              "the answer is none");
      Require(answer.code() != 0 || answer.message().empty(), "an error that is OK");
      Require(unanswered_.erase(record->header.id) == 1, "an answer too many");
    }
  }

  std::vector<char> block_;
  railsd::FakeAgent agent_;
  const std::shared_ptr<railsd::ServiceContext> context_ = std::make_shared<railsd::ServiceContext>();
  railsd::RingShared shared_;
  std::shared_ptr<railsd::RingAnswers> answers_;
  std::unique_ptr<railsd::RingRequests> requests_;
  std::unique_ptr<railsd::testing::RingClient> client_;
  bool honest_ = true, ended_ = false, broken_ = false;
  std::set<uint64_t> unanswered_;
  // The request whose last part was not sent.
  bool in_parts_ = false;
  Kind parts_kind_ = Kind::kSubmit;
  uint64_t parts_id_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  google::protobuf::SetLogHandler(nullptr);  // as the daemon does
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  Choices input(bytes, size);
  Session session;
  for (size_t i = 0; i < kMaxActs && !input.empty(); ++i) session.Act(input);
  session.End();
  return 0;
}
