#include "daemon/metrics/process_usage.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace railsd {
namespace {

// Fields of /proc/self/stat after the name of the program, as proc(5) numbers them minus 3.
constexpr size_t kUserTicks = 11, kSystemTicks = 12, kStartTicks = 19, kVirtualBytes = 20, kResidentPages = 21;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::optional<uint64_t> Number(absl::string_view text) {
  uint64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? std::optional(value) : std::nullopt;
}

// The number after the line's `key`.
std::optional<uint64_t> NumberAfter(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key)) continue;
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    return words.empty() ? std::nullopt : Number(words[0]);
  }
  return std::nullopt;
}

std::optional<uint64_t> CountEntries(const std::string& folder) {
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  uint64_t count = 0;
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) ++count;
  return error ? std::nullopt : std::optional(count);
}

}  // namespace

ProcessUsage ReadProcessUsage(const std::string& proc) {
  ProcessUsage usage;
  usage.open_fds = CountEntries(absl::StrCat(proc, "/self/fd"));
  usage.max_fds = NumberAfter(ReadFile(absl::StrCat(proc, "/self/limits")), "Max open files");
  const std::string stat = ReadFile(absl::StrCat(proc, "/self/stat"));
  const size_t name_end = stat.rfind(") ");  // the name may contain blanks and parentheses
  if (name_end == std::string::npos) return usage;
  const std::vector<absl::string_view> fields =
      absl::StrSplit(absl::string_view(stat).substr(name_end + 2), ' ', absl::SkipEmpty());
  const auto field = [&](size_t i) { return i < fields.size() ? Number(fields[i]) : std::nullopt; };
  const double ticks_per_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  const auto user = field(kUserTicks), system = field(kSystemTicks), start = field(kStartTicks);
  const std::optional<uint64_t> boot = NumberAfter(ReadFile(absl::StrCat(proc, "/stat")), "btime ");
  if (user && system) usage.cpu_seconds = static_cast<double>(*user + *system) / ticks_per_second;
  if (start && boot) {
    usage.start_time_seconds = static_cast<double>(*boot) + static_cast<double>(*start) / ticks_per_second;
  }
  usage.virtual_memory_bytes = field(kVirtualBytes);
  if (const auto pages = field(kResidentPages)) {
    usage.resident_memory_bytes = *pages * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  }
  return usage;
}

}  // namespace railsd
