#include "daemon/metrics/port_counters.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "agent/base/unique_fd.h"

namespace railsd {
namespace {

// Folder below the port, and file: InfiniBand's own counters, then those of mlx5, bnxt_re, efa and rxe.
constexpr const char* kCounters[] = {
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/link_downed",
    "counters/local_link_integrity_errors",
    "counters/port_rcv_errors",
    "counters/port_rcv_remote_physical_errors",
    "counters/port_xmit_discards",
    "counters/port_xmit_wait",
    "hw_counters/duplicate_request",
    "hw_counters/out_of_sequence",
    "hw_counters/out_of_seq_request",
    "hw_counters/packet_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/rcvd_rnr_err",
    "hw_counters/retry_exceeded_err",
    "hw_counters/retry_rnr_exceeded_err",
    "hw_counters/completer_retry_err",
    "hw_counters/send_err",
    "hw_counters/out_of_buffer",
    "hw_counters/np_cnp_sent",
    "hw_counters/np_ecn_marked_roce_packets",
    "hw_counters/rp_cnp_handled",
    "hw_counters/roce_adp_retrans",
    "hw_counters/to_retransmits",
    "hw_counters/retrans_pkts",
};

constexpr const char* kInterfaceEvents[] = {"rx_errors",  "tx_errors",        "rx_dropped",
                                            "tx_dropped", "rx_missed_errors", "tx_carrier_errors"};

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return std::nullopt;
  std::array<char, 32> text;
  const ssize_t size = ::read(file.get(), text.data(), text.size());
  uint64_t value = 0;
  if (size <= 0 || !absl::SimpleAtoi(absl::string_view(text.data(), static_cast<size_t>(size)), &value)) {
    return std::nullopt;
  }
  return value;
}

}  // namespace

std::vector<std::pair<std::string, uint64_t>> ReadRdmaPortCounters(const std::string& device, uint32_t port,
                                                                   const std::string& sysfs) {
  std::vector<std::pair<std::string, uint64_t>> counters;
  const std::string folder = absl::StrCat(sysfs, "/class/infiniband/", device, "/ports/", port, "/");
  for (const char* name : kCounters) {
    const std::string path(name);
    const std::optional<uint64_t> value = ReadNumber(absl::StrCat(folder, path));
    if (value) counters.emplace_back(path.substr(path.find('/') + 1), *value);
  }
  return counters;
}

InterfaceCounters ReadInterfaceCounters(const std::string& interface, const std::string& sysfs) {
  InterfaceCounters counters;
  if (interface.empty() || interface.find('/') != std::string::npos) return counters;
  const std::string folder = absl::StrCat(sysfs, "/class/net/", interface, "/statistics/");
  counters.tx_bytes = ReadNumber(folder + "tx_bytes");
  counters.rx_bytes = ReadNumber(folder + "rx_bytes");
  for (const char* name : kInterfaceEvents) {
    if (const std::optional<uint64_t> value = ReadNumber(folder + name)) counters.events.emplace_back(name, *value);
  }
  return counters;
}

}  // namespace railsd
