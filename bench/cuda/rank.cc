#include "bench/cuda/rank.h"

#include <chrono>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "bench/cuda/pinned.h"

namespace railsd::bench {
namespace {

constexpr absl::Duration kLimit = absl::Minutes(1);

absl::Status EndOf(rails::Job& job) {
  const absl::StatusOr<rails::JobReport> report = job.Wait(kLimit);
  if (!report.ok()) return report.status();
  if (!report->terminal) return absl::DeadlineExceededError("a job has not ended within a minute");
  return report->status;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

rails::cuda::Address AddressOf(const void* memory) { return reinterpret_cast<rails::cuda::Address>(memory); }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaRank>> CudaRank::Join(const CudaOptions& options, uint32_t rank) {
  std::unique_ptr<CudaRank> joined(new CudaRank(options, rank));
  if (absl::Status status = joined->Open(); !status.ok()) return status;
  return joined;
}

absl::Status CudaRank::Open() {
  absl::StatusOr<std::unique_ptr<rails::Client>> client =
      rails::Client::Connect({.socket_dir = options_.socket_dirs[rank_ % options_.socket_dirs.size()]});
  if (!client.ok()) return client.status();
  client_ = *std::move(client);
  auto device = rails::cuda::Device::Open(*client_, {.ordinal = options_.device, .driver = options_.driver});
  if (!device.ok()) return device.status();
  device_ = *std::move(device);
  driver_ = *rails::cuda::Driver::Open(options_.driver);
  driver_->cuDevicePrimaryCtxRetain(&context_, options_.device);
  driver_->cuCtxPushCurrent_v2(context_);
  for (rails::cuda::Stream* stream : {&stream_, &copies_in_}) {
    driver_->cuStreamCreate(stream, rails::cuda::kStreamNonBlocking);
  }
  for (std::shared_ptr<rails::cuda::Memory>* memory : {&send_, &receive_}) {
    auto made = device_->Allocate(options_.bytes);
    if (!made.ok()) return made.status();
    *memory = *std::move(made);
  }
  for (std::shared_ptr<rails::Segment>* segment : {&host_send_, &host_receive_}) {
    auto made = client_->CreateSegment(options_.bytes);
    if (!made.ok()) return made.status();
    *segment = *std::move(made);
    const absl::Status pinned = driver_->Check(
        driver_->cuMemHostRegister_v2((*segment)->bytes().data(), options_.bytes, rails::cuda::kHostRegisterPortable),
        "cuMemHostRegister");
    if (!pinned.ok()) return pinned;
  }
  const rails::GroupOptions options{.name = "cuda ranks", .world_size = options_.world_size, .rank = rank_};
  auto group = device_->JoinGroup(options, options_.staging);
  if (!group.ok()) return group.status();
  group_ = *std::move(group);
  rails::GroupOptions host_options = options;
  host_options.name = "host ranks";
  auto host_group = client_->JoinGroup(host_options);
  if (!host_group.ok()) return host_group.status();
  host_group_ = *std::move(host_group);
  return absl::OkStatus();
}

CudaRank::~CudaRank() {
  group_ = nullptr;
  host_group_ = nullptr;
  if (context_ == nullptr) return;
  for (rails::cuda::Stream stream : {stream_, copies_in_}) {
    driver_->cuStreamSynchronize(stream);
    driver_->cuStreamDestroy_v2(stream);
  }
  for (const std::shared_ptr<rails::Segment>& segment : {host_send_, host_receive_}) {
    if (segment != nullptr) driver_->cuMemHostUnregister(segment->bytes().data());
  }
  send_ = receive_ = nullptr;
  device_ = nullptr;
  driver_->cuCtxPopCurrent_v2(&context_);
  driver_->cuDevicePrimaryCtxRelease_v2(options_.device);
}

rails::AllToAllv CudaRank::Exchange(const std::shared_ptr<rails::Segment>& send,
                                    const std::shared_ptr<rails::Segment>& receive) const {
  rails::AllToAllv exchange;
  for (size_t i = 0; i + 1 < options_.world_size; ++i) {
    exchange.sends.push_back({Peer(i), {{send, i * FlowBytes(), FlowBytes()}}});
    exchange.receives.push_back({Peer(i), {{receive, i * FlowBytes(), FlowBytes()}}});
  }
  return exchange;
}

std::string CudaRank::Content(uint32_t turn, uint32_t from, uint32_t to) const {
  std::string content(FlowBytes(), 0);
  uint64_t value = ((uint64_t{options_.seed} * 1000 + turn) * 1000 + from) * 1000 + to;
  for (size_t i = 0; i < content.size(); i += sizeof(value)) {
    value = value * 6364136223846793005 + 1442695040888963407;
    const uint64_t word = value ^ (value >> 29);
    std::memcpy(content.data() + i, &word, std::min(sizeof(word), content.size() - i));
  }
  return content;
}

absl::Status CudaRank::CheckBytes() {
  std::vector<std::string> sent(options_.turns), received(options_.turns);
  std::vector<Pinned> pinned;
  const auto settle = absl::MakeCleanup([this] { driver_->cuStreamSynchronize(stream_); });  // before they are unpinned
  std::vector<std::shared_ptr<rails::cuda::Job>> jobs;
  rails::AllToAllv exchange = Exchange(send_, receive_);
  for (uint32_t turn = 0; turn < options_.turns; ++turn) {
    for (size_t i = 0; i + 1 < options_.world_size; ++i) sent[turn] += Content(turn, rank_, Peer(i));
    received[turn].resize(sent[turn].size());
    for (std::string* bytes : {&sent[turn], &received[turn]}) pinned.emplace_back(*driver_, bytes);
    driver_->cuMemcpyAsync(send_->address(), AddressOf(sent[turn].data()), sent[turn].size(), stream_);
    exchange.tag = turn;
    auto job = group_->Submit(exchange, stream_, kLimit);
    if (!job.ok()) return job.status();
    if (absl::Status status = (*job)->WaitOn(stream_); !status.ok()) return status;
    // A job that has not read all of it would send these.
    driver_->cuMemsetD8Async(send_->address(), 0xee, options_.bytes, stream_);
    driver_->cuMemcpyAsync(AddressOf(received[turn].data()), receive_->address(), received[turn].size(), stream_);
    jobs.push_back(*std::move(job));
  }
  driver_->cuStreamSynchronize(stream_);
  for (uint32_t turn = 0; turn < options_.turns; ++turn) {
    if (absl::Status status = EndOf(*jobs[turn]); !status.ok()) return status;
    for (size_t i = 0; i + 1 < options_.world_size; ++i) {
      if (received[turn].substr(i * FlowBytes(), FlowBytes()) == Content(turn, Peer(i), rank_)) continue;
      return absl::DataLossError(
          absl::StrCat("turn ", turn, ": bytes from rank ", Peer(i), " to ", rank_, " are wrong"));
    }
    const rails::cuda::Copies copies = jobs[turn]->copies();
    // Bytes of other nodes are copied out once and in once, those of this node once by the receiver.
    if (copies.to_host_bytes + copies.to_device_bytes + 2 * copies.local_bytes ==
        2 * FlowBytes() * (options_.world_size - 1)) {
      local_bytes_ += copies.local_bytes;
      continue;
    }
    return absl::InternalError(absl::StrCat("turn ", turn, ": ", copies.to_host_bytes, " bytes were copied out, ",
                                            copies.to_device_bytes, " in, and ", copies.local_bytes,
                                            " from ranks of this node"));
  }
  return absl::OkStatus();
}

absl::StatusOr<double> CudaRank::TimeRails() {
  const auto start = std::chrono::steady_clock::now();
  auto job = host_group_->Submit(Exchange(host_send_, host_receive_));
  if (!job.ok()) return job.status();
  if (absl::Status status = EndOf(**job); !status.ok()) return status;
  return SecondsSince(start);
}

absl::StatusOr<double> CudaRank::TimeStaged() {
  const auto start = std::chrono::steady_clock::now();
  auto job = group_->Submit(Exchange(send_, receive_), stream_, kLimit);
  if (!job.ok()) return job.status();
  if (absl::Status status = EndOf(**job); !status.ok()) return status;
  return SecondsSince(start);
}

absl::StatusOr<double> CudaRank::TimeCopies() {
  const auto start = std::chrono::steady_clock::now();
  driver_->cuMemcpyAsync(AddressOf(host_send_->bytes().data()), send_->address(), options_.bytes, stream_);
  driver_->cuMemcpyAsync(receive_->address(), AddressOf(host_receive_->bytes().data()), options_.bytes, copies_in_);
  for (rails::cuda::Stream stream : {stream_, copies_in_}) {
    const absl::Status status = driver_->Check(driver_->cuStreamSynchronize(stream), "cuStreamSynchronize");
    if (!status.ok()) return status;
  }
  return SecondsSince(start);
}

}  // namespace railsd::bench
