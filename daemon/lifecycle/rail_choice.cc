#include "daemon/lifecycle/rail_choice.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/config/port_rule.h"
#include "daemon/config/units.h"

namespace railsd {
namespace {

using verbs::RdmaPort;

std::string Names(absl::Span<const RdmaPort> ports) {
  if (ports.empty()) return "this node has no RDMA devices";
  return absl::StrCat("this node has ",
                      absl::StrJoin(ports, ", ", [](std::string* out, const RdmaPort& p) { *out += p.Name(); }));
}

bool FitsPattern(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

bool Matches(const RdmaDeviceName& wanted, const RdmaPort& port) {
  return FitsPattern(wanted.name, port.device) && (wanted.port == 0 || wanted.port == port.port);
}

bool Fits(const PortRule& rule, const RdmaPort& port) {
  const auto any_gid = [&port](const auto& fits) { return std::any_of(port.gids.begin(), port.gids.end(), fits); };
  switch (rule.kind) {
    case PortRule::Kind::kDevice:
      return FitsPattern(rule.pattern, port.device) || FitsPattern(rule.pattern, port.Name());
    case PortRule::Kind::kInterface:
      return any_gid([&](const verbs::Gid& gid) { return FitsPattern(rule.pattern, gid.interface); });
    case PortRule::Kind::kPci:
      return FitsPattern(rule.pattern, port.pci_address);
    case PortRule::Kind::kNetwork:
      return any_gid([&](const verbs::Gid& gid) { return rule.network.Contains(gid.bytes); });
    case PortRule::Kind::kNuma:
      return port.numa_node == rule.numa_node;
  }
  return false;
}

// The rules of `rails: auto`.
class AutoRule {
 public:
  static absl::StatusOr<AutoRule> Make(const Config& config) {
    AutoRule out(config);
    for (const auto& [texts, rules] : {std::pair(&config.auto_rails_choice.take, &out.take_),
                                       std::pair(&config.auto_rails_choice.leave, &out.leave_)}) {
      for (const std::string& text : *texts) {
        absl::StatusOr<PortRule> rule = ParsePortRule(text);
        if (!rule.ok()) return rule.status();
        rules->push_back(*std::move(rule));
      }
    }
    return out;
  }

  // OK if the port is a rail, else why it is not.
  absl::Status Check(const RdmaPort& port) const {
    const AutoRailsConfig& given = config_.auto_rails_choice;
    const auto left = [&](const std::string& why) {
      return absl::FailedPreconditionError(absl::StrCat(port.Name(), ": ", why));
    };
    for (size_t i = 0; i < leave_.size(); ++i) {
      if (Fits(leave_[i], port)) return left(absl::StrCat("auto_rails.leave has ", given.leave[i]));
    }
    if (take_.empty()) return verbs::CheckUsable(port, config_.verbs.gid_index);
    const bool taken = std::any_of(take_.begin(), take_.end(), [&](const PortRule& rule) { return Fits(rule, port); });
    return taken ? absl::OkStatus() : left("no rule of auto_rails.take matches");
  }

 private:
  explicit AutoRule(const Config& config) : config_(config) {}

  const Config& config_;
  std::vector<PortRule> take_, leave_;
};

// Collects the rails. Refuses the same port or name twice.
class Choice {
 public:
  Choice(const Config& config, absl::Span<const RdmaPort> ports) : config_(config), ports_(ports) {
    // Configured names come first, so that generated names avoid them.
    for (const RailSpec& rail : config.rails) {
      if (!rail.name.empty()) names_.insert(rail.name);
    }
  }

  absl::Status AddMatching(const RailSpec& entry, const RdmaDeviceName& wanted) {
    const size_t before = rails_.size();
    for (const RdmaPort& port : ports_) {
      if (!Matches(wanted, port)) continue;
      if (absl::Status status = Add(entry, port); !status.ok()) return status;
    }
    if (rails_.size() > before) return absl::OkStatus();
    return absl::NotFoundError(
        absl::StrCat("rails: no RDMA port matches device '", entry.device, "'; ", Names(ports_)));
  }

  absl::Status AddAuto() {
    const absl::StatusOr<AutoRule> rule = AutoRule::Make(config_);
    if (!rule.ok()) return rule.status();
    std::vector<std::string> reasons;
    for (const RdmaPort& port : ports_) {
      if (const absl::Status takes = rule->Check(port); !takes.ok()) {
        reasons.push_back(std::string(takes.message()));
      } else if (absl::Status status = Add(RailSpec(), port); !status.ok()) {
        return status;
      }
    }
    const std::string others = reasons.empty() ? Names(ports_) : absl::StrJoin(reasons, "; ");
    if (rails_.empty()) return absl::NotFoundError(absl::StrCat("rails: auto: no RDMA port can be a rail; ", others));
    const uint32_t count = config_.auto_rails_choice.count;
    if (count == 0 || rails_.size() == count) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("rails: auto gives ", rails_.size(), ", and auto_rails.count is ", count, "; they are ",
                     absl::StrJoin(rails_, ", ", [](std::string* out, const RailSpec& rail) { *out += rail.device; }),
                     reasons.empty() ? "" : absl::StrCat("; left out: ", others)));
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
        return absl::InvalidArgumentError(absl::StrCat("rails: '", rails_[i].name,
                                                       "' is the name of another rail, and the default name of rail ",
                                                       i, "; give one of them another name"));
      }
    }
    return std::move(rails_);
  }

 private:
  absl::Status Add(const RailSpec& entry, const RdmaPort& port) {
    if (!devices_.insert(port.Name()).second) {
      return absl::InvalidArgumentError(absl::StrCat("rails: ", port.Name(), " is named by two entries"));
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
    if (absl::Status status = choice.AddAuto(); !status.ok()) return status;
    return choice.Take();
  }
  for (const RailSpec& entry : config.rails) {
    if (entry.kind != RailKind::kVerbs) return config.rails;
    const absl::StatusOr<RdmaDeviceName> wanted = ParseRdmaDevice(entry.device);
    if (!wanted.ok()) return wanted.status();
    absl::Status status = wanted->pattern() ? choice.AddMatching(entry, *wanted) : choice.AddNamed(entry, *wanted);
    if (!status.ok()) return status;
  }
  return choice.Take();
}

}  // namespace railsd
