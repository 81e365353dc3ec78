// A build without libibverbs says so, by name, wherever verbs are asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/transport/verbs/verbs_transport.h"

namespace railsd {
namespace {

using ::testing::HasSubstr;

TEST(NoVerbs, RailsOverVerbsAreRefusedByName) {
  EXPECT_FALSE(HasVerbs());
  VerbsOptions options;
  options.rail = RailIndex(3);
  options.device = "mlx5_3/1";
  const absl::Status status = CreateVerbsTransport(std::move(options)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
              ::testing::AllOf(HasSubstr("rail 3"), HasSubstr("mlx5_3/1"), HasSubstr("without libibverbs")));
}

}  // namespace
}  // namespace railsd
