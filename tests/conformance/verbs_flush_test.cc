// Memory of other devices: real dma-bufs, and flushes, which memory of the host stands in for.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <infiniband/verbs.h>
#include <sys/ioctl.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "tests/conformance/verbs_worlds.h"

namespace railsd::testing {
namespace {

using Kind = RailEvent::Kind;
using ::testing::HasSubstr;

// drm_mode_create_dumb and drm_prime_handle of <drm/drm.h>.
struct DumbBuffer {
  uint32_t height, width, bits_per_pixel, flags, handle, pitch;
  uint64_t size;
};
struct BufferName {
  uint32_t handle, flags;
  int32_t fd;
};

// A dma-buf of one page, of a graphics device (the kernel's vgem will do); invalid when there is none.
UniqueFd MakeDmaBuf() {
  const UniqueFd device(::open("/dev/dri/card0", O_RDWR | O_CLOEXEC));
  DumbBuffer buffer{};
  buffer.height = 1;
  buffer.width = 1024;
  buffer.bits_per_pixel = 32;
  if (!device.valid() || ::ioctl(device.get(), _IOWR('d', 0xb2, DumbBuffer), &buffer) != 0) return UniqueFd();
  BufferName name{buffer.handle, O_CLOEXEC | O_RDWR, -1};
  if (::ioctl(device.get(), _IOWR('d', 0x2d, BufferName), &name) != 0) return UniqueFd();
  return UniqueFd(name.fd);
}

// Rails refuse it with the device's name, because Soft-RoCE of Linux 6.1 cannot register dma-bufs.
TEST_P(VerbsSuite, ADmaBufIsRefusedByTheDevicesName) {
  UniqueFd memory = MakeDmaBuf();
  if (!memory.valid()) GTEST_SKIP() << "no device here makes dma-bufs";
  EXPECT_THAT(Segment::Map(SegmentId(4), MakeDmaBuf(), 4097).status().message(),
              HasSubstr("more than the dma-buf's 4096 bytes"));
  const auto segment = Segment::Map(SegmentId(5), std::move(memory), 4096);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->kind(), MemoryKind::kDmaBuf);
  End& a = Add("a", 1);
  const std::vector<std::shared_ptr<MemoryRegistrar>> rails{a.transport->Info().registrar};
  const absl::Status registered = (*segment)->Register(rails);
  const bool registers = a.transport->Info().device.dma_bufs;
  if (registered.ok()) {
    EXPECT_TRUE(registers);
    GTEST_SKIP() << "the device registers dma-bufs";
  }
  EXPECT_FALSE(registers);
  EXPECT_EQ(registered.code(), absl::StatusCode::kUnimplemented) << registered;
  EXPECT_THAT(registered.message(), ::testing::AllOf(HasSubstr(Rails()[0][0]), HasSubstr("segment 5"),
                                                     HasSubstr("cannot register this one"), HasSubstr("use staging")));
  EXPECT_EQ((*segment)->registration(0), nullptr);
}

// Segments of one dma-buf are the same memory, and segments of two are not. Checks of submissions compare the files.
TEST_P(VerbsSuite, SegmentsOfOneDmaBufShareAFile) {
  const UniqueFd memory = MakeDmaBuf();
  if (!memory.valid()) GTEST_SKIP() << "no device here makes dma-bufs";
  const auto map = [](UniqueFd fd) { return Segment::Map(SegmentId(1), std::move(fd), 4096).value(); };
  const auto first = map(UniqueFd(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0)));
  const auto second = map(UniqueFd(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0)));
  const auto other = map(MakeDmaBuf());
  EXPECT_EQ(first->file(), second->file());
  EXPECT_NE(first->file(), other->file());
}

TEST_P(VerbsSuite, NoByteOfADmaBufIsTouchedByACopy) {
  const auto segment = Segment::Map(SegmentId(5), MakeDmaBuf(), 4096);
  if (!segment.ok()) GTEST_SKIP() << "no device here makes dma-bufs";
  MemoryRanges device, host;
  Append(&device, *segment, 0, 4096);
  Append(&host, MakeSegment(4096), 0, 4096);
  uint64_t done = 0;
  EXPECT_EQ(CopyRangeBytes(host, device, 0, 4096, &done).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CopyRangeBytes(device, host, 0, 4096, &done).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(done, 0u);
}

// Changes the MAC address of a port, and with it the index of the port's GID.
class OtherMac {
 public:
  explicit OtherMac(const std::string& name) {
    for (const verbs::RdmaPort& port : DiscoverRdmaPorts()) {
      if (port.Name() == name) interface_ = verbs::ChooseGid(port, std::nullopt)->interface;
    }
    std::ifstream("/sys/class/net/" + interface_ + "/address") >> before_;
    Set("02:00:00:00:99:99");
  }
  ~OtherMac() { Set(before_); }

 private:
  void Set(const std::string& mac) const {
    const std::string command = "ip link set dev " + interface_ + " address " + mac + " && ip neigh flush all";
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  std::string interface_, before_;
};

class FlushSuite : public VerbsSuite {
 protected:
  // The second node, whose transport has other options than the world's.
  End& AddSecond(const std::string& node, uint64_t boot, VerbsOptions options) {
    End& end = Add(node, boot);
    end.transport.reset();
    options.node = node;
    options.boot = BootId(boot);
    options.device = Rails()[0][1];
    options.zones = &end.zones;
    options.signals = &end;
    options.tuning.timeout = 18;  // as in all worlds
    end.transport = CreateVerbsTransport(options).value();
    return end;
  }
  // Sends fences of 100 bytes each, of weights from `first` to `last`, and waits until they are acknowledged.
  void SendFences(End& from, const Exchange& exchange, uint8_t first, uint8_t last) {
    const size_t done = from.CountDone(SendResult::kAcknowledged);
    std::vector<SendOrder> orders;
    for (uint8_t i = first; i <= last; ++i) orders.push_back(Order(exchange, (uint64_t{i} - 1) * 100, 100, i, i));
    PostAll(from, orders);
    ASSERT_TRUE(Until([&] { return from.CountDone(SendResult::kAcknowledged) == done + orders.size(); }));
  }
  // An exchange that lands in `segments` segments of `at`. Segments from number `plain` on need no flush.
  Exchange* OpenFlushed(End& at, const End& from, size_t segments, size_t plain, int access = IBV_ACCESS_REMOTE_READ) {
    constexpr uint64_t kPart = 10000;
    Exchange* exchange = MakeExchange(at, segments * kPart);
    MemoryRanges memory;
    const std::shared_ptr<MemoryRegistrar> registrar = at.transport->Info().registrar;
    for (size_t s = 0; s < segments; ++s) {
      const std::shared_ptr<const Segment> segment = MakeSegment(3 * kPart, static_cast<uint32_t>(s + 1));
      // Two pieces of each segment, which do not touch.
      for (const uint64_t at_byte : {uint64_t{0}, 2 * kPart}) Append(&memory, segment, at_byte, kPart / 2);
      const std::vector<std::shared_ptr<MemoryRegistrar>> rails{s < plain ? MakeFlushedRegistrar(registrar, access)
                                                                          : registrar};
      EXPECT_TRUE(segment->Register(rails).ok());
    }
    exchange->zone->memory = memory;
    Open(at, from, *exchange);
    return exchange;
  }
};

TEST_P(FlushSuite, EachSegmentThatNeedsItIsReadOnceBeforeTheFence) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  for (const size_t flushed : {0u, 1u, 3u}) {
    SCOPED_TRACE(flushed);
    Exchange* exchange = OpenFlushed(b, a, 4, flushed);
    const uint64_t before = b.counters().work_requests.load();
    SendAll(a, *exchange, 9000);
    ASSERT_TRUE(Until([&] { return b.FencesOf(exchange->zone->ref).size() == 1; }));
    EXPECT_EQ(b.counters().work_requests.load(), before + flushed);
    ExpectArrived(b, *exchange);
    Close(b, *exchange);
  }
  EXPECT_EQ(b.Count(Kind::kReceiveFault), 0u);
}

// Many fences at once: more than reads fit into the queue.
TEST_P(FlushSuite, EveryFenceOfARoundIsFlushedInOrder) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenFlushed(b, a, 2, 2);
  constexpr uint8_t kFences = 200;
  SendFences(a, *exchange, 1, kFences);
  ASSERT_TRUE(Until([&] { return b.FencesOf(exchange->zone->ref).size() == kFences; }));
  const std::vector<RailEvent> fences = b.FencesOf(exchange->zone->ref);
  for (uint8_t i = 0; i < kFences; ++i) EXPECT_EQ(fences[i].weight, i + 1);
  EXPECT_TRUE(ReadAll(exchange->received()) == exchange->bytes);
}

TEST_P(FlushSuite, AFlushThatFailsEndsTheConnectionAndReportsNoFence) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenFlushed(b, a, 1, 1, /*access=*/0);
  SendAll(a, *exchange, 10000);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerDown) == 1 && b.Count(Kind::kPeerDown) == 1; }));
  EXPECT_EQ(b.Count(Kind::kFence), 0u);
  ASSERT_EQ(b.Count(Kind::kReceiveFault), 1u);
  const RailEvent fault = b.Of(Kind::kReceiveFault)[0];
  EXPECT_EQ(fault.zone, exchange->zone->ref);
  EXPECT_EQ(fault.error_number, EACCES);
  EXPECT_EQ(b.counters().protocol_errors.load(), 0u) << "the peer has done nothing wrong";
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2 && b.Count(Kind::kPeerUp) == 2; }));
  Exchange* next = OpenFlushed(b, a, 1, 1);
  Carry(a, b, *next, 10000);
}

// The flush's queue pair fails under two peers; only the one whose fence waits loses its connection.
TEST_P(FlushSuite, APeerWithoutAFenceKeepsItsConnection) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Exchange* const spared = OpenFlushed(b, c, 1, 1);
  Exchange* const failing = OpenFlushed(b, a, 1, 1, /*access=*/0);
  SendAll(a, *failing, 10000);
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  Carry(c, b, *spared, 10000);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
}

// Whichever of the fences that wait has the read that fails: the others are read again.
TEST_P(FlushSuite, AReadThatFailsEndsOnlyTheConnectionOfItsFence) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2), &c = AddMet(b, "c", 3);
  Exchange* const good = OpenFlushed(b, c, 2, 2);
  Exchange* const failing = OpenFlushed(b, a, 1, 1, /*access=*/0);
  b.polled = false;
  SendFences(c, *good, 1, 5);
  SendFences(a, *failing, 1, 1);
  SendFences(c, *good, 6, 20);
  b.polled = true;
  ASSERT_TRUE(Until([&] { return b.FencesOf(good->zone->ref).size() == 20 && b.Count(Kind::kPeerDown) == 1; }));
  const std::vector<RailEvent> fences = b.FencesOf(good->zone->ref);
  for (uint8_t i = 0; i < 20; ++i) EXPECT_EQ(fences[i].weight, i + 1);
  ASSERT_EQ(b.Count(Kind::kReceiveFault), 1u);
  EXPECT_EQ(b.Of(Kind::kReceiveFault)[0].zone, failing->zone->ref);
  EXPECT_EQ(b.Of(Kind::kPeerDown)[0].peer, Index(a));
  EXPECT_EQ(b.Count(Kind::kFence), 20u);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
}

// The drain of a peer ends before its fences are flushed. Their reads may never end, so the queue pair is replaced, and
// what remains of them is not read.
TEST_P(FlushSuite, FencesThatAreGivenUpHoldUpNoOtherPeer) {
  VerbsOptions options;
  options.drain_time = absl::ZeroDuration();
  End &a = Add("a", 1), &b = AddSecond("b", 2, options);
  Meet(a, b);
  End& c = AddMet(b, "c", 3);
  Exchange* const given_up = OpenFlushed(b, a, 2, 2);
  Exchange* const other = OpenFlushed(b, c, 1, 1);
  b.polled = false;
  SendFences(a, *given_up, 1, 200);
  a.transport.reset();
  while (CarrySignal(a)) {
  }
  b.polled = true;
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  ASSERT_GT(b.Count(Kind::kReceiveFault), 100u) << "more than there is room for";
  EXPECT_EQ(b.Count(Kind::kReceiveFault) + b.Count(Kind::kFence), 200u);
  const uint64_t before = b.counters().work_requests.load();
  SendFences(c, *other, 1, 1);
  ASSERT_TRUE(Until([&] { return b.FencesOf(other->zone->ref).size() == 1; }));
  EXPECT_EQ(b.counters().work_requests.load(), before + 1);
  EXPECT_EQ(c.Count(Kind::kPeerDown), 0u);
}

// The queue pair is replaced with the port's address: no read over the old one has to fail first.
TEST_P(FlushSuite, AfterAChangeOfThePortsAddress) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Carry(a, b, *OpenFlushed(b, a, 1, 1), 10000);
  const OtherMac mac(Rails()[0][1]);
  ASSERT_TRUE(Until([&] { return a.Count(Kind::kPeerUp) == 2 && b.Count(Kind::kPeerUp) == 2; }));
  Exchange* const exchange = OpenFlushed(b, a, 1, 1);
  const uint64_t before = b.counters().work_requests.load();
  Carry(a, b, *exchange, 10000);
  EXPECT_EQ(b.counters().work_requests.load(), before + 1);
}

// At every look at the endpoint some fence waits for its flush, while others are flushed.
TEST_P(FlushSuite, FlushesThatEndAreProgress) {
  VerbsOptions options;
  options.progress_time = absl::Seconds(3);
  End &a = Add("a", 1), &b = AddSecond("b", 2, options);
  Meet(a, b);
  Exchange* const exchange = OpenFlushed(b, a, 1, 1);
  const absl::Time until = absl::Now() + 2 * options.progress_time;
  uint64_t sent = 0;
  for (; absl::Now() < until && !HasFailure(); ++sent) {
    b.polled = false;
    SendFences(a, *exchange, 1, 1);
    b.polled = true;
    Poll(b);  // looks at the endpoint before it takes completions: the last fence waits
  }
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == sent; }));
  EXPECT_EQ(b.Count(Kind::kPeerDown), 0u);
}

// A job may end between a fence and its flush; the memory then lives until the flush has ended.
TEST_P(FlushSuite, AZoneThatIsClosedUnderAFlush) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  constexpr uint8_t kFences = 200;
  Exchange* exchange = OpenFlushed(b, a, 2, 2);
  b.polled = false;
  SendFences(a, *exchange, 1, kFences);
  b.polled = true;
  Poll(b);  // takes the fences, and has room for few of their reads
  Close(b, *exchange);
  exchange->zone->memory = MemoryRanges();  // as the engine does
  ASSERT_LT(b.Count(Kind::kFence), kFences) << "the other reads come now";
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kFence) == kFences; }));
  Carry(a, b, *OpenFlushed(b, a, 1, 1), 10000);
  EXPECT_EQ(b.Count(Kind::kPeerDown) + b.Count(Kind::kReceiveFault), 0u);
}

TEST_P(FlushSuite, AFenceIsFlushedThoughItsSenderHasGone) {
  End &a = Add("a", 1), &b = AddMet(a, "b", 2);
  Exchange* exchange = OpenFlushed(b, a, 1, 1);
  b.polled = false;
  SendAll(a, *exchange, 10000);
  ASSERT_TRUE(Until([&] { return a.CountDone(SendResult::kAcknowledged) == 1; }));
  a.transport.reset();
  while (CarrySignal(a)) {
  }
  b.polled = true;
  ASSERT_TRUE(Until([&] { return b.Count(Kind::kPeerDown) == 1; }));
  ExpectArrived(b, *exchange);
}

INSTANTIATE_TEST_SUITE_P(Worlds, FlushSuite, ::testing::Values(VerbsWorlds()[0]), NameOf);

}  // namespace
}  // namespace railsd::testing
