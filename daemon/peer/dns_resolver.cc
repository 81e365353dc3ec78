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
  if (error != 0) return absl::NotFoundError(absl::StrCat("the name '", name, "': ", gai_strerror(error)));
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

void DnsResolver::Loop() {
  const auto stopped = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
  while (true) {
    on_addresses_(ResolveAll(name_, port_));
    absl::MutexLock lock(&mutex_);
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopped), refresh_)) return;
  }
}

NameLookup::NameLookup(OnFound on_found) : on_found_(std::move(on_found)) {
  thread_ = std::thread([this] {
    pthread_setname_np(pthread_self(), "dns");
    Loop();
  });
}

NameLookup::~NameLookup() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
}

void NameLookup::Ask(const std::string& address) {
  absl::MutexLock lock(&mutex_);
  asked_.push_back(address);
}

void NameLookup::Loop() {
  const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !asked_.empty(); };
  while (true) {
    std::string address;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&due));
      if (stop_) return;
      address = std::move(asked_.front());
      asked_.pop_front();
    }
    const absl::StatusOr<HostPort> split = ParseHostPort(address, false);
    on_found_(address, split.ok() ? ResolveAll(split->host, static_cast<uint16_t>(split->port))
                                  : absl::StatusOr<std::vector<std::string>>(split.status()));
  }
}

}  // namespace railsd
