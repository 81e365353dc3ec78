// Reports for terminals.
#ifndef RAILSD_SIM_REPORT_TEXT_H_
#define RAILSD_SIM_REPORT_TEXT_H_

#include <string>

#include "sim/report/results.h"

namespace railsd::sim {

// A table for each point: a line for each policy, the best marked. Many points make one table with a line for each
// point instead. Ends with "\n".
std::string RenderText(const Report& report, bool color);

// The share of fixed cost by step: a table for each point, of the first policy that ran; other policies have the same
// seconds.
std::string RenderExplanation(const Report& report, bool color);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_TEXT_H_
