// Ranks that are started apart: their places, who is admitted, and whole replays over connections.
#include "client/railsctl/replay/rendezvous.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "absl/time/clock.h"
#include "client/railsctl/replay/admission.h"
#include "client/railsctl/replay/place.h"
#include "client/railsctl/replay/run.h"
#include "client/railsctl/replay/worker.h"
#include "tests/support/temporary_folder.h"
#include "tests/unit/client/railsctl/fake_client.h"
#include "tests/unit/client/railsctl/text_message.h"

namespace rails::ctl {
namespace {

using internal::UniqueFd;
using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// --- Endpoint, Place

TEST(ParseEndpoint, TakesHostAndPort) {
  for (const auto& [text, host] : std::map<std::string, std::string>{
           {"10.0.0.1:29400", "10.0.0.1"}, {"[fd00::1]:29400", "fd00::1"}, {"a.b.c:29400", "a.b.c"}}) {
    const absl::StatusOr<Endpoint> endpoint = ParseEndpoint(text);
    ASSERT_TRUE(endpoint.ok()) << endpoint.status();
    EXPECT_EQ(endpoint->host, host);
    EXPECT_EQ(endpoint->port, "29400");
    EXPECT_EQ(FormatEndpoint(*endpoint), text);
  }
  for (const char* text : {"", "a", ":1", "a:", "a:x", "a:0", "a:65536", "a:-1", "fd00::1:29400", "[]:1", "[a:1"}) {
    EXPECT_THAT(Message(ParseEndpoint(text).status()), HasSubstr("is not HOST:PORT")) << text;
  }
}

class FindPlaceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::optional<Place>> Find(bool starts_all = false, uint32_t ranks_per_node = 1) {
    return FindPlace(flags_, starts_all, ranks_per_node, [this](const char* name) -> const char* {
      const auto found = variables_.find(name);
      return found == variables_.end() ? nullptr : found->second.c_str();
    });
  }
  std::string Mistake(uint32_t ranks_per_node = 1) { return Message(Find(false, ranks_per_node).status()); }

  PlaceFlags flags_;
  std::map<std::string, std::string> variables_;
  const std::map<std::string, std::string> torch_ = {
      {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "fd00::1"}, {"MASTER_PORT", "29500"}};
};

TEST_F(FindPlaceTest, WithoutOneAllRanksStartHere) {
  ASSERT_TRUE(Find().ok());
  EXPECT_FALSE(Find()->has_value());
  variables_ = torch_;
  EXPECT_FALSE((*Find(/*starts_all=*/true)).has_value());
  variables_.erase("MASTER_PORT");
  EXPECT_FALSE((*Find()).has_value());
  variables_ = {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}};
  EXPECT_FALSE((*Find()).has_value());
}

TEST_F(FindPlaceTest, FlagsComeBeforeTheEnvironment) {
  variables_ = torch_;
  Place place = **Find();
  EXPECT_EQ(place.rank, 1u);
  EXPECT_EQ(place.world_size, 4u);
  EXPECT_EQ(FormatEndpoint(place.rendezvous), "[fd00::1]:29500");
  EXPECT_EQ(place.join_timeout, absl::Minutes(2));
  flags_.rank = 2;
  flags_.world_size = 3;
  flags_.rendezvous = "a:1";
  flags_.join_timeout = "5s";
  variables_["RAILSCTL_TOKEN"] = " t\n";
  place = **Find();
  EXPECT_EQ(place.rank, 2u);
  EXPECT_EQ(place.world_size, 3u);
  EXPECT_EQ(FormatEndpoint(place.rendezvous), "a:1");
  EXPECT_EQ(place.join_timeout, absl::Seconds(5));
  EXPECT_EQ(place.token, "t");
}

TEST_F(FindPlaceTest, SlurmNamesRanksOfAGivenRendezvous) {
  variables_ = {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "6"}};
  flags_.rendezvous = "a:1";
  EXPECT_EQ((**Find()).rank, 3u);
  EXPECT_EQ((**Find()).world_size, 6u);
}

TEST_F(FindPlaceTest, MistakesAreNamed) {
  flags_.rank = 4;
  EXPECT_EQ(Message(Find(/*starts_all=*/true).status()),
            "--rank, --world and --rendezvous run one rank: leave out --nodes and --launch");
  EXPECT_EQ(Mistake(), "--world is missing, and neither WORLD_SIZE nor SLURM_NTASKS is set");
  variables_["WORLD_SIZE"] = "many";
  EXPECT_EQ(Mistake(), "WORLD_SIZE is 'many', which is no number");
  variables_["WORLD_SIZE"] = "4";
  EXPECT_EQ(Mistake(), "--rank 4 must be below --world 4");
  flags_.rank = 3;
  EXPECT_EQ(Mistake(3), "--world 4 must be a multiple of --ranks-per-node 3 and at most 65536");
  EXPECT_THAT(Mistake(), HasSubstr("--rendezvous is missing"));
  flags_.rendezvous = "a";
  EXPECT_EQ(Mistake(), "--rendezvous: 'a' is not HOST:PORT");
  flags_.rendezvous = "a:1";
  flags_.token_file = "/nowhere/token";
  EXPECT_EQ(Mistake(), "--token: /nowhere/token cannot be read");
  const railsd::testing::TemporaryFolder folder;
  flags_.token_file = folder.path() + "/token";
  std::ofstream(flags_.token_file) << " \n";
  chmod(flags_.token_file.c_str(), 0644);
  EXPECT_THAT(Mistake(), HasSubstr("can be read by every user: chmod o-r "));
  chmod(flags_.token_file.c_str(), 0640);
  EXPECT_THAT(Mistake(), HasSubstr("is empty"));
  std::ofstream(flags_.token_file) << std::string(5000, 'x');
  EXPECT_THAT(Mistake(), HasSubstr("at most 4096 printable ASCII"));
  std::ofstream(flags_.token_file) << "good\n";
  EXPECT_EQ((**Find()).token, "good");
  PlaceFlags alone;
  alone.token_file = "t";
  EXPECT_EQ(Message(FindPlace(alone, false, 1, [](const char*) { return nullptr; }).status()),
            "--token needs --rank, --world and --rendezvous");
}

// --- Admission

const auto kOwn =
    FromText<HelloEvent>("token: 'token' version: '1.0' world_size: 4 options: ['--workload uniform', '--seed 7']");

StartCommand StartOf(uint32_t rank, uint32_t world_size) {
  auto start = FromText<StartCommand>(
      "socket_dir: 'elsewhere' group: 'group' join_key: 'key' send_bytes: 4096 receive_bytes: 4096 seed: 7 "
      "timeout_milliseconds: 20000");
  start.set_rank(rank);
  start.set_world_size(world_size);
  return start;
}

HelloEvent Rank(uint32_t rank) {
  HelloEvent hello = kOwn;
  hello.set_rank(rank);
  return hello;
}

TEST(Admission, TakesEachRankOnce) {
  Admission admission(kOwn);
  EXPECT_EQ(admission.Missing(), "ranks 1, 2 and 3");
  EXPECT_TRUE(admission.Admit(Rank(2)).ok());
  EXPECT_EQ(admission.Missing(), "ranks 1 and 3");
  EXPECT_EQ(Message(admission.Admit(Rank(2))), "rank 2 has already come; it was started twice");
  EXPECT_EQ(Message(admission.Admit(Rank(0))), "rank 0 has already come; it was started twice");
  EXPECT_TRUE(admission.Admit(Rank(3)).ok());
  EXPECT_EQ(admission.Missing(), "rank 1");
  admission.Forget(3);
  EXPECT_TRUE(admission.Admit(Rank(1)).ok());
  EXPECT_FALSE(admission.Complete());
  EXPECT_TRUE(admission.Admit(Rank(3)).ok());
  EXPECT_TRUE(admission.Complete());
}

TEST(Admission, NamesSomeOfManyMissingRanks) {
  HelloEvent own = kOwn;
  own.set_world_size(100);
  EXPECT_EQ(Admission(own).Missing(), "ranks 1, 2, 3, 4, 5, 6, 7, 8 and 91 more");
}

TEST(Admission, RefusesWhatDiffersByName) {
  Admission admission(kOwn);
  HelloEvent hello = Rank(1);
  for (const char* token : {"", "toke", "Token", "token "}) {
    hello.set_token(token);
    EXPECT_EQ(admission.Admit(hello).code(), absl::StatusCode::kPermissionDenied);
  }
  hello = Rank(1);
  hello.set_version("1.1");
  EXPECT_EQ(Message(admission.Admit(hello)), "rank 1 is railsctl 1.1, and rank 0 is railsctl 1.0");
  hello = Rank(1);
  hello.set_world_size(5);
  EXPECT_EQ(Message(admission.Admit(hello)), "rank 1 was started with --world 5, and rank 0 with --world 4");
  hello = Rank(1);
  hello.set_options(1, "--seed 8");
  EXPECT_EQ(Message(admission.Admit(hello)), "rank 1 was started with --seed 8, and rank 0 with --seed 7");
  hello.mutable_options()->RemoveLast();
  EXPECT_THAT(Message(admission.Admit(hello)), HasSubstr("fewer options, and rank 0 with --seed 7"));
  hello = Rank(1);
  hello.add_options("--more");
  EXPECT_THAT(Message(admission.Admit(hello)), HasSubstr("--more, and rank 0 with fewer options"));
  EXPECT_THAT(Message(admission.Admit(Rank(4))), HasSubstr("does not exist"));
  EXPECT_THAT(Message(admission.Admit(Rank(~uint32_t{0}))), HasSubstr("does not exist"));
  EXPECT_EQ(admission.Missing(), "ranks 1, 2 and 3");
}

TEST(CheckPlacement, EachBlockIsOnItsNode) {
  EXPECT_TRUE(CheckPlacement({"a", "b"}, 1).ok());
  EXPECT_TRUE(CheckPlacement({"a", "a", "b", "b"}, 2).ok());
  EXPECT_EQ(Message(CheckPlacement({"a", "a"}, 1)),
            "rank 1 is on node a and rank 0 on node a; with --ranks-per-node 1 they must be on different nodes");
  EXPECT_EQ(Message(CheckPlacement({"a", "b", "a", "b"}, 2)),
            "rank 1 is on node b and rank 0 on node a; with --ranks-per-node 2 they must be on the same node");
  EXPECT_THAT(Message(CheckPlacement({"a", "a", "b", "a"}, 2)), HasSubstr("rank 3 is on node a and rank 0 on node a"));
}

// --- Connections

class RendezvousTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::signal(SIGPIPE, SIG_IGN);  // as main() does
    absl::StatusOr<Rendezvous> listening = Rendezvous::Listen({"127.0.0.1", "0"}, {absl::InfiniteFuture()});
    ASSERT_TRUE(listening.ok()) << listening.status();
    rendezvous_ = *std::move(listening);
  }
  void TearDown() override {
    for (std::thread& thread : threads_) thread.join();
  }

  Endpoint Where() const { return {"127.0.0.1", absl::StrCat(rendezvous_.port())}; }

  // A rank of a fake cluster; its end is kept.
  void StartRank(uint32_t rank) {
    threads_.emplace_back([this, rank, where = Where()] {
      const absl::StatusOr<UniqueFd> connection = ConnectToRankZero(where, Rank(rank), absl::Now() + absl::Seconds(30));
      ASSERT_TRUE(connection.ok()) << connection.status();
      const WorkerEnd end = RunWorker(Worker(connection->get(), absl::StrCat("n", rank)));
      std::lock_guard lock(mutex_);
      ends_[rank] = end;
    });
  }

  WorkerOptions Worker(int fd, const std::string& node) {
    WorkerOptions worker;
    worker.commands_fd = worker.events_fd = fd;
    worker.connect = [this](const ClientOptions& options) { return cluster_.Connect(options); };
    worker.read_rails = [](const std::string&) { return NodeRails{"", {{"rail0", 1'000'000, 0, 0}}}; };
    worker.socket_dir = node;
    worker.patience = absl::Seconds(30);
    return worker;
  }

  absl::StatusOr<std::vector<UniqueFd>> Gather(absl::Duration timeout = absl::Seconds(30)) {
    return rendezvous_.Gather(kOwn, {absl::Now() + timeout},
                              [this](const std::string& text) { said_.push_back(text); });
  }

  // Sends bytes and returns the answer.
  std::string Noise(const std::string& bytes) {
    sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(rendezvous_.port()), .sin_addr = {}, .sin_zero = {}};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
    send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    shutdown(fd.get(), SHUT_WR);
    std::string answer(4096, '\0');
    const ssize_t count = recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL);
    answer.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return answer;
  }

  Rendezvous rendezvous_;
  FakeCluster cluster_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::map<uint32_t, WorkerEnd> ends_;
  std::vector<std::string> said_;
};

// A replay of four ranks, of which rank 0 is on a socket pair.
class ApartTest : public RendezvousTest {
 protected:
  absl::Status Replay() {
    for (uint32_t rank : {3, 1, 2}) StartRank(rank);
    absl::StatusOr<std::vector<UniqueFd>> ranks = Gather();
    if (!ranks.ok()) return ranks.status();
    connections_ = *std::move(ranks);
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    connections_.insert(connections_.begin(), UniqueFd(pair[0]));
    threads_.emplace_back([this, fd = pair[1]] {
      RunWorker(Worker(fd, "n0"));
      close(fd);
    });
    std::vector<WorkerLink> links;
    for (const UniqueFd& fd : connections_) links.push_back({fd.get(), fd.get(), !links.empty()});
    CoordinatorOptions coordinating;
    coordinating.timeout = absl::Seconds(20);
    coordinator_ = std::make_unique<Coordinator>(links, coordinating);
    workload::Step step;
    step.dispatch = workload::TrafficMatrix(4);
    for (size_t i = 0; i < 16; ++i) step.dispatch.at(i / 4, i % 4) = 1000 + i;
    const absl::StatusOr<Exchange> exchange =
        PlanExchange({step}, {.nodes = 4, .bytes_per_rank = 0, .ranges_per_flow = 1});
    if (!exchange.ok()) return exchange.status();
    std::vector<StartCommand> commands(4);
    for (uint32_t rank = 0; rank < 4; ++rank) {
      commands[rank] = StartOf(rank, 4);
      commands[rank].set_send_bytes(exchange->send_segment_bytes);
      commands[rank].set_receive_bytes(exchange->receive_segment_bytes);
    }
    if (absl::Status status = coordinator_->Start(commands); !status.ok()) return status;
    RunOptions options;
    options.node_speeds = {1e6, 1e6, 1e6, 1e6};
    options.read_rails = [this] { return coordinator_->ReadRails(); };
    return RunExchange(*exchange, options, coordinator_.get(), &report_);
  }

  void TearDown() override {
    connections_.clear();
    RendezvousTest::TearDown();
  }

  std::vector<UniqueFd> connections_;
  std::unique_ptr<Coordinator> coordinator_;
  ReplayReport report_;
};

TEST_F(ApartTest, EveryByteIsRightAndAllEndWell) {
  ASSERT_TRUE(Replay().ok());
  EXPECT_TRUE(report_.verified());
  EXPECT_EQ(report_.rails.size(), 4u);
  EXPECT_EQ(report_.rails[3].node, "n3");  // the rank's own folder, not that of rank 0's command
  EXPECT_GT(report_.steps[0].Sum().seconds, 0);
  EXPECT_LT(report_.steps[0].Sum().seconds, 20);
  EXPECT_TRUE(coordinator_->Leave().ok());
  coordinator_->Quit(0, "");
  TearDown();
  threads_.clear();
  for (const auto& [rank, end] : ends_) EXPECT_EQ(end.exit_code, 0) << rank << " " << end.message;
  EXPECT_EQ(ends_.size(), 3u);
  EXPECT_EQ(said_, std::vector<std::string>());
}

TEST_F(ApartTest, WrongBytesEndEveryRankWithThatCode) {
  cluster_.after_copy = [](uint64_t seq, std::map<uint32_t, AllToAllv>& parts) {
    const Range& range = parts.at(2).receives.at(1).ranges.at(0);
    if (seq == 1) range.segment->bytes()[range.offset_bytes] ^= std::byte{1};
  };
  ASSERT_TRUE(Replay().ok());
  EXPECT_EQ(report_.wrong_bytes, 1u);
  coordinator_->Quit(4, DescribeWrongBytes(report_));
  TearDown();
  threads_.clear();
  for (const auto& [rank, end] : ends_) {
    EXPECT_EQ(end.exit_code, 4) << rank;
    EXPECT_THAT(end.message, HasSubstr("rank 0 says: 1 wrong bytes"));
  }
  EXPECT_EQ(ends_.size(), 3u);
}

TEST_F(RendezvousTest, RanksThatDoNotComeAreNamedToThoseThatHave) {
  StartRank(2);
  const absl::Status status = Gather(absl::Seconds(2)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(Message(status), "ranks 1 and 3 did not come within 2s");
  TearDown();
  threads_.clear();
  EXPECT_EQ(ends_[2].exit_code, 1);
  EXPECT_EQ(ends_[2].message, "rank 0 says: ranks 1 and 3 did not come within 2s");
}

TEST_F(RendezvousTest, NoiseIsRefusedAndTheSecretsOfNoiseAreNotRepeated) {
  std::thread noise([this] {
    EXPECT_THAT(Noise(std::string("\0\0\0\6hush\xff\xff", 10)), HasSubstr("it says no hello"));
    EXPECT_THAT(Noise(EncodeAs<Event>(JoinedEvent())), HasSubstr("instead of 'hello'"));
    EXPECT_THAT(Noise(EncodeAs<Event>(Rank(1)) + "more"), HasSubstr("more than a hello"));
    HelloEvent other = Rank(1);
    other.set_token("hush");
    EXPECT_THAT(Noise(EncodeAs<Event>(other)), HasSubstr("the token is not that of rank 0"));
    EXPECT_EQ(Noise(""), "");
    Noise(std::string(1 << 20, 'x'));
  });
  EXPECT_EQ(Gather(absl::Seconds(3)).status().code(), absl::StatusCode::kDeadlineExceeded);
  noise.join();
  EXPECT_EQ(said_.size(), 6u);
  for (const std::string& line : said_) EXPECT_THAT(line, ::testing::Not(HasSubstr("hush")));
}

TEST_F(RendezvousTest, SilentConnectionsKeepNoRankOut) {
  std::vector<UniqueFd> silent;
  sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(rendezvous_.port()), .sin_addr = {}, .sin_zero = {}};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (int i = 0; i < 80; ++i) {
    silent.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(silent.back().get(), reinterpret_cast<const sockaddr*>(&to), sizeof(to)), 0);
  }
  for (uint32_t rank : {1, 2, 3}) StartRank(rank);
  EXPECT_TRUE(Gather().ok());
  EXPECT_THAT(said_, ::testing::Contains(HasSubstr("it makes room for others: its hello has not come")));
}

TEST_F(RendezvousTest, TheWaitCanBeInterrupted) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  ASSERT_EQ(write(pipes[1], "x", 1), 1);
  const Patience patience{absl::InfiniteFuture(), pipes[0]};
  EXPECT_EQ(rendezvous_.Gather(kOwn, patience, [](const std::string&) {}).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(Rendezvous::Listen({std::string(300, 'x'), "1"}, patience).status().code(), absl::StatusCode::kCancelled);
  close(pipes[0]);
  close(pipes[1]);
}

TEST_F(RendezvousTest, AddressesThatCannotBeUsedAreNamed) {
  const absl::Status used = Rendezvous::Listen(Where(), {absl::InfiniteFuture()}).status();
  EXPECT_THAT(Message(used), HasSubstr("Address already in use"));
  const absl::Status foreign = Rendezvous::Listen({"192.0.2.1", "29400"}, {absl::InfiniteFuture()}).status();
  EXPECT_THAT(Message(foreign), HasSubstr("rank 0 must be started on the machine that has this address"));
  const Endpoint where = Where();
  rendezvous_ = Rendezvous();
  const absl::Status late = ConnectToRankZero(where, kOwn, absl::Now() + absl::Milliseconds(300)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(Message(late), HasSubstr(FormatEndpoint(where) + ": Connection refused"));
}

// A worker whose commands come from this test.
class WorkerTest : public ::testing::Test {
 protected:
  WorkerTest() {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    zero_ = UniqueFd(pair[0]);
    end_ = UniqueFd(pair[1]);
    worker_.commands_fd = worker_.events_fd = pair[1];
    worker_.patience = absl::Seconds(20);
  }
  template <typename Part>
  void Say(const Part& command) {
    EXPECT_TRUE(WriteAll(zero_.get(), EncodeAs<Command>(command), absl::Seconds(20)).ok());
  }
  void EndsWith(const std::string& text) {
    const WorkerEnd end = RunWorker(worker_);
    EXPECT_EQ(end.exit_code, 1);
    EXPECT_THAT(end.message, HasSubstr(text));
  }

  UniqueFd zero_, end_;  // of rank 0, and of the worker
  WorkerOptions worker_;
};

TEST_F(WorkerTest, ASilentRankZeroEndsTheWait) {
  worker_.patience = absl::Milliseconds(50);
  EndsWith("rank 0 has been silent for 50ms");
}

// Any process that listens at the rendezvous may say anything.
TEST_F(WorkerTest, RankZeroCannotSayThatAllIsWellBeforeItIs) {
  Say(QuitCommand());
  EndsWith("before this rank has left its group");
}

TEST_F(WorkerTest, RankZeroCannotGiveItAnotherRank) {
  worker_.rank = 1;
  worker_.world_size = 2;
  Say(StartOf(0, 1));
  EndsWith("rank 0 takes this for rank 0 of 1; it is rank 1 of 2");
}

TEST_F(ApartTest, ARankStartsOnce) {
  ASSERT_TRUE(Replay().ok());
  ASSERT_TRUE(WriteAll(connections_[1].get(), EncodeAs<Command>(StartOf(1, 4)), absl::Seconds(20)).ok());
  TearDown();
  threads_.clear();
  EXPECT_EQ(ends_.at(1).exit_code, 1);
  EXPECT_THAT(ends_.at(1).message, HasSubstr("started before"));
}

TEST(WriteAll, EndsWhenTheOtherEndDoesNotRead) {
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const timeval time = {0, 10'000};
  ASSERT_EQ(setsockopt(pair[0], SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time)), 0);
  const absl::Status status = WriteAll(pair[0], std::string(8 << 20, 'x'), absl::Milliseconds(100));
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  close(pair[0]);
  close(pair[1]);
}

}  // namespace
}  // namespace rails::ctl
