// Hubs in a randomised network. Whatever is lost, delayed, cut or restarted, every message of a link arrives once and
// in order, or the link is over at both ends. In the end all links are up, with one connection a pair.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/seeds.h"
#include "tests/unit/daemon/fake_agent.h"
#include "tests/unit/daemon/peer/hub_by_hand.h"
#include "tests/unit/daemon/peer/long_ready.h"

namespace railsd {
namespace {

constexpr absl::Duration kWorldLostAfter = absl::Hours(1000);  // the test's clock is ahead; only Silence() exceeds it

class LinkWorld {
 public:
  explicit LinkWorld(uint64_t seed) : random_(seed), dns_(Draw(3) == 0) {
    for (int i = 0; i < 2 + static_cast<int>(Draw(2)); ++i)
      names_.push_back(std::string(1, static_cast<char>('a' + i)));
    for (auto& from : reachable_) from.fill(true);
    nodes_.resize(names_.size());
    for (size_t i = 0; i < nodes_.size(); ++i) Begin(i);
  }

  void Run() {
    for (int step = 0; step < 1500 && !Failed(); ++step) Step();
    for (auto& from : reachable_) from.fill(true);
    for (int round = 0; round < 50 && !Failed() && !Settled(); ++round) Calm();
    ASSERT_TRUE(Settled()) << Text();
    Calm();  // with DNS, hubs may still dial themselves once
    const size_t dials = Dials();
    for (int round = 0; round < 10 && !Failed(); ++round) Calm();
    EXPECT_TRUE(Settled()) << Text();
    EXPECT_EQ(Dials(), dials) << "dials although all are up";
    for (const auto& [pair, bound] : bound_) EXPECT_EQ(bound, links_.at(pair)) << "a message of a link that is over";
    for (const Node& node : nodes_) {
      const PeerCounters& counters = node.hub->hub().counters();
      EXPECT_EQ(counters.protocol_errors, 0u);
      // A daemon that restarts may be heard before the end of its old connection.
      EXPECT_TRUE(counters.refused == 0 || lives_ > nodes_.size());
      EXPECT_EQ(counters.connects, counters.disconnects + nodes_.size() - 1);
      EXPECT_EQ(node.hub->hub().Outboxes().bytes, 0u);
    }
  }

 private:
  using Pair = std::pair<size_t, size_t>;  // from, to
  struct Message {
    uint64_t number;
    uint64_t epoch;  // 0: none
  };
  // One direction of a link, from the sender's OnPeerUp() to its OnPeerDown().
  struct Session {
    std::list<Message> under_way;
    bool bound = false;  // a message of it has arrived
  };
  class Witness final : public FakeAgent {
   public:
    Witness(LinkWorld* world, size_t node) : world_(*world), node_(node) {}
    void OnPeerUp(PeerHello hello) override { world_.OnUp({node_, world_.IndexOf(hello.node)}); }
    void OnPeerDown(std::string node, std::string, bool) override { world_.OnDown({node_, world_.IndexOf(node)}); }
    bool OnPeerMessage(std::string node, BootId, ControlMessage message) override {
      if (world_.Draw(2000) == 0) return false;  // too far behind
      world_.OnMessage({world_.IndexOf(node), node_}, message);
      return true;
    }

   private:
    LinkWorld& world_;
    const size_t node_;
  };
  struct Node {
    std::unique_ptr<Witness> agent;
    std::unique_ptr<HubByHand> hub;
    size_t seen = 0;  // dials handled so far
  };
  struct Wire {
    std::array<size_t, 2> node;  // dialling node, dialled node
    std::array<HandPtr, 2> end;
    bool hole = false;  // nothing more arrives at either end, not even the end of the connection
    bool cut = false;   // bytes under way are lost, and both ends see the end
  };

  uint64_t Draw(uint64_t count) { return random_() % count; }
  static bool Failed() { return ::testing::Test::HasFailure(); }
  size_t IndexOf(const std::string& node) const { return static_cast<size_t>(node[0] - 'a'); }

  void OnUp(Pair pair) {
    EXPECT_FALSE(links_.contains(pair)) << "up twice";
    links_[pair] = sessions_.size();
    sessions_.emplace_back();
  }
  void OnDown(Pair pair) {
    EXPECT_EQ(links_.erase(pair), 1u) << "down, and was not up";
    bound_.erase({pair.second, pair.first});
  }
  void OnMessage(Pair pair, const ControlMessage& message) {
    const Leaving* const none = std::get_if<Leaving>(&message);
    const Ready* const ready = std::get_if<Ready>(&message);
    const Epoch epoch = none != nullptr    ? none->epoch
                        : ready != nullptr ? ready->job.epoch
                                           : std::get<Quiesced>(message).job.epoch;
    const uint64_t number = (none != nullptr    ? none->seq
                             : ready != nullptr ? ready->job.seq
                                                : std::get<Quiesced>(message).job.seq)
                                .value();
    ASSERT_TRUE(links_.contains({pair.second, pair.first})) << "a message of a node that is not up";
    const size_t id = epoch.boot.value() - 1;
    Session& session = sessions_.at(id);
    const auto [bound, fresh] = bound_.emplace(pair, id);
    ASSERT_EQ(bound->second, id) << "messages of two links in one";
    ASSERT_TRUE(!fresh || !std::exchange(session.bound, true)) << "a link that is one at the sender and two here";
    auto it = session.under_way.begin();
    for (; it != session.under_way.end() && it->number != number; ++it) {
      ASSERT_TRUE(it->epoch != 0 && none == nullptr && it->epoch != epoch.counter)
          << number << " overtakes " << it->number;
    }
    ASSERT_NE(it, session.under_way.end()) << "twice";
    session.under_way.erase(it);
  }

  void Begin(size_t i) {
    Node& node = nodes_[i];
    node.agent = std::make_unique<Witness>(this, i);
    PeerHubOptions options = OptionsByHand(names_[i], 1000 + ++lives_, names_);
    options.lost_after = kWorldLostAfter;
    if (Draw(4) == 0) options.outbox.max_bytes = 500'000;
    if (dns_) options.static_peers.clear();
    if (dns_) options.dns.name = "peers.example";
    node.hub = std::make_unique<HubByHand>(std::move(options), node.agent.get());
    node.seen = 0;
    std::vector<std::string> all;
    for (size_t j = 0; j < names_.size(); ++j) all.push_back(absl::StrCat("127.0.0.", j + 1, ":1"));
    if (dns_) node.hub->Find(all);
  }
  // Restarts a node's daemon, with or without a STOPPING frame.
  void Restart(size_t i) {
    dials_before_ += nodes_[i].hub->dialled.size();
    const bool says_so = Draw(2) == 0;
    nodes_[i].hub->hub().Stop();
    for (Wire& wire : wires_) {
      for (size_t side = 0; side < 2; ++side) {
        if (wire.node[side] != i || wire.end[side] == nullptr) continue;
        wire.end[side]->closed = wire.end[side]->ended = true;
        wire.cut |= !says_so;
      }
    }
    std::erase_if(links_, [&](const auto& link) { return link.first.first == i; });
    std::erase_if(bound_, [&](const auto& bound) { return bound.first.second == i; });
    Begin(i);
  }

  void Step() {
    switch (Draw(40)) {
      case 0:
        return Tick();
      case 1:
        if (Draw(12) == 0) Restart(Draw(nodes_.size()));
        return;
      case 2: {
        bool& way = reachable_[Draw(nodes_.size())][Draw(nodes_.size())];
        way = !way || Draw(4) > 0;
        return;
      }
      case 3:
        if (!wires_.empty() && Draw(6) == 0) (Draw(2) == 0 ? Any().cut : Any().hole) = true;
        return;
      case 4:
        return Silence(Draw(nodes_.size()), Draw(nodes_.size()));
      case 5:
        if (Draw(6) == 0) nodes_[Draw(nodes_.size())].hub->hub().Redial(names_[Draw(names_.size())]).IgnoreError();
        return;
      case 6:
      case 7:
      case 8:
      case 9: {
        const Pair pair = {Draw(nodes_.size()), Draw(nodes_.size())};
        for (uint64_t count = 1 + Draw(12); count > 0; --count) Send(pair);
        return;
      }
      default:
        FindDials();
        if (!wires_.empty()) Move(&Any(), Draw(2), Draw(4) == 0 ? 1 + Draw(200'000) : 1 + Draw(300));
        EraseEnded();
    }
  }
  Wire& Any() { return wires_[Draw(wires_.size())]; }
  void Tick() {
    seconds_ += 1;
    for (Node& node : nodes_) node.hub->Tick(SteadyNow() + absl::Seconds(seconds_));
  }
  void Send(Pair pair) {
    if (!links_.contains(pair)) return;
    const size_t id = links_[pair];
    const uint64_t number = ++sent_, epoch = Draw(4);
    const JobKey job = {{BootId(id + 1), epoch + 1}, JobSeq(number)};
    ControlMessage message = Quiesced{job, {}};
    if (epoch == 0) message = Leaving{job.epoch, job.seq};
    if (epoch > 0 && Draw(40) == 0) message = testing::LongReady(job, static_cast<uint32_t>(8'000 + Draw(16'000)));
    sessions_[id].under_way.push_back({number, epoch == 0 ? 0 : epoch + 1});
    nodes_[pair.first].hub->hub().Send(names_[pair.second], std::move(message));
  }
  // Makes node i see that its connections to node j do not answer.
  void Silence(size_t i, size_t j) {
    bool hole = false;
    for (Wire& wire : wires_) {
      if (!wire.hole || std::minmax(wire.node[0], wire.node[1]) != std::minmax(i, j)) continue;
      hole = true;
      for (size_t side = 0; side < 2; ++side) {  // like Links after the handshake's time limit
        const HandPtr& end = wire.end[side];
        if (wire.node[side] == i && end != nullptr && !end->greeted) nodes_[i].hub->End(end);
      }
    }
    if (!hole) return;
    nodes_[i].hub->hub().SetPatience(names_[j], Draw(2) * 10 * kWorldLostAfter);
    nodes_[i].hub->Silence(names_[j], 2 * kWorldLostAfter);
    nodes_[i].hub->Tick(SteadyNow() + absl::Seconds(++seconds_));
  }
  void FindDials() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (HubByHand& hub = *nodes_[i].hub; nodes_[i].seen < hub.dialled.size(); ++nodes_[i].seen) {
        const HandPtr& end = hub.dialled[nodes_[i].seen];
        const size_t to = static_cast<size_t>(end->address().back() - '1');
        end->room = 1 + Draw(3) * 50'000;
        wires_.push_back({{i, to}, {end, nullptr}});
      }
    }
  }
  // Performs the next event at one end of a connection, with up to `bytes` bytes. False: there is none.
  bool Move(Wire* wire, size_t side, size_t bytes) {
    const HandPtr& here = wire->end[side];
    if (here == nullptr || here->ended) return false;
    HubByHand& hub = *nodes_[wire->node[side]].hub;
    if (wire->end[1] == nullptr && !here->closed && !wire->cut && reachable_[wire->node[0]][wire->node[1]]) {
      wire->end[1] = nodes_[wire->node[1]].hub->Accept();
      wire->end[1]->room = 1 + Draw(3) * 50'000;
      hub.Open(here);
      return true;
    }
    HandConnection* const there = wire->end[1 - side].get();
    const bool over = there == nullptr || wire->cut || (there->out.empty() && there->closed);
    if (here->closed || (over && !wire->hole)) {
      hub.End(here);
      return true;
    }
    if (wire->hole || there->out.empty()) return false;
    const std::string arriving = there->out.substr(0, bytes);
    there->out.erase(0, bytes);
    hub.Arrive(here, arriving);
    if (there->out.empty() && !there->ended) nodes_[wire->node[1 - side]].hub->Writable(wire->end[1 - side]);
    return true;
  }
  void EraseEnded() {
    std::erase_if(wires_, [](const Wire& w) { return w.end[0]->ended && (w.end[1] == nullptr || w.end[1]->ended); });
  }

  // Lets everything arrive, and makes nodes see dead connections.
  void Calm() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t j = 0; j < nodes_.size(); ++j) Silence(i, j);
    }
    Tick();
    for (bool moved = true; moved && !Failed();) {
      FindDials();
      moved = false;
      for (Wire& wire : wires_) {
        for (size_t side = 0; side < 2; ++side) moved |= Move(&wire, side, ~size_t{0});
      }
      EraseEnded();
    }
  }
  bool Settled() const {
    size_t pairs = 0, living = 0;
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (size_t j = 0; j < nodes_.size(); ++j) {
        if (i == j) continue;
        ++pairs;
        const auto link = links_.find({i, j});
        if (link == links_.end() || !sessions_[link->second].under_way.empty()) return false;
      }
      if (nodes_[i].hub->hub().Outboxes().messages > 0) return false;
    }
    for (const Wire& wire : wires_)
      living += !wire.hole && !wire.end[0]->closed && wire.end[1] != nullptr && !wire.end[1]->closed;
    return living == wires_.size() && 2 * living == pairs;
  }
  size_t Dials() const {
    size_t dials = dials_before_;
    for (const Node& node : nodes_) dials += node.hub->dialled.size();
    return dials;
  }
  std::string Text() const {
    std::string text = absl::StrCat(dns_ ? "dns" : "static", ", links ", links_.size());
    for (const Wire& wire : wires_) {
      absl::StrAppend(&text, "; ", names_[wire.node[0]], " to ", names_[wire.node[1]], wire.hole ? " hole" : "");
      for (const HandPtr& end : wire.end) {
        if (end != nullptr)
          absl::StrAppend(&text, ", ", end->out.size(), end->closed ? " closed" : "", end->ended ? " ended" : "");
      }
    }
    for (const Node& node : nodes_) {
      for (const PeerView& peer : node.hub->hub().Peers())
        absl::StrAppend(&text, "; ", peer.node, " ", peer.up, " ", peer.why);
    }
    return text;
  }

  std::mt19937_64 random_;
  const bool dns_;
  std::vector<std::string> names_;
  std::vector<Node> nodes_;
  std::vector<Wire> wires_;
  std::array<std::array<bool, 3>, 3> reachable_;
  std::vector<Session> sessions_;
  std::map<Pair, size_t> links_;  // session of a link that the first node knows to be up
  std::map<Pair, size_t> bound_;  // session whose messages the second node has taken since the link is up
  uint64_t lives_ = 0, sent_ = 0;
  size_t dials_before_ = 0;
  int64_t seconds_ = 0;
};

TEST(LinkWorldTest, EveryMessageArrivesOnceAndInOrderOrTheLinkIsOverAtBothEnds) {
  for (const uint64_t seed : testing::Seeds(300)) {
    SCOPED_TRACE(absl::StrCat("--gtest_random_seed=", seed));
    LinkWorld(seed).Run();
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace railsd
