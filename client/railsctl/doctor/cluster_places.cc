#include "client/railsctl/doctor/cluster_places.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "client/railsctl/doctor/cluster.h"
#include "client/railsctl/printable.h"
#include "client/railsctl/read_input.h"

namespace rails::ctl::doctor {
namespace {

constexpr size_t kMaxHostBytes = 253;
constexpr size_t kMaxFileBytes = 4 << 20;
constexpr absl::string_view kEveryAddress = "dns:";

std::string PlaceText(const std::string& host, uint16_t port) {
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

absl::StatusOr<ClusterPlace> ParsePlace(absl::string_view text) {
  ClusterPlace place;
  absl::string_view rest = text;
  place.every_address = absl::ConsumePrefix(&rest, kEveryAddress);
  const size_t colon = rest.rfind(':');
  absl::string_view host = rest.substr(0, colon);
  const bool brackets = absl::ConsumePrefix(&host, "[") && absl::ConsumeSuffix(&host, "]");
  uint32_t port = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 1 ||
      port > UINT16_MAX || host.empty() || host.size() > kMaxHostBytes || (!brackets && absl::StrContains(host, ':')) ||
      !std::all_of(host.begin(), host.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", Clip(Printable(text.substr(0, 1024)), 80), "' is not HOST:PORT, dns:NAME:PORT or @FILE"));
  }
  place.host = std::string(host);
  place.port = static_cast<uint16_t>(port);
  return place;
}

class PlaceList {
 public:
  absl::Status Add(absl::string_view text) {
    const absl::StatusOr<ClusterPlace> place = ParsePlace(text);
    if (!place.ok()) return place.status();
    if (!known_.insert(absl::StrCat(place->every_address, PlaceText(place->host, place->port))).second) {
      return absl::OkStatus();
    }
    places_.push_back(*place);
    return places_.size() <= kMaxClusterNodes
               ? absl::OkStatus()
               : absl::InvalidArgumentError(absl::StrCat("more than ", kMaxClusterNodes, " nodes"));
  }

  absl::Status AddFile(const std::string& path) {
    const absl::StatusOr<std::string> content = ReadInput(path, kMaxFileBytes);
    if (!content.ok()) return absl::NotFoundError(content.status().message());
    size_t number = 0;
    for (const absl::string_view line : absl::StrSplit(*content, '\n')) {
      ++number;
      const absl::string_view text = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
      if (text.empty()) continue;
      if (absl::Status status = Add(text); !status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  std::vector<ClusterPlace> Take() { return std::move(places_); }

 private:
  std::vector<ClusterPlace> places_;
  std::set<std::string> known_;
};

// Look-ups of names in progress. The C library writes into it until they end, and they cannot be cancelled.
struct LookUps {
  explicit LookUps(const std::vector<ClusterPlace>& places) : requests(places.size()) {
    hints.ai_socktype = SOCK_STREAM;
    hosts.reserve(places.size());
    for (size_t p = 0; p < places.size(); ++p) {
      requests[p].ar_name = hosts.emplace_back(places[p].host).c_str();
      requests[p].ar_request = &hints;
      list.push_back(&requests[p]);
    }
  }

  // Waits until all look-ups have ended. False: the time is over before that.
  bool Wait(absl::Time until) {
    for (size_t p = 0; p < list.size(); ++p) {
      while (gai_error(&requests[p]) == EAI_INPROGRESS) {
        const absl::Duration left = until - absl::Now();
        if (left <= absl::ZeroDuration()) return false;
        const timespec limit = absl::ToTimespec(left);
        const gaicb* const one = &requests[p];
        gai_suspend(&one, 1, &limit);
      }
    }
    return true;
  }

  addrinfo hints = {};
  std::vector<std::string> hosts;
  std::vector<gaicb> requests;
  std::vector<gaicb*> list;
};

// The numeric IPv4 addresses; if there are none, those of IPv6.
std::vector<std::string> AddressesIn(const addrinfo* list) {
  std::vector<std::string> v4, v6;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(entry->ai_addr, entry->ai_addrlen, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) != 0) continue;
    (entry->ai_family == AF_INET ? v4 : v6).emplace_back(text);
  }
  return v4.empty() ? v6 : v4;
}

void AddServers(const ClusterPlace& place, int error, const addrinfo* found, std::vector<ClusterServer>* servers) {
  const std::string where = PlaceText(place.host, place.port);
  const std::vector<std::string> addresses = error == 0 ? AddressesIn(found) : std::vector<std::string>();
  if (addresses.empty()) {
    const char* const why = error == EAI_INPROGRESS ? "no answer to the look-up of its name in time"
                            : error != 0            ? gai_strerror(error)
                                                    : "its name has no address";
    servers->push_back(
        {place.every_address ? absl::StrCat(kEveryAddress, where) : where, "", place.port, absl::NotFoundError(why)});
    return;
  }
  if (!place.every_address) {
    servers->push_back({where, addresses[0], place.port, absl::OkStatus()});
    return;
  }
  for (const std::string& address : addresses) {
    servers->push_back({PlaceText(address, place.port), address, place.port, absl::OkStatus()});
  }
}

}  // namespace

absl::StatusOr<std::vector<ClusterPlace>> ParsePlaces(const std::vector<std::string>& values) {
  PlaceList list;
  for (const std::string& value : values) {
    for (absl::string_view text : absl::StrSplit(value, ',')) {
      const absl::Status status = absl::ConsumePrefix(&text, "@") ? list.AddFile(std::string(text)) : list.Add(text);
      if (!status.ok()) return status;
    }
  }
  std::vector<ClusterPlace> places = list.Take();
  if (places.empty()) return absl::InvalidArgumentError("no node is named");
  return places;
}

std::vector<ClusterServer> LookUpPlaces(const std::vector<ClusterPlace>& places, absl::Duration limit) {
  auto look_ups = std::make_unique<LookUps>(places);
  std::vector<ClusterServer> servers;
  const int begun = getaddrinfo_a(GAI_NOWAIT, look_ups->list.data(), static_cast<int>(places.size()), nullptr);
  const bool ended = look_ups->Wait(absl::Now() + limit);  // also if only some have begun
  for (size_t p = 0; p < places.size(); ++p) {
    const gaicb& request = look_ups->requests[p];
    const int error = gai_error(&look_ups->requests[p]);
    addrinfo* const found = error == 0 ? request.ar_result : nullptr;
    AddServers(places[p], error == 0 && found == nullptr ? begun : error, found, &servers);
    if (found != nullptr) freeaddrinfo(found);
  }
  if (!ended) look_ups.release();  // NOLINT(bugprone-unused-return-value): the C library still writes into it
  return servers;
}

}  // namespace rails::ctl::doctor
