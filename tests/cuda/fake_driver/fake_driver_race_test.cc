// Accesses that something orders, and accesses that nothing orders.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "fake_driver.h"
#include "fake_driver_fixture.h"

namespace fake_cuda_test {
namespace {

TEST_F(FakeDriverTest, ReaderThatDoesNotWaitSeesOldBytes) {
  std::memset(pinned_, 1, kBytes);
  std::memset(other_pinned_, 2, kBytes);
  fakePause(1);
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(ToHost(a_), 0);
  EXPECT_EQ(other_pinned_[0], 2);
  EXPECT_EQ(cuStreamQuery(a_), kNotReady);
  fakePause(0);
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  EXPECT_EQ(other_pinned_[0], 1);
  EXPECT_EQ(cuStreamQuery(a_), 0);
}

TEST_F(FakeDriverTest, UnorderedStreamsRace) {
  // The reader comes second, and must see the bytes.
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(ToHost(b_), 0);
  ExpectViolation("Race");
  Order(a_, b_);
  Order(b_, a_);
  ExpectNoViolation();
  // The writer comes second, and must not overwrite what the other still reads.
  ASSERT_EQ(ToHost(b_), 0);
  ASSERT_EQ(ToDevice(a_), 0);
  ExpectViolation("Race");
}

TEST_F(FakeDriverTest, OrderedStreamsDoNotRace) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    fakeSetDelays(seed, 100);
    ASSERT_EQ(ToDevice(a_), 0);
    Order(a_, b_);
    ASSERT_EQ(ToHost(b_), 0);
    Order(b_, a_);
  }
  ExpectNoViolation();
}

TEST_F(FakeDriverTest, WaitForAnEventCoversOnlyWorkBeforeItsRecord) {
  ASSERT_EQ(cuStreamWaitEvent(b_, event_, 0), 0);  // never recorded: waits for nothing
  ASSERT_EQ(cuEventRecord(event_, a_), 0);
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(cuStreamWaitEvent(b_, event_, 0), 0);
  ASSERT_EQ(cuEventRecord(event_, a_), 0);  // after the wait: does not count
  ASSERT_EQ(ToHost(b_), 0);
  ExpectViolation("Race");
}

TEST_F(FakeDriverTest, OrderIsTransitive) {
  void* c = nullptr;
  ASSERT_EQ(cuStreamCreate(&c, 1), 0);
  ASSERT_EQ(ToDevice(a_), 0);
  Order(a_, b_);
  Order(b_, c);
  ASSERT_EQ(ToHost(c), 0);
  ExpectNoViolation();
}

TEST_F(FakeDriverTest, DisjointBytesDoNotRace) {
  ASSERT_EQ(cuMemsetD8Async(device_, 1, 1000, a_), 0);
  ASSERT_EQ(cuMemsetD8Async(device_ + 1000, 2, 1000, b_), 0);
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(cuStreamSynchronize(b_), 0);
  ExpectNoViolation();
  ASSERT_EQ(cuMemsetD8Async(device_, 1, 1001, a_), 0);
  ASSERT_EQ(cuMemsetD8Async(device_ + 1000, 2, 1000, b_), 0);
  ExpectViolation("Race");
}

TEST_F(FakeDriverTest, HostMustKnowThatACopyIsDone) {
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(fakeHostRead(Address(other_pinned_), 16), 0);
  ExpectViolation("Race");  // whether the copy ran before or after
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(fakeHostRead(Address(other_pinned_), 16), 0);

  // A finished copy is not enough: the host must learn of it.
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_TRUE(fakeDrain(kDrainMs));
  ASSERT_EQ(fakeHostRead(Address(other_pinned_) + kBytes - 1, 1), 0);
  ExpectViolation("the host reads");
  ASSERT_EQ(cuStreamQuery(a_), 0);
  ASSERT_EQ(fakeHostRead(Address(other_pinned_) + kBytes - 1, 1), 0);
  ASSERT_EQ(fakeHostWrite(Address(other_pinned_), kBytes), 0);

  // Other streams' work is not learnt.
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(cuStreamSynchronize(b_), 0);
  ASSERT_EQ(fakeHostRead(Address(other_pinned_), 1), 0);
  ExpectViolation("Race");
}

TEST_F(FakeDriverTest, HostLearnsFromAHostFunction) {
  std::atomic<int> called{0};
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(cuLaunchHostFunc(
                a_, [](void* count) { ++*static_cast<std::atomic<int>*>(count); }, &called),
            0);
  while (called == 0) std::this_thread::yield();
  ASSERT_EQ(fakeHostRead(Address(other_pinned_), kBytes), 0);
  ASSERT_EQ(fakeHostWrite(Address(pinned_), kBytes), 0);
  ExpectNoViolation();
  EXPECT_EQ(fakeCounts().host_functions, 1u);
}

TEST_F(FakeDriverTest, HostFunctionsAccessAtTheirPlaceInTheStream) {
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(cuLaunchHostFunc(
                a_, [](void* memory) { fakeHostWrite(Address(memory), kBytes); }, other_pinned_),
            0);
  ASSERT_EQ(cuMemcpyAsync(device_, Address(other_pinned_), kBytes, a_), 0);
  ExpectNoViolation();
  ASSERT_EQ(cuMemcpyAsync(Address(other_pinned_), other_device_, kBytes, b_), 0);
  ExpectViolation("Race");
}

TEST_F(FakeDriverTest, ReusedSlotRaces) {
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(cuMemcpyAsync(Address(pinned_), other_device_, kBytes, b_), 0);
  ExpectViolation("pinned memory");
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(cuStreamSynchronize(b_), 0);
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(cuMemcpyAsync(Address(pinned_), other_device_, kBytes, b_), 0);
  Order(b_, a_);
  ASSERT_EQ(ToDevice(a_), 0);
  ExpectNoViolation();
}

TEST_F(FakeDriverTest, FindsUndeclaredHostWritesToMemoryOfQueuedCopies) {
  fakePause(1);
  ASSERT_EQ(ToDevice(a_), 0);
  pinned_[kBytes / 2] ^= 1;
  fakePause(0);
  ExpectViolation("The host changed");
  fakePause(1);
  ASSERT_EQ(ToHost(a_), 0);
  other_pinned_[0] ^= 1;
  fakePause(0);
  ExpectViolation("The host changed");
}

TEST_F(FakeDriverTest, HostMayWriteBeforeTheStreamMayContinue) {
  auto* flag = new (Pin(4096)) std::atomic<uint32_t>(0);
  ASSERT_EQ(cuStreamWaitValue32_v2(a_, Address(flag), 1, 0), 0);
  ASSERT_EQ(ToDevice(a_), 0);
  Order(a_, b_);
  ASSERT_EQ(ToHost(b_), 0);
  const auto pattern = Pattern(kBytes, 3);
  std::copy(pattern.begin(), pattern.end(), pinned_);
  ASSERT_EQ(fakeHostWrite(Address(pinned_), kBytes), 0);
  EXPECT_EQ(cuStreamQuery(b_), kNotReady);
  flag->store(1);
  ASSERT_EQ(cuStreamSynchronize(b_), 0);
  EXPECT_TRUE(std::equal(pattern.begin(), pattern.end(), other_pinned_));

  // A host function may write to the memory of copies behind it.
  ASSERT_EQ(cuLaunchHostFunc(
                a_, [](void* memory) { std::memset(memory, 9, kBytes); }, pinned_),
            0);
  ASSERT_EQ(ToDevice(a_), 0);
  ExpectNoViolation();
}

TEST_F(FakeDriverTest, DeviceMayFillPinnedMemoryOfQueuedCopies) {
  std::memset(other_pinned_, 1, kBytes);
  fakePause(1);
  ASSERT_EQ(cuMemsetD8Async(device_, 7, kBytes, a_), 0);
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(cuMemcpyAsync(other_device_, Address(other_pinned_), kBytes, a_), 0);
  fakePause(0);
  ExpectNoViolation();
  unsigned char byte = 0;
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(fakePeek(&byte, other_device_ + 5, 1), 0);
  EXPECT_EQ(byte, 7);
}

TEST_F(FakeDriverTest, MemoryIsRemovedAfterItsLastUse) {
  fakePause(1);
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(cuMemFree_v2(device_), 0);
  ASSERT_EQ(cuMemHostUnregister(pinned_), 0);
  expected_violations_ += 1;
  fakePause(0);
  ExpectViolation("cuMemHostUnregister");
  ASSERT_EQ(cuMemsetD8Async(other_device_, 1, kBytes, a_), 0);
  ASSERT_TRUE(fakeDrain(kDrainMs));
  ASSERT_EQ(cuMemFree_v2(other_device_), 0);
  ExpectViolation("does not know");
  ASSERT_EQ(cuMemAlloc_v2(&device_, kBytes), 0);
  ASSERT_EQ(cuMemsetD8Async(device_, 1, kBytes, a_), 0);
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(cuMemFree_v2(device_), 0);
}

TEST_F(FakeDriverTest, NetworkCardAccessesAreHostAccesses) {
  const unsigned char one = 1;
  ASSERT_EQ(ToDevice(a_), 0);
  ASSERT_EQ(fakePoke(device_ + 3, &one, 1), 0);
  ExpectViolation("Race");
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  ASSERT_EQ(fakePoke(device_ + 3, &one, 1), 0);
  ASSERT_EQ(ToHost(a_), 0);  // enqueued after it
  ASSERT_EQ(cuStreamSynchronize(a_), 0);
  EXPECT_EQ(other_pinned_[3], 1);
  EXPECT_EQ(cuFlushGPUDirectRDMAWrites(0, 100), 0);
  EXPECT_EQ(cuFlushGPUDirectRDMAWrites(0, 0), kInvalidValue);
  EXPECT_EQ(fakeCounts().flushes, 1u);
  EXPECT_EQ(fakeCalls("cuFlushGPUDirectRDMAWrites"), 2u);
}

// A library that moves device memory through a few pinned slots. Returns the violations; the bytes that arrive are
// right if there are none.
class StagingTest : public FakeDriverTest {
 protected:
  static constexpr size_t kSlots = 3, kSlotBytes = 4096, kChunks = kBytes / kSlotBytes;

  void Stage(bool wait_for_slot, bool wait_for_copy) {
    ASSERT_EQ(cuMemcpyAsync(device_, Address(pinned_), kBytes, a_), 0);
    Order(a_, b_);
    std::vector<void*> streams(kSlots);
    for (void*& stream : streams) ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
    Order(a_, streams[0]);
    for (void* stream : streams) ASSERT_EQ(cuStreamWaitEvent(stream, event_, 0), 0);
    for (size_t i = 0; i < kChunks; ++i) {
      void* in = streams[i % kSlots];
      const uint64_t slot = Address(other_pinned_) + i % kSlots * kSlotBytes;
      ASSERT_EQ(cuMemcpyAsync(slot, device_ + i * kSlotBytes, kSlotBytes, in), 0);
      if (wait_for_copy) Order(in, b_);
      ASSERT_EQ(cuMemcpyAsync(other_device_ + i * kSlotBytes, slot, kSlotBytes, b_), 0);
      if (wait_for_slot) Order(b_, in);
    }
    ASSERT_TRUE(fakeDrain(kDrainMs));
  }
};

TEST_F(StagingTest, WaitsMatter) {
  const auto pattern = Pattern(kBytes, 1);
  std::copy(pattern.begin(), pattern.end(), pinned_);
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    fakeSetDelays(seed, 100);
    Stage(true, true);
    ExpectNoViolation();
    std::vector<unsigned char> out(kBytes);
    ASSERT_EQ(cuMemcpyAsync(Address(out.data()), other_device_, kBytes, b_), 0);
    EXPECT_EQ(out, pattern);
    ASSERT_EQ(cuMemsetD8Async(other_device_, 0, kBytes, b_), 0);
    Order(b_, a_);
  }
  for (auto [slot, copy] : {std::pair(false, true), {true, false}, {false, false}}) {
    for (unsigned delay : {0, 100}) {
      fakeSetDelays(7, delay);
      const uint64_t before = fakeViolations();
      Stage(slot, copy);
      EXPECT_GT(fakeViolations(), before);
      expected_violations_ = fakeViolations();
      ASSERT_EQ(cuStreamSynchronize(b_), 0);
      Order(b_, a_);
    }
  }
}

}  // namespace
}  // namespace fake_cuda_test
