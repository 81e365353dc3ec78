#include "daemon/peer/name_lookup.h"

#include <netdb.h>
#include <pthread.h>
#include <sys/socket.h>

#include <memory>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

absl::StatusOr<std::vector<std::string>> Resolve(const std::string& address) {
  const absl::StatusOr<HostPort> split = ParseHostPort(address, false);
  if (!split.ok()) return split.status();
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(split->host.c_str(), nullptr, &hints, &found);
  if (error != 0) return absl::NotFoundError(absl::StrCat("the name '", split->host, "': ", gai_strerror(error)));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, &freeaddrinfo);
  std::set<std::string> addresses;
  for (const addrinfo* entry = list.get(); entry != nullptr; entry = entry->ai_next) {
    char host[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, host, sizeof(host), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    addresses.insert(FormatHostPort({host, split->port}));
  }
  return std::vector<std::string>(addresses.begin(), addresses.end());
}

}  // namespace

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

void NameLookup::Ask(const std::string& address, bool first) {
  absl::MutexLock lock(&mutex_);
  asked_.insert(first ? asked_.begin() : asked_.end(), address);
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
    on_found_(address, Resolve(address));
  }
}

}  // namespace railsd
