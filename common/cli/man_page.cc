#include "common/cli/man_page.h"

#include <CLI/CLI.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/version/version.h"

namespace railsd::cli {
namespace {

// Text that roff prints literally: without requests and escapes, and with plain hyphens, which can be searched and
// copied.
std::string Literal(absl::string_view text) {
  std::string out = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (absl::StartsWith(out, ".") || absl::StartsWith(out, "'")) out.insert(0, "\\&");
  return out;
}

std::string Bold(absl::string_view text) { return absl::StrCat("\\fB", Literal(text), "\\fR"); }
std::string Italic(absl::string_view text) { return absl::StrCat("\\fI", Literal(text), "\\fR"); }

// Paragraphs, one a line.
std::string Paragraphs(absl::string_view text) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipWhitespace())) {
    lines.push_back(Literal(absl::StripAsciiWhitespace(line)));
  }
  return absl::StrCat(absl::StrJoin(lines, "\n.PP\n"), "\n");
}

// "HOW" from "HOW:{even,skewed}", CLI11's name of the type of an option with a list of values.
std::string TypeOf(const CLI::Option& option) {
  if (option.get_type_size_max() == 0) return "";
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

std::string Tagged(const CLI::Option& option, const std::string& names) {
  const std::string type = TypeOf(option), fallback = option.get_default_str();
  return absl::StrCat(".TP\n", names, type.empty() ? "" : absl::StrCat(" ", Italic(type)), "\n",
                      Literal(option.get_description()),
                      fallback.empty() ? "" : absl::StrCat("\nDefault: ", Literal(fallback), "."), "\n");
}

std::string Options(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;  // hidden
    if (app.get_parent() != nullptr && (option == app.get_help_ptr() || option == app.get_help_all_ptr())) continue;
    std::vector<std::string> names;
    for (const std::string& name : option->get_snames()) names.push_back(Bold(absl::StrCat("-", name)));
    for (const std::string& name : option->get_lnames()) names.push_back(Bold(absl::StrCat("--", name)));
    if (names.empty()) {  // a positional argument has no option names
      absl::StrAppend(&out, ".TP\n", Italic(absl::AsciiStrToUpper(option->get_name())), "\n",
                      Literal(option->get_description()), "\n");
      continue;
    }
    absl::StrAppend(&out, Tagged(*option, absl::StrJoin(names, ", ")));
  }
  return out;
}

std::string Commands(const CLI::App& app) {
  std::string out;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_group().empty()) continue;
    absl::StrAppend(&out, ".SS ", command->get_name(), "\n", Paragraphs(command->get_description()), Options(*command));
  }
  return out;
}

// Formats the lists of a footer. A list has a heading that ends with a colon, and indented lines: a code, two blanks,
// its meaning.
std::string Footer(absl::string_view footer) {
  std::string out;
  for (absl::string_view line : absl::StrSplit(footer, '\n', absl::SkipWhitespace())) {
    if (line[0] != ' ' && absl::EndsWith(line, ":")) {
      const absl::string_view heading = line.substr(0, line.size() - 1);
      absl::StrAppend(&out, ".SH ", heading == "Exit codes" ? "EXIT STATUS" : absl::AsciiStrToUpper(heading), "\n");
      continue;
    }
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::StripLeadingAsciiWhitespace(line), absl::MaxSplits("  ", 1));
    absl::StrAppend(&out, ".TP\n", Bold(parts.first), "\n", Literal(absl::StripAsciiWhitespace(parts.second)), "\n");
  }
  return out;
}

}  // namespace

std::string ManPage(const CLI::App& app, const ManPageOptions& options) {
  const std::string name = app.get_name(), description = app.get_description();
  const bool has_commands = !app.get_subcommands([](const CLI::App*) { return true; }).empty();
  // The first sentence in a few words, as `apropos` wants it.
  std::string summary = description.substr(0, description.find_first_of(".\n"));
  if (!summary.empty() && !absl::StartsWith(summary, name)) summary[0] = absl::ascii_tolower(summary[0]);
  summary = std::string(absl::StripPrefix(summary, absl::StrCat(name, " ")));
  std::string out =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(name), " ", options.section, " ", ReleaseDate(), " \"", name, " ",
                   Literal(Version()), "\"\n.SH NAME\n", name, " \\- ", Literal(summary), "\n.SH SYNOPSIS\n.B ", name,
                   "\n", has_commands ? "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR " : "",
                   "[\\fIOPTIONS\\fR]\n.SH DESCRIPTION\n", Paragraphs(description), ".SH OPTIONS\n", Options(app));
  if (has_commands) absl::StrAppend(&out, ".SH COMMANDS\n", Commands(app));
  absl::StrAppend(&out, Footer(app.get_footer()));
  if (!options.files.empty()) out += ".SH FILES\n";
  for (const auto& [file, what] : options.files) {
    absl::StrAppend(&out, ".TP\n.I ", Literal(file), "\n", Literal(what), "\n");
  }
  std::vector<std::string> others;
  for (const std::string& page : options.see_also) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(page, absl::MaxSplits('(', 1));
    others.push_back(absl::StrCat(".BR ", parts.first, " (", parts.second));
  }
  if (!others.empty()) absl::StrAppend(&out, ".SH SEE ALSO\n", absl::StrJoin(others, " ,\n"), "\n");
  return out;
}

}  // namespace railsd::cli
