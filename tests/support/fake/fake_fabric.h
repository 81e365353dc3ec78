// A network in memory, for tests of what sits on top of RailTransport: deterministic when driven by one thread, and
// safe when every transport has its own. Bytes move in bounded steps, inside the receiver's Poll().
#ifndef RAILSD_TESTS_SUPPORT_FAKE_FAKE_FABRIC_H_
#define RAILSD_TESTS_SUPPORT_FAKE_FAKE_FABRIC_H_

#include <cstdint>
#include <memory>
#include <string>

#include "agent/base/ids.h"
#include "agent/transport/transport.h"

namespace railsd {

struct FakeTransportOptions {
  RailIndex rail;
  std::string node;
  BootId boot;
  ZoneTable* zones = nullptr;       // of the node; outlives the transport
  uint64_t step_bytes = 128 << 10;  // received per Poll(), over all peers
  size_t max_posted_orders = 256;
  size_t max_receive_events = 256;  // receiving pauses while so many were not taken
  // One that binds zones writes into its peers' memory by their keys, as RDMA does. Others place what they receive.
  TransportTraits traits;
  bool weak_zones = false;  // keys outlive connections: closing a zone under its writer breaks the link
  // Not null: links come up only after both ends have heard the other's signal. Outlives the transport.
  SignalSink* signals = nullptr;
};

struct FakeFabricState;

// Any thread may call its methods. The transports may outlive it. One mutex guards everything (this is a fake).
class FakeFabric {
 public:
  FakeFabric();
  ~FakeFabric();

  // A transport whose address is unique in this fabric ("fake:1", ...).
  std::unique_ptr<RailTransport> Create(const FakeTransportOptions& options);

  // Cuts every link to and from `address`, as a dead rail would: its orders and those to it come back with ENETDOWN.
  // Heal() lets the links come up again.
  void Fail(const std::string& address);
  void Heal(const std::string& address);
  // Cuts the link between `address` and its peer in both directions, as a reset connection does; it comes up again.
  void Break(const std::string& address, PeerIndex peer, int error_number);

  // How fast `address` receives from now on; 0 stalls it without breaking it.
  void SetStepBytes(const std::string& address, uint64_t step_bytes);

  // The order of `address` that is the `nth` from now (0: the next) to be done at its receiver ends with `result`
  // instead: its bytes are there, its fence is not. kRailFailed takes the link down with it.
  void FailOrder(const std::string& address, uint64_t nth, SendResult result, int error_number);
  // Transports that bind zones: from now on opening zones at `address` fails with this errno; 0: it works again.
  void FailOpenZones(const std::string& address, int error_number);
  // From now on `address` can register no more memory; or can again.
  void RefuseRegistrations(const std::string& address, bool refuse);
  // Keys and registrations that exist.
  size_t OpenKeys(const std::string& address);
  size_t Registrations(const std::string& address);

 private:
  template <typename Change>
  void With(const std::string& address, Change change);

  std::shared_ptr<FakeFabricState> state_;
};

}  // namespace railsd

#endif  // RAILSD_TESTS_SUPPORT_FAKE_FAKE_FABRIC_H_
