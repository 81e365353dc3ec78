// The nodes that doctor --cluster asks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/railsctl/doctor/cluster_places.h"
#include "tests/support/temporary_folder.h"

namespace rails::ctl::doctor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> PlacesIn(const std::vector<std::string>& values) {
  const absl::StatusOr<std::vector<ClusterPlace>> places = ParsePlaces(values);
  if (!places.ok()) return {places.status().ToString()};
  std::vector<std::string> out;
  for (const ClusterPlace& place : *places) {
    out.push_back(absl::StrCat(place.host, " ", place.port, place.every_address ? " all" : ""));
  }
  return out;
}

TEST(DoctorPlacesTest, ReadsListsAndFiles) {
  EXPECT_THAT(PlacesIn({"a:1,[::1]:2", "dns:rails.svc:3,a:1"}), ElementsAre("a 1", "::1 2", "rails.svc 3 all"));
}

TEST(DoctorPlacesTest, ReadsAFile) {
  const railsd::testing::TemporaryFolder folder;
  const std::string path = absl::StrCat(folder.path(), "/nodes");
  std::ofstream(path) << "# all of them\n\nn0:9471  # the first\n n1:9471\nn0:9471\n";
  EXPECT_THAT(PlacesIn({"@" + path}), ElementsAre("n0 9471", "n1 9471"));
  std::ofstream(path) << "n0:9471\nn1\n";
  EXPECT_THAT(PlacesIn({"@" + path}), ElementsAre(HasSubstr("nodes:2: 'n1' is not HOST:PORT")));
  std::ofstream(path) << "# none\n";
  EXPECT_THAT(PlacesIn({"@" + path}), ElementsAre(HasSubstr("no node is named")));
}

TEST(DoctorPlacesTest, RefusesWhatIsNoNode) {
  for (const std::string text : {"", "a", "a:", ":1", "a:0", "a:65536", "a:1x", "::1:2", "dns:a", "a b:1", "a:1,"}) {
    EXPECT_THAT(PlacesIn({text}), ElementsAre(HasSubstr("INVALID_ARGUMENT"))) << text;
  }
  EXPECT_THAT(PlacesIn({"a\x1b[2J"}), ElementsAre(HasSubstr("'a?[2J'")));
  EXPECT_THAT(PlacesIn({"@/no/file"}), ElementsAre(HasSubstr("NOT_FOUND: /no/file: No such file")));
}

TEST(DoctorPlacesTest, LooksUpAddressesAndKeepsTheOrder) {
  const std::vector<ClusterServer> servers = LookUpPlaces(
      {{"127.0.0.2", 1, false}, {"no.such.name.invalid", 2, false}, {"127.0.0.3", 3, true}, {"::1", 4, false}},
      absl::Seconds(30));
  ASSERT_EQ(servers.size(), 4u);
  EXPECT_EQ(servers[0].where, "127.0.0.2:1");
  EXPECT_TRUE(servers[0].trouble.ok());
  EXPECT_EQ(servers[1].where, "no.such.name.invalid:2");
  EXPECT_FALSE(servers[1].trouble.ok());
  EXPECT_EQ(servers[2].address, "127.0.0.3");
  EXPECT_EQ(servers[3].where, "[::1]:4");
  EXPECT_EQ(servers[3].address, "::1");
}

}  // namespace
}  // namespace rails::ctl::doctor
