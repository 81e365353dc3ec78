// A hostile receiver: acknowledgements, true and false, against the sender's accounts while jobs are posted and
// stopped. Whatever comes, every order ends exactly once.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "agent/transport/tcp/frame.h"
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
  explicit Run(FuzzedDataProvider* data)
      : data_(*data), context_(Options(data_.ConsumeIntegralInRange<uint64_t>(1, kBytes))), sender_(&context_) {
    static const std::shared_ptr<const Segment> segment = testing::MakeSegment(kBytes);
    for (uint64_t job = 0; job < streams_.size(); ++job) {
      streams_[job].job = JobTag(job);
      streams_[job].zone = {1, 1};
      testing::Append(&streams_[job].memory, segment, 0, kBytes);
    }
    sender_.Start(kGeneration, kMaxFrameBytes);
  }

  void Go() {
    while (data_.remaining_bytes() > 0) {
      switch (data_.ConsumeIntegralInRange(0, 5)) {
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
          sender_.Stop(JobTag(data_.ConsumeIntegralInRange<uint64_t>(0, streams_.size() - 1)));
          break;
        case 3:
        case 4:
          if (!Acknowledge()) Break();
          break;
        case 5:
          Break();
          break;
      }
      TakeEvents();
    }
    data_.ConsumeBool() ? sender_.StopAll() : sender_.Break(ECONNRESET);
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
    const size_t job = data_.ConsumeIntegralInRange<size_t>(0, streams_.size() - 1);
    SendOrder order{.stream = &streams_[job], .cookie = ended_.size()};
    order.length_bytes = data_.ConsumeIntegralInRange<uint64_t>(0, kBytes);
    order.weight = data_.ConsumeIntegral<uint8_t>();
    if (order.length_bytes == 0 && order.weight == 0) order.weight = 1;
    context_.events.HoldOrder();
    AddTo(context_.counters.posted_bytes, order.length_bytes);
    sender_.Add(order);
    ended_.push_back(0);
  }
  void Break() {
    sender_.Break(ECONNRESET);
    Require(!sender_.HasOrders());
    sender_.Start(kGeneration, kMaxFrameBytes);
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
      }
    }
  }

  static TcpOptions Options(uint64_t frame_bytes) {
    TcpOptions options;
    options.frame_bytes = frame_bytes;
    options.max_posted_orders = 16;
    options.max_receive_events = 4;
    return options;
  }

  FuzzedDataProvider& data_;
  std::array<SendStream, 3> streams_;
  Context context_;
  TcpSender sender_;
  std::vector<uint8_t> ended_;  // by cookie
};

}  // namespace
}  // namespace railsd::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  railsd::tcp::Run(&data).Go();
  return 0;
}
