#include "daemon/lifecycle/rail_choice.h"

#include <fnmatch.h>

#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

using verbs::RdmaPort;

std::string Names(absl::Span<const RdmaPort> ports) {
  if (ports.empty()) return "this node has no RDMA devices";
  return absl::StrCat("this node has ",
                      absl::StrJoin(ports, ", ", [](std::string* out, const RdmaPort& p) { *out += p.Name(); }));
}

bool Matches(const RdmaDeviceName& wanted, const RdmaPort& port) {
  return fnmatch(wanted.name.c_str(), port.device.c_str(), FNM_NOESCAPE) == 0 &&
         (wanted.port == 0 || wanted.port == port.port);
}

// Collects the rails. Refuses the same port or name twice.
class Choice {
 public:
  Choice(const Config& config, absl::Span<const RdmaPort> ports) : config_(config), ports_(ports) {
    // Configured names come first, so that generated names avoid them.
    for (const RailSpec& rail : config.rails) {
      if (!rail.name.empty()) names_.insert(rail.name);
    }
  }

  absl::Status AddUsable(const RailSpec& entry, const RdmaDeviceName& wanted) {
    std::vector<std::string> reasons;
    const size_t before = rails_.size();
    for (const RdmaPort& port : ports_) {
      if (!Matches(wanted, port)) continue;
      const absl::Status usable = verbs::CheckUsable(port, config_.verbs.gid_index);
      if (!usable.ok()) {
        reasons.push_back(std::string(usable.message()));
      } else if (absl::Status status = Add(entry, port); !status.ok()) {
        return status;
      }
    }
    if (rails_.size() > before) return absl::OkStatus();
    const std::string what = config_.auto_rails ? "rails: auto" : absl::StrCat("rails: device '", entry.device, "'");
    return absl::NotFoundError(
        absl::StrCat(what, ": no usable RDMA port; ", reasons.empty() ? Names(ports_) : absl::StrJoin(reasons, "; ")));
  }

  absl::Status AddNamed(const RailSpec& entry, const RdmaDeviceName& wanted) {
    const RdmaPort* found = nullptr;
    for (const RdmaPort& port : ports_) {
      if (port.device != wanted.name || (wanted.port != 0 && wanted.port != port.port)) continue;
      if (found != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("rails: device '", entry.device, "' has several ports; say which, as in ", wanted.name, "/1"));
      }
      found = &port;
    }
    if (found == nullptr) {
      return absl::NotFoundError(absl::StrCat("rails: device '", entry.device, "' is not there; ", Names(ports_)));
    }
    return Add(entry, *found);
  }

  absl::StatusOr<std::vector<RailSpec>> Take() {
    if (rails_.size() > kMaxRails) {
      return absl::InvalidArgumentError(absl::StrCat("rails: ", rails_.size(), " RDMA ports, more than ", kMaxRails));
    }
    for (size_t i = 0; i < rails_.size(); ++i) {
      if (!rails_[i].name.empty()) continue;
      rails_[i].name = absl::StrCat("rail", i);
      if (!names_.insert(rails_[i].name).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("rails: '", rails_[i].name, "' is the name of a rail, and what rail ", i, " would be called"));
      }
    }
    return std::move(rails_);
  }

 private:
  absl::Status Add(const RailSpec& entry, const RdmaPort& port) {
    if (!devices_.insert(port.Name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("rails: ", port.Name(), " is taken by two entries"));
    }
    RailSpec rail = entry;
    rail.kind = RailKind::kVerbs;
    rail.device = port.Name();
    if (rail.speed_bytes_per_s == 0) rail.speed_bytes_per_s = port.speed_bytes_per_s;
    rails_.push_back(std::move(rail));
    return absl::OkStatus();
  }

  const Config& config_;
  const absl::Span<const RdmaPort> ports_;
  std::set<std::string> names_, devices_;
  std::vector<RailSpec> rails_;
};

}  // namespace

absl::StatusOr<std::vector<RailSpec>> ChooseRails(const Config& config, absl::Span<const RdmaPort> ports,
                                                  bool has_verbs) {
  const bool wants_verbs =
      config.auto_rails || (!config.rails.empty() && config.rails.front().kind == RailKind::kVerbs);  // all or none
  if (wants_verbs && !has_verbs) {
    return absl::UnimplementedError(
        absl::StrCat("rails: ", config.auto_rails ? "auto" : absl::StrCat("device '", config.rails.front().device, "'"),
                     ": this railsd was built without libibverbs and knows TCP rails only; install libibverbs-dev and "
                     "build again, or give the rails addresses"));
  }
  Choice choice(config, ports);
  if (config.auto_rails) {
    if (absl::Status status = choice.AddUsable(RailSpec(), {"*", 0}); !status.ok()) return status;
    return choice.Take();
  }
  for (const RailSpec& entry : config.rails) {
    if (entry.kind != RailKind::kVerbs) return config.rails;
    const absl::StatusOr<RdmaDeviceName> wanted = ParseRdmaDevice(entry.device);
    if (!wanted.ok()) return wanted.status();
    absl::Status status = wanted->pattern() ? choice.AddUsable(entry, *wanted) : choice.AddNamed(entry, *wanted);
    if (!status.ok()) return status;
  }
  return choice.Take();
}

}  // namespace railsd
