#include "client/railsctl/replay/place.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "client/railsctl/format.h"

namespace rails::ctl {
namespace {

constexpr size_t kMaxTokenBytes = 4096;

std::string Get(const Environment& environment, const char* name) {
  const char* value = environment(name);
  return value == nullptr ? "" : value;
}

// The number from a flag or, without it, from the first variable that is set.
absl::StatusOr<uint32_t> Number(const char* option, const std::optional<uint32_t>& flag, const char* variable,
                                const char* second_variable, const Environment& environment) {
  if (flag.has_value()) return *flag;
  for (const char* name : {variable, second_variable}) {
    const std::string text = Get(environment, name);
    uint32_t number = 0;
    if (text.empty()) continue;
    if (absl::SimpleAtoi(text, &number)) return number;
    return absl::InvalidArgumentError(absl::StrCat(name, " is '", text, "', which is no number"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(option, " is missing, and neither ", variable, " nor ", second_variable, " is set"));
}

absl::StatusOr<Endpoint> FindRendezvous(const PlaceFlags& flags, const Environment& environment) {
  if (!flags.rendezvous.empty()) {
    absl::StatusOr<Endpoint> endpoint = ParseEndpoint(flags.rendezvous);
    if (endpoint.ok()) return endpoint;
    return absl::InvalidArgumentError(absl::StrCat("--rendezvous: ", endpoint.status().message()));
  }
  const std::string host = Get(environment, "MASTER_ADDR"), port = Get(environment, "MASTER_PORT");
  if (host.empty() || port.empty()) {
    return absl::InvalidArgumentError("--rendezvous is missing, and MASTER_ADDR and MASTER_PORT are not both set");
  }
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint(FormatEndpoint({host, port}));
  if (endpoint.ok()) return endpoint;
  return absl::InvalidArgumentError(absl::StrCat("MASTER_ADDR and MASTER_PORT: ", endpoint.status().message()));
}

absl::StatusOr<std::string> FindToken(const PlaceFlags& flags, const Environment& environment) {
  std::string token = Get(environment, "RAILSCTL_TOKEN"), from = "RAILSCTL_TOKEN";
  if (!flags.token_file.empty()) {
    from = absl::StrCat("--token: ", flags.token_file);
    std::ifstream file(flags.token_file);
    if (!file) return absl::InvalidArgumentError(absl::StrCat(from, " cannot be read"));
    struct stat status;
    if (stat(flags.token_file.c_str(), &status) == 0 && (status.st_mode & S_IROTH) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(from, " can be read by every user: chmod o-r ", flags.token_file));
    }
    token.resize(kMaxTokenBytes + 1);
    file.read(token.data(), static_cast<std::streamsize>(token.size()));
    token.resize(static_cast<size_t>(file.gcount()));
    if (absl::StripAsciiWhitespace(token).empty()) return absl::InvalidArgumentError(absl::StrCat(from, " is empty"));
  }
  token = std::string(absl::StripAsciiWhitespace(token));
  if (token.size() > kMaxTokenBytes || !std::all_of(token.begin(), token.end(), absl::ascii_isprint)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from, " must be at most ", kMaxTokenBytes, " printable ASCII characters"));
  }
  return token;
}

absl::Status FindRank(const PlaceFlags& flags, uint32_t ranks_per_node, const Environment& environment, Place* place) {
  absl::StatusOr<uint32_t> rank = Number("--rank", flags.rank, "RANK", "SLURM_PROCID", environment);
  if (!rank.ok()) return rank.status();
  absl::StatusOr<uint32_t> world = Number("--world", flags.world_size, "WORLD_SIZE", "SLURM_NTASKS", environment);
  if (!world.ok()) return world.status();
  if (*world == 0 || *world > kMaxWorldSize || *world % ranks_per_node != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--world ", *world, " must be a multiple of --ranks-per-node ",
                                                   ranks_per_node, " and at most ", kMaxWorldSize));
  }
  if (*rank >= *world) {
    return absl::InvalidArgumentError(absl::StrCat("--rank ", *rank, " must be below --world ", *world));
  }
  place->rank = *rank;
  place->world_size = *world;
  place->nodes = *world / ranks_per_node;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<Place>> FindPlace(const PlaceFlags& flags, bool starts_all, uint32_t ranks_per_node,
                                               const Environment& environment) {
  const bool asked = flags.rank.has_value() || flags.world_size.has_value() || !flags.rendezvous.empty();
  const auto given = [&](const char* name) { return !Get(environment, name).empty(); };
  const bool launched = given("RANK") && given("WORLD_SIZE") && given("MASTER_ADDR") && given("MASTER_PORT");
  if (starts_all && asked) {
    return absl::InvalidArgumentError("--rank, --world and --rendezvous run one rank: leave out --nodes and --launch");
  }
  if (starts_all || !(asked || launched)) {
    if (flags.token_file.empty()) return std::nullopt;
    return absl::InvalidArgumentError("--token needs --rank, --world and --rendezvous");
  }
  Place place;
  if (absl::Status status = FindRank(flags, ranks_per_node, environment, &place); !status.ok()) return status;
  absl::StatusOr<Endpoint> rendezvous = FindRendezvous(flags, environment);
  if (!rendezvous.ok()) return rendezvous.status();
  place.rendezvous = *std::move(rendezvous);
  absl::StatusOr<std::string> token = FindToken(flags, environment);
  if (!token.ok()) return token.status();
  place.token = *std::move(token);
  absl::StatusOr<absl::Duration> join_timeout = ParseTimeout(flags.join_timeout);
  if (!join_timeout.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--join-timeout: ", join_timeout.status().message()));
  }
  place.join_timeout = *join_timeout;
  return place;
}

}  // namespace rails::ctl
