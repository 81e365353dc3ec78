#include "client/railsctl/replay/fleet.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "client/railsctl/exit_code.h"
#include "client/railsctl/format.h"
#include "client/railsctl/rail_counter.h"
#include "client/railsctl/replay/memory_check.h"
#include "common/json/names.h"

namespace rails::ctl {
namespace {

// Limit for sending a rank the reason why the run ends.
constexpr absl::Duration kAbandonTimeout = absl::Seconds(1);

}  // namespace

SignalGuard::SignalGuard() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction action = {};
    sigaction(signal, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&mask, signal);
  }
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalGuard::~SignalGuard() {
  if (fd_ >= 0) close(fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);  // a pending signal acts now
}

absl::StatusOr<NodeRails> ReadNodeRails(OperatorClient* daemon) {
  absl::StatusOr<v1::ListRailsResponse> rails = daemon->ListRails();
  if (!rails.ok()) return rails.status();
  NodeRails node;
  node.eager_tx_bytes = rails->eager_sent_bytes();
  node.eager_rx_bytes = rails->eager_received_bytes();
  for (const v1::RailStatus& rail : rails->rails()) {
    const bool drained = rail.health().drained() || rail.health().state() == v1::RAIL_STATE_DRAINED_BY_PEER;
    node.rails.push_back({rail.name(), rail.speed_bytes_per_second(), Counter(rail, "tx_payload_bytes"),
                          Counter(rail, "rx_payload_bytes"), drained});
  }
  return node;
}

Fleet::Fleet(FleetOptions options) : options_(std::move(options)) {
  for (const std::string& dir : options_.socket_dirs) {
    operators_.push_back(std::make_unique<OperatorClient>(dir, options_.call_timeout));
  }
  names_.resize(operators_.size());
  boots_.resize(operators_.size());
}

absl::Status Fleet::Identify(size_t node) {
  absl::StatusOr<v1::GetStatusResponse> status = operators_[node]->GetStatus();
  if (!status.ok()) return status.status();
  const auto same = std::find(boots_.begin(), boots_.end(), status->boot_id());
  if (same != boots_.end() && status->boot_id() != 0) {
    // This daemon would copy the bytes in memory that the replay counts as bytes between nodes.
    return absl::InvalidArgumentError(absl::StrCat("--nodes names the daemon of node ", status->node(), " twice: ",
                                                   options_.socket_dirs[static_cast<size_t>(same - boots_.begin())],
                                                   " and ", options_.socket_dirs[node]));
  }
  names_[node] = status->node();
  boots_[node] = status->boot_id();
  return absl::OkStatus();
}

void Fleet::Adopt(std::vector<internal::UniqueFd> ranks) {
  apart_ = true;
  adopted_ = std::move(ranks);
}

absl::StatusOr<std::vector<NodeRails>> Fleet::ReadRails() {
  if (apart_) return coordinator_->ReadRails();
  std::vector<NodeRails> nodes;
  for (size_t i = 0; i < operators_.size(); ++i) {
    if (names_[i].empty()) {
      if (absl::Status status = Identify(i); !status.ok()) return status;
    }
    absl::StatusOr<NodeRails> rails = ReadNodeRails(operators_[i].get());
    if (!rails.ok()) return rails.status();
    rails->node = names_[i];
    nodes.push_back(*std::move(rails));
  }
  return nodes;
}

std::vector<std::vector<std::string>> Fleet::Launchers() const {
  std::vector<std::vector<std::string>> out(apart_ ? 1 : ranks(), options_.launch);
  for (size_t rank = 0; rank < out.size(); ++rank) {
    const std::string node = absl::StrCat(rank / options_.ranks_per_node), number = absl::StrCat(rank);
    for (std::string& word : out[rank]) word = absl::StrReplaceAll(word, {{"{node}", node}, {"{rank}", number}});
  }
  return out;
}

std::vector<WorkerLink> Fleet::Links() const {
  std::vector<WorkerLink> links = workers_->links();
  for (const internal::UniqueFd& fd : adopted_) links.push_back({fd.get(), fd.get(), /*remote=*/true});
  return links;
}

std::vector<StartCommand> Fleet::StartCommands(uint64_t send_bytes, uint64_t receive_bytes) const {
  std::random_device random;
  const auto random64 = [&random] { return uint64_t{random()} << 32 | random(); };
  StartCommand command;
  command.set_group(absl::StrCat("railsctl-", getpid(), "-", FormatId(random64())));
  command.set_join_key(absl::StrCat(FormatId(random64()), FormatId(random64())));
  command.set_world_size(static_cast<uint32_t>(ranks()));
  command.set_send_bytes(send_bytes);
  command.set_receive_bytes(receive_bytes);
  command.set_huge_pages(options_.huge_pages);
  command.set_seed(options_.seed);
  command.set_timeout_milliseconds(
      std::max<uint64_t>(1, static_cast<uint64_t>(absl::ToInt64Milliseconds(options_.job_timeout))));
  std::vector<StartCommand> commands(ranks(), command);
  for (size_t rank = 0; rank < commands.size(); ++rank) {
    commands[rank].set_rank(static_cast<uint32_t>(rank));
    commands[rank].set_socket_dir(options_.launch_socket_dir.empty()
                                      ? options_.socket_dirs[rank / options_.ranks_per_node]
                                      : options_.launch_socket_dir);
  }
  return commands;
}

absl::Status Fleet::Start(uint64_t send_bytes, uint64_t receive_bytes) {
  if (!options_.huge_pages) {  // with huge pages, CreateSegment() fails if too few are reserved
    std::ifstream file("/proc/meminfo");
    const std::string meminfo(std::istreambuf_iterator<char>(file), {});
    const uint64_t ranks_here = apart_ ? options_.ranks_per_node : ranks();
    if (absl::Status status = FitsMemory(meminfo, BuffersOfAll(ranks_here, send_bytes, receive_bytes)); !status.ok()) {
      return status;
    }
  }
  absl::StatusOr<WorkerProcesses> workers = WorkerProcesses::Start(Launchers());
  if (!workers.ok()) return workers.status();
  workers_.emplace(*std::move(workers));
  const auto how_ended = [this](size_t rank) {
    return rank < workers_->links().size() ? workers_->HowEnded(rank) : std::string("has ended, or its network has");
  };
  coordinator_.emplace(Links(), CoordinatorOptions{.ranks_per_node = options_.ranks_per_node,
                                                   .timeout = options_.job_timeout,
                                                   .how_ended = how_ended,
                                                   .interrupt_fd = options_.interrupt_fd});
  return coordinator_->Start(StartCommands(send_bytes, receive_bytes));
}

absl::Status Fleet::Stop(int exit_code, const std::string& why) {
  if (!coordinator_.has_value()) return absl::OkStatus();
  absl::Status status = coordinator_->Leave();
  if (!status.ok() && exit_code == kExitOk) {
    coordinator_->Quit(kExitFailed, std::string(status.message()));
  } else {
    coordinator_->Quit(exit_code, why);
  }
  if (!workers_->WaitAll(absl::Seconds(10))) {
    status.Update(absl::DeadlineExceededError("some workers did not end in time and were killed"));
  }
  coordinator_.reset();
  workers_.reset();
  return status;
}

void Fleet::Abandon(int exit_code, const std::string& why) {
  const std::string bytes = EncodeQuit(exit_code, why);
  for (const internal::UniqueFd& fd : adopted_) WriteAll(fd.get(), bytes, kAbandonTimeout).IgnoreError();
}

}  // namespace rails::ctl
