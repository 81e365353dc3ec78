// Plots of a report, each one SVG element. Private to sim/report.
#ifndef RAILSD_SIM_REPORT_PLOTS_H_
#define RAILSD_SIM_REPORT_PLOTS_H_

#include <string>

#include "sim/report/results.h"

namespace railsd::sim {

// Completion by policy: network and fixed cost, with a line at the bound.
std::string CompletionBars(const PointResult& point);
// Iteration by policy: compute, visible exchanges, and exchanges that compute hides. "" without a model.
std::string IterationBars(const PointResult& point);
// Share of pairs of nodes that have ended, over time. A policy that never ends stays below 100 % and has a cross.
std::string EndCurves(const PointResult& point);
// How much of all rails is used, over time.
std::string UseCurves(const PointResult& point);
// Completion over the bound by a swept key, a line for each policy. `key` is a place in report.swept; points that
// differ in other keys make a plot each. Lines join numbers only; a cross above the plot: the policy never ends there.
std::string SweepCurves(const Report& report, size_t key);
// Points by policies in colours; for sweeps.
std::string SweepMap(const Report& report);
// Colours of the map, as HTML.
std::string SweepLegend();
// Names and colours of the policies, as HTML.
std::string Legend(const PointResult& point);

// Every NIC, sending and receiving, by policy: busy time over the bound.
std::string NicMaps(const PointResult& point);
// Every rail by policy, over time: use of the rail's NICs. Tells which policies never end.
std::string RailStrips(const PointResult& point);
// Colours of both, as HTML.
std::string HeatLegend();

}  // namespace railsd::sim

#endif  // RAILSD_SIM_REPORT_PLOTS_H_
