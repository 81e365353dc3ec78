#include "daemon/peer/lanes.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/until.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/lane_tools.h"

namespace railsd {
namespace {

class Watcher final : public LaneHandler {
 public:
  void OnLaneOpen(LaneId lane) override { Add("open", lane); }
  void OnLaneMessage(LaneId lane, absl::string_view message) override {
    while (hold) absl::SleepFor(absl::Milliseconds(1));
    absl::MutexLock lock(&mutex_);
    messages_[lane].emplace_back(message);
  }
  void OnLaneWritable(LaneId lane) override { Add("writable", lane); }
  void OnLaneEnd(LaneId lane, const std::string& why, bool malformed) override {
    EXPECT_FALSE(why.empty());
    Add(malformed ? "malformed" : "end", lane);
  }
  bool Saw(const std::string& what, LaneId lane) const {
    absl::MutexLock lock(&mutex_);
    return std::find(events_.begin(), events_.end(), absl::StrCat(what, " ", lane)) != events_.end();
  }
  std::vector<std::string> messages(LaneId lane) const {
    absl::MutexLock lock(&mutex_);
    const auto found = messages_.find(lane);
    return found == messages_.end() ? std::vector<std::string>() : found->second;
  }
  std::atomic<bool> hold{false};

 private:
  void Add(const char* what, LaneId lane) {
    absl::MutexLock lock(&mutex_);
    events_.push_back(absl::StrCat(what, " ", lane));
  }
  mutable absl::Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
  std::map<LaneId, std::vector<std::string>> messages_ ABSL_GUARDED_BY(mutex_);
};

// Two ends; what is dialled is accepted by hand and given to the other end.
class LanesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    listener_ = UniqueFd(socket(AF_INET, SOCK_STREAM, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    ASSERT_EQ(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    ASSERT_EQ(listen(listener_.get(), 16), 0);
    ASSERT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    here_ = Make(&near_, absl::Seconds(30));
    there_ = Make(&far_, absl::Seconds(30));
  }
  static std::unique_ptr<Lanes> Make(Watcher* watcher, absl::Duration handshake) {
    auto lanes = Lanes::Start(handshake, absl::Seconds(30), watcher);
    EXPECT_TRUE(lanes.ok()) << lanes.status();
    return *std::move(lanes);
  }
  // The next connection, with its greeting whole.
  UniqueFd Accept() const {
    UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
    std::string greeting(kLaneGreetingBytes, '\0');
    EXPECT_EQ(recv(fd.get(), greeting.data(), greeting.size(), MSG_PEEK | MSG_WAITALL),
              static_cast<ssize_t>(greeting.size()));
    return fd;
  }
  static Lanes::Written Write(Lanes& lanes, LaneId lane, const std::string& message) {
    return lanes.Write(lane, message.size(), [&](char* out) { std::memcpy(out, message.data(), message.size()); });
  }
  // An open lane: of the dialler, of the other end.
  std::pair<LaneId, LaneId> OpenLane(const LaneKeys& keys) {
    const LaneId in = there_->Expect(keys), out = here_->Dial(address_, keys);
    EXPECT_TRUE(there_->Take(Accept()));
    EXPECT_TRUE(testing::Until([&] { return near_.Saw("open", out); }));
    EXPECT_TRUE(far_.Saw("open", in)) << "before the dialler knows";
    return {out, in};
  }

  UniqueFd listener_;
  std::string address_;
  Watcher near_, far_;
  std::unique_ptr<Lanes> here_, there_;
};

TEST_F(LanesTest, CarriesMessagesInOrder) {
  for (const bool sealed : {false, true}) {
    const auto [out, in] = OpenLane(MakeLaneKeys(sealed ? 2 : 1, sealed));
    std::vector<std::string> sent;
    for (int i = 0; i < 1000; ++i) {
      sent.push_back(absl::StrCat("message ", i, std::string(static_cast<size_t>(i % 300), 'x')));
      ASSERT_EQ(Write(*here_, out, sent.back()), Lanes::Written::kTaken);
    }
    ASSERT_TRUE(testing::Until([&, lane = in] { return far_.messages(lane).size() == sent.size(); }));
    EXPECT_EQ(far_.messages(in), sent);
  }
}

TEST_F(LanesTest, WhoDoesNotReadMakesItBusyAndLosesNothing) {
  const auto [out, in] = OpenLane(MakeLaneKeys(1));
  far_.hold = true;
  const std::string large(kMaxLaneMessageBytes, 'x');
  size_t taken = 0;
  while (Write(*here_, out, large) == Lanes::Written::kTaken) ++taken;
  ASSERT_EQ(Write(*here_, out, large), Lanes::Written::kBusy);
  EXPECT_FALSE(near_.Saw("writable", out));
  far_.hold = false;
  ASSERT_TRUE(testing::Until([&, lane = out] { return near_.Saw("writable", lane); }));
  EXPECT_EQ(Write(*here_, out, "last"), Lanes::Written::kTaken);
  ASSERT_TRUE(testing::Until([&, lane = in] { return far_.messages(lane).size() == taken + 1; }));
  EXPECT_EQ(far_.messages(in).back(), "last");
}

TEST_F(LanesTest, NobodyTakesALaneThatIsNotExpected) {
  const LaneId out = here_->Dial(address_, MakeLaneKeys(1));
  EXPECT_FALSE(there_->Take(Accept()));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", out); }));
  EXPECT_FALSE(near_.Saw("open", out));
  EXPECT_EQ(Write(*here_, out, "?"), Lanes::Written::kGone);
}

TEST_F(LanesTest, AGreetingIsGoodOnceAndWithTheKeyOnly) {
  const LaneKeys keys = MakeLaneKeys(1);
  LaneKeys guessed = keys;
  guessed.key[5] ^= 1;
  there_->Expect(keys);
  const LaneId thief = here_->Dial(address_, guessed);
  EXPECT_FALSE(there_->Take(Accept()));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", thief); }));
  // The right one still may come; a second time, what was recorded of it is worth nothing.
  const LaneId out = here_->Dial(address_, keys);
  EXPECT_TRUE(there_->Take(Accept()));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("open", out); }));
  const LaneId again = here_->Dial(address_, keys);
  EXPECT_FALSE(there_->Take(Accept()));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", again); }));
  EXPECT_FALSE(near_.Saw("end", out));
}

TEST_F(LanesTest, AnImpostorsAnswerOpensNothing) {
  const LaneId out = here_->Dial(address_, MakeLaneKeys(1));
  const UniqueFd impostor = Accept();
  LaneKeys guessed = MakeLaneKeys(1);
  guessed.key[0] ^= 1;
  const std::string answer = guessed.Answer();
  ASSERT_EQ(send(impostor.get(), answer.data(), answer.size(), 0), static_cast<ssize_t>(answer.size()));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", out); }));
  EXPECT_FALSE(near_.Saw("open", out));
}

TEST_F(LanesTest, WhoNeverAnswersIsGivenUp) {
  here_ = Make(&near_, absl::Milliseconds(20));
  const LaneId out = here_->Dial(address_, MakeLaneKeys(1));
  const UniqueFd mute = Accept();
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", out); }));
}

TEST_F(LanesTest, AnAddressWhereNobodyListensEndsIt) {
  listener_.Reset();
  const LaneId out = here_->Dial(address_, MakeLaneKeys(1)), none = here_->Dial("no address", MakeLaneKeys(2));
  ASSERT_TRUE(testing::Until([&] { return near_.Saw("end", out) && near_.Saw("end", none); }));
}

TEST_F(LanesTest, ClosingOneEndEndsTheOther) {
  const auto [out, in] = OpenLane(MakeLaneKeys(1));
  there_->Close(in);
  ASSERT_TRUE(testing::Until([&, lane = out] { return near_.Saw("end", lane); }));
  EXPECT_FALSE(far_.Saw("end", in)) << "who closes it is not told";
  const auto [out2, in2] = OpenLane(MakeLaneKeys(2));
  here_.reset();
  ASSERT_TRUE(testing::Until([&, lane = in2] { return far_.Saw("end", lane); }));
}

TEST_F(LanesTest, BytesThatAreNoFrameEndIt) {
  const LaneKeys keys = MakeLaneKeys(1);
  const LaneId in = there_->Expect(keys);
  sockaddr_in address = {};
  socklen_t size = sizeof(address);
  ASSERT_EQ(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const UniqueFd hand(socket(AF_INET, SOCK_STREAM, 0));
  ASSERT_EQ(connect(hand.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  const std::string greeting = keys.Greeting(), forged = std::string("\x20\0\0\0", 4) + std::string(32, 'x');
  ASSERT_EQ(send(hand.get(), greeting.data(), greeting.size(), 0), static_cast<ssize_t>(greeting.size()));
  ASSERT_TRUE(there_->Take(Accept()));
  ASSERT_EQ(send(hand.get(), forged.data(), forged.size(), 0), static_cast<ssize_t>(forged.size()));
  ASSERT_TRUE(testing::Until([&] { return far_.Saw("malformed", in); }));
  EXPECT_TRUE(far_.messages(in).empty());
}

}  // namespace
}  // namespace railsd
