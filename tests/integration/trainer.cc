// A trainer that does what it is told: one JSON command a line on standard input, one JSON answer a line on standard
// output. The integration tests use it for whatever `railsctl replay` would never do: wrong lengths, cancelling,
// dying in the middle of a job.
//
//   {"do": "connect", "socket_dir": D}                    {"do": "reconnect"}  {"do": "connected"}
//   {"do": "segment", "name": S, "bytes": N}              {"do": "drop", "name": S}
//   {"do": "fill" | "check", "name": S, "offset": O, "bytes": N, "seed": X}
//   {"do": "join", "group": G, "world": W, "rank": R, "key": K, "timeout": SECONDS}
//   {"do": "submit", "group": G, "job": NAME, "sends": {RANK: [[S, O, N], ...]}, "receives": {...}, "tag": T,
//    "timeout": SECONDS}
//   {"do": "wait", "job": NAME, "timeout": SECONDS}       {"do": "cancel", "job": NAME}
//   {"do": "leave", "group": G}
//
// Answers: {"ok": true, ...} or {"ok": false, "code": "NOT_FOUND", "message": "..."}.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "rails/client.h"

namespace rails {
namespace {

using Json = nlohmann::json;

Json Failure(const absl::Status& status) {
  return {{"ok", false}, {"code", absl::StatusCodeToString(status.code())}, {"message", std::string(status.message())}};
}

Json Answer(const absl::Status& status) { return status.ok() ? Json{{"ok", true}} : Failure(status); }

// A byte that differs between seeds and between neighbouring positions.
std::byte Pattern(uint64_t seed, uint64_t position) {
  uint64_t x = (seed * 0x9E3779B97F4A7C15u) ^ (position * 0xBF58476D1CE4E5B9u);
  x ^= x >> 31;
  return static_cast<std::byte>(x * 0x94D049BB133111EBu >> 56);
}

absl::Duration Seconds(const Json& command, double otherwise) {
  return absl::Seconds(command.value("timeout", otherwise));
}

class Trainer {
 public:
  Json Do(const Json& command) {
    const std::string what = command.at("do");
    if (what == "connect") return Connect(command);
    if (client_ == nullptr) return Failure(absl::FailedPreconditionError("connect first"));
    if (what == "reconnect") return Answer(client_->Reconnect());
    if (what == "connected") return {{"ok", true}, {"connected", client_->Connected()}};
    if (what == "segment") return AddSegment(command);
    if (what == "drop") return DropSegment(command);
    if (what == "fill") return Fill(command);
    if (what == "check") return Check(command);
    if (what == "join") return Join(command);
    if (what == "leave") return Leave(command);
    if (what == "submit") return Submit(command);
    if (what == "wait") return Wait(command);
    if (what == "cancel") return Cancel(command);
    return Failure(absl::UnimplementedError(absl::StrCat("no command '", what, "'")));
  }

 private:
  Json Connect(const Json& command) {
    auto client = Client::Connect({.socket_dir = command.at("socket_dir"),
                                   .client_name = "test trainer",
                                   .connect_timeout = Seconds(command, 10)});
    if (!client.ok()) return Failure(client.status());
    client_ = *std::move(client);
    return {{"ok", true}, {"node", client_->node()}, {"pid", getpid()}};
  }

  Json AddSegment(const Json& command) {
    auto segment = client_->CreateSegment(command.at("bytes").get<uint64_t>());
    if (!segment.ok()) return Failure(segment.status());
    segments_[command.at("name")] = *segment;
    return {{"ok", true}, {"id", (*segment)->id()}};
  }

  Json DropSegment(const Json& command) {
    segments_.erase(command.at("name").get<std::string>());
    return {{"ok", true}};
  }

  Json Fill(const Json& command) {
    const absl::Span<std::byte> bytes = segments_.at(command.at("name"))->bytes();
    const uint64_t offset = command.at("offset"), length = command.at("bytes"), seed = command.at("seed");
    for (uint64_t i = 0; i < length; ++i) bytes.at(offset + i) = Pattern(seed, i);
    return {{"ok", true}};
  }

  Json Check(const Json& command) {
    const absl::Span<std::byte> bytes = segments_.at(command.at("name"))->bytes();
    const uint64_t offset = command.at("offset"), length = command.at("bytes"), seed = command.at("seed");
    uint64_t wrong = 0;
    for (uint64_t i = 0; i < length; ++i) wrong += bytes.at(offset + i) != Pattern(seed, i);
    return {{"ok", true}, {"wrong", wrong}};
  }

  Json Join(const Json& command) {
    const std::string name = command.at("group");
    groups_.erase(name);
    auto group = client_->JoinGroup({.name = name,
                                     .join_key = command.value("key", ""),
                                     .world_size = command.at("world"),
                                     .rank = command.at("rank"),
                                     .timeout = Seconds(command, 30)});
    if (!group.ok()) return Failure(group.status());
    const std::vector<std::string> members = (*group)->members();
    groups_[name] = *std::move(group);
    return {{"ok", true}, {"members", members}};
  }

  Json Leave(const Json& command) {
    const std::string name = command.at("group");
    const absl::Status left = groups_.at(name)->Leave();
    groups_.erase(name);
    return Answer(left);
  }

  std::vector<FlowRanges> Flows(const Json& flows) {
    std::vector<FlowRanges> result;
    for (const auto& [rank, ranges] : flows.items()) {
      FlowRanges flow;
      if (!absl::SimpleAtoi(rank, &flow.rank)) throw std::invalid_argument("rank " + rank);
      for (const Json& range : ranges) {
        flow.ranges.push_back({segments_.at(range.at(0)), range.at(1), range.at(2)});
      }
      result.push_back(std::move(flow));
    }
    return result;
  }

  Json Submit(const Json& command) {
    AllToAllv exchange;
    exchange.sends = Flows(command.value("sends", Json::object()));
    exchange.receives = Flows(command.value("receives", Json::object()));
    exchange.tag = command.value("tag", uint64_t{0});
    exchange.timeout = Seconds(command, 0);
    auto job = groups_.at(command.at("group"))->Submit(exchange);
    if (!job.ok()) return Failure(job.status());
    jobs_[command.at("job")] = *job;
    return {{"ok", true}, {"seq", (*job)->seq()}};
  }

  Json Wait(const Json& command) {
    auto report = jobs_.at(command.at("job"))->Wait(Seconds(command, 60));
    if (!report.ok()) return Failure(report.status());
    return {{"ok", true},
            {"terminal", report->terminal},
            {"code", absl::StatusCodeToString(report->status.code())},
            {"message", std::string(report->status.message())},
            {"sent", report->bytes_sent},
            {"received", report->bytes_received},
            {"rail_tx", report->rail_tx_bytes},
            {"rail_rx", report->rail_rx_bytes},
            {"ratio", report->ratio_to_bound}};
  }

  Json Cancel(const Json& command) { return Answer(jobs_.at(command.at("job"))->Cancel()); }

  std::unique_ptr<Client> client_;
  std::map<std::string, std::shared_ptr<Segment>> segments_;
  std::map<std::string, std::unique_ptr<Group>> groups_;
  std::map<std::string, std::shared_ptr<Job>> jobs_;
};

}  // namespace
}  // namespace rails

int main() {
  rails::Trainer trainer;
  std::string line;
  while (std::getline(std::cin, line)) {
    rails::Json answer;
    try {
      answer = trainer.Do(rails::Json::parse(line));
    } catch (const std::exception& error) {  // of a command that is none: the test is wrong
      answer = {{"ok", false}, {"code", "BAD_COMMAND"}, {"message", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
  return 0;
}
