// A hostile sender: HELLOs and frames, well-formed and not, against the receiver's state machine over a real socket.
// Whatever comes, memory outside the open zone stays as it was, what is counted as landed lies inside it, and a zone
// that is closed is left.
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
constexpr PeerIndex kPeer{1};

void Require(bool ok) {
  if (!ok) std::abort();
}

class Run {
 public:
  explicit Run(FuzzedDataProvider* data) : data_(*data), receiver_(&context_, kPeer, kGeneration) {
    Open();
    memset(segment_->base(), 0, kSegmentBytes);
  }
  ~Run() { Close(); }

  void Go() {
    bool alive = true;
    while (alive && data_.remaining_bytes() > 0) {
      switch (data_.ConsumeIntegralInRange(0, 4)) {
        case 0:
          SendRaw();
          break;
        case 1:
        case 2:
          SendFrame();
          break;
        case 3:
          Close();
          break;
        case 4:
          Close();
          Open();
          break;
      }
      alive = Receive();
      TakeEvents();
      Drop(Wire().first);  // acknowledgements: nobody reads them
    }
    Drop(Wire().second);
    CheckMemory();
  }

 private:
  static std::pair<UniqueFd, UniqueFd>& Wire() {
    static std::pair<UniqueFd, UniqueFd> wire = MakeLoopback();
    return wire;
  }
  static ZoneTable& Zones() {
    static ZoneTable zones;
    return zones;
  }
  static TcpOptions Options() {
    TcpOptions options;
    options.zones = &Zones();
    options.max_posted_orders = 8;
    options.max_receive_events = 4;
    return options;
  }

  // A zone of the peer's, or of somebody else's.
  void Open() {
    zone_ = std::make_shared<ReceiveZone>(1, /*binds_zones=*/false);
    zone_->peer = PeerIndex(data_.ConsumeIntegralInRange(0, 15) == 15 ? 2 : 1);
    testing::Append(&zone_->memory, segment_, kZoneAt, kZoneBytes);
    Zones().Open(zone_);
    ref_ = zone_->ref;
  }
  void Close() {
    if (zone_ == nullptr) return;
    Require(Zones().Close(ref_));  // nobody is inside between two receives
    CheckLanded();
    Zones().Release(ref_);
    zone_ = nullptr;
  }
  void Send(const std::vector<std::byte>& bytes) {
    ::send(Wire().first.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
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
    FrameHeader header{.generation = kGeneration, .number = number_, .zone = ref_};
    const uint8_t odd = data_.ConsumeIntegral<uint8_t>();
    if (odd == 1) header.generation = data_.ConsumeIntegral<uint64_t>();
    if (odd == 2) header.number = data_.ConsumeIntegral<uint64_t>();
    if (odd == 3) header.zone.slot = data_.ConsumeIntegral<uint16_t>();
    if (odd == 4) header.zone.generation = data_.ConsumeIntegral<uint32_t>();
    if (odd % 4 == 1) {  // a fence, perhaps with what it does not have
      header.weight = data_.ConsumeIntegral<uint8_t>();
      header.round = data_.ConsumeIntegral<uint32_t>();
    }
    if (!header.is_fence() || odd == 5) {
      header.offset_bytes =
          odd == 6 ? data_.ConsumeIntegral<uint64_t>() : data_.ConsumeIntegralInRange<uint64_t>(0, kZoneBytes);
      header.length_bytes =
          odd == 7 ? data_.ConsumeIntegral<uint32_t>() : data_.ConsumeIntegralInRange<uint32_t>(0, kZoneBytes);
    }
    const size_t payload = std::min<size_t>(header.length_bytes, 4096);
    std::vector<std::byte> bytes(kHeaderBytes + payload + kTrailerBytes, std::byte(0xee));
    EncodeHeader(header, bytes.data());
    EncodeTrailer({header.number, odd == 8 ? FrameStatus::kPoisoned : FrameStatus::kOk},
                  bytes.data() + kHeaderBytes + payload);
    if (header.is_fence()) bytes.resize(kHeaderBytes);
    if (odd == 10) bytes.resize(data_.ConsumeIntegralInRange<size_t>(1, bytes.size()));  // cut short
    Send(bytes);
    ++number_;
  }
  bool Receive() {
    int error_number = 0;
    for (int turn = 0; turn < 3; ++turn) {
      switch (receiver_.Receive(Wire().second.get(), 1 << 20, &error_number)) {
        case TcpReceiver::Outcome::kProtocol:
          return false;
        case TcpReceiver::Outcome::kClosed:
          std::abort();  // the other end is ours and open
        default:
          break;
      }
    }
    const int acks = receiver_.SendAcks(Wire().second.get());
    Require(acks == 0 || acks == EAGAIN);
    return true;
  }
  void TakeEvents() {
    std::array<RailEvent, 16> events;
    for (size_t n; (n = context_.events.Take(absl::MakeSpan(events))) > 0;) {
      for (size_t i = 0; i < n; ++i) {
        Require(events[i].kind == RailEvent::Kind::kFence);
        Require(events[i].peer == kPeer && events[i].weight > 0);
      }
    }
  }
  void CheckLanded() const {
    for (size_t i = 0; i < zone_->landed[0].runs(); ++i) {
      const Landing::Run run = zone_->landed[0].run(i);
      Require(run.begin < run.end && run.end <= kZoneBytes && zone_->peer == kPeer);
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
  std::shared_ptr<const Segment> segment_ = SharedSegment();
  std::shared_ptr<ReceiveZone> zone_;  // null: closed
  ZoneRef ref_;                        // of it, or of the last one
  Context context_{Options()};
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
