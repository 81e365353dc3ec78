#include "agent/memory/guarded_copy.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "agent/base/unique_fd.h"

namespace railsd {
namespace {

constexpr size_t kPage = 4096;

// Memory of a memfd whose second half has been cut off: to touch it raises SIGBUS.
class HalfGone {
 public:
  explicit HalfGone(size_t pages = 2) : bytes_(pages * kPage), fd_(memfd_create("half", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes_)), 0);
    base_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    EXPECT_EQ(ftruncate(fd_.get(), static_cast<off_t>(bytes_ / 2)), 0);
  }
  ~HalfGone() { munmap(base_, bytes_); }
  char* base() const { return base_; }

 private:
  const size_t bytes_;
  UniqueFd fd_;
  char* base_ = nullptr;
};

iovec Of(std::string& text) { return {text.data(), text.size()}; }

TEST(GuardedCopyTest, ManyPiecesOfEitherSideEndAtABadPage) {
  const HalfGone gone;
  std::string flat = "abcdef";
  const iovec whole = Of(flat);
  const std::vector<iovec> pieces = {{gone.base() + 8, 2}, {gone.base(), 1}, {gone.base() + kPage - 1, 2}};
  EXPECT_EQ(GuardedCopy({&whole, 1}, pieces), 4u) << "up to the last byte that is there";
  EXPECT_EQ(std::string(gone.base() + 8, 2), "ab");
  EXPECT_EQ(gone.base()[0], 'c');
  EXPECT_EQ(gone.base()[kPage - 1], 'd');
  flat = "......";
  EXPECT_EQ(GuardedCopy(pieces, {&whole, 1}), 4u);
  EXPECT_EQ(flat.substr(0, 4), "abcd");
  const std::vector<iovec> bad = {{gone.base() + kPage, 2}, {gone.base(), 1}};
  EXPECT_EQ(GuardedCopy({&whole, 1}, bad), 0u);
  EXPECT_EQ(GuardedCopy(bad, {&whole, 1}), 0u);
}

TEST(GuardedCopyTest, CopiesUpToTheShorterSide) {
  std::string a = "abc", none, b = "defgh", out(6, '.'), more(9, '.');
  const std::vector<iovec> from = {Of(a), Of(none), Of(b)};
  const iovec to = Of(out), longer = Of(more);
  EXPECT_EQ(GuardedCopy(from, {&to, 1}), 6u);
  EXPECT_EQ(out, "abcdef");
  EXPECT_EQ(GuardedCopy(from, {&longer, 1}), 8u);
  EXPECT_EQ(more, "abcdefgh.");
  EXPECT_EQ(GuardedCopy({}, {&to, 1}), 0u);
}

// However the bytes lie to the pages of either side.
TEST(GuardedCopyTest, ALongCopyEndsAtTheFirstBadPage) {
  const HalfGone gone(200);
  std::string bytes(200 * kPage, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7 >> 3);
  for (const size_t skip : {0, 1, 100, 4095}) {
    const size_t there = 100 * kPage - skip;
    const iovec good = {bytes.data(), bytes.size() - skip}, half = {gone.base() + skip, bytes.size() - skip};
    EXPECT_EQ(GuardedCopy({&good, 1}, {&half, 1}), there);
    EXPECT_EQ(memcmp(gone.base() + skip, bytes.data(), there), 0);
    std::string back(bytes.size(), '.');
    const iovec into = {back.data() + 1, back.size() - 1};
    EXPECT_EQ(GuardedCopy({&half, 1}, {&into, 1}), there);
    EXPECT_EQ(back.compare(1, there, bytes, 0, there), 0);
  }
}

// The addresses of memory that only devices can use.
TEST(GuardedCopyTest, AddressesWithoutMemoryEndTheCopy) {
  void* const reserved = mmap(nullptr, kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::string bytes(100, 'x');
  const iovec there = Of(bytes), nothing = {reserved, 100};
  EXPECT_EQ(GuardedCopy({&there, 1}, {&nothing, 1}), 0u);
  EXPECT_EQ(GuardedCopy({&nothing, 1}, {&there, 1}), 0u);
  munmap(reserved, kPage);
}

TEST(GuardedCopyTest, ThreadsFaultAtTheSameTime) {
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&wrong] {
      const HalfGone gone;
      std::string bytes(2 * kPage, 'x');
      const iovec good = Of(bytes), half = {gone.base(), 2 * kPage};
      for (int i = 0; i < 200; ++i) {
        wrong += GuardedCopy({&good, 1}, {&half, 1}) != kPage;
        wrong += GuardedCopy({&half, 1}, {&good, 1}) != kPage;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// The last page of the first range comes and goes, and the second range is always there. A copy may therefore end in
// that page or at the end of both ranges.
TEST(GuardedCopyTest, APageThatComesBackEndsNoListOfRanges) {
  constexpr size_t kRange = 64 * kPage;
  void* const memory = mmap(nullptr, 2 * kRange, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* const base = static_cast<char*>(memory);
  std::atomic<bool> stop = false;
  std::thread toggles([&] {
    while (!stop) {
      mprotect(base + kRange - kPage, kPage, PROT_NONE);
      mprotect(base + kRange - kPage, kPage, PROT_READ | PROT_WRITE);
    }
  });
  std::string out(2 * kRange, '.');
  const std::vector<iovec> from = {{base, kRange}, {base + kRange, kRange}};
  const iovec to = Of(out);
  int wrong = 0;
  for (int i = 0; i < 2000; ++i) {
    const uint64_t copied = GuardedCopy(from, {&to, 1});
    wrong += copied >= kRange && copied < 2 * kRange;
  }
  stop = true;
  toggles.join();
  EXPECT_EQ(wrong, 0);
  munmap(memory, 2 * kRange);
}

// After a copy that has met a bad page, too.
TEST(GuardedCopyDeathTest, OtherFaultsAndSignalsStillEndTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto after_a_fault = [](auto then) {
    signal(SIGBUS, SIG_DFL);  // a sanitizer has handlers of its own
    const HalfGone gone;
    std::string bytes(2 * kPage, 'x');
    const iovec good = Of(bytes), half = {gone.base(), 2 * kPage};
    if (GuardedCopy({&good, 1}, {&half, 1}) == kPage) then(gone.base() + kPage);
    _exit(0);
  };
  EXPECT_EXIT(after_a_fault([](char* bad) { *const_cast<volatile char*>(bad) = 1; }), testing::KilledBySignal(SIGBUS),
              "");
  EXPECT_EXIT(after_a_fault([](char*) { kill(getpid(), SIGBUS); }), testing::KilledBySignal(SIGBUS), "");
  EXPECT_EXIT(after_a_fault([](char*) {  // the kernel's word of a broken page that nobody has touched
                siginfo_t info = {};
                info.si_signo = SIGBUS;
                info.si_code = BUS_MCEERR_AO;
                syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGBUS, &info);
              }),
              testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace railsd
