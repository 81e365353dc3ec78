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
#include "client/railsctl/format.h"
#include "client/railsctl/replay/memory_check.h"
#include "proto/json/names.h"

namespace rails::ctl {
SignalGuard::SignalGuard() {
  sigset_t mask;
  sigemptyset(&mask);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalGuard::~SignalGuard() {
  if (fd_ >= 0) close(fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);  // a pending signal acts now
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
    // Its ranks would copy in memory the bytes that are counted as bytes between nodes.
    return absl::InvalidArgumentError(absl::StrCat("--nodes names the daemon of node ", status->node(), " twice: ",
                                                   options_.socket_dirs[static_cast<size_t>(same - boots_.begin())],
                                                   " and ", options_.socket_dirs[node]));
  }
  names_[node] = status->node();
  boots_[node] = status->boot_id();
  return absl::OkStatus();
}

absl::StatusOr<std::vector<NodeRails>> Fleet::ReadRails() {
  std::vector<NodeRails> nodes;
  for (size_t i = 0; i < operators_.size(); ++i) {
    if (names_[i].empty()) {
      if (absl::Status status = Identify(i); !status.ok()) return status;
    }
    absl::StatusOr<v1::ListRailsResponse> rails = operators_[i]->ListRails();
    if (!rails.ok()) return rails.status();
    NodeRails& node = nodes.emplace_back();
    node.node = names_[i];
    node.eager_tx_bytes = rails->eager_sent_bytes();
    node.eager_rx_bytes = rails->eager_received_bytes();
    for (const v1::RailStatus& rail : rails->rails()) {
      const bool drained = rail.health().drained() || rail.health().state() == v1::RAIL_STATE_DRAINED_BY_PEER;
      node.rails.push_back(
          {rail.name(), rail.speed_bytes_per_second(), rail.tx_payload_bytes(), rail.rx_payload_bytes(), drained});
    }
  }
  return nodes;
}

std::vector<std::vector<std::string>> Fleet::Launchers() const {
  std::vector<std::vector<std::string>> out(ranks(), options_.launch);
  for (size_t rank = 0; rank < out.size(); ++rank) {
    const std::string node = absl::StrCat(rank / options_.ranks_per_node), number = absl::StrCat(rank);
    for (std::string& word : out[rank]) word = absl::StrReplaceAll(word, {{"{node}", node}, {"{rank}", number}});
  }
  return out;
}

absl::Status Fleet::Start(uint64_t send_bytes, uint64_t receive_bytes) {
  if (!options_.huge_pages) {  // huge pages are reserved; running out of them is a plain error
    std::ifstream file("/proc/meminfo");
    const std::string meminfo(std::istreambuf_iterator<char>(file), {});
    if (absl::Status status = FitsMemory(meminfo, BuffersOfAll(ranks(), send_bytes, receive_bytes)); !status.ok()) {
      return status;
    }
  }
  absl::StatusOr<WorkerProcesses> workers = WorkerProcesses::Start(Launchers());
  if (!workers.ok()) return workers.status();
  workers_.emplace(*std::move(workers));
  coordinator_.emplace(workers_->links(),
                       CoordinatorOptions{.ranks_per_node = options_.ranks_per_node,
                                          .timeout = options_.job_timeout,
                                          .how_ended = [this](size_t rank) { return workers_->HowEnded(rank); },
                                          .interrupt_fd = options_.interrupt_fd});
  std::random_device random;
  const auto random64 = [&random] { return uint64_t{random()} << 32 | random(); };
  StartCommand command;
  command.group = absl::StrCat("railsctl-", getpid(), "-", FormatId(random64()));
  command.join_key = absl::StrCat(FormatId(random64()), FormatId(random64()));
  command.world_size = static_cast<uint32_t>(ranks());
  command.send_bytes = send_bytes;
  command.receive_bytes = receive_bytes;
  command.huge_pages = options_.huge_pages;
  command.seed = options_.seed;
  command.timeout_milliseconds =
      std::max<uint64_t>(1, static_cast<uint64_t>(absl::ToInt64Milliseconds(options_.job_timeout)));
  std::vector<StartCommand> commands(ranks(), command);
  for (size_t rank = 0; rank < commands.size(); ++rank) {
    commands[rank].rank = static_cast<uint32_t>(rank);
    commands[rank].socket_dir = options_.launch_socket_dir.empty()
                                    ? options_.socket_dirs[rank / options_.ranks_per_node]
                                    : options_.launch_socket_dir;
  }
  return coordinator_->Start(commands);
}

bool Fleet::Stop() {
  if (!coordinator_.has_value()) return true;
  coordinator_->Quit();
  const bool all = workers_->WaitAll(absl::Seconds(10));
  coordinator_.reset();
  workers_.reset();
  return all;
}

}  // namespace rails::ctl
