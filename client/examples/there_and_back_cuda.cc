// Bytes to the memory of GPUs and back, as a mixture-of-experts layer moves its tokens, every byte checked.
//
//   there_and_back_cuda RANK WORLD SOCKET_DIR [DRIVER]
//
// Each rank is a process with GPU 0. A first job brings bytes from a segment of each rank into device memory of all
// ranks, a second one brings them back. The second one begins on the GPU's stream, when the first one has ended.
// DRIVER is the library of the driver, libcuda.so.1 unless given.
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rails/client.h"
#include "rails/cuda.h"

namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

// Unequal, like the tokens of a router of experts.
uint64_t LengthBytes(uint32_t from, uint32_t to) { return 100'000 * ((from * 7 + to * 5) % 4) + from + 1; }

std::byte Pattern(uint32_t from, uint64_t i) { return static_cast<std::byte>(i * 31 + (i >> 8) + from * 17); }

// The flows that `rank` sends to every rank, or those that it receives from every rank, one behind the other.
std::vector<rails::FlowRanges> Flows(const std::shared_ptr<rails::Segment>& memory, uint32_t rank, uint32_t world,
                                     bool sends) {
  std::vector<rails::FlowRanges> flows;
  uint64_t offset_bytes = 0;
  for (uint32_t peer = 0; peer < world; ++peer) {
    const uint64_t length_bytes = sends ? LengthBytes(rank, peer) : LengthBytes(peer, rank);
    flows.push_back({peer, {{memory, offset_bytes, length_bytes}}});
    offset_bytes += length_bytes;
  }
  return flows;
}

absl::Status Run(uint32_t rank, uint32_t world, const std::string& socket_dir, const std::string& driver) {
  auto client = rails::Client::Connect({.socket_dir = socket_dir,
                                        .client_name = "there_and_back_cuda rank " + std::to_string(rank),
                                        .connect_timeout = kPatience});
  if (!client.ok()) return client.status();
  auto device = rails::cuda::Device::Open(**client, {.driver = driver});
  if (!device.ok()) return device.status();
  auto group =
      (*device)->JoinGroup({.name = "there and back", .world_size = world, .rank = rank, .timeout = kPatience});
  if (!group.ok()) return group.status();

  uint64_t out_bytes = 0, in_bytes = 0;
  for (uint32_t peer = 0; peer < world; ++peer) {
    out_bytes += LengthBytes(rank, peer);
    in_bytes += LengthBytes(peer, rank);
  }
  auto tokens = (*client)->CreateSegment(out_bytes), returned = (*client)->CreateSegment(out_bytes);
  if (!tokens.ok()) return tokens.status();
  if (!returned.ok()) return returned.status();
  auto experts = (*device)->Allocate(in_bytes);
  if (!experts.ok()) return experts.status();
  for (uint64_t i = 0; i < out_bytes; ++i) (*tokens)->bytes()[i] = Pattern(rank, i);

  rails::AllToAllv dispatch, combine;
  dispatch.sends = Flows(*tokens, rank, world, /*sends=*/true);
  dispatch.receives = Flows(*experts, rank, world, /*sends=*/false);
  combine.sends = Flows(*experts, rank, world, /*sends=*/false);
  combine.receives = Flows(*returned, rank, world, /*sends=*/true);

  const rails::cuda::Stream stream = nullptr;  // the default stream; a trainer gives its own
  auto there = (*group)->Submit(dispatch, stream, kPatience);
  if (!there.ok()) return there.status();
  if (absl::Status s = (*there)->WaitOn(stream); !s.ok()) return s;
  // Kernels that work on the tokens would come here.
  auto back = (*group)->Submit(combine, stream, kPatience);
  if (!back.ok()) return back.status();

  for (const auto& job : {*there, *back}) {
    auto report = job->Wait(kPatience);
    if (!report.ok()) return report.status();
    if (!report->status.ok()) return report->status;
    if (!report->terminal) return absl::DeadlineExceededError("the job has not ended in 30 s");
    const rails::cuda::Copies copies = job->copies();
    std::printf("rank %u job %llu: sent %llu bytes, received %llu; the GPU copied %llu bytes out and %llu in\n", rank,
                static_cast<unsigned long long>(report->seq), static_cast<unsigned long long>(report->bytes_sent),
                static_cast<unsigned long long>(report->bytes_received),
                static_cast<unsigned long long>(copies.to_host_bytes),
                static_cast<unsigned long long>(copies.to_device_bytes));
  }
  for (uint64_t i = 0; i < out_bytes; ++i) {
    if ((*returned)->bytes()[i] == Pattern(rank, i)) continue;
    return absl::DataLossError("byte " + std::to_string(i) + " that came back is wrong");
  }
  return absl::OkStatus();
}

bool ParseNumber(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

int main(int argc, char** argv) {
  uint32_t rank = 0, world = 0;
  if ((argc != 4 && argc != 5) || !ParseNumber(argv[1], &rank) || !ParseNumber(argv[2], &world) || rank >= world) {
    std::fprintf(stderr, "usage: there_and_back_cuda RANK WORLD SOCKET_DIR [DRIVER], RANK from 0 to WORLD - 1\n");
    return 2;
  }
  const absl::Status status = Run(rank, world, argv[3], argc == 5 ? argv[4] : "libcuda.so.1");
  if (!status.ok()) {
    std::fprintf(stderr, "rank %u: %s\n", rank, status.ToString().c_str());
    return 1;
  }
  std::printf("rank %u: every byte is right\n", rank);
  return 0;
}
