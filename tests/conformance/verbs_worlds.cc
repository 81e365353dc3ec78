// The suite over real verbs. It wants three ports of this machine that reach each other, on each of two rails: ports
// whose GIDs lie in one /24 network are taken for one rail.
#include "tests/conformance/verbs_worlds.h"

#include <gtest/gtest.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/transport/verbs/device.h"
#include "agent/transport/verbs/verbs_transport.h"
#include "tests/conformance/transport_suite.h"

namespace railsd::testing {

// Nothing here takes frames.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FramedSuite);

namespace {

class FlushedRegistrar final : public MemoryRegistrar {
 public:
  FlushedRegistrar(std::shared_ptr<MemoryRegistrar> registrar, int access)
      : registrar_(std::move(registrar)), access_(access) {}
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& segment) override {
    absl::StatusOr<std::unique_ptr<Registration>> plain = registrar_->Register(segment);
    if (!plain.ok()) return plain;
    const std::shared_ptr<Registration> kept = *std::move(plain);
    ibv_pd* const domain = static_cast<const verbs::DeviceRegistration&>(*kept).region()->pd;
    verbs::RegionHandle region(
        ibv_reg_mr(domain, segment.base(), segment.length_bytes(),
                   IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_MW_BIND | access_));
    if (region == nullptr) return absl::ErrnoToStatus(errno, "ibv_reg_mr");
    // Keeps the device, which only the plain registration knows.
    const std::shared_ptr<verbs::RdmaDevice> device(kept, nullptr);
    return std::make_unique<verbs::DeviceRegistration>(device, std::move(region), /*needs_flush=*/true);
  }

 private:
  const std::shared_ptr<MemoryRegistrar> registrar_;
  const int access_;
};

// A rail on which all memory must be flushed.
class FlushedRail final : public RailTransport {
 public:
  explicit FlushedRail(std::unique_ptr<RailTransport> rail) : rail_(std::move(rail)) {}
  TransportInfo Info() override {
    TransportInfo info = rail_->Info();
    info.registrar = MakeFlushedRegistrar(std::move(info.registrar), IBV_ACCESS_REMOTE_READ);
    return info;
  }
  void SetPeer(const RailPeer& peer) override { rail_->SetPeer(peer); }
  void RemovePeer(PeerIndex peer) override { rail_->RemovePeer(peer); }
  size_t Post(absl::Span<const SendOrder> orders) override { return rail_->Post(orders); }
  void StopSends(JobTag job) override { rail_->StopSends(job); }
  size_t Poll(absl::Duration max_wait, absl::Span<RailEvent> out) override { return rail_->Poll(max_wait, out); }
  void Wake() override { rail_->Wake(); }

 private:
  const std::unique_ptr<RailTransport> rail_;
};

constexpr size_t kNodes = 3;
constexpr size_t kRails = 2;

// The devices of a rail: one port for each node.
std::vector<std::vector<std::string>> FindRails() {
  std::map<std::string, std::vector<std::string>> networks;
  for (const verbs::RdmaPort& port : DiscoverRdmaPorts()) {
    const absl::StatusOr<verbs::Gid> gid = verbs::ChooseGid(port, std::nullopt);
    if (!verbs::CheckUsable(port).ok() || !gid.ok() || !gid->IsIpv4()) continue;
    networks[std::string(gid->bytes.begin(), gid->bytes.begin() + 15)].push_back(port.Name());
  }
  std::vector<std::vector<std::string>> rails;
  for (auto& [network, ports] : networks) {
    if (ports.size() >= kNodes) rails.push_back(std::move(ports));
  }
  return rails;
}

class VerbsWorld final : public World {
 public:
  explicit VerbsWorld(VerbsTuning tuning, bool flushed = false) : tuning_(tuning), flushed_(flushed) {
    // An emulated machine that is busy answers late, and what Soft-RoCE sends twice it does not always send right.
    // 18 is 1.1 s; the guest was seen to stand still for longer than the 0.27 s of 16.
    tuning_.timeout = 18;
  }

  std::unique_ptr<RailTransport> Create(const EndOptions& options) override {
    const size_t node = static_cast<size_t>(std::find(nodes_.begin(), nodes_.end(), options.node) - nodes_.begin());
    if (node == nodes_.size()) nodes_.push_back(options.node);
    VerbsOptions verbs;
    verbs.rail = options.rail;
    verbs.node = options.node;
    verbs.boot = options.boot;
    verbs.device = rails_.at(options.rail.value()).at(node);
    verbs.tuning = tuning_;
    verbs.max_posted_orders = options.max_posted_orders;
    verbs.max_receive_events = options.max_receive_events;
    verbs.signals = options.signals;
    verbs.zones = options.zones;
    verbs.min_back_off = absl::Milliseconds(1);
    verbs.on_notice = [node = options.node](const std::string& text) {
      std::printf("# node %s: %s\n", node.c_str(), text.c_str());
    };
    std::unique_ptr<RailTransport> rail = CreateVerbsTransport(std::move(verbs)).value();
    return flushed_ ? std::make_unique<FlushedRail>(std::move(rail)) : std::move(rail);
  }
  // Soft-RoCE looks whose window a key is and whether it is valid, not where it ends.
  bool ChecksBounds() const override { return rails_[0][0].find("rxe") == std::string::npos; }

 private:
  VerbsTuning tuning_;
  const bool flushed_;
  const std::vector<std::vector<std::string>>& rails_ = Rails();
  std::vector<std::string> nodes_;
};

}  // namespace

std::shared_ptr<MemoryRegistrar> MakeFlushedRegistrar(std::shared_ptr<MemoryRegistrar> registrar, int access) {
  return std::make_shared<FlushedRegistrar>(std::move(registrar), access);
}

const std::vector<std::vector<std::string>>& Rails() {
  static const std::vector<std::vector<std::string>> rails = FindRails();
  return rails;
}

std::vector<WorldFactory> VerbsWorlds() {
  VerbsTuning tiny;
  tiny.send_queue_depth = 1;
  tiny.completion_queue_depth = 24;
  tiny.fence_queue_depth = 8;
  tiny.path_mtu_bytes = 1024;
  tiny.inline_bytes = 0;
  VerbsTuning spread;
  spread.queue_pairs_per_peer = 3;
  spread.send_queue_depth = 5;
  spread.inline_bytes = 256;
  VerbsTuning weak;
  weak.max_windows = 0;
  return {Factory<VerbsWorld>("Verbs", VerbsTuning()), Factory<VerbsWorld>("VerbsTiny", tiny),
          Factory<VerbsWorld>("VerbsSpread", spread), Factory<VerbsWorld>("VerbsWeak", weak),
          Factory<VerbsWorld>("VerbsFlushed", tiny, true)};
}

INSTANTIATE_TEST_SUITE_P(Worlds, TransportSuite, ::testing::ValuesIn(VerbsWorlds()), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, RemoteSuite, ::testing::ValuesIn(VerbsWorlds()), NameOf);
INSTANTIATE_TEST_SUITE_P(Worlds, VerbsSuite, ::testing::Values(Factory<VerbsWorld>("Verbs", VerbsTuning())), NameOf);

}  // namespace railsd::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  const size_t rails = railsd::testing::Rails().size();
  if (rails < railsd::testing::kRails) {
    std::fprintf(stderr, "verbs_conformance_test: found %zu rails of %zu ports each, wants %zu\n", rails,
                 railsd::testing::kNodes, railsd::testing::kRails);
    return 1;
  }
  return RUN_ALL_TESTS();
}
