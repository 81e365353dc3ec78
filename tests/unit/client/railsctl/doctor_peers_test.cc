// Findings of doctor about links that are down, by their cause.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "client/railsctl/doctor/checks.h"
#include "client/railsctl/doctor/peer_cause.h"

namespace rails::ctl::doctor {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

auto Says(const std::string& check, Level level, const std::string& found) {
  return AllOf(Field("check", &Finding::check, check), Field("level", &Finding::level, level),
               Field("found", &Finding::found, HasSubstr(found)));
}

// A daemon with two rails that are connected to node n1, and to nobody else.
Facts TwoPeers() {
  Facts facts;
  facts.overview.mutable_status()->set_node("n0");
  for (uint32_t r = 0; r < 2; ++r) {
    auto* rail = facts.overview.add_rails();
    rail->set_index(r);
    rail->set_name("rail" + std::to_string(r));
    rail->set_peers_known(2);
    rail->set_peers_up(1);
    rail->mutable_health()->set_state(v1::RAIL_STATE_UP);
  }
  for (const char* name : {"n1", "n2"}) {
    auto* peer = facts.overview.add_peers();
    peer->set_node(name);
    peer->set_up(name == std::string("n1"));
    for (int r = 0; r < 2; ++r) {
      peer->add_rails_up(peer->up());
      peer->add_rail_states(peer->up() ? v1::RAIL_STATE_UP : v1::RAIL_STATE_DOWN);
      peer->add_rail_addresses("10.1.0.2:7000");
    }
  }
  return facts;
}

// Texts as daemons write them.
const std::map<std::string, PeerCause> kTexts = {
    {"a:1: two daemons call themselves node n1: one at 10.0.0.9:7, and one at 10.0.0.2:7471 whose link with node n0 is "
     "up; give one of them another name",
     PeerCause::kTwoDaemons},
    {"a:1: node name n0: two daemons have it", PeerCause::kTwoDaemons},
    {"node n2 says boot id 0123456789abcdef, which node n1 has said before: two daemons have it; restart both",
     PeerCause::kTwoDaemons},
    {"the daemon of n0 itself had not run for 12s before: it was stopped, or got no processor time; nothing was heard "
     "of node n1 for 10s",
     PeerCause::kOwnPause},
    {"a:1: tls: the other daemon is of another version, or has other tls settings (it speaks no TLS): run one version "
     "of railsd on all nodes, with the same tls.mode",
     PeerCause::kTls},
    {"a:1: the other end speaks another protocol, not railsd-link-1 (it begins with \"\\025\\003\\003\\000\"): run the "
     "same version of railsd on all nodes",
     PeerCause::kTls},
    {"a:1: the other end speaks TLS, and this node plain text: set the same tls.mode on all nodes", PeerCause::kTls},
    {"a:1: tls: the other end speaks plain text, and this node TLS: set the same tls.mode on all nodes",
     PeerCause::kTls},
    {"a:1: tls: the other daemon is of another version, or has other tls settings (wrong version number): run one "
     "version of railsd on all nodes, with the same tls.mode",
     PeerCause::kTls},
    {"the other end closed the connection and sent nothing: is it a railsd, with this node's tls.mode?",
     PeerCause::kTls},
    {"says that it is node n1, but its certificate is of n7", PeerCause::kCertificateName},
    {"a:1: tls: this node refuses the other end: certificate verify failed (unable to get local issuer certificate); "
     "look at tls.certificate there and tls.ca here",
     PeerCause::kCertificate},
    {"a:1: tls: the other end refuses this node's certificate: tlsv1 alert unknown ca; look at tls.certificate here "
     "and tls.ca there",
     PeerCause::kCertificate},
    {"a:1: peers.static: the address of n1 is answered by node n7", PeerCause::kName},
    {"a:1: node n0 is no peer of node n1; add it to peers.static there", PeerCause::kNotListed},
    {"a:1: tls: the other daemon is of another version, or has other tls settings (no application protocol): run one "
     "version of railsd on all nodes, with the same tls.mode",
     PeerCause::kVersion},
    {"a:1: the other end speaks gRPC, as a railsd before this protocol does, not railsd-link-1 (it begins with "
     "\"PRI\"): "
     "run the same version of railsd on all nodes",
     PeerCause::kVersion},
    {"HELLO of n1: min_version, max_version: 2 to 3 do not include 1", PeerCause::kVersion},
    {"HELLO of n1: limits.max_world_size: 8, but n0 has 16; set limits.max_world_size alike on all nodes",
     PeerCause::kSettings},
    {"node n1 has 4 rails, but node n0 expects 2", PeerCause::kSettings},
    {"rail 0 is verbs:mlx5_0/1 on node n1 and 10.0.0.1:7 on node n0; a rail has one transport on all nodes",
     PeerCause::kSettings},
    {"the name 'n1.example': Name or service not known", PeerCause::kLookup},
    {"a:1: Connection refused", PeerCause::kRefused},
    {"the daemon of node n1 is dead: 10.0.0.2:7471 refuses connections", PeerCause::kRefused},
    {"a:1: not connected within 10s", PeerCause::kNotReached},
    {"a:1: No route to host", PeerCause::kNotReached},
    {"nothing was heard of node n1 for 10s; its machine does not answer either: it is down, or cut off from this node",
     PeerCause::kNotReached},
    {"not reached yet", PeerCause::kNotReached},
    {"a:1: no hello came within 10s", PeerCause::kNoAnswer},
    {"nothing was heard of node n1 for 10s; its machine accepts connections, so its daemon is stopped or gets no "
     "processor time",
     PeerCause::kNoAnswer},
    {"nothing was heard of node n1 for 10s; last: a:1: Connection refused", PeerCause::kRefused},
    {"node n1 is stopping", PeerCause::kEnded},
    {"a:1: the other end closed the connection", PeerCause::kEnded},
    {"", PeerCause::kUnknown},
    {"a text that no daemon has written yet", PeerCause::kUnknown},
};

TEST(PeerCauseTest, KnowsTheDaemonsTexts) {
  std::set<PeerCause> seen;
  for (const auto& [text, cause] : kTexts) {
    EXPECT_EQ(CauseOf(text), cause) << text;
    seen.insert(cause);
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(PeerCause::kEnded) + 1) << "a cause without an example";
}

TEST(PeerCauseTest, EachHasAHintOfItsOwn) {
  std::set<std::string> means, fixes;
  for (int cause = 0; cause <= static_cast<int>(PeerCause::kEnded); ++cause) {
    const PeerHint& hint = HintOf(static_cast<PeerCause>(cause));
    EXPECT_TRUE(means.insert(hint.means).second) << hint.means;
    EXPECT_TRUE(fixes.insert(hint.fix).second) << hint.fix;
  }
  EXPECT_THAT(HintOf(PeerCause::kEnded).fix, HasSubstr("journalctl")) << "the last of the table";
}

TEST(DoctorLinks, ComeBeforeTheRailsThatWaitForThem) {
  Facts facts = TwoPeers();
  facts.overview.mutable_peers(1)->set_why("10.0.0.2:7471: Connection refused");
  EXPECT_THAT(CheckLinks(facts),
              ElementsAre(Says("peers", Level::kError, "node n2 is down: 10.0.0.2:7471: Connection refused")));
  EXPECT_THAT(CheckLinks(facts)[0].fix, HasSubstr("systemctl status railsd"));
  EXPECT_THAT(CheckRails(facts), ElementsAre(Says("rails", Level::kNote,
                                                  "rail0, rail1: not connected to n2, as long as there is no link")));
  EXPECT_THAT(CheckPeers(facts), IsEmpty());
  std::string first;
  for (const Finding& finding : CheckAll(facts)) {
    if (first.empty() && finding.level == Level::kError && finding.check != "sockets") first = finding.found;
  }
  EXPECT_THAT(first, HasSubstr("node n2 is down"));
}

TEST(DoctorLinks, ARailWithAFaultOfItsOwnIsAnError) {
  Facts facts = TwoPeers();
  facts.overview.mutable_peers(0)->set_rails_up(1, false);
  facts.overview.mutable_rails(1)->set_peers_up(0);
  EXPECT_THAT(CheckRails(facts), ElementsAre(Says("rails", Level::kError, "rail1 is DOWN"),
                                             Says("rails", Level::kNote, "rail0: not connected to n2")));
  auto* health = facts.overview.mutable_rails(0)->mutable_health();
  health->set_state(v1::RAIL_STATE_DOWN);
  health->set_why("the link of eth1 is down");
  EXPECT_THAT(CheckRails(facts), ElementsAre(Says("rails", Level::kError, "rail0 is DOWN: the link of eth1 is down"),
                                             Says("rails", Level::kError, "rail1 is DOWN")));
}

TEST(DoctorLinks, NamesTwoDaemonsOfOneName) {
  const std::string why =
      "two daemons call themselves node n2: one at 10.0.0.9:7, and one at 10.0.0.2:7471 whose link with node n0 is up; "
      "give one of them another name";
  Facts facts = TwoPeers();
  v1::PeerStatus* peer = facts.overview.mutable_peers(1);
  peer->set_why(why);
  EXPECT_THAT(CheckLinks(facts), ElementsAre(Says("names", Level::kError, "node n2 is down: " + why)));
  EXPECT_THAT(CheckLinks(facts)[0].fix, HasSubstr("Set another `node`"));
  peer->set_up(true);
  EXPECT_THAT(CheckLinks(facts), ElementsAre(Says("names", Level::kError, why)));
  EXPECT_THAT(CheckPeers(facts), IsEmpty()) << "once is enough";
}

// This node has two rails. Nothing is broken where a peer has one, or three.
TEST(DoctorRails, PeersWithAnotherNumberOfRailsAreNamed) {
  Facts facts = TwoPeers();
  facts.overview.mutable_peers()->RemoveLast();
  for (v1::RailStatus& rail : *facts.overview.mutable_rails()) rail.set_peers_known(1);
  v1::PeerStatus* const peer = facts.overview.mutable_peers(0);
  peer->set_rail_count(3);
  EXPECT_THAT(CheckRailCounts(facts), ElementsAre(Says("rails", Level::kWarning, "this node has 2 rails, n1 has 3")));
  peer->set_rail_count(1);
  peer->set_rails_up(1, false);
  peer->set_rail_states(1, v1::RAIL_STATE_DOWN);
  v1::RailStatus* const rail = facts.overview.mutable_rails(1);
  rail->mutable_health()->set_state(v1::RAIL_STATE_DOWN);
  rail->set_peers_known(0);
  rail->set_peers_up(0);
  EXPECT_THAT(CheckRailCounts(facts), ElementsAre(Says("rails", Level::kWarning, "this node has 2 rails, n1 has 1")));
  EXPECT_THAT(CheckRails(facts), ElementsAre(Says("rails", Level::kOk, "rail0")));
  EXPECT_THAT(CheckPeers(facts),
              ElementsAre(Says("peers", Level::kOk, "over every rail that both ends have: 1 peer, 2 rails")));
}

TEST(DoctorRails, ThatShareAnInterfaceOrAnAddressAreNamed) {
  Facts facts = TwoPeers();
  facts.machine.interfaces.resize(2);
  facts.machine.interfaces[0].name = "lo";
  facts.machine.interfaces[1].name = "eth1";
  facts.machine.interfaces[1].addresses = {"10.1.0.1/24", "10.1.0.2/24"};
  const auto at = [&facts](const char* first, const char* second) {
    facts.overview.mutable_rails(0)->set_address(first);
    facts.overview.mutable_rails(1)->set_address(second);
    return CheckInterfaces(facts);
  };
  EXPECT_THAT(at("127.0.0.1:7000", "127.0.0.2:7000"), ElementsAre(Says("interfaces", Level::kOk, "up")));
  EXPECT_THAT(at("127.0.0.1:7000", "127.0.0.1:7001"),
              ElementsAre(Says("interfaces", Level::kWarning, "rail0, rail1 share 127.0.0.1")));
  EXPECT_THAT(at("10.1.0.1:7000", "10.1.0.2:7000"),
              ElementsAre(Says("interfaces", Level::kWarning, "rail0, rail1 share eth1")));
}

TEST(DoctorLinks, APeerThatIsSilentIsWaitedFor) {
  Facts facts = TwoPeers();
  facts.overview.mutable_peers()->RemoveLast();
  facts.overview.mutable_peers(0)->set_why("nothing was heard of node n1 for 10s; its machine does not answer either");
  EXPECT_THAT(CheckLinks(facts), IsEmpty());
  EXPECT_THAT(CheckPeers(facts), ElementsAre(Says("peers", Level::kWarning, "nothing was heard of node n1")));
  EXPECT_THAT(CheckPeers(facts)[0].fix, HasSubstr("nc -z HOST PORT"));
}

}  // namespace
}  // namespace rails::ctl::doctor
