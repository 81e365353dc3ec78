#include "client/railsctl/config/peers.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/railsctl/pki/certificate.h"
#include "client/railsctl/printable.h"

namespace rails::ctl::config {
namespace {

enum class Kind : uint8_t { kName, kAddress, kNotOfANode };

Kind KindOf(const std::string& text) {
  in_addr v4 = {};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) {
    const uint32_t first = ntohl(v4.s_addr) >> 24;
    return first == 0 || first == 127 || first >= 224 ? Kind::kNotOfANode : Kind::kAddress;
  }
  in6_addr v6 = {};
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return Kind::kName;
  // 2000::/3 is global (RFC 4291), fc00::/7 unique and local (RFC 4193).
  const uint8_t first = v6.s6_addr[0];
  return (first & 0xE0) == 0x20 || (first & 0xFE) == 0xFC ? Kind::kAddress : Kind::kNotOfANode;
}

std::string Shown(absl::string_view text) { return absl::StrCat("'", Clip(Printable(text.substr(0, 1024)), 80), "'"); }

// Reads one line. `control` is empty if no other node can reach the address, such as localhost in /etc/hosts.
absl::StatusOr<StaticPeer> ReadLine(absl::string_view line, uint16_t port) {
  if (std::any_of(line.begin(), line.end(), [](char c) { return c != '\t' && absl::ascii_iscntrl(c); })) {
    return absl::InvalidArgumentError(absl::StrCat(Shown(line), " has control characters"));
  }
  const std::vector<std::string> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  std::string name = words[0], host = words[0];
  if (words.size() > 1) {
    const bool address_first = KindOf(words[0]) != Kind::kName;
    name = words[address_first ? 1 : 0];
    host = words[address_first ? 0 : 1];
    if (!address_first && (words.size() > 2 || KindOf(host) == Kind::kName)) {
      return absl::InvalidArgumentError(absl::StrCat(Shown(line), " is neither NAME, NAME ADDRESS nor ADDRESS NAME"));
    }
  }
  if (KindOf(host) == Kind::kNotOfANode) return StaticPeer{Printable(name), ""};
  if (KindOf(name) != Kind::kName) return absl::InvalidArgumentError(absl::StrCat(Shown(name), " has no name"));
  if (absl::Status status = pki::CheckNodeName(name); !status.ok()) {
    return absl::InvalidArgumentError(Printable(status.message()));
  }
  const bool v6 = absl::StrContains(host, ':');
  if (in6_addr bytes; v6 && inet_pton(AF_INET6, host.c_str(), &bytes) == 1) {
    char text[INET6_ADDRSTRLEN];
    host = inet_ntop(AF_INET6, &bytes, text, sizeof(text));  // the same text for all spellings of an address
  }
  return StaticPeer{name, absl::StrCat(v6 ? "[" : "", host, v6 ? "]:" : ":", port)};
}

}  // namespace

absl::StatusOr<PeerList> ReadHosts(absl::string_view text, const std::string& source, uint16_t port) {
  PeerList out;
  std::map<std::string, size_t> lines;  // line number by name and by address
  size_t number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string where = absl::StrCat(source, ":", number, ": ");
    absl::StatusOr<StaticPeer> peer = ReadLine(line, port);
    if (!peer.ok()) return absl::InvalidArgumentError(absl::StrCat(where, peer.status().message()));
    if (peer->control.empty()) {
      out.left_out.push_back(peer->name);
      continue;
    }
    for (const std::string& key : {peer->name, peer->control}) {
      const auto [before, added] = lines.emplace(key, number);
      if (!added) return absl::InvalidArgumentError(absl::StrCat(where, key, " is in line ", before->second, ", too"));
    }
    if (out.peers.size() == kMaxPeers) return absl::InvalidArgumentError(absl::StrCat(where, "more than 4096 nodes"));
    out.peers.push_back(*std::move(peer));
  }
  if (out.peers.empty()) return absl::InvalidArgumentError(absl::StrCat(source, ": no node is in it"));
  return out;
}

std::string PeersYaml(const std::vector<StaticPeer>& peers) {
  std::string out = "peers:\n  static:\n";
  for (const StaticPeer& peer : peers) {
    absl::StrAppend(&out, "    - {name: \"", peer.name, "\", control: \"", peer.control, "\"}\n");
  }
  return out;
}

}  // namespace rails::ctl::config
