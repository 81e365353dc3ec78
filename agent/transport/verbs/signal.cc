#include "agent/transport/verbs/signal.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace railsd::verbs {
namespace {

constexpr uint32_t kMagic = 0x53565252;  // "RRVS"
constexpr size_t kMaxText = 255;

class Writer {
 public:
  template <typename T>
  void Put(T value) {
    for (size_t i = 0; i < sizeof(T); ++i) bytes_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void PutText(const std::string& text) {
    const size_t length = std::min(text.size(), kMaxText);
    Put(static_cast<uint8_t>(length));
    bytes_.append(text, 0, length);
  }
  void PutBytes(const std::array<uint8_t, 16>& bytes) {
    bytes_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(const std::string& bytes) : bytes_(bytes) {}
  // The readers leave the value at 0 and set failed() when the message ends too early.
  template <typename T>
  T Get() {
    uint64_t value = 0;
    if (!Has(sizeof(T))) return T{};
    for (size_t i = 0; i < sizeof(T); ++i) value |= uint64_t{static_cast<uint8_t>(bytes_[at_ + i])} << (8 * i);
    at_ += sizeof(T);
    return static_cast<T>(value);
  }
  std::string GetText() {
    const size_t length = Get<uint8_t>();
    if (!Has(length)) return "";
    at_ += length;
    return bytes_.substr(at_ - length, length);
  }
  void GetBytes(std::array<uint8_t, 16>* out) {
    if (!Has(out->size())) return;
    std::memcpy(out->data(), bytes_.data() + at_, out->size());
    at_ += out->size();
  }
  bool failed() const { return failed_; }
  size_t left() const { return bytes_.size() - at_; }

 private:
  bool Has(size_t length) {
    failed_ = failed_ || left() < length;
    return !failed_;
  }
  const std::string& bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

absl::Status Wrong(const std::string& what) { return absl::InvalidArgumentError(absl::StrCat("rail signal: ", what)); }

bool IsMtu(uint32_t mtu_bytes) {
  return mtu_bytes == 256 || mtu_bytes == 512 || mtu_bytes == 1024 || mtu_bytes == 2048 || mtu_bytes == 4096;
}

absl::Status ReadEndpoint(Reader& reader, EndpointAddress* endpoint) {
  reader.GetBytes(&endpoint->gid);
  endpoint->lid = reader.Get<uint16_t>();
  const auto layer = reader.Get<uint8_t>();
  endpoint->mtu_bytes = reader.Get<uint32_t>();
  endpoint->max_dest_rd_atomic = reader.Get<uint8_t>();
  const size_t count = reader.Get<uint8_t>();
  if (reader.failed()) return Wrong("it ends inside the endpoint");
  if (layer != 1 && layer != 2) return Wrong(absl::StrCat("link layer ", int{layer}, " is neither 1 nor 2"));
  endpoint->link_layer = static_cast<LinkLayer>(layer);
  if (!IsMtu(endpoint->mtu_bytes)) return Wrong(absl::StrCat("MTU ", endpoint->mtu_bytes, " is invalid"));
  if (count == 0 || count > kMaxQueuePairsPerPeer) {
    return Wrong(absl::StrCat(count, " queue pairs are not 1 to ", kMaxQueuePairsPerPeer));
  }
  for (size_t i = 0; i < count; ++i) {
    EndpointAddress::QueuePair pair;
    pair.number = reader.Get<uint32_t>();
    pair.psn = reader.Get<uint32_t>();
    if (reader.failed()) return Wrong(absl::StrCat("it ends inside queue pair ", i, " of ", count));
    if (pair.number >> 24 != 0 || pair.psn >> 24 != 0) {
      return Wrong(absl::StrCat("queue pair ", i, ": number ", pair.number, ", PSN ", pair.psn, " exceed 24 bits"));
    }
    endpoint->queue_pairs.push_back(pair);
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeSignal(const Signal& signal) {
  Writer writer;
  writer.Put(kMagic);
  writer.Put(signal.version);
  writer.Put(static_cast<uint8_t>(signal.kind));
  writer.Put(static_cast<uint8_t>(signal.state));
  writer.Put(static_cast<uint8_t>(signal.reason));
  writer.PutText(signal.node);
  writer.Put(signal.rail.value());
  writer.PutText(signal.port);
  writer.Put(signal.boot.value());
  writer.Put(signal.to_boot.value());
  writer.Put(signal.generation);
  writer.Put(signal.answers);
  if (signal.kind == Signal::Kind::kHello) {
    const EndpointAddress& endpoint = signal.endpoint;
    const size_t count = std::min(endpoint.queue_pairs.size(), kMaxQueuePairsPerPeer);
    writer.PutBytes(endpoint.gid);
    writer.Put(endpoint.lid);
    writer.Put(static_cast<uint8_t>(endpoint.link_layer));
    writer.Put(endpoint.mtu_bytes);
    writer.Put(endpoint.max_dest_rd_atomic);
    writer.Put(static_cast<uint8_t>(count));
    for (size_t i = 0; i < count; ++i) {
      writer.Put(endpoint.queue_pairs[i].number);
      writer.Put(endpoint.queue_pairs[i].psn);
    }
  }
  if (signal.kind == Signal::Kind::kRefused) writer.PutText(signal.text);
  return writer.Take();
}

absl::StatusOr<Signal> DecodeSignal(const std::string& bytes) {
  if (bytes.size() > kMaxSignalBytes) {
    return Wrong(absl::StrCat(bytes.size(), " bytes are more than ", kMaxSignalBytes));
  }
  Reader reader(bytes);
  Signal signal;
  if (reader.Get<uint32_t>() != kMagic) return Wrong("it does not begin with the magic number");
  signal.version = reader.Get<uint16_t>();
  if (reader.failed()) return Wrong("it ends before its version");
  if (signal.version != kSignalVersion) return signal;
  const auto kind = reader.Get<uint8_t>();
  const auto state = reader.Get<uint8_t>();
  const auto reason = reader.Get<uint8_t>();
  signal.node = reader.GetText();
  signal.rail = RailIndex(reader.Get<uint32_t>());
  signal.port = reader.GetText();
  signal.boot = BootId(reader.Get<uint64_t>());
  signal.to_boot = BootId(reader.Get<uint64_t>());
  signal.generation = reader.Get<uint64_t>();
  signal.answers = reader.Get<uint64_t>();
  if (reader.failed()) return Wrong("it ends inside its head");
  if (kind < 1 || kind > 3) return Wrong(absl::StrCat("kind ", int{kind}, " is not known"));
  if (state > 2) return Wrong(absl::StrCat("state ", int{state}, " is not known"));
  if (reason > 6) return Wrong(absl::StrCat("reason ", int{reason}, " is not known"));
  signal.kind = static_cast<Signal::Kind>(kind);
  signal.state = static_cast<LinkState>(state);
  signal.reason = static_cast<RefusalReason>(reason);
  if (signal.kind == Signal::Kind::kHello) {
    if (signal.generation == 0) return Wrong("generation 0 is invalid");
    if ((signal.state == LinkState::kInit) != (signal.answers == 0)) {
      return Wrong(absl::StrCat("state ", int{state}, " does not go with answering generation ", signal.answers));
    }
    if (absl::Status status = ReadEndpoint(reader, &signal.endpoint); !status.ok()) return status;
  }
  if (signal.kind == Signal::Kind::kRefused) signal.text = reader.GetText();
  if (reader.failed()) return Wrong("it ends inside its text");
  if (reader.left() != 0) return Wrong(absl::StrCat(reader.left(), " bytes too many"));
  return signal;
}

std::string GidText(const std::array<uint8_t, 16>& gid) {
  static constexpr std::array<uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool mapped = std::equal(kMapped.begin(), kMapped.end(), gid.begin());
  ::inet_ntop(mapped ? AF_INET : AF_INET6, gid.data() + (mapped ? kMapped.size() : 0), text.data(), text.size());
  return text.data();
}

}  // namespace railsd::verbs
