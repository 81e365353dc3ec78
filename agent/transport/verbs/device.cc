#include "agent/transport/verbs/device.h"

#include <net/if.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/transport/verbs/queue_pair.h"

namespace railsd::verbs {
namespace {

constexpr uint64_t kLongestMessage = 1 << 30;

absl::StatusOr<ContextHandle> OpenContext(const std::string& who, const std::string& name) {
  int count = 0;
  const std::unique_ptr<ibv_device*[], Destroyer<&ibv_free_device_list>> list(ibv_get_device_list(&count));
  if (list == nullptr) return CallFailed(who, "ibv_get_device_list", errno);
  std::string known;
  for (int i = 0; i < count; ++i) {
    const std::string other = ibv_get_device_name(list[static_cast<size_t>(i)]);
    if (other == name) {
      ContextHandle context(ibv_open_device(list[static_cast<size_t>(i)]));
      if (context == nullptr) return CallFailed(who, "ibv_open_device", errno);
      return context;
    }
    absl::StrAppend(&known, known.empty() ? "" : ", ", other);
  }
  return absl::NotFoundError(
      absl::StrCat(who, ": there is no RDMA device '", name, "'; this node has: ", known.empty() ? "none" : known));
}

// Asks for the registration of a descriptor that is no dma-buf: devices that know how to register one object to the
// descriptor, others to the call.
bool KnowsDmaBufs(ibv_context* context, ibv_pd* domain) {
  const RegionHandle region(ibv_reg_dmabuf_mr(domain, /*offset=*/0, /*length=*/1, /*iova=*/0, context->cmd_fd, 0));
  return region != nullptr || (errno != EOPNOTSUPP && errno != EPROTONOSUPPORT && errno != ENOSYS && errno != ENOTTY);
}

class DeviceRegistrar final : public MemoryRegistrar {
 public:
  explicit DeviceRegistrar(std::shared_ptr<RdmaDevice> device) : device_(std::move(device)) {}

  absl::StatusOr<std::unique_ptr<Registration>> Register(const Segment& segment) override {
    const bool dma_buf = segment.kind() == MemoryKind::kDmaBuf;
    if (dma_buf && MaxReads(*device_) == 0) {
      return absl::UnimplementedError(absl::StrCat(device_->who(), ": segment ", segment.id().value(),
                                                   " is a dma-buf, and the device has no RDMA reads to flush it with"));
    }
    RegionHandle region(dma_buf ? RegisterDmaBuf(segment) : RegisterMapped(segment));
    if (region == nullptr) return Failed(segment, dma_buf ? "ibv_reg_dmabuf_mr" : "ibv_reg_mr", errno);
    return std::make_unique<DeviceRegistration>(device_, std::move(region), /*needs_flush=*/dma_buf);
  }

 private:
  int WindowAccess() const { return device_->has_windows() ? IBV_ACCESS_MW_BIND : 0; }

  ibv_mr* RegisterMapped(const Segment& segment) const {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_RELAXED_ORDERING | WindowAccess();
    return ibv_reg_mr(device_->domain(), segment.base(), segment.length_bytes(), access);
  }

  // Flushes read the memory (flush.h). Without relaxed ordering, so that no write is left behind when a read returns.
  ibv_mr* RegisterDmaBuf(const Segment& segment) const {
    const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | WindowAccess();
    return ibv_reg_dmabuf_mr(device_->domain(), /*offset=*/0, segment.length_bytes(),
                             reinterpret_cast<uint64_t>(segment.base()), segment.fd(), access);
  }

  absl::Status Failed(const Segment& segment, const char* call, int error_number) const {
    const std::string what = absl::StrCat(device_->who(), ": registering segment ", segment.id().value(), " (",
                                          segment.length_bytes(), " bytes)");
    switch (error_number) {
      case ENOMEM:
      case EAGAIN:
      case ENOSPC:
        return absl::ResourceExhaustedError(absl::StrCat(
            what, " failed: ", std::strerror(error_number),
            ". It must be pinned: raise the daemon's memlock limit (LimitMEMLOCK=infinity in its unit, `ulimit -l`), "
            "or the device has no more of its ",
            device_->attributes().max_mr, " memory regions"));
      case EOPNOTSUPP:  // the provider's library, or the driver
      case EPROTONOSUPPORT:
      case ENOSYS:
      case ENOTTY:  // a kernel without the call
      case EINVAL:  // an older kernel, or the two devices cannot reach each other
      case EREMOTEIO:
        if (segment.kind() != MemoryKind::kDmaBuf) break;
        return absl::UnimplementedError(absl::StrCat(
            what, " failed: it is a dma-buf, and the device or its driver cannot register this one (", call, ": ",
            std::strerror(error_number), "); use staging: copy through memory of the host, a memfd"));
      default:
        break;
    }
    return CallFailed(what, call, error_number);
  }

  const std::shared_ptr<RdmaDevice> device_;
};

}  // namespace

absl::Status CallFailed(const std::string& who, const std::string& call, int error_number) {
  return absl::ErrnoToStatus(error_number, absl::StrCat(who, ": ", call));
}

uint32_t MtuBytes(ibv_mtu mtu) { return 128u << std::clamp<uint32_t>(mtu, 1, 5); }
ibv_mtu MtuOf(uint32_t bytes) {
  uint32_t mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && (128u << (mtu + 1)) <= bytes) ++mtu;
  return static_cast<ibv_mtu>(mtu);
}

std::vector<Gid> QueryGids(ibv_context* context, uint8_t port) {
  ibv_port_attr attributes{};
  if (ibv_query_port(context, port, &attributes) != 0 || attributes.gid_tbl_len <= 0) return {};
  // The call returns the GIDs of all ports together.
  ibv_device_attr device{};
  const size_t ports = ibv_query_device(context, &device) == 0 ? std::max<size_t>(device.phys_port_cnt, 1) : 1;
  std::vector<ibv_gid_entry> table(static_cast<size_t>(attributes.gid_tbl_len) * ports);
  const ssize_t count = ibv_query_gid_table(context, table.data(), table.size(), 0);
  std::vector<Gid> gids;
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = table[static_cast<size_t>(i)];
    if (entry.port_num != port) continue;
    Gid gid;
    gid.index = entry.gid_index;
    std::copy(std::begin(entry.gid.raw), std::end(entry.gid.raw), gid.bytes.begin());
    gid.type = entry.gid_type == IBV_GID_TYPE_ROCE_V2   ? GidType::kRoceV2
               : entry.gid_type == IBV_GID_TYPE_ROCE_V1 ? GidType::kRoceV1
                                                        : GidType::kInfiniBand;
    std::array<char, IF_NAMESIZE> name{};
    if (entry.ndev_ifindex != 0 && ::if_indextoname(entry.ndev_ifindex, name.data()) != nullptr) {
      gid.interface = name.data();
    }
    gids.push_back(std::move(gid));
  }
  std::sort(gids.begin(), gids.end(), [](const Gid& a, const Gid& b) { return a.index < b.index; });
  return gids;
}

absl::StatusOr<std::shared_ptr<RdmaDevice>> RdmaDevice::Open(const std::string& who, const std::string& port_name,
                                                             std::optional<uint32_t> forced_gid) {
  const absl::StatusOr<PortName> name = ParsePortName(port_name);
  if (!name.ok()) return absl::Status(name.status().code(), absl::StrCat(who, ": ", name.status().message()));
  const std::string full = absl::StrCat(name->device, "/", int{name->port});
  std::shared_ptr<RdmaDevice> device(new RdmaDevice(absl::StrCat(who, " (", full, ")"), full, name->port, forced_gid));
  absl::StatusOr<ContextHandle> context = OpenContext(device->who_, name->device);
  if (!context.ok()) return context.status();
  device->context_ = *std::move(context);
  if (const int error = ibv_query_device_ex(device->context(), nullptr, &device->attributes_); error != 0) {
    return CallFailed(device->who_, "ibv_query_device_ex", error);
  }
  if (name->port > device->attributes().phys_port_cnt) {
    return absl::NotFoundError(absl::StrCat(device->who_, ": the device has ", int{device->attributes().phys_port_cnt},
                                            " port(s), there is no port ", int{name->port}));
  }
  device->domain_.reset(ibv_alloc_pd(device->context()));
  if (device->domain_ == nullptr) return CallFailed(device->who_, "ibv_alloc_pd", errno);
  device->registers_dma_bufs_ = KnowsDmaBufs(device->context(), device->domain());
  return device;
}

bool RdmaDevice::has_windows() const {
  return (attributes().device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 && attributes().max_mw > 0;
}

absl::StatusOr<RdmaDevice::Address> RdmaDevice::Look(RailDevice* view) const {
  ibv_port_attr attributes{};
  if (const int error = ibv_query_port(context(), port_, &attributes); error != 0) {
    return CallFailed(who_, "ibv_query_port", error);
  }
  const auto unusable = [&](const std::string& why) {
    return absl::FailedPreconditionError(absl::StrCat(who_, ": ", why));
  };
  RdmaPort port;
  port.device = view->name;
  port.port = port_;
  port.gids = QueryGids(context(), port_);
  port.link_layer = attributes.link_layer == IBV_LINK_LAYER_INFINIBAND ? LinkLayer::kInfiniBand : LinkLayer::kEthernet;
  port.lid = attributes.lid;
  view->state = attributes.state == IBV_PORT_ACTIVE ? "active" : attributes.state == IBV_PORT_DOWN ? "down" : "init";
  view->link_layer = port.link_layer == LinkLayer::kEthernet ? "Ethernet" : "InfiniBand";
  view->mtu_bytes = MtuBytes(attributes.active_mtu);
  if (attributes.state != IBV_PORT_ACTIVE)
    return unusable(absl::StrCat("the port is not active: ", ibv_port_state_str(attributes.state)));
  if (port.link_layer == LinkLayer::kInfiniBand && port.lid == 0) {
    return unusable("the port has no LID (is a subnet manager running?)");
  }
  absl::StatusOr<Gid> gid = ChooseGid(port, forced_gid_);
  if (!gid.ok()) return unusable(std::string(gid.status().message()));
  view->gid = port.link_layer == LinkLayer::kInfiniBand ? absl::StrCat("lid ", port.lid) : GidText(gid->bytes);
  view->gid_index = gid->index;
  return Address{*gid, port.lid, port.link_layer, MtuBytes(attributes.active_mtu),
                 std::clamp<uint64_t>(attributes.max_msg_sz, 4096, kLongestMessage)};
}

absl::StatusOr<RdmaDevice::Address> RdmaDevice::Refresh() {
  RailDevice view;
  view.name = port_name_.substr(0, port_name_.rfind('/'));
  view.port = port_;
  view.windows = has_windows();
  view.dma_bufs = registers_dma_bufs_;
  absl::StatusOr<Address> address = Look(&view);
  std::lock_guard lock(mutex_);
  view_ = std::move(view);
  return address;
}

RailDevice RdmaDevice::View() const {
  std::lock_guard lock(mutex_);
  return view_;
}

std::shared_ptr<MemoryRegistrar> MakeRegistrar(std::shared_ptr<RdmaDevice> device) {
  return std::make_shared<DeviceRegistrar>(std::move(device));
}

}  // namespace railsd::verbs
