#include "agent/memory/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>

#include "absl/strings/str_cat.h"
#include "tests/support/dma_bufs.h"
#include "tests/support/test_memory.h"

namespace railsd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::MakeMemfd;

absl::Status MapStatus(UniqueFd fd, uint64_t length) {
  return Segment::Map(SegmentId(7), std::move(fd), length).status();
}

TEST(SegmentTest, MapsWhatTheTrainerWrote) {
  UniqueFd fd = MakeMemfd(10000);
  ASSERT_EQ(::pwrite(fd.get(), "rails", 5, 9000), 5);
  const int raw = fd.get();
  auto segment = Segment::Map(SegmentId(7), std::move(fd), 10000);
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->id(), SegmentId(7));
  EXPECT_EQ((*segment)->length_bytes(), 10000u);
  EXPECT_EQ((*segment)->kind(), MemoryKind::kMemfd);
  EXPECT_EQ((*segment)->fd(), raw);
  EXPECT_EQ(std::memcmp((*segment)->base() + 9000, "rails", 5), 0);
  std::memcpy((*segment)->base(), "back", 4);
  char byte[4];
  ASSERT_EQ(::pread(raw, byte, 4, 0), 4);
  EXPECT_EQ(std::memcmp(byte, "back", 4), 0);
}

TEST(SegmentTest, MapsLessThanTheFile) { EXPECT_TRUE(MapStatus(MakeMemfd(8192), 5000).ok()); }

TEST(SegmentTest, RefusesLengthZero) {
  const absl::Status status = MapStatus(MakeMemfd(4096), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("segment 7: length_bytes is 0"));
}

TEST(SegmentTest, RefusesAFileThatIsShorter) {
  const absl::Status status = MapStatus(MakeMemfd(4096), 4097);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("length_bytes 4097 is more than the memfd's 4096 bytes"));
}

TEST(SegmentTest, RefusesAbsurdLengths) {
  EXPECT_EQ(MapStatus(MakeMemfd(4096), std::numeric_limits<uint64_t>::max()).code(),
            absl::StatusCode::kInvalidArgument);
  // Sparse, so the file may be longer than any address space.
  const uint64_t huge = uint64_t{1} << 60;
  const absl::Status status = MapStatus(MakeMemfd(huge), huge);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

TEST(SegmentTest, RefusesWithoutTheShrinkSeal) {
  const absl::Status status = MapStatus(MakeMemfd(4096, MFD_ALLOW_SEALING, 0), 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("lacks F_SEAL_SHRINK"));
  EXPECT_THAT(MapStatus(MakeMemfd(4096, 0, 0), 4096).message(), HasSubstr("lacks F_SEAL_SHRINK"));
}

TEST(SegmentTest, RefusesWhatIsNoMemfd) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd other(ends[1]);
  EXPECT_THAT(MapStatus(UniqueFd(ends[0]), 4096).message(), HasSubstr("not a memfd"));
  UniqueFd file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(MapStatus(std::move(file), 4096).message(), HasSubstr("not a memfd"));
  EXPECT_THAT(MapStatus(UniqueFd(), 4096).message(), HasSubstr("not open"));
}

TEST(SegmentTest, RefusesWhatCannotBeWritten) {
  UniqueFd sealed = MakeMemfd(4096, MFD_ALLOW_SEALING, F_SEAL_SHRINK | F_SEAL_WRITE);
  EXPECT_THAT(MapStatus(std::move(sealed), 4096).message(), HasSubstr("sealed against writing"));
  UniqueFd fd = MakeMemfd(4096);
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/self/fd/%d", fd.get());
  UniqueFd read_only(::open(path, O_RDONLY | O_CLOEXEC));
  EXPECT_THAT(MapStatus(std::move(read_only), 4096).message(), HasSubstr("open for reading and writing"));
}

TEST(SegmentTest, HugePages) {
  UniqueFd fd = MakeMemfd(2 << 20, MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (!fd.valid()) GTEST_SKIP() << "no huge pages here";
  auto segment = Segment::Map(SegmentId(7), std::move(fd), (1 << 20) + 1);
  // Without pages in the pool the mapping must fail with a hint instead.
  if (!segment.ok()) {
    EXPECT_EQ(segment.status().code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(segment.status().message(), HasSubstr("vm.nr_hugepages"));
    return;
  }
  EXPECT_EQ((*segment)->kind(), MemoryKind::kHugePageMemfd);
}

// A dma-buf, as far as can be without a device.
UniqueFd MakeStandIn(uint64_t bytes) {
  UniqueFd fd = MakeMemfd(bytes, 0, 0);
  testing::PassForDmaBuf(fd.get());
  return fd;
}

TEST(SegmentTest, ADmaBufIsNotMappedAndNoCopyReachesIt) {
  auto device = Segment::Map(SegmentId(7), MakeStandIn(8192), 5000);
  ASSERT_TRUE(device.ok()) << device.status();
  EXPECT_EQ((*device)->kind(), MemoryKind::kDmaBuf);
  MemoryRanges there, here;
  testing::Append(&there, *device, 0, 5000);
  testing::Append(&here, testing::MakeSegment(5000), 0, 5000);
  EXPECT_TRUE(there.may_be_device_memory());
  EXPECT_FALSE(here.may_be_device_memory());
  uint64_t done = 0;
  EXPECT_EQ(CopyRangeBytes(here, there, 0, 5000, &done).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CopyRangeBytes(there, here, 0, 5000, &done).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SegmentTest, RefusesADmaBufThatIsShorterOrMayNotBeWritten) {
  EXPECT_THAT(MapStatus(MakeStandIn(4096), 4097).message(), HasSubstr("more than the dma-buf's 4096 bytes"));
  const UniqueFd whole = MakeStandIn(4096);
  UniqueFd reader(::open(absl::StrCat("/proc/self/fd/", whole.get()).c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader.valid());
  const absl::Status status = MapStatus(std::move(reader), 4096);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(status.message(), HasSubstr("not open for reading and writing"));
}

TEST(SegmentTest, ADmaBufNeedsADeviceOnEveryRail) {
  const auto segment = Segment::Map(SegmentId(7), MakeStandIn(4096), 4096).value();
  const std::vector<std::shared_ptr<MemoryRegistrar>> rails{nullptr};
  const absl::Status status = segment->Register(rails);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(status.message(), AllOf(HasSubstr("segment 7"), HasSubstr("rail 0"), HasSubstr("use staging")));
}

}  // namespace
}  // namespace railsd
