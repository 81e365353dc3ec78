#include "client/cuda/local_peers.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace rails::cuda {
namespace {

// Allocations of other processes that stay open. To open one takes milliseconds.
constexpr size_t kMaxOpen = 64;
static_assert(kMaxOpen > LocalNote::kMaxParts);

// Submits an exchange of `bytes` with each rank of `peers`, through a buffer, and waits for its end.
absl::Status ExchangeSmall(rails::Group& group, const Buffers& buffers, const std::vector<uint32_t>& peers,
                           uint64_t bytes, uint64_t tag, absl::Duration timeout) {
  AllToAllv exchange{.tag = tag, .timeout = timeout};
  for (size_t i = 0; i < peers.size(); ++i) {
    const BufferSpan send = buffers.Send(0), receive = buffers.Receive(0);
    exchange.sends.push_back({peers[i], {{send.segment, send.offset_bytes + i * bytes, bytes}}});
    exchange.receives.push_back({peers[i], {{receive.segment, receive.offset_bytes + i * bytes, bytes}}});
  }
  absl::StatusOr<std::shared_ptr<rails::Job>> job = group.Submit(exchange);
  if (!job.ok()) return job.status();
  const absl::StatusOr<JobReport> report = (*job)->Wait();
  return report.ok() ? report->status : report.status();
}

}  // namespace

LocalPeers::ProcessId LocalPeers::ThisProcess() {
  static const ProcessId id = [] {
    std::random_device random;
    const auto word = [&] { return uint64_t{random()} << 32 | random(); };
    return ProcessId{word(), word()};
  }();
  return id;
}

LocalPeers::~LocalPeers() {
  for (const Opened& opened : opened_) device_->driver().cuIpcCloseMemHandle(opened.base);
}

absl::Status LocalPeers::AgreeOn(rails::Group& group, const Buffers& buffers, bool wanted, uint64_t tag,
                                 absl::Duration timeout) {
  std::vector<uint32_t> peers;
  for (uint32_t rank = 0; rank < group.world_size(); ++rank) {
    if (rank != group.rank() && group.members()[rank] == group.members()[group.rank()]) peers.push_back(rank);
  }
  const Driver& driver = device_->driver();
  Hello own{.process = ThisProcess()};
  Address trial = 0;
  if (wanted && !peers.empty() && driver.cuIpcGetMemHandle != nullptr && driver.cuIpcOpenMemHandle_v2 != nullptr &&
      driver.cuIpcCloseMemHandle != nullptr && driver.cuMemAlloc_v2(&trial, 1) == kSuccess) {
    const absl::StatusOr<RemotePart> part = Name(trial, 1);
    own.usable = part.ok() ? 1 : 0;
    if (part.ok()) own.part = *part;
  }
  const auto send = [&](size_t i, const auto& message) {
    std::memcpy(buffers.Send(0).begin() + i * sizeof(message), &message, sizeof(message));
  };
  for (size_t i = 0; i < peers.size(); ++i) send(i, own);
  absl::Status status = ExchangeSmall(group, buffers, peers, sizeof(Hello), tag, timeout);
  for (size_t i = 0; status.ok() && i < peers.size(); ++i) {
    Hello hello;
    std::memcpy(&hello, buffers.Receive(0).begin() + i * sizeof(hello), sizeof(hello));
    const bool same = hello.process == own.process;
    if (own.usable != 0 && hello.usable != 0 && Find(hello.part, same, nullptr).ok()) reads_[peers[i]] = same;
  }
  for (const Opened& opened : opened_) driver.cuIpcCloseMemHandle(opened.base);
  opened_.clear();
  for (size_t i = 0; i < peers.size(); ++i) send(i, uint64_t{Reads(peers[i])});
  if (status.ok()) status = ExchangeSmall(group, buffers, peers, sizeof(uint64_t), tag, timeout);
  for (size_t i = 0; status.ok() && i < peers.size(); ++i) {
    uint64_t reads = 0;
    std::memcpy(&reads, buffers.Receive(0).begin() + i * sizeof(reads), sizeof(reads));
    read_by_[peers[i]] = reads == 1;
  }
  // Both ways or none: an acknowledgement is then the only flow of its ranks in a slice.
  for (const uint32_t peer : peers) {
    if (Reads(peer) && read_by_[peer]) continue;
    reads_[peer].reset();
    read_by_[peer] = false;
  }
  if (trial != 0) driver.cuMemFree_v2(trial);  // all others have closed it
  return status;
}

absl::StatusOr<RemotePart> LocalPeers::Name(Address address, uint64_t length_bytes) const {
  const Driver& driver = device_->driver();
  RemotePart part{.length_bytes = length_bytes, .address = address};
  Address base = 0;
  size_t bytes = 0;
  absl::Status status = driver.Check(driver.cuMemGetAddressRange_v2(&base, &bytes, address), "cuMemGetAddressRange");
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("memory of the device at 0x", absl::Hex(address), ": ", status.message(),
                                     "; it must stay allocated until its job has ended"));
  }
  status = driver.Check(driver.cuIpcGetMemHandle(&part.handle, base), "cuIpcGetMemHandle");
  if (!status.ok()) {
    return absl::Status(status.code(),
                        absl::StrCat("memory of the device at 0x", absl::Hex(address),
                                     " cannot be shared with other processes of this node: ", status.message(),
                                     "; allocate it by cudaMalloc() (torch: without expandable_segments), or join "
                                     "without local copies"));
  }
  part.offset_bytes = address - base;
  return part;
}

bool LocalPeers::MustGather(const Flow& flow) {
  return flow.parts.size() > LocalNote::kMaxParts ||
         std::any_of(flow.parts.begin(), flow.parts.end(), [](const Part& part) { return !part.on_device(); });
}

absl::StatusOr<LocalNote> LocalPeers::Write(const Flow& flow, const Memory* gathered, Stream stream) const {
  const Driver& driver = device_->driver();
  LocalNote note{.length_bytes = flow.total_bytes};
  uint64_t at = 0;
  for (const Part& part : flow.parts) {
    absl::StatusOr<RemotePart> named;
    if (gathered == nullptr) {
      named = Name(part.address, part.length_bytes);
      if (!named.ok()) return named.status();
      note.parts[note.part_count++] = *named;
      continue;
    }
    if (part.on_device()) {
      const absl::Status status = driver.Check(
          driver.cuMemcpyAsync(gathered->address() + at, part.address, part.length_bytes, stream), "cuMemcpyAsync");
      if (!status.ok()) return status;
    }
    at += part.length_bytes;
  }
  if (gathered == nullptr) return note;
  const absl::StatusOr<RemotePart> named = Name(gathered->address(), flow.total_bytes);
  if (!named.ok()) return named.status();
  note.parts[note.part_count++] = *named;
  return note;
}

absl::StatusOr<uint64_t> LocalPeers::Read(const LocalNote& note, Flow* flow, Stream stream) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InternalError(absl::StrCat("rank ", flow->rank, " of this node has sent a note that ", what));
  };
  if (note.part_count > LocalNote::kMaxParts) return wrong(absl::StrCat("has ", note.part_count, " parts"));
  if (note.length_bytes > flow->room_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("rank ", flow->rank, " sends ", note.length_bytes,
                                                   " bytes, and this rank expects ", flow->room_bytes));
  }
  flow->total_bytes = note.length_bytes;
  Flow source{.rank = flow->rank};
  uint64_t total = 0;
  for (uint32_t i = 0; i < note.part_count; ++i) {
    const RemotePart& part = note.parts[i];
    if (part.length_bytes > note.length_bytes - total) return wrong("has longer parts than bytes");
    total += part.length_bytes;
    const absl::StatusOr<Address> address = Find(part, *reads_[flow->rank], stream);
    if (!address.ok()) return address.status();
    source.parts.push_back({.address = *address, .length_bytes = part.length_bytes});
  }
  if (total != note.length_bytes) return wrong("has shorter parts than bytes");
  const Driver& driver = device_->driver();
  for (const Copy& copy : CopiesBetween(source, *flow)) {
    const absl::Status status =
        driver.Check(driver.cuMemcpyAsync(copy.to, copy.from, copy.bytes, stream), "cuMemcpyAsync");
    if (!status.ok()) return status;
  }
  return total;
}

absl::StatusOr<Address> LocalPeers::Find(const RemotePart& part, bool same_process, Stream stream) {
  if (same_process) return part.address;
  const auto found = std::find_if(opened_.begin(), opened_.end(), [&](const Opened& opened) {
    return std::memcmp(&opened.handle, &part.handle, sizeof(part.handle)) == 0;
  });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
  } else {
    absl::StatusOr<Opened> opened = Open(part.handle);
    if (!opened.ok()) return opened.status();
    opened_.push_front(*std::move(opened));
    if (opened_.size() > kMaxOpen) {
      device_->driver().cuStreamSynchronize(stream);  // it may still copy from there
      device_->driver().cuIpcCloseMemHandle(opened_.back().base);
      opened_.pop_back();
    }
  }
  const Opened& opened = opened_.front();
  if (part.offset_bytes > opened.length_bytes || part.length_bytes > opened.length_bytes - part.offset_bytes) {
    return absl::InternalError(absl::StrCat("a rank of this node names bytes past the end of its allocation of ",
                                            opened.length_bytes, " bytes"));
  }
  return opened.base + part.offset_bytes;
}

absl::StatusOr<LocalPeers::Opened> LocalPeers::Open(const IpcHandle& handle) {
  const Driver& driver = device_->driver();
  Opened opened{.handle = handle};
  absl::Status status =
      driver.Check(driver.cuIpcOpenMemHandle_v2(&opened.base, handle, kIpcLazyPeerAccess), "cuIpcOpenMemHandle");
  if (!status.ok()) return status;
  Address base = 0;
  size_t bytes = 0;
  status = driver.Check(driver.cuMemGetAddressRange_v2(&base, &bytes, opened.base), "cuMemGetAddressRange");
  if (!status.ok()) {
    driver.cuIpcCloseMemHandle(opened.base);
    return status;
  }
  opened.length_bytes = bytes;
  return opened;
}

}  // namespace rails::cuda
