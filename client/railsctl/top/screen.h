// The terminal, taken over and given back as it was.
#ifndef RAILS_RAILSCTL_TOP_SCREEN_H_
#define RAILS_RAILSCTL_TOP_SCREEN_H_

#include <signal.h>
#include <termios.h>

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace rails::ctl {

// Signals that matter to a program that has taken over a terminal, read from a descriptor while this lives. Threads
// that start meanwhile leave them to it.
class TerminalSignals {
 public:
  TerminalSignals();
  ~TerminalSignals();  // those that have come meanwhile act now
  TerminalSignals(const TerminalSignals&) = delete;

  int fd() const { return fd_; }
  // The next one that has come; 0: none.
  int Next();

 private:
  sigset_t old_mask_;
  int fd_;
};

// Standard output, which is a terminal: the other screen of it, without a cursor; and the keys, without echo, when
// standard input is one too. One thread.
class Screen {
 public:
  Screen() { Enter(); }
  ~Screen() { Leave(); }
  Screen(const Screen&) = delete;

  void Enter();  // also again, after somebody else had the terminal
  void Leave();

  struct Size {
    size_t columns, rows;
  };
  static Size SizeOfTerminal();  // 80 x 24 when it does not tell

  // Replaces what is shown by lines that end with "\n". Error: the terminal is gone.
  absl::Status Show(const std::string& lines);
  // The next key that was pressed; 0: none. Never waits. Closes the keys when they have come to their end.
  char NextKey();
  bool has_keys() const { return keys_.has_value(); }

 private:
  std::optional<termios> keys_;  // how they were
  bool entered_ = false;
};

}  // namespace rails::ctl

#endif  // RAILS_RAILSCTL_TOP_SCREEN_H_
