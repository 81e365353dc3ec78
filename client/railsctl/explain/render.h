// Renders the output of `explain`: pure functions of the daemon's answer.
#ifndef RAILS_RAILSCTL_EXPLAIN_RENDER_H_
#define RAILS_RAILSCTL_EXPLAIN_RENDER_H_

#include <string>

#include "absl/types/span.h"
#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// Text for people: waits, plan and actual bytes by rail, a timeline of the rails' chunks, and causes.
std::string RenderExplanation(const v1::ExplainJobResponse& job, bool color);

// The Trace Event Format of Chrome and Perfetto ("JSON Array Format" inside an object). Each node is one process, with
// rows for the job's phases, ranks and exchanges, and for each rail as many rows as it had chunks in flight at once.
// `begun_seconds`: when each node's part began (Beginnings() of nodes.h).
std::string TraceJson(absl::Span<const v1::ExplainJobResponse> jobs, absl::Span<const double> begun_seconds);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_RENDER_H_
