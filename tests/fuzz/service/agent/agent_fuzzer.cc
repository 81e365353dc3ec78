// Any bytes as what a hostile peer does to two honest agents, message after message: it makes messages up, changes and
// swaps its own, repeats those of others, restarts, goes and comes back with other rails. Everything that it says goes
// through the wire's form first. Meanwhile the two exchange jobs in a group of their own, which must end well with
// every byte right (and so must those of a group that they form in the end), and jobs with the hostile one, which must
// end somehow: nothing may stay open in the end.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/jobs/validate.h"
#include "daemon/peer/peer_conversion.h"
#include "rails/peer/v1/peer.pb.h"
#include "tests/fuzz/service/agent/choices.h"
#include "tests/unit/agent/jobs/cluster.h"

namespace railsd::testing {
namespace {

constexpr size_t kHonest = 2;  // nodes 0 and 1
constexpr size_t kHostile = 2;
constexpr int kMaxDeeds = 100;
constexpr uint64_t kFlowBytes = 700;
constexpr uint32_t kMaxWorldSize = 64;
constexpr absl::Duration kJobTime = absl::Seconds(20);  // of jobs with the hostile node

void Require(bool ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s\n", what);
  std::abort();
}

// A job of the group with the hostile node, at one rank.
struct Part {
  uint32_t rank = 0;
  std::shared_ptr<absl::StatusOr<JobReport>> report;
};

class Attack {
 public:
  Attack(const uint8_t* bytes, size_t size)
      : choices_(bytes, size),
        cluster_(OptionsFrom(choices_.Byte())),
        pair_(&cluster_, kHonest, "pair", {.buffer_bytes = 2 * kFlowBytes}),
        trio_(&cluster_, 3, "trio", {.buffer_bytes = 3 * kFlowBytes, .join = false}),
        late_(&cluster_, kHonest, "late", {.buffer_bytes = 2 * kFlowBytes, .join = false}) {}

  void Run() {
    const Epoch epoch = pair_.trainer(0).group->epoch;
    known_.epochs = {epoch, {epoch.boot, epoch.counter + 1}};
    known_.keys = {KeyOf("pair"), KeyOf("trio"), KeyOf("nobody")};
    known_.nodes = {"n0", "n1", "n2", "n3"};
    for (size_t n = 0; n < cluster_.size(); ++n) known_.boots.push_back(cluster_.node(n).boot);
    known_.boots.push_back(BootId(7));
    boots_.fill(cluster_.node(kHostile).boot);
    trio_.SetLengths(AllLengths(3, kFlowBytes), 9);
    StartPair();
    for (int i = 0; i < kMaxDeeds && !choices_.empty(); ++i) Do();
    CheckPair();
    StartPair();  // the group is as good as it was
    CheckPair();
    CheckTrio();
    CheckLate();
    CheckNothingLeft();
  }

 private:
  static Cluster::Options OptionsFrom(uint8_t byte) {
    Cluster::Options options;
    options.nodes = 3;
    options.remote = (byte & 1) != 0;
    options.weak_zones = (byte & 2) != 0;
    options.zone_room = (byte & 4) != 0 ? 2 : 1024;
    options.limits.max_world_size = kMaxWorldSize;
    options.quiet_steps = 25;
    options.seed = 1 + (byte >> 3);
    return options;
  }
  static GroupKey KeyOf(const std::string& name) { return {"t", name, Sha256("secret")}; }

  void Do() {
    const size_t victim = choices_.Below(kHonest);
    switch (choices_.Below(12)) {
      case 0:
        return Steps(1 + choices_.Below(32));
      case 1:
        return Settle();
      case 2:
        return cluster_.Advance(absl::Milliseconds(10) * (1 << choices_.Below(8)));
      case 3:
        CheckPair();
        return StartPair();
      case 4:
        return JoinTrio();
      case 5:
        return SubmitTrio();
      case 6:
        return cluster_.node(victim).engine->OnPeerDown("n2", "it went away", choices_.Flip());
      case 7:
        return ComeBack(victim);
      case 8:
        return ChangeOwn();
      case 9:
        return Repeat(victim);
      default:
        return Say(victim, DrawMessage(known_, &choices_));
    }
  }

  void Steps(size_t count) {
    cluster_.Run([&] { return count-- == 0; });
  }
  // A peer that contradicts itself can make its jobs go on and on, until their deadline: their bytes go to zones that
  // are not theirs, which breaks connections, and go again over the next ones.
  void Settle() { Steps(3000); }

  void StartPair() {
    pair_.SetLengths(AllLengths(kHonest, kFlowBytes), ++pair_jobs_);
    pair_.SubmitAll(pair_jobs_, 2);
  }
  void CheckPair() {
    Settle();
    pair_.ExpectDone(pair_jobs_);
    pair_.ExpectBytes();
  }

  void JoinTrio() {
    Trainer& trainer = trio_.trainer(static_cast<uint32_t>(choices_.Below(3)));
    trainer.recovery.policy = policy_ = joins_++ > 0 ? policy_ : static_cast<RecoveryPolicy>(1 + choices_.Below(3));
    if (policy_ == RecoveryPolicy::kWait) trainer.recovery.wait_limit = absl::Seconds(2);
    if (absl::IsUnknown(trainer.group.status()) && trainer.group.status().message() == "joining") return;
    trainer.Join("trio", 3);
  }
  void SubmitTrio() {
    const uint32_t rank = static_cast<uint32_t>(choices_.Below(3));
    Trainer& trainer = trio_.trainer(rank);
    if (!trainer.group.ok()) return;
    known_.epochs[1] = trainer.group->epoch;
    const uint64_t seq = ++trio_jobs_[rank];
    Submission submission = trio_.For(rank, seq);
    submission.timeout = kJobTime;
    if (trainer.Submit(std::move(submission)).ok()) parts_.push_back({rank, trainer.Wait(seq)});
  }

  // With another boot id or not, with rails that are missing, unknown or of other speeds.
  void ComeBack(size_t victim) {
    PeerHello hello = cluster_.HelloOf(kHostile);
    hello.boot = known_.boots[choices_.Below(known_.boots.size())];
    if (hello.boot == cluster_.node(victim).boot) return;  // such a HELLO is refused: a node would be its own peer
    hello.rails.resize(choices_.Below(4), {RailIndex(2), "fake:77", 1});
    for (size_t r = 0; r < hello.rails.size(); ++r) {
      const uint8_t what = choices_.Byte();
      hello.rails[r].index = RailIndex(static_cast<uint32_t>(r));
      if (what % 4 == 1) hello.rails[r].address = "fake:77";
      if (what % 4 == 2) hello.rails[r].speed_bytes_per_s = what < 128 ? 0 : ~uint64_t{0};
    }
    boots_[victim] = hello.boot;
    cluster_.node(victim).engine->OnPeerUp(hello);
  }

  // As it comes out of the peer's stream.
  void Say(size_t victim, const ControlMessage& message) {
    rails::peer::v1::Message written;
    MessageTo(message, &written);
    absl::StatusOr<ControlMessage> read = MessageFrom(written, kMaxWorldSize);
    if (!read.ok()) return;
    cluster_.node(victim).engine->OnPeerMessage("n2", boots_[victim], *std::move(read));
  }
  // One that its honest part is about to send.
  void ChangeOwn() {
    auto& outbox = cluster_.node(kHostile).outbox;
    if (outbox.empty()) return;
    const size_t at = choices_.Below(outbox.size());
    auto [to, message] = outbox[at];
    const size_t what = choices_.Below(4);
    if (what == 0) {  // before its turn, and again in its turn
      return Say(to == "n1" ? 1 : 0, message);
    }
    outbox.erase(outbox.begin() + static_cast<std::ptrdiff_t>(at));
    if (what == 1) return;
    ChangeMessage(known_, &choices_, &message);
    Say((to == "n1") != (what == 2) ? 1 : 0, message);
  }
  // Sends a message of another node as its own.
  void Repeat(size_t victim) {
    auto& outbox = cluster_.node(choices_.Below(cluster_.size())).outbox;
    if (outbox.empty()) return;
    ControlMessage message = outbox[choices_.Below(outbox.size())].second;
    if (choices_.Flip()) ChangeMessage(known_, &choices_, &message);
    Say(victim, message);
  }

  void CheckTrio() {
    const auto ended = [](const Part& part) { return !absl::IsUnknown(part.report->status()); };
    // To the deadline, and then for as long as the honest ones wait for the hostile one to stop.
    for (const absl::Duration time : {kJobTime, absl::Seconds(2), absl::Seconds(2)}) {
      if (std::all_of(parts_.begin(), parts_.end(), ended)) break;
      cluster_.Advance(time);
      cluster_.Run();
    }
    for (const Part& part : parts_) Require(ended(part), "a job has not ended");
  }

  // A group that forms now: what was said of its epoch before there was one counts for nothing.
  void CheckLate() {
    late_.JoinAll();
    late_.SetLengths(AllLengths(kHonest, kFlowBytes), 5);
    late_.RunJob(1);
  }

  void CheckNothingLeft() {
    size_t open = 0;
    for (Exchange* exchange : {&pair_, &trio_, &late_}) {
      for (uint32_t r = 0; r < exchange->world(); ++r) {
        Trainer& trainer = exchange->trainer(r);
        ++open;
        cluster_.node(trainer.node).engine->CloseSession(trainer.session, "the end", [&](absl::Status) { --open; });
      }
    }
    for (int i = 0; i < 10 && open > 0; ++i) {
      cluster_.Run();
      cluster_.Advance(absl::Seconds(1));
    }
    cluster_.Run();
    Require(open == 0, "a session has not closed");
    cluster_.ExpectNothingOpen();
  }

  Choices choices_;
  Cluster cluster_;
  Exchange pair_, trio_, late_;
  Known known_;
  std::array<BootId, kHonest> boots_;  // of the hostile node, as the honest ones know it
  uint64_t pair_jobs_ = 0;
  int joins_ = 0;
  RecoveryPolicy policy_ = RecoveryPolicy::kFail;
  std::array<uint64_t, 3> trio_jobs_ = {};
  std::deque<Part> parts_;
};

}  // namespace
}  // namespace railsd::testing

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  GTEST_FLAG_SET(throw_on_failure, true);  // what the cluster expects is expected here, too: nobody catches it
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  if (size == 0) return 0;
  railsd::testing::Attack(bytes, size).Run();
  return 0;
}
