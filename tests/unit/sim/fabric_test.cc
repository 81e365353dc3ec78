// The fabric, its speeds over time, and the bound.
#include "sim/fabric.h"

#include <cmath>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sim/simulate.h"

namespace railsd::sim {
namespace {

using rails::workload::TrafficMatrix;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Fabric TwoNodes() { return {.nodes = 2, .gpus_per_node = 1, .rail_bytes_per_second = {2, 1}}; }

TEST(FabricTest, SpeedPeriodsFollowTheChanges) {
  Fabric fabric = TwoNodes();
  fabric.changes = {{.at = absl::Seconds(5), .rail = 1, .node = 1, .bytes_per_second = 0},
                    {.at = absl::Seconds(2), .rail = 0, .bytes_per_second = 1},
                    {.at = absl::Seconds(2), .rail = 0, .node = 0, .bytes_per_second = 3},
                    {.at = absl::ZeroDuration(), .rail = 1, .bytes_per_second = 4}};
  const std::vector<SpeedPeriod> periods = SpeedPeriods(fabric);
  ASSERT_EQ(periods.size(), 3);
  EXPECT_THAT(periods[0].speeds, ElementsAre(2, 4, 2, 4));
  EXPECT_EQ(periods[1].since, 2);
  EXPECT_THAT(periods[1].speeds, ElementsAre(3, 4, 1, 4));
  EXPECT_EQ(periods[2].since, 5);
  EXPECT_THAT(periods[2].speeds, ElementsAre(3, 4, 1, 0));
}

TEST(FabricTest, NicsThatAreDeadAtFirstHaveTheSpeedWithWhichTheyComeUp) {
  Fabric fabric = TwoNodes();
  fabric.rail_bytes_per_second = {2, 0};
  fabric.changes = {{.at = absl::Seconds(1), .rail = 0, .bytes_per_second = 0},
                    {.at = absl::Seconds(2), .rail = 1, .node = 0, .bytes_per_second = 3},
                    {.at = absl::Seconds(3), .rail = 1, .node = 0, .bytes_per_second = 1}};
  EXPECT_THAT(NominalSpeeds(SpeedPeriods(fabric)), ElementsAre(2, 3, 2, 0));
}

TEST(FabricTest, BoundIsTheBusiestNodeOverAllItsRails) {
  Fabric fabric = TwoNodes();
  TrafficMatrix matrix(2);
  matrix.at(0, 0) = 1000;  // stays on its GPU
  matrix.at(0, 1) = 12;
  matrix.at(1, 0) = 9;
  EXPECT_DOUBLE_EQ(BoundSeconds(fabric, matrix), 4);
  // 3 bytes/s for 2 s, then 1 byte/s.
  fabric.changes = {{.at = absl::Seconds(2), .rail = 0, .node = 1, .bytes_per_second = 0}};
  EXPECT_DOUBLE_EQ(BoundSeconds(fabric, matrix), 2 + 6);
  fabric.changes.push_back({.at = absl::Seconds(3), .rail = 1, .bytes_per_second = 0});
  EXPECT_TRUE(std::isinf(BoundSeconds(fabric, matrix)));
  fabric.changes.push_back({.at = absl::Seconds(10), .rail = 1, .bytes_per_second = 5});
  EXPECT_DOUBLE_EQ(BoundSeconds(fabric, matrix), 11);
}

TEST(FabricTest, SpinesDoNotBlockUnlessTold) {
  Fabric fabric{.nodes = 16, .rail_bytes_per_second = {2, 4}, .spines = 8};
  EXPECT_DOUBLE_EQ(fabric.SpineLinkSpeed(), 8);
  fabric.nodes = 2;
  EXPECT_DOUBLE_EQ(fabric.SpineLinkSpeed(), 4) << "one flow has its NIC's speed";
  fabric.changes = {{.at = absl::Seconds(1), .rail = 0, .bytes_per_second = 10}};
  EXPECT_DOUBLE_EQ(fabric.SpineLinkSpeed(), 10);
  fabric.spine_bytes_per_second = 3;
  EXPECT_DOUBLE_EQ(fabric.SpineLinkSpeed(), 3);
}

TEST(FabricTest, ErrorsNameTheFieldAndItsValue) {
  const auto error = [](auto change) {
    Fabric fabric = TwoNodes();
    change(fabric);
    const absl::Status status = Validate(fabric);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_TRUE(Validate(TwoNodes()).ok());
  EXPECT_THAT(error([](Fabric& f) { f.nodes = 0; }), HasSubstr("nodes is 0"));
  EXPECT_THAT(error([](Fabric& f) { f.gpus_per_node = 2000; }), HasSubstr("gpus_per_node is 2000"));
  EXPECT_THAT(error([](Fabric& f) { f.rail_bytes_per_second.clear(); }), HasSubstr("0 rails"));
  EXPECT_THAT(error([](Fabric& f) { f.rail_bytes_per_second[1] = NAN; }), HasSubstr("rail_bytes_per_second[1] is nan"));
  EXPECT_THAT(error([](Fabric& f) { f.rail_bytes_per_second[0] = INFINITY; }), HasSubstr("inf"));
  EXPECT_THAT(error([](Fabric& f) { f.inner_bytes_per_second = 0; }), HasSubstr("inner_bytes_per_second is 0"));
  EXPECT_THAT(error([](Fabric& f) { f.spine_bytes_per_second = -2; }), HasSubstr("spine_bytes_per_second is -2"));
  EXPECT_THAT(error([](Fabric& f) { f.propagation = absl::Seconds(-1); }), HasSubstr("propagation is -1s"));
  EXPECT_THAT(error([](Fabric& f) { f.changes = {{.at = absl::Seconds(-1)}}; }), HasSubstr("changes[0].at is -1s"));
  EXPECT_THAT(error([](Fabric& f) { f.changes = {{.rail = 2}}; }), HasSubstr("changes[0].rail is 2"));
  EXPECT_THAT(error([](Fabric& f) { f.changes = {{.node = 2}}; }), HasSubstr("changes[0].node is 2"));
  EXPECT_THAT(error([](Fabric& f) { f.changes = {{.bytes_per_second = -1}}; }),
              HasSubstr("changes[0].bytes_per_second is -1"));
}

}  // namespace
}  // namespace railsd::sim
