// Looks one name up again and again on a thread of its own ("dns").
#ifndef RAILSD_DAEMON_PEER_DNS_RESOLVER_H_
#define RAILSD_DAEMON_PEER_DNS_RESOLVER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace railsd {

// Every address behind `name`, as "ip:port", sorted, each once. Blocks. NOT_FOUND names the name and the reason.
absl::StatusOr<std::vector<std::string>> ResolveAll(const std::string& name, uint16_t port);

class DnsResolver {
 public:
  using OnAddresses = std::function<void(absl::StatusOr<std::vector<std::string>>)>;
  // Calls `on_addresses` on its thread after each look-up: at once, each `refresh`, and after Poke().
  DnsResolver(std::string name, uint16_t port, absl::Duration refresh, OnAddresses on_addresses);
  ~DnsResolver();  // joins the thread; waits for a look-up under way
  // Looks up soon (not more often than ten times per `refresh`).
  void Poke();

 private:
  void Loop();

  const std::string name_;
  const uint16_t port_;
  const absl::Duration refresh_;
  const OnAddresses on_addresses_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool poked_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_DNS_RESOLVER_H_
