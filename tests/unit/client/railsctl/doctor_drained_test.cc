// Tests what `railsctl doctor` says of rails that peers have drained.
#include <gtest/gtest.h>

#include "client/railsctl/doctor/checks.h"

namespace rails::ctl::doctor {
namespace {

TEST(DoctorPeers, AnEndThatAPeerHasDrainedIsNoFault) {
  Facts facts;
  v1::RailStatus* rail = facts.overview.add_rails();
  rail->set_name("rail1");
  rail->set_peers_known(1);
  rail->set_peers_drained(1);
  rail->mutable_health()->set_state(v1::RAIL_STATE_DRAINED_BY_PEER);
  rail->mutable_health()->set_why("every peer has drained its end");
  v1::PeerStatus* peer = facts.overview.add_peers();
  peer->set_node("n1");
  peer->set_up(true);
  peer->add_rail_states(v1::RAIL_STATE_DRAINED_BY_PEER);
  peer->add_rails_up(true);
  for (const bool connected : {true, false}) {
    peer->set_rails_up(0, connected);
    const Findings rails = CheckRails(facts), peers = CheckPeers(facts);
    ASSERT_EQ(rails.size(), 1u);
    EXPECT_EQ(rails[0].level, Level::kNote);
    EXPECT_EQ(rails[0].found, "rail1 is DRAINED BY PEER: every peer has drained its end");
    ASSERT_EQ(peers.size(), 1u);
    EXPECT_EQ(peers[0].level, Level::kNote);
    EXPECT_EQ(peers[0].found, "node n1 has drained rail1");
  }
  rail->mutable_health()->set_state(v1::RAIL_STATE_UP);
  EXPECT_EQ(CheckRails(facts)[0].level, Level::kOk) << "one of several peers has drained it";
}

}  // namespace
}  // namespace rails::ctl::doctor
