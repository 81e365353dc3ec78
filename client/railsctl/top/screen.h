// Takes over the terminal and restores it.
#ifndef RAILS_RAILSCTL_TOP_SCREEN_H_
#define RAILS_RAILSCTL_TOP_SCREEN_H_

#include <signal.h>
#include <termios.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rails::ctl {

// While it lives, a descriptor receives the signals of a full-screen program, and threads that start block them.
class TerminalSignals {
 public:
  TerminalSignals();
  ~TerminalSignals();  // pending signals act now
  TerminalSignals(const TerminalSignals&) = delete;

  int fd() const { return fd_; }
  // Returns the next pending signal; 0: none.
  int Next();

 private:
  sigset_t old_mask_;
  int fd_;
};

// Shows the alternate screen of standard output, which must be a terminal, without a cursor. Reads keys without echo if
// standard input is a terminal, too. Used by one thread.
class Screen {
 public:
  Screen() { Enter(); }
  ~Screen() { Leave(); }
  Screen(const Screen&) = delete;

  void Enter();  // may be called again after another program used the terminal
  void Leave();

  struct Size {
    size_t columns, rows;
  };
  static Size SizeOfTerminal();  // 80 x 24 if unknown

  // Replaces the contents by lines that end with "\n". Error: the terminal is gone.
  absl::Status Show(const std::string& lines);
  // Returns the next pressed key; 0: none. Never waits. Stops reading keys at the end of standard input.
  char NextKey();
  bool has_keys() const { return keys_.has_value(); }

 private:
  std::optional<termios> keys_;  // the terminal's original settings
  bool entered_ = false;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_SCREEN_H_
