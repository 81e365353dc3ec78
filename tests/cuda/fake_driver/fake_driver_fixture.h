// The fixture of the fake's own tests: a current context, memory, streams and an event.
#ifndef RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_FIXTURE_H_
#define RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_FIXTURE_H_

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "fake_driver.h"

namespace fake_cuda_test {

inline constexpr int kInvalidValue = 1, kInvalidContext = 201, kInvalidHandle = 400, kNotReady = 600;
inline constexpr unsigned kDrainMs = 20'000;

inline uint64_t Address(const void* memory) { return reinterpret_cast<uint64_t>(memory); }

inline std::vector<unsigned char> Pattern(size_t bytes, unsigned seed) {
  std::vector<unsigned char> pattern(bytes);
  for (size_t i = 0; i < bytes; ++i) pattern[i] = static_cast<unsigned char>(i * 131 + i / 251 + seed);
  return pattern;
}

// A context is current. Tests declare which violations they expect; all others fail them.
class FakeDriverTest : public ::testing::Test {
 protected:
  static constexpr size_t kBytes = 64 << 10;

  void SetUp() override {
    fakeReset();
    ASSERT_EQ(cuInit(0), 0);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
    ASSERT_EQ(cuCtxPushCurrent_v2(context_), 0);
    pinned_ = Pin(kBytes);
    other_pinned_ = Pin(kBytes);
    ASSERT_EQ(cuMemAlloc_v2(&device_, kBytes), 0);
    ASSERT_EQ(cuMemAlloc_v2(&other_device_, kBytes), 0);
    for (void** stream : {&a_, &b_}) ASSERT_EQ(cuStreamCreate(stream, 1), 0);
    ASSERT_EQ(cuEventCreate(&event_, 2), 0);
  }

  void TearDown() override {
    fakePause(0);
    EXPECT_EQ(fakeViolations(), expected_violations_) << Violations();
    fakeReset();
    for (auto [memory, bytes] : pinned_memory_) munmap(memory, bytes);
  }

  unsigned char* Pin(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    EXPECT_EQ(cuMemHostRegister_v2(memory, bytes, 3), 0);
    pinned_memory_.emplace_back(memory, bytes);
    return static_cast<unsigned char*>(memory);
  }

  // Expects one more violation, whose text contains `part`, once all streams are idle.
  void ExpectViolation(const std::string& part) {
    ASSERT_TRUE(fakeDrain(kDrainMs));
    ++expected_violations_;
    ASSERT_EQ(fakeViolations(), expected_violations_) << Violations();
    EXPECT_NE(std::string(fakeViolation(expected_violations_ - 1)).find(part), std::string::npos) << Violations();
  }

  void ExpectNoViolation() {
    ASSERT_TRUE(fakeDrain(kDrainMs));
    ASSERT_EQ(fakeViolations(), expected_violations_) << Violations();
  }

  static std::string Violations() {
    std::string all;
    for (uint64_t i = 0; fakeViolation(i) != nullptr; ++i) all.append(fakeViolation(i)).append("\n");
    return all;
  }

  int ToDevice(void* stream, size_t bytes = kBytes) { return cuMemcpyAsync(device_, Address(pinned_), bytes, stream); }
  int ToHost(void* stream, size_t bytes = kBytes) {
    return cuMemcpyAsync(Address(other_pinned_), device_, bytes, stream);
  }
  // Orders later work of `after` behind earlier work of `before`.
  void Order(void* before, void* after) {
    EXPECT_EQ(cuEventRecord(event_, before), 0);
    EXPECT_EQ(cuStreamWaitEvent(after, event_, 0), 0);
  }

  void* context_ = nullptr;
  unsigned char* pinned_ = nullptr;
  unsigned char* other_pinned_ = nullptr;
  uint64_t device_ = 0, other_device_ = 0;
  void *a_ = nullptr, *b_ = nullptr, *event_ = nullptr;
  std::vector<std::pair<void*, size_t>> pinned_memory_;
  uint64_t expected_violations_ = 0;
};

}  // namespace fake_cuda_test

#endif  // RAILS_TESTS_CUDA_FAKE_DRIVER_FAKE_DRIVER_FIXTURE_H_
