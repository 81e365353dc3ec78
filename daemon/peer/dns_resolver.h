// Looks names up, each object on a thread of its own ("dns").
#ifndef RAILSD_DAEMON_PEER_DNS_RESOLVER_H_
#define RAILSD_DAEMON_PEER_DNS_RESOLVER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace railsd {

// Every address behind `name`, as "ip:port", sorted, each once. Blocks. NOT_FOUND: the name and the reason.
absl::StatusOr<std::vector<std::string>> ResolveAll(const std::string& name, uint16_t port);

class DnsResolver {
 public:
  using OnAddresses = std::function<void(absl::StatusOr<std::vector<std::string>>)>;
  // Calls `on_addresses` on its thread after each look-up: at once, and each `refresh`.
  DnsResolver(std::string name, uint16_t port, absl::Duration refresh, OnAddresses on_addresses);
  ~DnsResolver();  // joins the thread; waits for a look-up under way

 private:
  void Loop();

  const std::string name_;
  const uint16_t port_;
  const absl::Duration refresh_;
  const OnAddresses on_addresses_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

// Looks up names when it is asked.
class NameLookup {
 public:
  using OnFound = std::function<void(const std::string& address, absl::StatusOr<std::vector<std::string>>)>;
  // Calls `on_found` on its thread after each.
  explicit NameLookup(OnFound on_found);
  ~NameLookup();  // joins the thread; waits for a look-up under way
  // "name:port".
  void Ask(const std::string& address);

 private:
  void Loop();

  const OnFound on_found_;
  absl::Mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<std::string> asked_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace railsd

#endif  // RAILSD_DAEMON_PEER_DNS_RESOLVER_H_
