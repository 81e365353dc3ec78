// What `explain` prints, as pure functions of the daemon's answer.
#ifndef RAILS_RAILSCTL_EXPLAIN_RENDER_H_
#define RAILS_RAILSCTL_EXPLAIN_RENDER_H_

#include <string>

#include "rails/v1/operator.pb.h"

namespace rails::ctl {

// For people: who waited for whom, plan beside what happened by rail, a timeline of the rails' chunks, and why.
std::string RenderExplanation(const v1::ExplainJobResponse& job, bool color);

// As the Trace Event Format of Chrome and Perfetto ("JSON Array Format" with an object around it): one process for the
// node, rows for the job's phases, ranks, exchanges, and for each rail as many as it had chunks under way at once.
std::string TraceJson(const v1::ExplainJobResponse& job);

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_EXPLAIN_RENDER_H_
