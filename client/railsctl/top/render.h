// What `railsctl top` shows, as a pure function of the daemons' answers and of the terminal's size.
#ifndef RAILS_RAILSCTL_TOP_RENDER_H_
#define RAILS_RAILSCTL_TOP_RENDER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// What is known of one daemon.
struct NodeView {
  std::string socket_dir;
  std::optional<v1::GetOverviewResponse> before, after;  // the last two answers
  absl::Status status;                                   // of the last call
  absl::Duration silent = absl::ZeroDuration();          // since the last answer, when the last call failed
};

struct TopOptions {
  size_t columns = 80;
  size_t rows = 0;  // 0: as many as it takes
  bool color = false;
  bool keys = false;  // somebody can press some: they are named
  bool paused = false;
  absl::Duration interval = absl::Seconds(1);
  absl::TimeZone zone = absl::UTCTimeZone();
};

// One daemon's frame: lines that end with "\n", none wider than the terminal and no more than its rows. First the
// verdict, then rails, balance, peers and jobs; lists that do not fit say how many are hidden.
// `others`: of several daemons, a line about each; empty with one.
std::string RenderTop(const NodeView& node, const std::vector<std::string>& others, const TopOptions& options);

// "n0: 4 of 4 rails up, ...", or that it does not answer.
std::string Headline(const NodeView& node);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_RENDER_H_
