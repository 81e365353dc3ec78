// Renders `railsctl top`: a pure function of the daemons' answers and the terminal's size.
#ifndef RAILS_RAILSCTL_TOP_RENDER_H_
#define RAILS_RAILSCTL_TOP_RENDER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// The known state of one daemon.
struct NodeView {
  std::string socket_dir;
  std::optional<v1::GetOverviewResponse> before, after;  // the last two answers
  absl::Status status;                                   // of the last call
  absl::Duration silent = absl::ZeroDuration();          // if the last call failed: time since the last answer
};

struct TopOptions {
  size_t columns = 80;
  size_t rows = 0;  // 0: unlimited
  bool color = false;
  bool keys = false;  // names the keys, because there is a keyboard
  bool paused = false;
  absl::Duration interval = absl::Seconds(1);
  absl::TimeZone zone = absl::UTCTimeZone();
};

// One daemon's frame: lines that end with "\n", within the terminal's columns and rows. First the verdict, then rails,
// balance, peers and jobs. Lists that do not fit say how many entries are hidden.
// `others`: one line for each daemon; empty if there is only one.
std::string RenderTop(const NodeView& node, const std::vector<std::string>& others, const TopOptions& options);

// "n0: 4 of 4 rails up, ...", or says that the daemon does not answer.
std::string Headline(const NodeView& node);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_RENDER_H_
