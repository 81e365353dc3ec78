// Rails that change while bytes move, in words and as marks of a plot. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_CHANGES_H_
#define RAILSD_SIM_REPORT_CHANGES_H_

#include <string>
#include <vector>

#include "sim/report/results.h"

namespace railsd::sim {

// "Changes: rail 3 is dead from 100 us on; rail 2 of node 4 runs at 100 Gbit/s from 1.00 ms on". Names the first few
// changes and counts the rest; "" without changes.
std::string ChangeFacts(const PointResult& point);
// ChangeFacts() of every point if all have the same, otherwise "".
std::string CommonChanges(const Report& report);

// "Rail 3 changes after every exchange has ended." of the first such change; "" when there is none.
std::string LateChange(const PointResult& point);

// Why bytes of a policy never arrive: ", because rail 3 dies". Names the rails that die after the start and stay dead;
// "" without them.
std::string BecauseRailsDie(const PointResult& point);

// A time after the start at which rails change.
struct ChangeMark {
  double seconds = 0;
  std::string label;  // "rail 3 is dead", or "2 changes" at the same time
};
// By time.
std::vector<ChangeMark> ChangeMarks(const PointResult& point);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_CHANGES_H_
