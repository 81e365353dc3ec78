// A sprayer whose rails record what is posted.
#ifndef RAILSD_TESTS_UNIT_AGENT_RAILS_SPRAYER_FIXTURE_H_
#define RAILSD_TESTS_UNIT_AGENT_RAILS_SPRAYER_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/jobs/node_job.h"
#include "agent/jobs/sending.h"
#include "agent/rails/sprayer.h"

namespace railsd::testing {

inline constexpr uint64_t kMiB = 1 << 20;

// Records what is posted; a test acknowledges by hand.
class RecordingRail final : public RailPort {
 public:
  bool TryCommand(RailCommand command) override {
    if (refuse) return false;
    orders.push_back(command.order);
    return true;
  }
  size_t TakeEvents(absl::Span<RailEvent>) override { return 0; }
  void Flush() override {}
  void SetHungry(bool) override {}
  const RailCounters& counters() const override { return counters_; }
  std::deque<SendOrder> orders;
  bool refuse = false;

 private:
  RailCounters counters_;
};

class SprayerTest : public ::testing::Test {
 protected:
  // Rails of `speed` bytes per second to `peers` destinations, all up.
  void SetUpRails(size_t rails, size_t peers, double speed, SprayerOptions options = {}) {
    ports_.resize(rails);
    handles_.clear();
    handles_.resize(rails);
    for (size_t r = 0; r < rails; ++r) {
      handles_[r].port = &ports_[r];
      handles_[r].speed_bytes_per_s = speed;
    }
    table_ = std::make_unique<PeerTable>("n1", rails);
    for (size_t p = 0; p < peers; ++p) {
      Peer& peer = table_->FindOrAdd(absl::StrCat("n", p < 1 ? p : p + 1));
      peer.up = true;
      for (PeerRail& rail : peer.rails) rail.connected = true;
    }
    sprayer_ = std::make_unique<Sprayer>(options, &handles_, table_.get(), &tenants_);
    context_.peers = table_.get();
    context_.rails = &handles_;
    context_.sprayer = sprayer_.get();
    job_.tenant = &tenants_.Of("one");
  }
  void Queue(uint32_t rail, uint32_t peer, uint64_t bytes, uint64_t offset = 0, NodeJob* job = nullptr) {
    Sending& sending = sendings_.emplace_back(&context_, job == nullptr ? &job_ : job, PeerIndex(peer));
    StreamFlows flows;
    flows.Add(Rank(1), Rank(0), offset + bytes + 1);  // a byte is left, so that no fence is due
    sending.SetStream(std::move(flows), MemoryRanges());
    const PlanRun run{0, RailIndex(rail), offset, bytes};
    sending.Start({&run, 1}, /*by_flow=*/false);
  }
  void Acknowledge(size_t rail, SendResult result = SendResult::kAcknowledged) {
    RailEvent event;
    event.result = result;
    event.cookie = ports_[rail].orders.front().cookie;
    ports_[rail].orders.pop_front();
    sprayer_->Finish(event, now_);
  }
  // The rail carries four pieces at this rate, alone.
  void Carry(size_t rail, double bytes_per_s, SendResult result = SendResult::kAcknowledged) {
    Queue(static_cast<uint32_t>(rail), 0, 400'000);
    for (sprayer_->Dispatch(now_); !ports_[rail].orders.empty(); sprayer_->Dispatch(now_)) {
      now_ += absl::Seconds(static_cast<double>(ports_[rail].orders.front().length_bytes) / bytes_per_s);
      Acknowledge(rail, result);
    }
  }
  uint64_t PostedTo(size_t rail, uint32_t peer) const {
    uint64_t bytes = 0;
    for (const SendOrder& order : ports_[rail].orders)
      bytes += order.stream->peer.value() == peer ? order.length_bytes : 0;
    return bytes;
  }

  absl::Time now_ = absl::UnixEpoch();
  TenantTable tenants_{{{"one"}, {"three"}, {"urgent"}}, nullptr};
  NodeJob job_;
  ExchangeContext context_;
  std::deque<Sending> sendings_;
  std::deque<RecordingRail> ports_;
  std::vector<RailHandle> handles_;
  std::unique_ptr<PeerTable> table_;
  std::unique_ptr<Sprayer> sprayer_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_RAILS_SPRAYER_FIXTURE_H_
