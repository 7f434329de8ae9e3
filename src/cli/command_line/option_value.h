// The form of an option's value, read off what CLI11 knows of it: what --help shows behind the name
// and what shell completion offers. The type name comes first (`type_name("RUN")`), then the
// validators' words: a list of choices in braces, a range.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class Option;
}

namespace halflife::cli {

struct OptionValue {
  enum class Path { kNone, kFolder, kAny };  // what a shell completes with
  std::string placeholder;                   // "RUN", "N", "auto|file"; empty: a flag
  std::vector<std::string> choices;
  std::string range;  // "1 to 256"; empty: none that is worth telling
  Path path = Path::kNone;
};
OptionValue ValueOf(const CLI::Option& option);
// "--config RECIPE", "--dry-run", "STEP".
std::string UsageOf(const CLI::Option& option);

}  // namespace halflife::cli
