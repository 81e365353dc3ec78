// A trainer's session with its ring, in tests of the daemon.
#ifndef RAILSD_TESTS_UNIT_DAEMON_RING_RING_TRAINER_H_
#define RAILSD_TESTS_UNIT_DAEMON_RING_RING_TRAINER_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/unique_fd.h"
#include "rails/v1/descriptor.pb.h"
#include "tests/unit/daemon/ring/ring_client.h"
#include "tests/unit/daemon/session/descriptor_client.h"

namespace railsd::testing {

// A session with its ring.
struct Trainer {
  explicit Trainer(const std::string& path) : session(path) {
    id = session.Ask(OpenRequest()).open_session().session_id();
    rails::v1::DescriptorResponse response;
    std::vector<UniqueFd> fds;
    EXPECT_TRUE(session.Send(OpenRingRequest()));
    EXPECT_TRUE(session.Receive(&response, &fds));
    EXPECT_EQ(response.code(), 0) << response.message();
    EXPECT_EQ(response.open_ring().version(), 1u);
    EXPECT_EQ(fds.size(), 3u);
    if (fds.size() == 3) ring.emplace(RingDescriptors{std::move(fds[0]), std::move(fds[1]), std::move(fds[2])});
  }
  DescriptorClient session;
  std::optional<RingClient> ring;
  uint64_t id = 0;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_DAEMON_RING_RING_TRAINER_H_
