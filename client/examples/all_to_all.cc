// An all-to-all(v) of N ranks through running daemons, every byte checked.
//
//   all_to_all [--world N] [--rank R] [--kib K] [--rounds M] [--prepared M] [--wait SECONDS] SOCKET_DIR...
//
// Rank r uses the daemon in socket directory number r modulo the number of directories. Without --rank all N ranks run
// here, one thread each. With --rank only that rank runs here; the others run in other processes or on other nodes.
#include <atomic>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "rails/client.h"

namespace {

struct Arguments {
  uint32_t world = 4;
  std::optional<uint32_t> rank;
  uint32_t kib = 256;
  uint32_t rounds = 2, prepared_rounds = 0;
  uint32_t wait_seconds = 10;
  std::vector<std::string> socket_dirs;
};

// Ranks send unequal lengths to each other, like a router of experts.
uint64_t LengthBytes(const Arguments& arguments, uint32_t from, uint32_t to) {
  return uint64_t{arguments.kib} * 1024 * ((from * 7 + to * 5) % 4 + 1) / 4 + from;
}

// Byte `i` that `from` sends to `to` in a round.
std::byte Pattern(uint32_t round, uint32_t from, uint32_t to, uint64_t i) {
  return static_cast<std::byte>(i * 31 + (i >> 8) + from * 17 + to * 101 + round);
}

absl::Status At(absl::Status status, std::string_view what) {
  if (status.ok()) return status;
  return absl::Status(status.code(), std::string(what) + ": " + std::string(status.message()));
}

void Print(const rails::JobReport& report, uint32_t rank) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::printf("rank %u job %llu: sent %llu bytes, received %llu, %.3f ms, ratio to the bound %.3f\n", rank,
              static_cast<unsigned long long>(report.seq), static_cast<unsigned long long>(report.bytes_sent),
              static_cast<unsigned long long>(report.bytes_received), absl::ToDoubleMilliseconds(report.elapsed),
              report.ratio_to_bound);
  for (size_t rail = 0; rail < report.rail_tx_bytes.size() && rail < report.rail_rx_bytes.size(); ++rail) {
    std::printf("  rail %zu of its node: sent %llu bytes, received %llu\n", rail,
                static_cast<unsigned long long>(report.rail_tx_bytes[rail]),
                static_cast<unsigned long long>(report.rail_rx_bytes[rail]));
  }
}

// `divisor`: of the bytes that each flow could have.
absl::Status CheckReceived(const Arguments& arguments, uint32_t round, uint32_t rank, const rails::Segment& receive,
                           uint32_t divisor = 1) {
  uint64_t offset_bytes = 0;
  for (uint32_t from = 0; from < arguments.world; ++from) {
    const uint64_t length_bytes = LengthBytes(arguments, from, rank);
    for (uint64_t i = 0; i < length_bytes; ++i) {
      const std::byte expected = i < length_bytes / divisor ? Pattern(round, from, rank, i) : std::byte{0};
      if (receive.bytes()[offset_bytes + i] == expected) continue;
      return absl::DataLossError("byte " + std::to_string(i) + " from rank " + std::to_string(from) + " is wrong");
    }
    offset_bytes += length_bytes;
  }
  return absl::OkStatus();
}

// Fills the buffers for a round.
void Fill(const rails::AllToAllv& exchange, uint32_t round, uint32_t rank, const rails::Segment& receive) {
  for (const rails::FlowRanges& flow : exchange.sends) {
    const rails::Range& range = flow.ranges[0];
    std::byte* to = range.segment->bytes().data() + range.offset_bytes;
    for (uint64_t i = 0; i < range.length_bytes; ++i) to[i] = Pattern(round, rank, flow.rank, i);
  }
  std::memset(receive.bytes().data(), 0, receive.bytes().size());
}

// Rounds over the same ranges, which the daemon checks once: each moves the first half of each flow. From the second
// one on receivers do not say how much they expect: their ranges are capacities.
absl::Status RunPrepared(const Arguments& arguments, uint32_t rank, rails::Group& group,
                         const rails::AllToAllv& exchange, const rails::Segment& receive) {
  auto prepared = group.Prepare(exchange);
  if (!prepared.ok()) return At(prepared.status(), "preparing");
  rails::Lengths lengths;
  for (uint32_t peer = 0; peer < arguments.world; ++peer) {
    lengths.sends.push_back(LengthBytes(arguments, rank, peer) / 2);
    lengths.receives.push_back(LengthBytes(arguments, peer, rank) / 2);
  }
  for (uint32_t round = 0; round < arguments.prepared_rounds; ++round) {
    Fill(exchange, round, rank, receive);
    lengths.tag = round;
    if (round == 1) {
      lengths.receives.clear();
      lengths.capacities = true;
    }
    auto job = group.Submit(*prepared, lengths);
    if (!job.ok()) return At(job.status(), "submitting what is prepared");
    auto report = (*job)->Wait();
    if (!report.ok()) return At(report.status(), "waiting");
    if (!report->status.ok()) return At(report->status, "the job");
    if (absl::Status s = CheckReceived(arguments, round, rank, receive, /*divisor=*/2); !s.ok()) return s;
    for (uint32_t from = 0; lengths.capacities && from < arguments.world; ++from) {
      if (report->received_by_rank[from] == LengthBytes(arguments, from, rank) / 2) continue;
      return absl::DataLossError("the report is wrong about rank " + std::to_string(from));
    }
  }
  return absl::OkStatus();
}

absl::Status RunRank(const Arguments& arguments, uint32_t rank) {
  auto client = rails::Client::Connect({.socket_dir = arguments.socket_dirs[rank % arguments.socket_dirs.size()],
                                        .client_name = "all_to_all rank " + std::to_string(rank),
                                        .connect_timeout = absl::Seconds(arguments.wait_seconds)});
  if (!client.ok()) return At(client.status(), "connecting");

  uint64_t send_bytes = 0, receive_bytes = 0;
  for (uint32_t peer = 0; peer < arguments.world; ++peer) {
    send_bytes += LengthBytes(arguments, rank, peer);
    receive_bytes += LengthBytes(arguments, peer, rank);
  }
  auto send = (*client)->CreateSegment(send_bytes);
  if (!send.ok()) return At(send.status(), "the send segment");
  auto receive = (*client)->CreateSegment(receive_bytes);
  if (!receive.ok()) return At(receive.status(), "the receive segment");

  auto group = (*client)->JoinGroup({.name = "all_to_all example", .world_size = arguments.world, .rank = rank});
  if (!group.ok()) return At(group.status(), "joining");

  rails::AllToAllv exchange;
  uint64_t send_offset = 0, receive_offset = 0;
  for (uint32_t peer = 0; peer < arguments.world; ++peer) {
    const uint64_t out_bytes = LengthBytes(arguments, rank, peer), in_bytes = LengthBytes(arguments, peer, rank);
    exchange.sends.push_back({peer, {{*send, send_offset, out_bytes}}});
    exchange.receives.push_back({peer, {{*receive, receive_offset, in_bytes}}});
    send_offset += out_bytes;
    receive_offset += in_bytes;
  }
  for (uint32_t round = 0; round < arguments.rounds; ++round) {
    Fill(exchange, round, rank, **receive);
    exchange.tag = round;
    auto job = (*group)->Submit(exchange);
    if (!job.ok()) return At(job.status(), "submitting");
    auto report = (*job)->Wait();  // the daemon may use the buffers until the job has ended
    if (!report.ok()) return At(report.status(), "waiting");
    if (!report->status.ok()) return At(report->status, "the job");
    if (absl::Status status = CheckReceived(arguments, round, rank, **receive); !status.ok()) return status;
    Print(*report, rank);
  }
  if (arguments.prepared_rounds == 0) return absl::OkStatus();
  return RunPrepared(arguments, rank, **group, exchange, **receive);
}

bool ParseNumber(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool Parse(int argc, char** argv, Arguments* arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument.rfind("--", 0) != 0) {
      arguments->socket_dirs.emplace_back(argument);
      continue;
    }
    uint32_t value = 0;
    if (++i == argc || !ParseNumber(argv[i], &value)) return false;
    if (argument == "--world") {
      arguments->world = value;
    } else if (argument == "--rank") {
      arguments->rank = value;
    } else if (argument == "--kib") {
      arguments->kib = value;
    } else if (argument == "--rounds") {
      arguments->rounds = value;
    } else if (argument == "--prepared") {
      arguments->prepared_rounds = value;
    } else if (argument == "--wait") {
      arguments->wait_seconds = value;
    } else {
      return false;
    }
  }
  return !arguments->socket_dirs.empty() && arguments->world > 0 && arguments->rank.value_or(0) < arguments->world;
}

}  // namespace

int main(int argc, char** argv) {
  Arguments arguments;
  if (!Parse(argc, argv, &arguments)) {
    std::fprintf(stderr,
                 "usage: all_to_all [--world N] [--rank R] [--kib K] [--rounds M] [--prepared M] [--wait SECONDS] "
                 "SOCKET_DIR...\n");
    return 2;
  }
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < arguments.world; ++rank) {
    if (arguments.rank.has_value() && *arguments.rank != rank) continue;
    threads.emplace_back([&arguments, &failures, rank] {
      const absl::Status status = RunRank(arguments, rank);
      if (status.ok()) return;
      ++failures;
      std::fprintf(stderr, "rank %u: %s\n", rank, status.ToString().c_str());
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failures == 0) std::printf("every byte is right\n");
  return failures == 0 ? 0 : 1;
}
