// A hostile receiver: acknowledgements, true and false, against the sender's accounts while jobs are posted and
// stopped. Whatever comes, every order ends exactly once.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/recount.h"
#include "agent/transport/tcp/tcp_context.h"
#include "agent/transport/tcp/tcp_sender.h"
#include "tests/fuzz/agent/tcp/loopback.h"
#include "tests/support/test_memory.h"

namespace railsd::tcp {
namespace {

constexpr uint64_t kBytes = 4096;
constexpr uint64_t kGeneration = 7;

void Require(bool ok) {
  if (!ok) std::abort();
}

class Run {
 public:
  explicit Run(FuzzedDataProvider* data) : data_(*data), sender_(&context_) {
    static const std::shared_ptr<const Segment> segment = testing::MakeSegment(kBytes);
    for (uint64_t job = 0; job < flows_.size(); ++job) {
      flows_[job].job = JobTag(job);
      flows_[job].memory.Append(segment, 0, kBytes);
    }
    context_.frame_bytes = data_.ConsumeIntegralInRange<uint64_t>(1, kBytes);
    sender_.Start(kGeneration, kMaxFrameBytes);
  }

  void Go() {
    while (data_.remaining_bytes() > 0) {
      switch (data_.ConsumeIntegralInRange(0, 6)) {
        case 0:
          Post();
          break;
        case 1: {
          int error_number = 0;
          Require(sender_.Send(Wire().first.get(), 1 << 20, &error_number) != TcpSender::Outcome::kFailed);
          Drop();
          break;
        }
        case 2:
          sender_.Stop(JobTag(data_.ConsumeIntegralInRange<uint64_t>(0, flows_.size() - 1)));
          break;
        case 3:
        case 4:
          if (!Acknowledge()) sender_.Fail(SendResult::kRailFailed, EPROTO);
          break;
        case 5:
          Cut();
          break;
        case 6:
          Decode();
          break;
      }
      TakeEvents();
    }
    sender_.Fail(SendResult::kRailFailed, ECONNRESET);
    TakeEvents();
    for (const uint8_t ends : ended_) Require(ends == 1);
    Require(context_.counters.posted_bytes.load() == 0);
  }

 private:
  static std::pair<UniqueFd, UniqueFd>& Wire() {
    static std::pair<UniqueFd, UniqueFd> wire = MakeLoopback();
    return wire;
  }
  static void Drop() {
    std::array<std::byte, 65536> bytes;
    while (::recv(Wire().second.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }
  void Post() {
    if (!context_.events.CanHoldOrder()) return;
    const uint64_t length = data_.ConsumeIntegralInRange<uint64_t>(1, kBytes);
    const size_t job = data_.ConsumeIntegralInRange<size_t>(0, flows_.size() - 1);
    context_.events.HoldOrder();
    Context::Add(context_.counters.posted_bytes, length);
    sender_.Add({&flows_[job], {1, 1, 0}, 0, length, ended_.size()});
    ended_.push_back(0);
    lengths_.push_back(length);
  }
  // The connection breaks; its receiver counts, truly or not.
  void Cut() {
    sender_.Break(ECONNRESET);
    if (!sender_.Settle(data_.ConsumeIntegralInRange<uint64_t>(0, 64), ECONNRESET)) {
      sender_.Fail(SendResult::kRailFailed, EPROTO);
    }
    Require(!sender_.InDoubt());
    sender_.Start(kGeneration, kMaxFrameBytes);
  }
  void Decode() {
    const std::string bytes = data_.ConsumeBytesAsString(data_.ConsumeIntegralInRange<size_t>(0, 64));
    Recount recount;
    if (DecodeRecount(bytes, &recount)) Require(EncodeRecount(recount) == bytes);
  }
  bool Acknowledge() {
    std::vector<std::byte> bytes(kAckBytes);
    const uint8_t odd = data_.ConsumeIntegral<uint8_t>();
    if (odd % 8 == 7) {
      for (std::byte& byte : bytes) byte = std::byte(data_.ConsumeIntegral<uint8_t>());
      bytes.resize(data_.ConsumeIntegralInRange<size_t>(0, kAckBytes));
    } else {
      const bool cumulative = odd % 2 == 0;
      EncodeAck({cumulative, cumulative ? FrameStatus::kOk : FrameStatus::kZoneClosed,
                 kGeneration + (odd % 8 == 6 ? 1 : 0), data_.ConsumeIntegralInRange<uint64_t>(0, 64)},
                bytes.data());
    }
    return sender_.OnAckBytes(bytes);
  }
  void TakeEvents() {
    std::array<RailEvent, 16> events;
    for (size_t n; (n = context_.events.Take(absl::MakeSpan(events))) > 0;) {
      for (size_t i = 0; i < n; ++i) {
        Require(events[i].kind == RailEvent::Kind::kSendDone && events[i].cookie < ended_.size());
        Require(++ended_[events[i].cookie] == 1);
        if (events[i].result != SendResult::kReturned) continue;
        Require(events[i].length_bytes > 0);
        Require(events[i].offset_bytes + events[i].length_bytes == lengths_[events[i].cookie]);
      }
    }
  }

  FuzzedDataProvider& data_;
  std::array<SendFlow, 3> flows_;
  Context context_{16, 4};
  TcpSender sender_;
  std::vector<uint8_t> ended_;     // by cookie
  std::vector<uint64_t> lengths_;  // the same
};

}  // namespace
}  // namespace railsd::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  railsd::tcp::Run(&data).Go();
  return 0;
}
