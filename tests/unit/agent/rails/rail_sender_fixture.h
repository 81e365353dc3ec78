// One rail's sender over a transport that a test answers for.
#ifndef RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SENDER_FIXTURE_H_
#define RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SENDER_FIXTURE_H_

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "agent/rails/rail_sender.h"
#include "tests/unit/agent/rails/stub_transport.h"

namespace railsd::testing {

inline constexpr uint64_t kMiB = 1 << 20;

class RailSenderTest : public ::testing::Test {
 protected:
  using Kind = RailEvent::Kind;
  static constexpr PeerIndex kPeer{3};
  static constexpr uint64_t kLink = 7, kConnection = 11;

  // A rail of 4 GB/s with chunks of 1 MiB and a connection to kPeer.
  RailSenderTest() {
    SetUpSender({.speed_bytes_per_s = 4e9, .chunk_bytes = kMiB, .window_bytes = 4 * kMiB});
    SetPeer(kPeer, kLink);
    PeerUp(kPeer, kLink, kConnection);
    Take();
  }
  // Whatever a test has left goes out in the end.
  void TearDown() override {
    transport_.room = SIZE_MAX;
    CarryAll();
    ExpectNothingLeft();
  }
  void SetUpSender(const SchedulerOptions& options) { sender_.emplace(RailIndex(1), options, &board_, &transport_); }

  SendStream& NewStream(PeerIndex peer = kPeer, JobTag job = JobTag(1)) {
    SendStream& stream = streams_.emplace_back();
    stream.job = job;
    stream.peer = peer;
    return stream;
  }
  void Give(const SendStream& stream, uint64_t offset, uint64_t length, uint8_t weight, uint32_t round = 0,
            uint64_t connection = kConnection) {
    given_bytes_ += length;
    stream.unposted_bytes[1].fetch_add(length);
    Assignment assignment;
    assignment.stream = &stream;
    assignment.connection = connection;
    assignment.offset_bytes = offset;
    assignment.length_bytes = length;
    assignment.round = round;
    assignment.weight = weight;
    sender_->Give(assignment);
  }
  void GiveAndPost(const SendStream& stream, uint64_t offset, uint64_t length, uint8_t weight) {
    Give(stream, offset, length, weight);
    Post();
  }
  void SetPeer(PeerIndex peer, uint64_t link) {
    RailPeer to;
    to.peer = peer;
    to.link = link;
    sender_->SetPeer(to);
  }
  void LinkEvent(Kind kind, PeerIndex peer, uint64_t link, uint64_t connection) {
    RailEvent event;
    event.kind = kind;
    event.peer = peer;
    event.cookie = link;
    event.connection = connection;
    sender_->OnEvent(event, now_);
  }
  void PeerUp(PeerIndex peer, uint64_t link, uint64_t connection) { LinkEvent(Kind::kPeerUp, peer, link, connection); }
  void PeerDown(uint64_t connection = kConnection) { LinkEvent(Kind::kPeerDown, kPeer, kLink, connection); }
  void Post() { sender_->Post(now_); }
  void End(SendResult result = SendResult::kAcknowledged, size_t nth = 0) {
    sender_->OnEvent(transport_.End(nth, result), now_);
  }
  void EndAll(SendResult result) {
    while (!orders().empty()) End(result);
  }
  // Posts and acknowledges until nothing is left to be posted.
  void CarryAll() {
    for (Post(); !orders().empty(); Post()) EndAll(SendResult::kAcknowledged);
  }
  // The reports since the last call.
  std::vector<RailEvent> Take() {
    std::vector<RailEvent> reports;
    std::array<RailEvent, 16> batch;
    for (size_t n; (n = sender_->reports().Take(absl::MakeSpan(batch))) > 0;) {
      reports.insert(reports.end(), batch.begin(), batch.begin() + static_cast<ptrdiff_t>(n));
    }
    return reports;
  }
  // The same without kStretch and kDry.
  std::vector<RailEvent> TakeOfShares() {
    std::vector<RailEvent> reports = Take();
    std::erase_if(reports, [](const RailEvent& r) { return r.kind == Kind::kStretch || r.kind == Kind::kDry; });
    return reports;
  }
  static std::vector<Kind> KindsOf(const std::vector<RailEvent>& reports) {
    std::vector<Kind> kinds;
    for (const RailEvent& report : reports) kinds.push_back(report.kind);
    return kinds;
  }
  static std::vector<RailEvent> Only(Kind kind, const std::vector<RailEvent>& reports) {
    std::vector<RailEvent> only;
    for (const RailEvent& report : reports) {
      if (report.kind == kind) only.push_back(report);
    }
    return only;
  }
  static uint64_t BytesOf(Kind kind, const std::vector<RailEvent>& reports) {
    uint64_t bytes = 0;
    for (const RailEvent& report : Only(kind, reports)) bytes += report.length_bytes;
    return bytes;
  }
  // The only report of that kind since the last call.
  RailEvent TakeOnly(Kind kind) {
    const std::vector<RailEvent> only = Only(kind, Take());
    EXPECT_EQ(only.size(), 1u);
    return only.empty() ? RailEvent() : only[0];
  }
  std::deque<SendOrder>& orders() { return transport_.orders; }
  // Weights of posted orders.
  std::vector<int> Weights() {
    std::vector<int> weights;
    for (const SendOrder& order : orders()) weights.push_back(order.weight);
    return weights;
  }
  // The rail has nothing left of what was given.
  void ExpectNothingLeft() {
    const RailProgress& progress = board_[1];
    EXPECT_EQ(progress.done_bytes.load(), given_bytes_);
    EXPECT_EQ(progress.unposted_bytes.load(), 0u);
    EXPECT_EQ(progress.in_flight_bytes.load(), 0u);
    for (const SendStream& stream : streams_) EXPECT_EQ(stream.unposted_bytes[1].load(), 0u);
    EXPECT_EQ(sender_->scheduler().unposted_bytes(), 0u);
  }

  absl::Time now_ = absl::UnixEpoch();
  uint64_t given_bytes_ = 0;
  RailBoard board_{2};
  std::deque<SendStream> streams_;
  SendStream& stream_ = NewStream();  // the one of most tests
  StubTransport transport_;
  std::optional<RailSender> sender_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_RAILS_RAIL_SENDER_FIXTURE_H_
