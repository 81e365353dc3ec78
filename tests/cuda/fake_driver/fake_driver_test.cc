// Calls, errors and counts.
#include "fake_driver.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <vector>

#include "fake_driver_fixture.h"

namespace fake_cuda_test {
namespace {

TEST_F(FakeDriverTest, CopiesComeOutRight) {
  for (size_t bytes : {size_t{1}, size_t{2}, size_t{7}, size_t{8}, size_t{9}, size_t{4097}, kBytes}) {
    for (unsigned delay : {0, 50}) {
      fakeSetDelays(bytes, delay);
      const auto pattern = Pattern(bytes, delay);
      std::copy(pattern.begin(), pattern.end(), pinned_);
      ASSERT_EQ(ToDevice(a_, bytes), 0);
      ASSERT_EQ(cuMemcpyAsync(other_device_, device_, bytes, a_), 0);
      ASSERT_EQ(cuMemcpyAsync(Address(other_pinned_), other_device_, bytes, a_), 0);
      ASSERT_EQ(cuStreamSynchronize(a_), 0);
      EXPECT_TRUE(std::equal(pattern.begin(), pattern.end(), other_pinned_));
      ASSERT_EQ(cuMemsetD8Async(device_, 0x5a, bytes, a_), 0);
      ASSERT_EQ(ToHost(a_, bytes), 0);
      ASSERT_EQ(cuStreamSynchronize(a_), 0);
      EXPECT_EQ(std::count(other_pinned_, other_pinned_ + bytes, 0x5a), static_cast<std::ptrdiff_t>(bytes));
    }
  }
}

TEST_F(FakeDriverTest, ProcessorCannotAccessDeviceAddresses) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the kernel refuses it
  EXPECT_EQ(write(ends[1], reinterpret_cast<void*>(device_), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(write(ends[1], fakeDeviceBytes(device_ + 10), 1), 1);
  for (int end : ends) close(end);
}

TEST_F(FakeDriverTest, WaitsForValues) {
  struct Case {
    unsigned flags;
    uint32_t value, before, after;
  };
  auto* flag = new (Pin(4096)) std::atomic<uint32_t>;
  for (const Case& c : {Case{0, 5, 4, 6}, Case{0, 2, 0xffff'fff0, 3}, Case{1, 5, 6, 5}, Case{2, 6, 1, 4},
                        Case{3, 0xff, 0xffff'ff00, 0x7fff'ff00}}) {
    flag->store(c.before);
    ASSERT_EQ(cuStreamWaitValue32_v2(a_, Address(flag), c.value, c.flags), 0);
    EXPECT_FALSE(fakeDrain(2)) << c.flags;
    EXPECT_EQ(cuStreamQuery(a_), kNotReady) << c.flags;
    flag->store(c.after);
    EXPECT_EQ(cuStreamSynchronize(a_), 0);
  }
  EXPECT_EQ(cuStreamWaitValue32_v2(a_, Address(flag), 1, 4), kInvalidValue);
  EXPECT_EQ(cuStreamWaitValue32_v2(a_, Address(flag) + 2, 1, 0), kInvalidValue);
  EXPECT_EQ(cuStreamWaitValue32_v2(a_, Address(&expected_violations_), 1, 0), kInvalidValue);
  ExpectViolation("pageable");
}

TEST_F(FakeDriverTest, UnregisteringAWaitedValueEndsTheWait) {
  auto* flag = new (Pin(4096)) std::atomic<uint32_t>(0);
  ASSERT_EQ(cuStreamWaitValue32_v2(a_, Address(flag), 1, 0), 0);
  ASSERT_EQ(cuMemHostUnregister(flag), 0);
  ExpectViolation("cuMemHostUnregister");
}

TEST_F(FakeDriverTest, HostFunctionsMustNotCallTheDriver) {
  int result = 0;
  ASSERT_EQ(cuLaunchHostFunc(
                nullptr,
                [](void* out) {
                  int count = 0;
                  *static_cast<int*>(out) = cuDeviceGetCount(&count);
                },
                &result),
            0);
  ASSERT_EQ(cuStreamSynchronize(nullptr), 0);
  EXPECT_EQ(result, 800);
  ExpectViolation("cuDeviceGetCount: called from a host function");
}

TEST_F(FakeDriverTest, CallsNeedACurrentContext) {
  std::thread([&] {
    uint64_t address = 0;
    void* handle = nullptr;
    int value = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, 1), kInvalidContext);
    EXPECT_EQ(cuMemFree_v2(device_), kInvalidContext);
    EXPECT_EQ(cuMemHostRegister_v2(&handle, 1, 0), kInvalidContext);
    EXPECT_EQ(cuStreamCreate(&handle, 1), kInvalidContext);
    EXPECT_EQ(cuEventCreate(&handle, 2), kInvalidContext);
    EXPECT_EQ(cuEventRecord(event_, a_), kInvalidContext);
    EXPECT_EQ(ToDevice(a_), kInvalidContext);
    EXPECT_EQ(cuCtxPopCurrent_v2(&handle), kInvalidContext);
    EXPECT_EQ(cuDeviceGetAttribute(&value, 41, 0), 0);
    EXPECT_EQ(value, 1);
  }).join();

  fakeSetDeviceCount(2);
  void *other = nullptr, *popped = nullptr;
  ASSERT_EQ(cuDevicePrimaryCtxRetain(&other, 1), 0);
  ASSERT_EQ(cuCtxPushCurrent_v2(other), 0);
  EXPECT_EQ(ToDevice(a_), kInvalidHandle);  // a stream of the first context
  ExpectViolation("not current");
  EXPECT_EQ(cuCtxPopCurrent_v2(&popped), 0);
  EXPECT_EQ(popped, other);
  EXPECT_EQ(ToDevice(a_), 0);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), 0);
  EXPECT_EQ(cuCtxPushCurrent_v2(other), kInvalidContext);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
  EXPECT_EQ(ToDevice(a_), 709);
  ExpectNoViolation();
}

TEST_F(FakeDriverTest, RefusesInvalidRanges) {
  EXPECT_EQ(cuMemcpyAsync(device_ + 1, Address(pinned_), kBytes, a_), kInvalidValue);
  ExpectViolation("past the end");
  EXPECT_EQ(cuMemsetD8Async(device_ + kBytes, 0, 1, a_), kInvalidValue);
  ExpectViolation("without memory");
  EXPECT_EQ(cuMemcpyAsync(device_, Address(pinned_) + kBytes - 1, 2, a_), kInvalidValue);
  ExpectViolation("only in part");
  EXPECT_EQ(cuMemcpyAsync(device_, device_ + 1, 2, a_), kInvalidValue);
  ExpectViolation("overlap");

  uint64_t small = 0, base = 0;
  size_t bytes = 0;
  ASSERT_EQ(cuMemAlloc_v2(&small, 5), 0);
  EXPECT_EQ(cuMemsetD8Async(small, 0, 5, a_), 0);
  EXPECT_EQ(cuMemsetD8Async(small, 0, 6, a_), kInvalidValue);
  ExpectViolation("past the end");
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, small + 4), 0);
  EXPECT_EQ(base, small);
  EXPECT_EQ(bytes, 5u);
  EXPECT_EQ(cuMemGetAddressRange_v2(&base, &bytes, small + 5), kInvalidValue);
  EXPECT_EQ(cuStreamSynchronize(a_), 0);
  EXPECT_EQ(cuMemFree_v2(small + 1), kInvalidValue);
  EXPECT_EQ(cuMemFree_v2(small), 0);
  EXPECT_EQ(cuMemFree_v2(small), kInvalidValue);
  EXPECT_EQ(cuMemsetD8Async(small, 0, 5, a_), kInvalidValue);
  ExpectViolation("freed");
  EXPECT_EQ(cuMemAlloc_v2(&small, size_t{1} << 50), 2);
}

TEST_F(FakeDriverTest, RegistersHostMemoryOnce) {
  uint64_t address = 0;
  EXPECT_EQ(cuMemHostRegister_v2(pinned_ + 100, 1, 0), 712);
  // NOLINTNEXTLINE(performance-no-int-to-ptr): refused
  EXPECT_EQ(cuMemHostRegister_v2(reinterpret_cast<void*>(device_), 1, 0), kInvalidValue);
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&address, pinned_ + 8, 0), 0);
  EXPECT_EQ(address, Address(pinned_ + 8));
  EXPECT_EQ(cuMemHostUnregister(pinned_ + 1), 713);
  EXPECT_EQ(cuMemHostUnregister(pinned_), 0);
  EXPECT_EQ(cuMemHostUnregister(pinned_), 713);
  EXPECT_EQ(cuMemHostGetDevicePointer_v2(&address, pinned_, 0), kInvalidValue);
  EXPECT_EQ(cuMemHostRegister_v2(pinned_, 10, 0), 0);
  EXPECT_EQ(cuMemHostRegister_v2(pinned_ + 10, 10, 0), 0);
}

TEST_F(FakeDriverTest, PageableCopiesAreCounted) {
  auto bytes = Pattern(1000, 1);
  const auto original = bytes;
  fakePause(1);
  ASSERT_EQ(cuMemcpyAsync(device_, Address(bytes.data()), bytes.size(), a_), 0);
  std::fill(bytes.begin(), bytes.end(), 0);  // a driver has read them
  fakePause(0);
  std::vector<unsigned char> out(bytes.size());
  ASSERT_EQ(cuMemcpyAsync(Address(out.data()), device_, out.size(), a_), 0);
  EXPECT_EQ(out, original);  // a driver waits
  const FakeCounts counts = fakeCounts();
  EXPECT_EQ(counts.pageable_copies, 2u);
  EXPECT_EQ(counts.copies, 2u);
  EXPECT_EQ(counts.host_to_device, 1000u);
  EXPECT_EQ(counts.device_to_host, 1000u);
  EXPECT_EQ(counts.device_to_device, 0u);
}

TEST_F(FakeDriverTest, ExportsMemoryAsADescriptor) {
  int file = -1;
  fakeSetAttribute(124, 1);
  EXPECT_EQ(cuMemGetHandleForAddressRange(&file, device_ + 4096, 4096, 1, 0), 0);
  ASSERT_GE(file, 0);
  EXPECT_EQ(lseek(file, 0, SEEK_CUR), 4096);
  void* mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  static_cast<unsigned char*>(mapped)[4096] = 42;
  unsigned char byte = 0;
  ASSERT_EQ(fakePeek(&byte, device_ + 4096, 1), 0);
  EXPECT_EQ(byte, 42);
  munmap(mapped, kBytes);
  close(file);
  EXPECT_EQ(cuMemGetHandleForAddressRange(&file, device_ + 1, 4096, 1, 0), kInvalidValue);
  EXPECT_EQ(cuMemGetHandleForAddressRange(&file, device_, kBytes + 4096, 1, 0), kInvalidValue);
  fakeSetAttribute(124, 0);
  EXPECT_EQ(cuMemGetHandleForAddressRange(&file, device_, kBytes, 1, 0), 801);
}

TEST_F(FakeDriverTest, FailsTheNthCall) {
  uint64_t address = 0;
  EXPECT_FALSE(fakeFail("cuMemAlloc", 1, 2));  // the name lacks _v2
  EXPECT_TRUE(fakeFail("cuMemAlloc_v2", 2, 2));
  EXPECT_TRUE(fakeFail("cuMemcpyAsync", 1, 700));
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), 0);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), 2);
  EXPECT_EQ(cuMemAlloc_v2(&address, 1), 0);
  EXPECT_EQ(ToDevice(a_), 700);
  EXPECT_EQ(ToDevice(a_), 0);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(700, &text), 0);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(cuGetErrorString(700, &text), 0);
  EXPECT_STREQ(text, "an illegal memory access was encountered");
  EXPECT_EQ(cuGetErrorName(12345, &text), kInvalidValue);
}

TEST_F(FakeDriverTest, BrokenContextStopsEverything) {
  std::atomic<bool> called{false};
  fakePause(1);
  std::memset(other_pinned_, 1, kBytes);
  ASSERT_EQ(ToHost(a_), 0);
  ASSERT_EQ(cuLaunchHostFunc(
                a_, [](void* flag) { *static_cast<std::atomic<bool>*>(flag) = true; }, &called),
            0);
  std::thread waiting([&] {
    EXPECT_EQ(cuCtxPushCurrent_v2(context_), 0);
    EXPECT_EQ(cuStreamSynchronize(a_), 700);
  });
  while (fakeCalls("cuStreamSynchronize") == 0) std::this_thread::yield();
  fakeBreakContext(700);
  fakePause(0);
  waiting.join();
  EXPECT_EQ(ToDevice(b_), 700);
  EXPECT_EQ(cuStreamQuery(b_), 700);
  EXPECT_EQ(cuMemFree_v2(device_), 700);
  EXPECT_EQ(cuMemHostUnregister(pinned_), 700);
  const char* text = nullptr;
  EXPECT_EQ(cuGetErrorName(700, &text), 0);
  EXPECT_FALSE(fakeDrain(10));
  EXPECT_FALSE(called);
  EXPECT_EQ(other_pinned_[0], 1);
  EXPECT_EQ(fakeLive().registrations, 2);
}

TEST_F(FakeDriverTest, CountsWhatIsLive) {
  FakeLive live = fakeLive();
  EXPECT_EQ(live.allocations, 2);
  EXPECT_EQ(live.registrations, 2);
  EXPECT_EQ(live.streams, 2);
  EXPECT_EQ(live.events, 1);
  EXPECT_EQ(live.contexts, 1);
  ASSERT_EQ(ToDevice(a_), 0);
  for (void* stream : {a_, b_}) EXPECT_EQ(cuStreamDestroy_v2(stream), 0);  // the copy still runs
  ASSERT_TRUE(fakeDrain(kDrainMs));
  EXPECT_EQ(fakeCounts().copies, 1u);
  EXPECT_EQ(cuStreamQuery(a_), kInvalidHandle);
  EXPECT_EQ(cuStreamDestroy_v2(a_), kInvalidHandle);
  expected_violations_ += 2;
  EXPECT_EQ(cuEventDestroy_v2(event_), 0);
  EXPECT_EQ(cuMemFree_v2(other_device_), 0);
  EXPECT_EQ(cuMemHostUnregister(other_pinned_), 0);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), 0);
  live = fakeLive();
  EXPECT_EQ(live.allocations, 1);
  EXPECT_EQ(live.registrations, 1);
  EXPECT_EQ(live.streams, 0);
  EXPECT_EQ(live.events, 0);
  EXPECT_EQ(live.contexts, 0);
}

TEST_F(FakeDriverTest, ProcessEndsWithWorkLeft) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        auto* flag = new (Pin(4096)) std::atomic<uint32_t>(0);
        cuStreamWaitValue32_v2(a_, Address(flag), 1, 0);
        ToDevice(a_);
        fakePauseStream(b_, 1);
        ToHost(b_);
        std::exit(fakeDrain(10) != 0 ? 1 : 0);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST_F(FakeDriverTest, ChildOfForkCannotUseTheDriver) {
  const pid_t child = fork();
  if (child == 0) _exit(cuInit(0));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

}  // namespace
}  // namespace fake_cuda_test
