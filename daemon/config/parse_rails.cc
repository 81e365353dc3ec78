#include "daemon/config/parse_rails.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

// What no two rails may share.
struct Taken {
  std::set<std::string> names, devices, interfaces;
  std::map<std::string, std::set<int>> ports;  // by address; 0: any
};

// One entry of the list, read so far.
struct Entry {
  RailSpec rail;
  std::optional<RailKind> kind;  // as written
  bool pattern = false;
};

void ReadTransport(const YamlReader& in, Entry* entry) {
  if (in.text() == "tcp") {
    entry->kind = RailKind::kTcp;
  } else if (in.text() == "verbs") {
    entry->kind = RailKind::kVerbs;
  } else {
    in.Fail("not one of tcp, verbs");
  }
}

// Rails of a test share the one loopback address of IPv6: the kernel finds a port for each.
bool IsLoopback(const std::string& host) { return host == "::1" || absl::StartsWith(host, "127."); }

void ReadAddress(const YamlReader& in, Taken* taken, RailSpec* rail) {
  in.Address(&rail->address, /*port_optional=*/true, /*numeric=*/true, /*allow_empty=*/false);
  const auto address = ParseHostPort(rail->address, true);
  if (!address.ok()) return;
  std::set<int>& ports = taken->ports[address->host];
  if (address->port != 0 && ports.contains(address->port)) {
    in.Fail("another rail listens on this address and port");
  } else if (!ports.empty() && (address->port == 0 || ports.contains(0)) && !IsLoopback(address->host)) {
    in.Fail("another rail has this address; rails that share one, for tests, need a port each");
  }
  ports.insert(address->port);
}

void ReadDevice(const YamlReader& in, Taken* taken, Entry* entry) {
  std::string text;
  in.String(&text, 80);
  const absl::StatusOr<RdmaDeviceName> device = ParseRdmaDevice(text);
  if (!device.ok()) return in.Fail(device.status().message());
  if (!taken->devices.insert(text).second) return in.Fail("another rail has this device");
  entry->pattern = device->pattern();
  entry->rail.device = text;
}

// The keys must fit each other.
void CheckEntry(const YamlReader& in, const Entry& entry) {
  const RailSpec& rail = entry.rail;
  if (rail.kind == RailKind::kTcp) {
    if (!rail.device.empty()) in.Fail("a tcp rail has an address and no device");
    return;
  }
  if (rail.device.empty()) in.Fail("a verbs rail needs a device, as in mlx5_0/1");
  if (!rail.address.empty() || !rail.interface.empty()) {
    in.Fail("a verbs rail has a device and neither address nor interface");
  }
  if (entry.pattern && !rail.name.empty()) in.Fail("a pattern may give several rails, so it has no name");
}

}  // namespace

void ReadRails(const YamlReader& in, Config* config) {
  if (in.text() == "auto") {
    config->auto_rails = true;
    return;
  }
  if (!in.text().empty()) return in.Fail("expected a list, or auto");
  Taken taken;
  bool counted = true;  // no pattern so far, so that this rail's index is known
  in.List(kMaxRails, [&](const YamlReader& item) {
    Entry entry;
    bool has_address = false, has_interface = false, has_device = false;
    item.Map({{"name",
               [&](const YamlReader& r) {
                 r.Name(&entry.rail.name, 63);
                 if (!entry.rail.name.empty() && !taken.names.insert(entry.rail.name).second) {
                   r.Fail("another rail has this name");
                 }
               }},
              {"transport", [&](const YamlReader& r) { ReadTransport(r, &entry); }},
              {"address",
               [&](const YamlReader& r) {
                 has_address = true;
                 ReadAddress(r, &taken, &entry.rail);
               }},
              {"interface",
               [&](const YamlReader& r) {
                 r.String(&entry.rail.interface, 15);
                 has_interface = !entry.rail.interface.empty();
               }},
              {"device",
               [&](const YamlReader& r) {
                 has_device = true;
                 ReadDevice(r, &taken, &entry);
               }},
              {"speed", [&](const YamlReader& r) { r.Rate(&entry.rail.speed_bytes_per_s); }}});
    entry.rail.kind = entry.kind.value_or(has_device ? RailKind::kVerbs : RailKind::kTcp);
    if (entry.rail.kind == RailKind::kTcp && !has_address && !has_interface && !has_device) {
      item.Missing("address",
                   entry.kind ? "" : "; a rail has an address or an interface (TCP) or a device (RDMA verbs)");
    } else if (has_device == !entry.rail.device.empty()) {  // a wrong device has been reported
      CheckEntry(item, entry);
    }
    if (has_interface && !has_address && !taken.interfaces.insert(entry.rail.interface).second) {
      item.Fail(absl::StrCat("another rail has interface ", entry.rail.interface, "; give each an address of its own"));
    }
    counted = counted && !entry.pattern;
    if (entry.rail.name.empty() && counted) entry.rail.name = absl::StrCat("rail", config->rails.size());
    config->rails.push_back(std::move(entry.rail));
  });
  for (const RailSpec& rail : config->rails) {
    if (rail.kind == config->rails.front().kind) continue;
    return in.Fail("rails over tcp and over verbs in one node; all rails of a cluster have one transport");
  }
}

void ReadVerbs(const YamlReader& in, VerbsTuning* verbs) {
  const auto number = [](auto* out, uint64_t min, uint64_t max) {
    return [=](const YamlReader& r) { r.Number(out, min, max); };
  };
  const auto up_to_a_second = [](absl::Duration* out) {
    return [=](const YamlReader& r) { r.Time(out, absl::ZeroDuration(), absl::Seconds(1)); };
  };
  in.Map({{"queue_pairs_per_peer", number(&verbs->queue_pairs_per_peer, 1, 16)},
          {"send_queue_depth", number(&verbs->send_queue_depth, 1, 1 << 15)},
          {"completion_queue_depth", number(&verbs->completion_queue_depth, 1, 1 << 22)},
          {"fence_queue_depth", number(&verbs->fence_queue_depth, 1, 1 << 15)},
          {"gid_index",
           [&](const YamlReader& r) {
             if (r.text() == "auto") return verbs->gid_index.reset();
             uint8_t index = 0;
             r.Number(&index, 0, 255);
             verbs->gid_index = index;
           }},
          {"path_mtu",
           [&](const YamlReader& r) {
             uint64_t bytes = 0;
             if (r.text() != "auto") r.Bytes(&bytes, 256, 4096);
             if ((bytes & (bytes - 1)) != 0) return r.Fail("not one of auto, 256, 512, 1024, 2048, 4096");
             verbs->path_mtu_bytes = static_cast<uint32_t>(bytes);
           }},
          {"service_level", number(&verbs->service_level, 0, 15)},
          {"traffic_class", number(&verbs->traffic_class, 0, 255)},
          {"timeout", number(&verbs->timeout, 1, 22)},
          {"retry_count",
           [&](const YamlReader& r) {
             if (r.text() == "7") return r.Fail("with 7 some devices retry for ever and never report a dead peer");
             r.Number(&verbs->retry_count, 0, 6);
           }},
          {"inline_bytes",
           [&](const YamlReader& r) {
             uint64_t bytes = verbs->inline_bytes;
             r.Bytes(&bytes, 0, 4096);
             verbs->inline_bytes = static_cast<uint32_t>(bytes);
           }},
          {"busy_poll", up_to_a_second(&verbs->busy_poll)},
          {"max_windows", number(&verbs->max_windows, 0, 1 << 16)}});
}

}  // namespace railsd
