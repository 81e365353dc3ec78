// The points of a scenario: every combination of the values that its keys have.
#ifndef RAILSD_SIM_SCENARIO_POINTS_H_
#define RAILSD_SIM_SCENARIO_POINTS_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "sim/scenario/document.h"
#include "sim/scenario/scenario.h"

namespace railsd::sim {

inline constexpr size_t kMostPoints = 10'000;

struct Point {
  Scenario scenario;
  std::vector<std::string> values;  // of the swept keys, as written
};

struct Points {
  std::vector<std::string> swept;  // keys with several values, in the order of the document; not `policy`
  std::vector<Point> points;       // the last swept key changes fastest
  std::vector<std::string> policies;
};

// INVALID_ARGUMENT, with place, key, value and reason: a malformed value, a key that has no effect at any point, a
// contradiction between keys, an unknown policy, the same value twice in a list, or more than kMostPoints points.
absl::StatusOr<Points> MakePoints(const Document& document);

// Names the place in the document that explains a failure of a point: the line of a key, or the point's values.
std::string DescribePoint(const Points& points, const Point& point);

}  // namespace railsd::sim

#endif  // RAILSD_SIM_SCENARIO_POINTS_H_
