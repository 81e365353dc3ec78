#include "daemon/peer/dns_resolver.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {

absl::StatusOr<std::vector<std::string>> ResolveAll(const std::string& name, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(name.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::NotFoundError(absl::StrCat("peers.dns.name: '", name, "': ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    char host[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses.insert(FormatHostPort({host, port}));
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

DnsResolver::DnsResolver(std::string name, uint16_t port, absl::Duration refresh, OnAddresses on_addresses)
    : name_(std::move(name)), port_(port), refresh_(refresh), on_addresses_(std::move(on_addresses)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "dns");
    Loop();
  });
}

DnsResolver::~DnsResolver() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void DnsResolver::Poke() {
  absl::MutexLock lock(&mutex_);
  poked_ = true;
}

void DnsResolver::Loop() {
  const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || poked_; };
  while (true) {
    on_addresses_(ResolveAll(name_, port_));
    absl::MutexLock lock(&mutex_);
    poked_ = false;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopped), refresh_ / 10)) return;
    mutex_.AwaitWithTimeout(absl::Condition(&due), refresh_ * 9 / 10);
    if (stop_) return;
  }
}

}  // namespace railsd
