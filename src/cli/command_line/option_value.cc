#include "cli/command_line/option_value.h"

#include <CLI/CLI.hpp>

#include <regex>

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

}  // namespace halflife::cli
