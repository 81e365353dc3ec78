// One exchange's sending half over rails that record its commands.
#ifndef RAILSD_TESTS_UNIT_AGENT_JOBS_SENDING_FIXTURE_H_
#define RAILSD_TESTS_UNIT_AGENT_JOBS_SENDING_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"
#include "agent/sessions/tenants.h"
#include "tests/unit/agent/jobs/one_flow.h"
#include "tests/unit/agent/rails/recording_port.h"

namespace railsd::testing {

class SendingTest : public ::testing::Test {
 protected:
  using Connections = std::vector<RailConnection>;
  using Kind = RailEvent::Kind;
  static constexpr uint64_t kPart = 1 << 20;
  static constexpr PeerIndex kPeer{0};

  void SetUp() override { StartOver(2); }
  // One exchange over rails of equal speed, kPart bytes on each. Connections have number 1.
  void StartOver(uint32_t rails) {
    sending_.reset();
    job_.resent_bytes = 0;
    ports_.clear();
    ports_.resize(rails);
    handles_.clear();
    handles_.resize(rails);
    board_ = std::make_unique<RailBoard>(rails);
    for (uint32_t r = 0; r < rails; ++r) {
      handles_[r].port = &ports_[r];
      handles_[r].progress = &(*board_)[r];
      handles_[r].speed_bytes_per_s = 1e9;
    }
    peers_ = std::make_unique<PeerTable>("n1", rails);
    Peer& peer = peers_->FindOrAdd("n0");
    peer.up = true;
    peer.connected = RailBit(rails) - 1;
    for (PeerRail& rail : peer.rails) rail.connection = 1;
    context_.peers = peers_.get();
    context_.rails = &handles_;
    context_.board = board_.get();
    context_.late_binding = true;
    job_.clock = &now_;
    job_.resent_bytes = 0;
    job_.tenant = &tenants_.Of("one");
    sending_.emplace(&context_, &job_, kPeer);
    sending_->SetStream(OneFlow(rails * kPart), MemoryRanges());
    std::vector<PlanRun> runs;
    for (uint32_t r = 0; r < rails; ++r) runs.push_back({0, RailIndex(r), r * kPart, kPart});
    sending_->Start(runs, /*by_flow=*/false);
  }

  // The same, and the rails have taken what they were given.
  void StartPosted(uint32_t rails) {
    StartOver(rails);
    TakeAllGiven();
  }

  PeerRail& PathOf(uint32_t rail) { return peers_->Get(kPeer).rails[rail]; }
  // Assignments to the rail since the last call.
  std::vector<Assignment> TakeGiven(uint32_t rail) {
    std::vector<Assignment> given;
    for (const RailCommand& command : ports_[rail].Take(RailCommand::Kind::kGive)) given.push_back(command.give);
    return given;
  }
  std::vector<Assignment> TakeAllGiven() {
    std::vector<Assignment> given;
    for (uint32_t r = 0; r < ports_.size(); ++r) {
      for (const Assignment& assignment : TakeGiven(r)) given.push_back(assignment);
    }
    return given;
  }
  static uint32_t WeightOf(const std::vector<Assignment>& given) {
    uint32_t weight = 0;
    for (const Assignment& assignment : given) weight += assignment.weight;
    return weight;
  }
  static uint64_t BytesOf(const std::vector<Assignment>& given) {
    uint64_t bytes = 0;
    for (const Assignment& assignment : given) bytes += assignment.length_bytes;
    return bytes;
  }
  std::vector<RailCommand> TakeReleases(uint32_t rail) { return ports_[rail].Take(RailCommand::Kind::kRelease); }
  bool NothingGiven() {
    for (const RecordingPort& port : ports_) {
      for (const RailCommand& command : port.commands) {
        if (command.kind == RailCommand::Kind::kGive) return false;
      }
    }
    return true;
  }

  // Reports of rails.
  void Report(uint32_t rail, RailEvent report) {
    report.stream = &sending_->stream();
    report.peer = kPeer;
    sending_->OnReport(RailIndex(rail), report);
  }
  static RailEvent Of(Kind kind, uint32_t settled = 0) {
    RailEvent event;
    event.kind = kind;
    event.settled = settled;
    return event;
  }
  // The bytes are posted: they have left what the rail has.
  void Posted(uint32_t rail, uint64_t bytes) { sending_->stream().unposted_bytes[rail].fetch_sub(bytes); }
  void Done(uint32_t rail, uint64_t bytes) { (*board_)[rail].done_bytes += bytes; }
  void Carried(uint32_t rail, uint64_t bytes) {
    RailEvent event = Of(Kind::kCarried);
    event.length_bytes = bytes;
    Report(rail, event);
  }
  void Fence(uint32_t rail, uint32_t weight, uint32_t round, uint32_t settled) {
    RailEvent event = Of(Kind::kFenceDone, settled);
    event.weight = static_cast<uint8_t>(weight);
    event.round = round;
    Report(rail, event);
  }
  // The rail carries and fences all that it was given since the last call.
  void CarryAll(uint32_t rail) {
    const std::vector<Assignment> given = TakeGiven(rail);
    if (given.empty()) return;
    Posted(rail, BytesOf(given));
    Done(rail, BytesOf(given));
    Fence(rail, WeightOf(given), given.back().round, static_cast<uint32_t>(given.size()));
  }
  void Return(uint32_t rail, uint64_t offset, uint64_t length, uint32_t weight, uint32_t round = 0,
              uint32_t settled = 0) {
    Posted(rail, length);
    Done(rail, length);
    RailEvent event = Of(Kind::kReturned, settled);
    event.offset_bytes = offset;
    event.length_bytes = length;
    event.weight = static_cast<uint8_t>(weight);
    event.round = round;
    Report(rail, event);
  }
  void Lose(uint32_t rail, uint64_t offset, uint64_t length) {
    Posted(rail, length);
    Done(rail, length);
    RailEvent event = Of(Kind::kLost);
    event.offset_bytes = offset;
    event.length_bytes = length;
    Report(rail, event);
  }
  void Disconnect(uint32_t rail) {
    Set(&peers_->Get(kPeer).connected, rail, false);
    sending_->OnRailDown(RailIndex(rail), PathOf(rail).connection);
  }
  void Reconnect(uint32_t rail) {
    ++PathOf(rail).connection;
    Set(&peers_->Get(kPeer).connected, rail, true);
    sending_->OnPathsChanged();
  }
  void EndShare(uint32_t rail, bool doubtful, uint32_t weight, uint32_t settled, uint32_t round = 0) {
    RailEvent event = Of(Kind::kShareEnded, settled);
    event.connection = PathOf(rail).connection;
    event.doubtful = doubtful;
    event.weight = static_cast<uint8_t>(weight);
    event.round = round;
    Report(rail, event);
  }
  // The rail fails after it has posted everything of the plan.
  void FailPosted(uint32_t rail) {
    TakeGiven(rail);
    Lose(rail, rail * kPart, kPart);
    Disconnect(rail);
    EndShare(rail, /*doubtful=*/true, 0, 1);
  }
  std::vector<RailConnection> Ask() {
    std::vector<RailConnection> failed;
    EXPECT_TRUE(sending_->MayAsk());
    sending_->Ask(&failed);
    return failed;
  }
  void FailAndAsk(uint32_t rail) {
    FailPosted(rail);
    Ask();
  }
  absl::Status Answer(Rehomed::State state, uint32_t round = 0) {
    return sending_->OnAnswer({job_.key, state, round, {}});
  }

  absl::Time now_ = absl::UnixEpoch();
  TenantTable tenants_{{{"one"}}, nullptr};
  NodeJob job_;
  ExchangeContext context_;
  std::unique_ptr<RailBoard> board_;
  std::deque<RecordingPort> ports_;
  std::vector<RailHandle> handles_;
  std::unique_ptr<PeerTable> peers_;
  std::optional<Sending> sending_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_JOBS_SENDING_FIXTURE_H_
