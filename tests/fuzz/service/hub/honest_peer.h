// A peer that keeps the rules of the control streams (docs/protocol.md), against a hub whose streams and lanes are in
// the hands of a fuzzer. What it says and hears is numbered through, so that what is lost, doubled or out of order
// shows at once.
#ifndef RAILSD_TESTS_FUZZ_SERVICE_HUB_HONEST_PEER_H_
#define RAILSD_TESTS_FUZZ_SERVICE_HUB_HONEST_PEER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "tests/unit/daemon/peer/hub_by_hand.h"

namespace railsd::testing {

// The message that says just its own number; `longer` than a lane takes.
ControlMessage MessageOf(uint64_t number, bool longer = false);
// What it says. Ends the program for any other one.
uint64_t ContentOf(const ControlMessage& message);

class HonestPeer {
 public:
  // Its address is its name.
  HonestPeer(HubByHand* hub, std::string name, uint64_t boot) : hub_(hub), name_(std::move(name)), boot_(boot) {}

  // Dials the hub, and answers the hub's stream, where there is none.
  void Connect();
  // The next message goes onto the stream, or, where it may, onto the lane.
  void Say(bool over_lane);
  // One of those arrives.
  void ArriveOverStream();
  void ArriveOverLane();
  // The lanes between the two that are being made open.
  void OpenLanes();
  void EndLanes();
  // Takes all that the hub has written.
  void Hear();
  void Acknowledge();
  // A stream breaks: the one that it has dialled, or the hub's.
  void Break(bool own);

  bool Holds(const LanesByHand::Lane& lane) const {
    return lane.address == name_ || (lane.address.empty() && shares_.contains(lane.share));
  }
  uint64_t said() const { return said_; }
  uint64_t heard() const { return heard_; }
  // That nothing of what it said is on its way any more.
  bool idle() const { return stream_.empty() && lane_.empty(); }

 private:
  HelloFacts Facts();
  void Answer();
  void Dial();
  void ReadAnswers();
  void Take(const pb::Numbered& message);
  bool LaneIsOpen() const;

  HubByHand* const hub_;
  const std::string name_;
  const uint64_t boot_;
  std::set<PublicShare> shares_;  // that it has told the hub, for lanes
  // Its own direction.
  std::shared_ptr<InByHand> mine_;
  size_t answers_read_ = 0;
  LaneId my_lane_ = 0;
  uint64_t said_ = 0, acknowledged_ = 0, highest_on_stream_ = 0;
  std::deque<uint64_t> stream_, lane_;  // on their way
  // The hub's.
  std::shared_ptr<OutByHand> theirs_;
  size_t requests_read_ = 0;
  std::map<LaneId, size_t> frames_read_;
  std::map<uint64_t, pb::Numbered> early_;
  uint64_t heard_ = 0;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_FUZZ_SERVICE_HUB_HONEST_PEER_H_
