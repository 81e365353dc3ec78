#include "agent/rails/rail_handle.h"

#include <utility>

namespace railsd {

void RailHandle::Command(RailCommand command, bool wake) {
  flush = flush || wake;
  const bool receiving = command.kind == RailCommand::Kind::kOpenZone || command.kind == RailCommand::Kind::kCloseZone;
  std::deque<RailCommand>& overflow = receiving ? receiving_overflow : sending_overflow;
  if (overflow.empty() && port->TryCommand(command)) return;
  overflow.push_back(std::move(command));
}

void RailHandle::Pump() {
  for (std::deque<RailCommand>* overflow : {&receiving_overflow, &sending_overflow}) {
    while (!overflow->empty() && port->TryCommand(overflow->front())) overflow->pop_front();
  }
  if (flush) port->Flush();
  flush = overflowing();
}

}  // namespace railsd
