// One port of one RDMA device, opened for a rail: context, protection domain, attributes, the GID that it uses.
#ifndef RAILSD_AGENT_TRANSPORT_VERBS_DEVICE_H_
#define RAILSD_AGENT_TRANSPORT_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agent/transport/transport.h"
#include "agent/transport/verbs/discovery.h"
#include "agent/transport/verbs/handles.h"

namespace railsd::verbs {

// The status of a libibverbs call that returned or set `error_number`: "WHO: CALL: words".
absl::Status CallFailed(const std::string& who, const std::string& call, int error_number);

uint32_t MtuBytes(ibv_mtu mtu);
ibv_mtu MtuOf(uint32_t bytes);  // the largest MTU of at most `bytes`; 256 at least

// The GIDs in use on a port, which the device reports in one call. Empty if it cannot.
std::vector<Gid> QueryGids(ibv_context* context, uint8_t port);

// Immutable but for the port's state. Shared by the transport and the registrations that outlive it.
class RdmaDevice {
 public:
  // `who`: the rail, for messages. `forced_gid`: see ChooseGid(). NOT_FOUND: no such device or port. A port that is not
  // active opens, without an address.
  static absl::StatusOr<std::shared_ptr<RdmaDevice>> Open(const std::string& who, const std::string& port_name,
                                                          std::optional<uint32_t> forced_gid);

  const std::string& who() const { return who_; }  // "rail 3 (mlx5_3/1)"
  const std::string& port_name() const { return port_name_; }
  uint8_t port() const { return port_; }
  ibv_context* context() const { return context_.get(); }
  ibv_pd* domain() const { return domain_.get(); }
  const ibv_device_attr& attributes() const { return attributes_.orig_attr; }
  // Zones can have keys of their own: memory windows of type 2B.
  bool has_windows() const;
  // As far as can be known without a dma-buf: the device's driver and library know how to register one.
  bool registers_dma_bufs() const { return registers_dma_bufs_; }

  // The port's address, for queue pairs, and its limits.
  struct Address {
    Gid gid;
    uint16_t lid = 0;
    LinkLayer link_layer = LinkLayer::kEthernet;
    uint32_t mtu_bytes = 0;
    uint64_t max_message_bytes = 0;
    friend bool operator==(const Address& a, const Address& b) {
      return a.gid.index == b.gid.index && a.gid.bytes == b.gid.bytes && a.lid == b.lid &&
             a.link_layer == b.link_layer && a.mtu_bytes == b.mtu_bytes;
    }
  };
  // Looks at the port again. FAILED_PRECONDITION, saying why, while it cannot be used. Any thread.
  absl::StatusOr<Address> Refresh();
  // As last seen. Any thread.
  RailDevice View() const;

 private:
  RdmaDevice(std::string who, std::string port_name, uint8_t port, std::optional<uint32_t> forced_gid)
      : who_(std::move(who)), port_name_(std::move(port_name)), port_(port), forced_gid_(forced_gid) {}
  absl::StatusOr<Address> Look(RailDevice* view) const;

  const std::string who_;
  const std::string port_name_;
  const uint8_t port_;
  const std::optional<uint32_t> forced_gid_;
  ContextHandle context_;
  DomainHandle domain_;
  ibv_device_attr_ex attributes_{};
  bool registers_dma_bufs_ = false;
  mutable std::mutex mutex_;
  RailDevice view_ ABSL_GUARDED_BY(mutex_);
};

// Registers segments on one device: see agent/memory/registration.h.
std::shared_ptr<MemoryRegistrar> MakeRegistrar(std::shared_ptr<RdmaDevice> device);

// The class of MakeRegistrar()'s registrations.
class DeviceRegistration final : public Registration {
 public:
  // `needs_flush`: see Registration. The region then has IBV_ACCESS_REMOTE_READ.
  DeviceRegistration(std::shared_ptr<RdmaDevice> device, RegionHandle region, bool needs_flush)
      : device_(std::move(device)), region_(std::move(region)), needs_flush_(needs_flush) {}
  uint32_t local_key() const override { return region_->lkey; }
  bool needs_flush() const override { return needs_flush_; }
  uint32_t remote_key() const { return region_->rkey; }
  ibv_mr* region() const { return region_.get(); }

 private:
  std::shared_ptr<RdmaDevice> device_;
  RegionHandle region_;
  const bool needs_flush_;
};

}  // namespace railsd::verbs

#endif  // RAILSD_AGENT_TRANSPORT_VERBS_DEVICE_H_
