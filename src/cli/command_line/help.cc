#include "cli/command_line/help.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <regex>
#include <sstream>

#include "core/concat.h"

namespace halflife::cli {
namespace {

struct TypeWord {
  const char* type;         // A type name of CLI11 or of this program.
  const char* placeholder;  // The form that the user sees.
  OptionValue::Path path;
};
constexpr TypeWord kTypeWords[] = {
    {"INT", "N", OptionValue::Path::kNone},
    {"UINT", "N", OptionValue::Path::kNone},
    {"FLOAT", "X", OptionValue::Path::kNone},
    {"FILE", "FILE", OptionValue::Path::kAny},
    {"PATH", "PATH", OptionValue::Path::kAny},
    {"RECIPE", "RECIPE", OptionValue::Path::kAny},
    {"DIR", "DIR", OptionValue::Path::kFolder},
    {"RUN", "RUN", OptionValue::Path::kFolder},
    {"STEP", "STEP", OptionValue::Path::kFolder},
    {"DATASET", "DATASET", OptionValue::Path::kFolder},
};

std::vector<std::string> SplitAt(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

}  // namespace

OptionValue ValueOf(const CLI::Option& option) {
  OptionValue value;
  if (option.get_items_expected_max() == 0) return value;
  // For example "INT:INT in [1 - 256]" or "TEXT:{a,b}".
  const std::string described = option.get_type_name();
  std::smatch match;
  static const std::regex choices(R"(\{([^{}]*)\})"), range(R"(in \[(\S+) - (\S+)\])");
  if (std::regex_search(described, match, choices)) {
    value.choices = SplitAt(match[1], ',');
    for (const std::string& choice : value.choices) {
      value.placeholder += (value.placeholder.empty() ? "" : "|") + choice;
    }
    return value;
  }
  if (std::regex_search(described, match, range)) {
    value.range = match[1].str() + " to " + match[2].str();
  }
  value.placeholder = described.substr(0, described.find(':'));
  for (const TypeWord& word : kTypeWords) {
    if (value.placeholder != word.type) continue;
    value.placeholder = word.placeholder;
    value.path = word.path;
    break;
  }
  return value;
}

std::string UsageOf(const CLI::Option& option) {
  const std::string value = ValueOf(option).placeholder;
  const bool named = !option.get_positional();
  return Concat(option.get_name(), named && !value.empty() ? " " + value : "");
}

namespace {

constexpr size_t kWidth = 100;  // Columns per line.
constexpr size_t kColumn = 32;  // The column where descriptions begin.
constexpr size_t kIndent = 2;

struct ExitCodeWords {
  ExitCode code;
  const char* words;
};
constexpr ExitCodeWords kExitCodes[] = {
    {ExitCode::kFinished, "finished"},
    {ExitCode::kDifference, "a difference or damage was found"},
    {ExitCode::kUsage, "command line or recipe"},
    {ExitCode::kData, "data"},
    {ExitCode::kEnvironment, "environment: GPU, MPI, a held lock, an unwritable folder"},
    {ExitCode::kInternal, "internal fault"},
    {ExitCode::kTimeout, "a collective timed out"},
    {ExitCode::kPeerLost, "a peer was lost"},
    {ExitCode::kNonFinite, "loss, gradients, weights or logits not finite"},
    {ExitCode::kCheckpointIo, "checkpoint could not be read or written"},
    {ExitCode::kRequeue, "saved; start the command again"},
    {ExitCode::kNoUsableCheckpoint, "no usable checkpoint"},
    {ExitCode::kInterrupted, "stopped by the user"},
};

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(kColumn); }

  std::string make_option(const CLI::Option* option, bool is_positional) const override {
    const OptionValue value = ValueOf(*option);
    const bool many = option->get_expected_max() == CLI::detail::expected_max_vector_size;
    std::string left = Name(*option, is_positional);
    if (!is_positional && !value.placeholder.empty()) left += " " + value.placeholder;
    if (many && !value.placeholder.ends_with("...")) left += " ...";
    return Row(left, Description(*option, value));
  }

  std::string make_subcommand(const CLI::App* command) const override {
    return Row(command->get_name(), command->get_description());
  }

  // Omits a parent's "[Exactly 1 of the following options is required]", which is about
  // subcommands: the usage line already shows it.
  std::string make_description(const CLI::App* app) const override {
    return WrapText(app->get_description(), kWidth, kWidth, 0) + ".\n\n";
  }

 private:
  static std::string Name(const CLI::Option& option, bool is_positional) {
    if (is_positional) return option.get_name(true, false);
    std::string name = option.get_name(false, true);  // For example "-h,--help".
    for (size_t at = 0; (at = name.find(',', at)) != std::string::npos; at += 2) {
      name.replace(at, 1, ", ");
    }
    return name;
  }

  static std::string Description(const CLI::Option& option, const OptionValue& value) {
    std::string text = option.get_description();
    if (!value.range.empty()) text += " (" + value.range + ")";
    if (option.get_required()) text += " (required)";
    const std::string standard = option.get_default_str();
    if (!value.placeholder.empty() && !standard.empty()) text += " [" + standard + "]";
    return text;
  }

  static std::string Row(const std::string& left, const std::string& description) {
    std::string row = std::string(kIndent, ' ') + left;
    if (row.size() + 2 > kColumn) {
      row += Concat("\n", std::string(kColumn, ' '));
    } else {
      row.resize(kColumn, ' ');
    }
    return row + WrapText(description, kWidth - kColumn, kWidth, kColumn) + "\n";
  }
};

}  // namespace

std::string WrapText(const std::string& text, size_t first_width, size_t width, size_t indent) {
  std::istringstream words(text);
  std::string wrapped;
  size_t left = first_width;
  for (std::string word; words >> word;) {
    if (wrapped.empty()) {
      wrapped = word;
      left -= std::min(left, word.size());
    } else if (word.size() + 1 <= left) {
      wrapped += " " + word;
      left -= word.size() + 1;
    } else {
      wrapped += Concat("\n", std::string(indent, ' '), word);
      left = width - indent - std::min(width - indent, word.size());
    }
  }
  return wrapped;
}

std::vector<ExitCode> AllExitCodes() {
  std::vector<ExitCode> codes;
  for (const ExitCodeWords& row : kExitCodes) codes.push_back(row.code);
  return codes;
}

std::string ExitCodeLines(std::vector<ExitCode> codes) {
  std::sort(codes.begin(), codes.end());
  codes.erase(std::unique(codes.begin(), codes.end()), codes.end());
  std::ostringstream lines;
  for (const ExitCodeWords& row : kExitCodes) {
    if (!std::binary_search(codes.begin(), codes.end(), row.code)) continue;
    lines << std::setw(5) << static_cast<int>(row.code) << "  " << row.words << "\n";
  }
  return lines.str();
}

void DescribeUse(CLI::App& command, const Use& use) {
  std::string footer;
  if (!use.table.empty()) footer += use.table + "\n";
  if (!use.notes.empty()) footer += Concat(WrapText(use.notes, kWidth, kWidth, 0), "\n\n");
  footer += use.examples.size() == 1 ? "Example:\n" : "Examples:\n";
  for (const std::string& example : use.examples) footer += "  " + example + "\n";
  std::vector<ExitCode> codes = {ExitCode::kFinished, ExitCode::kUsage, ExitCode::kInternal};
  codes.insert(codes.end(), use.exit_codes.begin(), use.exit_codes.end());
  footer += "\nExit codes:\n" + ExitCodeLines(std::move(codes));
  footer.pop_back();  // CLI11 adds the last line break.
  command.footer(footer);
}

std::shared_ptr<CLI::FormatterBase> MakeHelpFormatter() {
  return std::make_shared<HelpFormatter>();
}

}  // namespace halflife::cli
