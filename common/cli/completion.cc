#include "common/cli/completion.h"

#include <CLI/CLI.hpp>
#include <map>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace railsd::cli {
namespace {

struct Flag {
  std::string name;  // "--json", "-h"
  bool takes_value = false;
  std::string choices;  // the allowed values, separated by blanks; empty: any value
  std::string help;
};

struct Command {
  std::string name;
  std::string help;
  std::vector<Flag> flags;
};

// "even skewed" from "HOW:{even,skewed}", CLI11's name of the type of an option with a list of values.
std::string ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return "";
  return absl::StrReplaceAll(type.substr(begin + 1, end - begin - 1), {{",", " "}});
}

struct Program {
  std::string name;
  std::vector<Command> commands;  // none: the program has only options
  std::vector<Flag> globals;
};

std::vector<Flag> FlagsOf(const CLI::App& app) {
  std::vector<Flag> flags;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (app.get_parent() != nullptr && (option == app.get_help_ptr() || option == app.get_help_all_ptr())) continue;
    const bool takes_value = option->get_expected_max() > 0 && option->get_type_size_max() > 0;
    for (const std::string& name : option->get_lnames()) {
      flags.push_back(
          {absl::StrCat("--", name), takes_value, takes_value ? ChoicesOf(*option) : "", option->get_description()});
    }
  }
  return flags;
}

std::vector<Command> CommandsOf(const CLI::App& app) {
  std::vector<Command> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    commands.push_back({command->get_name(), command->get_description(), FlagsOf(*command)});
  }
  return commands;
}

std::string Names(const std::vector<Flag>& flags) {
  return absl::StrJoin(flags, " ", [](std::string* out, const Flag& flag) { absl::StrAppend(out, flag.name); });
}

std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string Bash(const Program& program) {
  const auto& [name, commands, globals] = program;
  std::string cases, names;
  std::map<std::string, std::string> values;  // the choices of each option that takes a value
  const auto add_values = [&values](const std::vector<Flag>& flags) {
    for (const Flag& flag : flags) {
      if (flag.takes_value) values[flag.name] = flag.choices;
    }
  };
  add_values(globals);
  for (const Command& command : commands) {
    add_values(command.flags);
    absl::StrAppend(&names, names.empty() ? "" : " ", command.name);
    const char* words = command.name == "completion" ? "bash zsh fish " : "";
    absl::StrAppend(&cases, "    ", command.name, ") words=\"", words, Names(command.flags), "\" ;;\n");
  }
  std::string of_files, of_choices;
  for (const auto& [flag, choices] : values) {
    if (choices.empty()) {
      absl::StrAppend(&of_files, of_files.empty() ? "" : "|", flag);
    } else {
      absl::StrAppend(&of_choices, "    ", flag, ") COMPREPLY=($(compgen -W \"", choices,
                      "\" -- \"$current\")); return ;;\n");
    }
  }
  if (!of_files.empty()) {
    of_files = absl::StrCat("    ", of_files,
                            ") compopt -o filenames; COMPREPLY=($(compgen -f -- \"$current\")); return ;;\n");
  }
  const std::string of_values =
      values.empty() ? "" : absl::StrCat("  case \"$previous\" in\n", of_choices, of_files, "  esac\n");
  const std::string find_command = commands.empty() ? ""
                                                    : absl::StrCat(
                                                          "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
                                                          "    case \"${COMP_WORDS[i]}\" in\n"
                                                          "      ",
                                                          absl::StrReplaceAll(names, {{" ", "|"}}),
                                                          ") command=\"${COMP_WORDS[i]}\"; break ;;\n"
                                                          "    esac\n  done\n");
  return absl::StrCat("# bash completion of ", name, "\n_", name,
                      "() {\n"
                      "  local current=\"${COMP_WORDS[COMP_CWORD]}\" previous=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
                      "  local command= words= i\n",
                      find_command, of_values, "  case \"$command\" in\n", cases, "    *) words=\"", names,
                      "\" ;;\n  esac\n"
                      "  COMPREPLY=($(compgen -W \"$words ",
                      Names(globals),
                      "\" -- \"$current\"))\n"
                      "  if [[ $command =~ ^(replay|plan|sim)$ ]] && [[ $current != -* ]]; then\n"
                      "    compopt -o filenames\n    COMPREPLY+=($(compgen -f -- \"$current\"))\n  fi\n}\n"
                      "complete -F _",
                      name, " ", name, "\n");
}

// One entry of _arguments. Escapes brackets, colons and quotes, which have a meaning in zsh.
std::string ZshFlag(const Flag& flag) {
  const std::string help = absl::StrReplaceAll(flag.help, {{"[", "\\["}, {"]", "\\]"}, {":", "\\:"}});
  const std::string value = !flag.takes_value      ? ""
                            : flag.choices.empty() ? ":value:_files"
                                                   : absl::StrCat(":value:(", flag.choices, ")");
  return Quoted(absl::StrCat(flag.name, "[", help, "]", value));
}

std::string Zsh(const Program& program) {
  const auto& [name, commands, globals] = program;
  std::string described, cases, shared;
  for (const Flag& flag : globals) absl::StrAppend(&shared, " ", ZshFlag(flag));
  for (const Command& command : commands) {
    absl::StrAppend(&described, "    ",
                    Quoted(absl::StrCat(command.name, ":", absl::StrReplaceAll(command.help, {{":", "\\:"}}))), "\n");
    std::string flags = shared;
    for (const Flag& flag : command.flags) absl::StrAppend(&flags, " ", ZshFlag(flag));
    const char* rest = command.name == "completion" ? "1:shell:(bash zsh fish)" : "*:file:_files";
    absl::StrAppend(&cases, "    ", command.name, ") _arguments", flags, " ", Quoted(rest), " ;;\n");
  }
  if (commands.empty()) return absl::StrCat("#compdef ", name, "\n_arguments", shared, "\n");
  return absl::StrCat("#compdef ", name, "\n_", name, "() {\n  local context state line\n  local -a commands=(\n",
                      described, "  )\n  _arguments -C", shared,
                      " '1:command:->command' '*::argument:->argument'\n"
                      "  case $state in\n  command) _describe command commands ;;\n"
                      "  argument) case $line[1] in\n",
                      cases, "  esac ;;\n  esac\n}\n_", name, " \"$@\"\n");
}

std::string Fish(const Program& program) {
  const auto& [name, commands, globals] = program;
  const std::string complete = absl::StrCat("complete -c ", name);
  std::string out = absl::StrCat("# fish completion of ", name, "\n");
  const auto add_flag = [&out, &complete](const Flag& flag, absl::string_view condition) {
    absl::StrAppend(&out, complete, condition, " -l ", flag.name.substr(2),
                    !flag.choices.empty() ? absl::StrCat(" -x -a '", flag.choices, "'")
                    : flag.takes_value    ? " -r"
                                          : "",
                    " -d ", Quoted(flag.help), "\n");
  };
  for (const Flag& flag : globals) add_flag(flag, "");
  for (const Command& command : commands) {
    absl::StrAppend(&out, complete, " -f -n __fish_use_subcommand -a ", command.name, " -d ", Quoted(command.help),
                    "\n");
    const std::string condition = absl::StrCat(" -n '__fish_seen_subcommand_from ", command.name, "'");
    for (const Flag& flag : command.flags) add_flag(flag, condition);
    if (command.name == "completion") {
      absl::StrAppend(&out, complete, " -f", condition, " -a 'bash zsh fish'\n");
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<std::string> CompletionScript(const CLI::App& app, absl::string_view shell) {
  const Program program = {app.get_name(), CommandsOf(app), FlagsOf(app)};
  if (shell == "bash") return Bash(program);
  if (shell == "zsh") return Zsh(program);
  if (shell == "fish") return Fish(program);
  return absl::InvalidArgumentError(absl::StrCat("no completion for '", shell, "': bash, zsh or fish"));
}

}  // namespace railsd::cli
