#include "client/railsctl/top/screen.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace rails::ctl {
namespace {

// Switches to the alternate screen, so that the old contents come back, and hides the cursor. kLeave undoes both.
constexpr absl::string_view kEnter = "\033[?1049h\033[?25l";
constexpr absl::string_view kLeave = "\033[?25h\033[?1049l";

absl::Status Write(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd ready{STDOUT_FILENO, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (errno != EINTR) {
      return absl::UnavailableError(absl::StrCat("cannot write to the terminal: ", std::strerror(errno)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

TerminalSignals::TerminalSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) sigaddset(&mask, signal);
  pthread_sigmask(SIG_BLOCK, &mask, &old_mask_);
  fd_ = signalfd(-1, &mask, SFD_CLOEXEC | SFD_NONBLOCK);
}

TerminalSignals::~TerminalSignals() {
  if (fd_ >= 0) close(fd_);
  pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
}

int TerminalSignals::Next() {
  signalfd_siginfo info;
  return read(fd_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void Screen::Enter() {
  termios keys;
  if (tcgetattr(STDIN_FILENO, &keys) == 0) {
    if (!keys_ || !entered_) keys_ = keys;
    keys.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);  // Ctrl-C and Ctrl-Z stay signals
    tcsetattr(STDIN_FILENO, TCSANOW, &keys);
  }
  Write(kEnter).IgnoreError();  // Show() reports the error
  entered_ = true;
}

void Screen::Leave() {
  if (!entered_) return;
  Write(kLeave).IgnoreError();
  if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &*keys_);
  entered_ = false;
}

Screen::Size Screen::SizeOfTerminal() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0) return {80, 24};
  return {size.ws_col, size.ws_row};
}

absl::Status Screen::Show(const std::string& lines) {
  // Goes home, erases and writes each row, then erases all below, in one write, so that nothing flickers. Erases each
  // row from its first column, because at the end of a full row the cursor is still on the last letter. Omits the last
  // line end, which would scroll a full screen.
  const absl::string_view body(lines.data(), lines.empty() ? 0 : lines.size() - 1);
  const size_t last = body.rfind('\n') == absl::string_view::npos ? 0 : body.rfind('\n') + 1;
  return Write(absl::StrCat("\033[H\033[K", absl::StrReplaceAll(body.substr(0, last), {{"\n", "\r\n\033[K"}}), "\033[J",
                            body.substr(last)));
}

char Screen::NextKey() {
  pollfd ready{STDIN_FILENO, POLLIN, 0};
  if (!keys_ || poll(&ready, 1, 0) != 1) return 0;
  char key = 0;
  if (read(STDIN_FILENO, &key, 1) == 1) return key;
  keys_.reset();
  return 0;
}

}  // namespace rails::ctl
