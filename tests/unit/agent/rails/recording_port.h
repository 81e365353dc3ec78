// A rail that records the engine's commands. A test makes its reports by hand.
#ifndef RAILSD_TESTS_UNIT_AGENT_RAILS_RECORDING_PORT_H_
#define RAILSD_TESTS_UNIT_AGENT_RAILS_RECORDING_PORT_H_

#include <deque>
#include <utility>
#include <vector>

#include "agent/rails/rail.h"

namespace railsd::testing {

class RecordingPort final : public RailPort {
 public:
  bool TryCommand(RailCommand command) override {
    if (refuse) return false;
    commands.push_back(std::move(command));
    return true;
  }
  size_t TakeEvents(absl::Span<RailEvent>) override { return 0; }
  void Flush() override {}
  const RailCounters& counters() const override { return counters_; }

  // Takes the recorded commands of a kind; the others stay.
  std::vector<RailCommand> Take(RailCommand::Kind kind) {
    std::vector<RailCommand> taken;
    std::erase_if(commands, [&](const RailCommand& command) {
      if (command.kind == kind) taken.push_back(command);
      return command.kind == kind;
    });
    return taken;
  }

  std::deque<RailCommand> commands;
  bool refuse = false;

 private:
  RailCounters counters_;
};

}  // namespace railsd::testing

#endif  // RAILSD_TESTS_UNIT_AGENT_RAILS_RECORDING_PORT_H_
