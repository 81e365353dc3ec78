#include "agent/memory/guarded_copy.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

namespace railsd {
namespace {

constexpr size_t kPage = 4096;

// Memory of a memfd whose second half has been cut off: to touch it raises SIGBUS.
class HalfGone {
 public:
  HalfGone() : fd_(memfd_create("half", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_.get(), 2 * kPage), 0);
    base_ = static_cast<char*>(mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
    EXPECT_EQ(ftruncate(fd_.get(), kPage), 0);
  }
  ~HalfGone() { munmap(base_, 2 * kPage); }
  char* base() const { return base_; }

 private:
  UniqueFd fd_;
  char* base_ = nullptr;
};

iovec Of(std::string& text) { return {text.data(), text.size()}; }

TEST(GuardedCopyTest, ManyPiecesOfEitherSideEndAtABadPage) {
  GuardedCopy copy;
  const HalfGone gone;
  std::string flat = "abcdef";
  const iovec whole = Of(flat);
  const std::vector<iovec> pieces = {{gone.base() + 8, 2}, {gone.base(), 1}, {gone.base() + kPage - 1, 2}};
  EXPECT_EQ(copy.Copy({&whole, 1}, pieces), 4) << "up to the last byte that is there";
  EXPECT_EQ(std::string(gone.base() + 8, 2), "ab");
  EXPECT_EQ(gone.base()[0], 'c');
  EXPECT_EQ(gone.base()[kPage - 1], 'd');
  flat = "......";
  EXPECT_EQ(copy.Copy(pieces, {&whole, 1}), 4);
  EXPECT_EQ(flat, "abcd..");
  const std::vector<iovec> bad = {{gone.base() + kPage, 2}, {gone.base(), 1}};
  EXPECT_EQ(copy.Copy({&whole, 1}, bad), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(copy.Copy(bad, {&whole, 1}), -1);
  EXPECT_EQ(errno, EFAULT);
}

TEST(GuardedCopyTest, ThePipeCopiesUpToTheShorterSideAndIsEmptyAfterwards) {
  GuardedCopy copy;
  std::string a = "abc", b = "defgh", out(6, '.');
  const std::vector<iovec> from = {Of(a), Of(b)};
  const iovec to = Of(out);
  EXPECT_EQ(copy.CopyThroughPipe(from, {&to, 1}), 6);
  EXPECT_EQ(out, "abcdef");
  const iovec next = Of(b);
  std::string second(5, '.');
  const iovec into = Of(second);
  EXPECT_EQ(copy.CopyThroughPipe({&next, 1}, {&into, 1}), 5);
  EXPECT_EQ(second, "defgh");
}

TEST(GuardedCopyTest, ThePipeTakesALongCopyInSteps) {
  GuardedCopy copy;
  std::string in(5'000'000, '\0'), out(in.size(), '.');
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<char>(i * 7 >> 3);
  size_t done = 0;
  while (done < in.size()) {
    const iovec from = {in.data() + done, in.size() - done}, to = {out.data() + done, out.size() - done};
    const ssize_t moved = copy.CopyThroughPipe({&from, 1}, {&to, 1});
    ASSERT_GT(moved, 0);
    done += static_cast<size_t>(moved);
  }
  EXPECT_EQ(in, out);
}

TEST(GuardedCopyTest, ThePipeReportsBadPagesOfBothSides) {
  GuardedCopy copy;
  const HalfGone gone;
  std::string out(2 * kPage, '.');
  const iovec bad = {gone.base() + kPage, kPage}, half = {gone.base(), 2 * kPage}, good = Of(out);
  EXPECT_EQ(copy.CopyThroughPipe({&bad, 1}, {&good, 1}), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(copy.CopyThroughPipe({&good, 1}, {&bad, 1}), -1);
  EXPECT_EQ(errno, EFAULT);
  // Bytes that can be touched are copied, and none of them comes again.
  EXPECT_EQ(copy.CopyThroughPipe({&half, 1}, {&good, 1}), static_cast<ssize_t>(kPage));
  std::string text = "again", back(5, '.');
  const iovec from = Of(text), to = Of(back);
  EXPECT_EQ(copy.CopyThroughPipe({&from, 1}, {&to, 1}), 5);
  EXPECT_EQ(back, "again");
}

// As some container runtimes do. For the calling thread only, and for good.
void ForbidProcessVmWritev() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter = {4, program};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
}

TEST(GuardedCopyTest, WorksWhereAFilterForbidsTheSystemCall) {
  std::thread([] {
    ASSERT_NO_FATAL_FAILURE(ForbidProcessVmWritev());
    std::string in = "through", out(7, '.');
    const iovec from = Of(in), to = Of(out);
    ASSERT_EQ(process_vm_writev(getpid(), &from, 1, &to, 1, 0), -1);
    ASSERT_EQ(errno, EPERM);
    EXPECT_EQ(GuardedCopy().Copy({&from, 1}, {&to, 1}), 7);
    EXPECT_EQ(out, "through");
  }).join();
}

}  // namespace
}  // namespace railsd
