// TLS by the kernel on data connections, as far as it goes without: who wants it meets who does not, and what is said.
// The records themselves: tests/verbs/guest/test_tls_data.py, where a kernel has them.
#include "agent/transport/tcp/kernel_tls.h"
#include "tests/unit/agent/transport/tcp_hostile_fixture.h"

namespace railsd::tcp {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

class TcpRecordsTest : public TcpHostileTest {
 protected:
  // Takes the victim's dial, answers with these features, and gives back what the victim says then.
  void TakeAndAnswer(uint64_t features) {
    UniqueFd fd;
    std::array<std::byte, kHelloBytes> hello;
    ASSERT_NO_FATAL_FAILURE(TakeDial(&fd, &hello));
    ASSERT_TRUE(DecodeHello(hello, &heard_));
    AnswerDial(fd, hello, kKey, features);
    std::array<std::byte, kProofBytes> proof;
    ASSERT_TRUE(Until([&] { return (said_ = Read(fd, absl::MakeSpan(proof))) >= 0; }));
  }
  static Hello HelloWith(uint64_t features, uint64_t generation = 1) {
    Hello hello = GoodHello(generation);
    hello.features = features;
    return hello;
  }

  Hello heard_;
  ssize_t said_ = -1;
};

TEST_F(TcpRecordsTest, PlainTextToWhoWantsRecordsIsRefusedAndSaid) {
  Build([](TcpOptions* options) { options->tls = true; });
  UniqueFd fd = Connect();
  EXPECT_EQ(Greet(fd, HelloWith(0)).refusal, Refusal::kUnlikeTls);
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(Refused(), 1u);
  EXPECT_THAT(notices_, Contains(HasSubstr("tls.data is not the same at both ends")));
}

TEST_F(TcpRecordsTest, RecordsToWhoWantsPlainTextAreRefusedAndSaid) {
  Build();
  UniqueFd fd = Connect();
  EXPECT_EQ(Greet(fd, HelloWith(kTlsRecords)).refusal, Refusal::kUnlikeTls);
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(Refused(), 1u);
  // Features that nobody knows are ignored as ever.
  UniqueFd other = Connect();
  EXPECT_EQ(Greet(other, HelloWith(uint64_t{1} << 40, 2)).refusal, Refusal::kNone);
}

TEST_F(TcpRecordsTest, AnAnswerThatDoesNotWantRecordsGetsNoProof) {
  Build([](TcpOptions* options) { options->tls = true; });
  TakeAndAnswer(0);
  EXPECT_EQ(heard_.features, kTlsRecords);
  EXPECT_EQ(said_, 0) << "closed without a word";
  EXPECT_THAT(notices_, Contains(HasSubstr("tls.data is not the same at both ends")));
}

TEST_F(TcpRecordsTest, AnAnswerThatWantsRecordsGetsNoProofInPlainText) {
  Build();
  TakeAndAnswer(kTlsRecords);
  EXPECT_EQ(heard_.features, 0u);
  EXPECT_EQ(said_, 0) << "closed without a word";
}

// On a kernel that has none the daemon does not start; a rail that was made nevertheless moves nothing in the clear.
TEST_F(TcpRecordsTest, WithoutTheKernelsTlsNothingIsTaken) {
  const absl::Status kernel = CheckKernelTls();
  if (kernel.ok()) GTEST_SKIP() << "this kernel has TLS";
  EXPECT_THAT(std::string(kernel.message()), HasSubstr("modprobe tls"));
  Build([](TcpOptions* options) { options->tls = true; });
  UniqueFd fd = Connect();
  const Answer answer = Greet(fd, HelloWith(kTlsRecords));
  EXPECT_EQ(answer.refusal, Refusal::kNone);
  EXPECT_EQ(answer.features, kTlsRecords);
  EXPECT_TRUE(IsClosed(fd));
  EXPECT_EQ(Refused(), 1u);
  EXPECT_THAT(notices_, Contains(HasSubstr("the kernel's TLS could not be turned on")));
  EXPECT_EQ(Count(Kind::kPeerUp), 0u);
}

TEST(KernelTlsTest, WhichErrorsAreBadRecords) {
  for (const int bad : {EBADMSG, EMSGSIZE, EINVAL, EIO}) EXPECT_TRUE(IsBadRecord(bad)) << bad;
  for (const int other : {0, EAGAIN, ECONNRESET, ETIMEDOUT, EFAULT}) EXPECT_FALSE(IsBadRecord(other)) << other;
}

}  // namespace
}  // namespace railsd::tcp
