// Measures the time that a rail's thread needs for one chunk: to take its end, and to choose and post the next one.
// `Choose` measures the scheduler alone, for numbers of peers with work and of tenants that share the rail. `Send`
// measures the sender with a transport that does nothing, for numbers of peers and of exchanges that wait for each
// peer.
#include <benchmark/benchmark.h>

#include <deque>
#include <vector>

#include "agent/plan/plan.h"
#include "agent/rails/rail_scheduler.h"
#include "agent/rails/rail_sender.h"

namespace railsd {
namespace {

constexpr SchedulerOptions kRail{.speed_bytes_per_s = 50e9, .chunk_bytes = 64 << 10};

void Choose(benchmark::State& state) {
  const auto peers = static_cast<uint32_t>(state.range(0)), tenants = static_cast<uint32_t>(state.range(1));
  RailProgress progress;
  RailScheduler scheduler(kRail, &progress);
  absl::Time now = absl::UnixEpoch();
  for (uint32_t tenant = 0; tenant < tenants; ++tenant) {
    for (uint32_t peer = 0; peer < peers; ++peer) scheduler.Add(tenant, PeerIndex(peer), peer, uint64_t{1} << 50);
  }
  std::deque<RailScheduler::Choice> posted;
  const auto post = [&] {
    while (const auto choice = scheduler.Next(now)) {
      scheduler.OnPosted(choice->tenant, choice->peer, choice->piece_bytes, now);
      posted.push_back(*choice);
    }
  };
  post();
  for (auto _ : state) {
    now += absl::Nanoseconds(1300);
    scheduler.OnEnded(posted.front().tenant, posted.front().peer, posted.front().piece_bytes, true, now);
    posted.pop_front();
    post();
  }
}
BENCHMARK(Choose)->ArgNames({"peers", "tenants"})->ArgsProduct({{8, 64, 512}, {1, 16}});

class NullTransport final : public RailTransport {
 public:
  TransportInfo Info() override { return {}; }
  void SetPeer(const RailPeer&) override {}
  void RemovePeer(PeerIndex) override {}
  size_t Post(absl::Span<const SendOrder> orders) override {
    posted.insert(posted.end(), orders.begin(), orders.end());
    return orders.size();
  }
  void StopSends(JobTag) override {}
  size_t Poll(absl::Duration, absl::Span<RailEvent>) override { return 0; }
  void Wake() override {}

  std::deque<SendOrder> posted;
};

// Sends exchanges of four chunks. An exchange is given to the sender again when it has ended.
void Send(benchmark::State& state) {
  const auto peers = static_cast<uint32_t>(state.range(0)), exchanges = static_cast<uint32_t>(state.range(1));
  NullTransport transport;
  RailBoard board(1);
  RailSender sender(RailIndex(0), kRail, &board, &transport);
  absl::Time now = absl::UnixEpoch();
  std::deque<SendStream> streams;
  const auto give = [&](const SendStream& stream) {
    stream.unposted_bytes[0] = 4 * kRail.chunk_bytes;
    Assignment all;
    all.stream = &stream;
    all.connection = 1;
    all.place = stream.peer.value();
    all.length_bytes = 4 * kRail.chunk_bytes;
    all.weight = 255;
    sender.Give(all);
  };
  for (uint32_t peer = 0; peer < peers; ++peer) {
    RailEvent up;
    up.kind = RailEvent::Kind::kPeerUp;
    up.peer = PeerIndex(peer);
    up.connection = 1;
    up.cookie = 1;
    RailPeer link;
    link.peer = up.peer;
    link.link = 1;
    sender.SetPeer(link);
    sender.OnEvent(up, now);
    for (uint32_t i = 0; i < exchanges; ++i) {
      SendStream& stream = streams.emplace_back();
      stream.peer = up.peer;
      give(stream);
    }
  }
  std::vector<RailEvent> reports(64);
  sender.Post(now);
  for (auto _ : state) {
    now += absl::Nanoseconds(1300);
    RailEvent end;
    end.kind = RailEvent::Kind::kSendDone;
    end.cookie = transport.posted.front().cookie;
    transport.posted.pop_front();
    sender.OnEvent(end, now);
    while (const size_t taken = sender.reports().Take(absl::MakeSpan(reports))) {
      for (size_t i = 0; i < taken; ++i) {
        if (reports[i].kind == RailEvent::Kind::kFenceDone) give(*reports[i].stream);
      }
    }
    sender.Post(now);
  }
}
BENCHMARK(Send)->ArgNames({"peers", "exchanges"})->ArgsProduct({{8, 64, 512}, {1, 64}});

}  // namespace
}  // namespace railsd

BENCHMARK_MAIN();
