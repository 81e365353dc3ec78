// A hostile sender: HELLOs and frames, well-formed and not, against the receiver's state machine over a real socket.
// Whatever comes, memory outside the open zone stays as it was, and what is reported as received lies inside it.
#include <fuzzer/FuzzedDataProvider.h>
#include <sys/socket.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <vector>

#include "agent/transport/tcp/frame.h"
#include "agent/transport/tcp/tcp_context.h"
#include "agent/transport/tcp/tcp_receiver.h"
#include "tests/fuzz/agent/tcp/loopback.h"
#include "tests/support/test_memory.h"

namespace railsd::tcp {
namespace {

constexpr uint64_t kSegmentBytes = 4096;
constexpr uint64_t kZoneAt = 1000;
constexpr uint64_t kZoneBytes = 500;
constexpr uint64_t kGeneration = 7;

void Require(bool ok) {
  if (!ok) std::abort();
}

class Run {
 public:
  explicit Run(FuzzedDataProvider* data) : data_(*data), receiver_(&context_, PeerIndex(1), kGeneration) {
    Open();
    memset(segment_->base(), 0, kSegmentBytes);
  }

  void Go() {
    bool alive = true;
    while (alive && data_.remaining_bytes() > 0) {
      switch (data_.ConsumeIntegralInRange(0, 5)) {
        case 0:
          SendRaw();
          break;
        case 1:
        case 2:
          SendFrame();
          break;
        case 3:
          CloseZone();
          break;
        case 4:
          Open();
          break;
        case 5:
          ++context_.poll_number;
          break;
      }
      alive = Receive();
      TakeEvents();
      Drop(far_);  // acknowledgements: nobody reads them
    }
    Drop(near());
    CheckMemory();
  }

  static std::pair<UniqueFd, UniqueFd>& Bulk() {
    static std::pair<UniqueFd, UniqueFd> bulk = MakeLoopback();
    return bulk;
  }

 private:
  static const UniqueFd& near() { return Bulk().second; }

  void Open() {
    set_ = std::make_shared<ReceiveSet>();
    set_->peer = PeerIndex(1);
    set_->slot = 1;
    set_->generation = 1;
    set_->zones.emplace_back().Append(segment_, kZoneAt, kZoneBytes);
    auto& place = context_.zones[{1, 1}];
    if (place != nullptr) receiver_.Close(place.get());
    place = set_;
  }
  void CloseZone() {
    const auto found = context_.zones.find({1, 1});
    if (found == context_.zones.end()) return;
    receiver_.Close(found->second.get());
    context_.zones.erase(found);
  }
  void Send(const std::vector<std::byte>& bytes) {
    ::send(Bulk().first.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  }
  void SendRaw() {
    const auto bytes = data_.ConsumeBytes<uint8_t>(data_.ConsumeIntegralInRange<size_t>(0, 700));
    std::vector<std::byte> raw(bytes.size());
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = std::byte(bytes[i]);
    if (!raw.empty()) Send(raw);
    Hello hello;
    DecodeHello(raw, &hello);
    Answer answer;
    DecodeAnswer(raw, &answer);
  }
  void SendFrame() {
    FrameHeader header{kGeneration, number_, {1, 1, 0}, 0, 0};
    const uint8_t odd = data_.ConsumeIntegral<uint8_t>();
    if (odd == 1) header.generation = data_.ConsumeIntegral<uint64_t>();
    if (odd == 2) header.number = data_.ConsumeIntegral<uint64_t>();
    if (odd == 3) header.zone.slot = data_.ConsumeIntegral<uint32_t>();
    if (odd == 4) header.zone.index = data_.ConsumeIntegral<uint32_t>();
    header.offset_bytes =
        odd == 5 ? data_.ConsumeIntegral<uint64_t>() : data_.ConsumeIntegralInRange<uint64_t>(0, kZoneBytes);
    header.length_bytes =
        odd == 6 ? data_.ConsumeIntegral<uint32_t>() : data_.ConsumeIntegralInRange<uint32_t>(0, kZoneBytes);
    const size_t payload = std::min<size_t>(header.length_bytes, 4096);
    std::vector<std::byte> bytes(kHeaderBytes + payload + kTrailerBytes, std::byte(0xee));
    EncodeHeader(header, bytes.data());
    EncodeTrailer({header.number, odd == 7 ? FrameStatus::kPoisoned : FrameStatus::kOk},
                  bytes.data() + kHeaderBytes + payload);
    if (odd == 8) bytes.resize(data_.ConsumeIntegralInRange<size_t>(1, bytes.size()));  // cut short
    Send(bytes);
    ++number_;
  }
  bool Receive() {
    int error_number = 0;
    for (int turn = 0; turn < 3; ++turn) {
      ++context_.poll_number;
      switch (receiver_.Receive(near().get(), 1 << 20, &error_number)) {
        case TcpReceiver::Outcome::kProtocol:
          return false;
        case TcpReceiver::Outcome::kClosed:
          std::abort();  // the other end is ours and open
        default:
          break;
      }
    }
    const int acks = receiver_.SendAcks(near().get());
    Require(acks == 0 || acks == EAGAIN);
    return true;
  }
  void TakeEvents() {
    std::array<RailEvent, 16> events;
    for (size_t n; (n = context_.events.Take(absl::MakeSpan(events))) > 0;) {
      for (size_t i = 0; i < n; ++i) {
        Require(events[i].kind == RailEvent::Kind::kReceived);
        Require(events[i].zone == ZoneRef{1, 1, 0} && events[i].length_bytes > 0);
        Require(events[i].offset_bytes + events[i].length_bytes <= kZoneBytes);
      }
    }
  }
  static void Drop(const UniqueFd& fd) {
    std::array<std::byte, 4096> bytes;
    while (::recv(fd.get(), bytes.data(), bytes.size(), MSG_DONTWAIT) > 0) {
    }
  }
  void CheckMemory() {
    for (uint64_t i = 0; i < kSegmentBytes; ++i) {
      Require((i >= kZoneAt && i < kZoneAt + kZoneBytes) || segment_->base()[i] == std::byte(0));
    }
  }

  FuzzedDataProvider& data_;
  const UniqueFd& far_ = Bulk().first;
  std::shared_ptr<const Segment> segment_ = SharedSegment();
  std::shared_ptr<ReceiveSet> set_;
  Context context_{8, 4};
  TcpReceiver receiver_;
  uint64_t number_ = 0;

  static std::shared_ptr<const Segment> SharedSegment() {
    static const std::shared_ptr<const Segment> segment = testing::MakeSegment(kSegmentBytes);
    return segment;
  }
};

}  // namespace
}  // namespace railsd::tcp

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  railsd::tcp::Run(&data).Go();
  return 0;
}
