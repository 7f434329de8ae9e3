// The form of an option's value, derived from CLI11's data about the option. --help shows it behind
// the name, and shell completion offers it. The type name comes first (`type_name("RUN")`), then
// the descriptions of the validators: a list of choices in braces, or a range.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace halflife::cli {

struct OptionValue {
  enum class Path { kNone, kFolder, kAny };  // The kind of path that a shell completes.
  std::string placeholder;                   // "RUN", "N", "auto|file". Empty: a flag.
  std::vector<std::string> choices;
  std::string range;  // "1 to 256". Empty: none, or not useful.
  Path path = Path::kNone;
};
OptionValue ValueOf(const CLI::Option& option);
// Returns for example "--config RECIPE", "--dry-run" or "STEP".
std::string UsageOf(const CLI::Option& option);

}  // namespace halflife::cli
