// top: shows a node's rails, peers and jobs, live in a terminal, or once for scripts.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/railsctl/command.h"
#include "client/railsctl/format.h"
#include "client/railsctl/operator_client.h"
#include "client/railsctl/top/rates.h"
#include "client/railsctl/top/render.h"
#include "client/railsctl/top/sampler.h"
#include "client/railsctl/top/screen.h"
#include "common/json/json.h"

namespace rails::ctl {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(5);

struct TopFlags {
  std::vector<std::string> nodes;  // socket folders
  std::string interval = "1s";
  bool once = false;
};

TopOptions OptionsFrom(const Context& context, const TopFlags& flags) {
  TopOptions options;
  options.color = context.color;
  options.interval = ParseTimeout(flags.interval).value_or(absl::Seconds(1));
  options.zone = absl::LocalTimeZone();
  return options;
}

nlohmann::ordered_json NodeJson(const NodeView& node) {
  if (node.status.ok() && node.after) return TopJson(node.before ? *node.before : *node.after, *node.after);
  return {{"socket_dir", node.socket_dir},
          {"error",
           {{"code", absl::StatusCodeToString(node.status.code())},
            {"message", std::string(node.status.message())},
            {"exit_code", static_cast<int>(ExitCodeOfCall(node.status))}}}};
}

// The object of one daemon, or {"nodes": [...]} of several.
std::string JsonText(const std::vector<NodeView>& nodes, int indent) {
  nlohmann::ordered_json out;
  if (nodes.size() == 1) {
    out = NodeJson(nodes[0]);
  } else {
    for (const NodeView& node : nodes) out["nodes"].push_back(NodeJson(node));
  }
  return DumpJson(out, indent) + "\n";
}

// All daemons one below the other, for outputs that are not terminals.
std::string Plain(const std::vector<NodeView>& nodes, const TopOptions& options) {
  std::string out;
  for (const NodeView& node : nodes) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", RenderTop(node, {}, options));
  }
  return out;
}

// Asks each daemon twice and prints the result once.
int TopOnce(const Context& context, const TopFlags& flags) {
  TopOptions options = OptionsFrom(context, flags);
  options.color = false;
  std::vector<NodeView> nodes;
  std::vector<std::unique_ptr<OperatorClient>> clients;
  for (const std::string& dir : flags.nodes) {
    clients.push_back(std::make_unique<OperatorClient>(dir, context.TimeoutOr(kCallTimeout)));
    nodes.push_back({dir, {}, {}, {}, {}});
  }
  int code = kExitOk;
  for (const bool second : {false, true}) {
    if (second) absl::SleepFor(options.interval);
    for (size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].status.ok()) continue;
      absl::StatusOr<v1::GetOverviewResponse> answer = clients[i]->GetOverview(kFinishedAsked);
      nodes[i].status = answer.status();
      if (answer.ok()) {
        nodes[i].before = std::move(nodes[i].after);
        nodes[i].after = *std::move(answer);
      } else if (nodes.size() == 1) {
        return Fail(context, ExitCodeOfCall(answer.status()), answer.status());
      } else {
        code = ExitCodeOfCall(answer.status());
      }
    }
  }
  const std::string text = context.json ? JsonText(nodes, 2) : Plain(nodes, options);
  std::fputs(text.c_str(), stdout);
  return code;
}

class Top {
 public:
  Top(const Context& context, const TopFlags& flags)
      : context_(context), options_(OptionsFrom(context, flags)), news_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    for (const std::string& dir : flags.nodes) {
      samplers_.push_back(std::make_unique<Sampler>(dir, context.TimeoutOr(kCallTimeout), options_.interval, news_));
    }
  }
  ~Top() {
    samplers_.clear();
    close(news_);
  }
  Top(const Top&) = delete;

  // Runs until a key or a signal ends it. Returns the signal, or 0.
  int RunOnScreen(TerminalSignals* signals) {
    Screen screen;
    while (true) {
      if (!Draw(&screen).ok()) return SIGHUP;  // the terminal is gone
      WaitForSomething(screen.has_keys() ? STDIN_FILENO : -1, signals->fd());
      while (const int signal = signals->Next()) {
        if (signal == SIGTSTP) {
          screen.Leave();
          raise(SIGSTOP);  // returns after SIGCONT
        }
        if (signal == SIGTSTP || signal == SIGCONT) {
          screen.Enter();
        } else if (signal != SIGWINCH) {
          return signal;
        }
      }
      while (const char key = screen.NextKey()) {
        if (key == 'q' || key == 'Q') return 0;
        Press(key);
      }
    }
  }

  // Prints one frame or one object after the other. Ends when the reader closes the output.
  int RunOnPaper(TerminalSignals* signals) {
    absl::Time last = absl::Now();
    while (true) {
      WaitForSomething(-1, signals->fd());
      while (const int signal = signals->Next()) {
        if (signal == SIGTSTP) raise(SIGSTOP);
        if (signal != SIGTSTP && signal != SIGCONT && signal != SIGWINCH) return signal;
      }
      if (absl::Now() - last < options_.interval) continue;
      const std::vector<NodeView> nodes = Views();
      const bool asked =
          std::all_of(nodes.begin(), nodes.end(), [](const NodeView& node) { return node.after || !node.status.ok(); });
      if (!asked) continue;  // a daemon has neither answered nor failed yet
      last = absl::Now();
      std::fputs((context_.json ? JsonText(nodes, -1) : Plain(nodes, options_) + "\n").c_str(), stdout);
      if (std::fflush(stdout) != 0) return SIGPIPE;
    }
  }

 private:
  std::vector<NodeView> Views() const {
    std::vector<NodeView> views;
    for (const auto& sampler : samplers_) views.push_back(sampler->View());
    return views;
  }

  void WaitForSomething(int keys, int signals) {
    pollfd fds[] = {{news_, POLLIN, 0}, {signals, POLLIN, 0}, {keys, POLLIN, 0}};
    // Wakes at least once a second, because the time of a silent daemon is shown in seconds.
    const absl::Duration wait = std::min(options_.interval, absl::Seconds(1));
    poll(fds, 3, std::max<int>(1, static_cast<int>(absl::ToInt64Milliseconds(wait))));
    eventfd_t ignored;
    eventfd_read(news_, &ignored);
  }

  absl::Status Draw(Screen* screen) {
    const Screen::Size size = Screen::SizeOfTerminal();
    options_.columns = size.columns;
    options_.rows = size.rows;
    options_.keys = screen->has_keys();
    if (!options_.paused || shown_.empty()) shown_ = Views();
    std::vector<std::string> others;
    for (size_t i = 0; shown_.size() > 1 && i < shown_.size(); ++i) {
      others.push_back(absl::StrCat(i == selected_ ? "> " : "  ", Headline(shown_[i])));
    }
    return screen->Show(RenderTop(shown_[selected_], others, options_));
  }

  void Press(char key) {
    if (key == 'p' || key == 'P' || key == ' ') options_.paused = !options_.paused;
    if (key == 'n' || key == '\t') selected_ = (selected_ + 1) % samplers_.size();
    if (key >= '1' && key <= '9') {
      options_.interval = absl::Seconds(key - '0');
      for (const auto& sampler : samplers_) sampler->SetInterval(options_.interval);
    }
  }

  const Context& context_;
  TopOptions options_;
  const int news_;
  std::vector<std::unique_ptr<Sampler>> samplers_;
  std::vector<NodeView> shown_;
  size_t selected_ = 0;
};

int RunTop(const Context& context, const TopFlags& flags) {
  if (flags.once) return TopOnce(context, flags);
  int signal = 0;
  {
    TerminalSignals signals;
    Top top(context, flags);
    signal = context.terminal && !context.json ? top.RunOnScreen(&signals) : top.RunOnPaper(&signals);
  }
  if (signal == 0) return kExitOk;
  if (signal == SIGPIPE) return kExitFailed;  // ignored by the program
  raise(signal);                              // ends by the signal, after the terminal was restored
  return kExitFailed;
}

}  // namespace

void AddTopCommand(CLI::App& app, Context& context) {
  CLI::App* top = app.add_subcommand("top", "Shows rails, balance, peers and jobs, live in the terminal.");
  auto flags = std::make_shared<TopFlags>();
  top->add_option("--nodes", flags->nodes,
                  "The socket folders of several daemons on this machine, instead of --socket-dir.")
      ->type_name("DIR,...")
      ->take_all()
      ->allow_extra_args(false);
  top->add_option("--interval", flags->interval, "Asks the daemon this often.")
      ->type_name("TIME")
      ->capture_default_str()
      ->check([](const std::string& text) { return std::string(ParseTimeout(text).status().message()); });
  top->add_flag("--once", flags->once, "Prints one frame of two answers as plain text, or with --json, and ends.");
  top->callback([&context, flags] {
    ResolveNodes(context, &flags->nodes);
    context.run = [&context, flags] { return RunTop(context, *flags); };
  });
}

}  // namespace rails::ctl
