#include "sim/run/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/railsctl/format.h"

namespace railsd::sim {
namespace {

constexpr int kWidth = 30;
constexpr double kLeastElapsed = 0.5;  // seconds before the time left is shown
constexpr std::chrono::milliseconds kInterval{100};

}  // namespace

std::string ProgressLine(double share, double elapsed_seconds) {
  share = std::clamp(share, 0.0, 1.0);
  const int full = static_cast<int>(std::floor(share * kWidth));
  std::string line = absl::StrFormat("[%s%s] %.0f %%", std::string(full, '#'), std::string(kWidth - full, '-'),
                                     std::floor(share * 100));
  if (share > 0 && elapsed_seconds >= kLeastElapsed) {
    absl::StrAppend(&line, ", ", rails::ctl::FormatSeconds(elapsed_seconds * (1 - share) / share), " left");
  }
  return line;
}

Progress::Progress(FILE* stream) : stream_(stream), terminal_(isatty(fileno(stream)) == 1) {}

void Progress::Clear() {
  if (any_) std::fputs("\r\033[K", stream_);
  any_ = false;
}

void Progress::Show(double share) {
  if (!terminal_) return;
  const Clock::time_point now = Clock::now();
  if (any_ && now - shown_ < kInterval) return;
  shown_ = now;
  any_ = true;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  std::fputs(absl::StrCat("\r\033[K", ProgressLine(share, elapsed)).c_str(), stream_);
  std::fflush(stream_);
}

}  // namespace railsd::sim
