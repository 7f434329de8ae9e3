#include "cli/command_line/value_checks.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "core/host.h"
#include "core/nearest.h"

namespace halflife::cli {
namespace {

// Parses a number like CLI11, including 0x10. A number beyond 64 bits becomes the nearest one,
// which the option refuses.
std::optional<int64_t> WholeNumber(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0') return std::nullopt;
  return value;
}

std::optional<double> Number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(value)) return std::nullopt;
  return value;
}

template <typename Value>
std::string RangeProblem(const std::string& text, const std::optional<Value>& value,
                         const char* kind, Value least, Value most, const std::string& works) {
  if (!value) return Concat("'", text, "' is not a ", kind, ". Use ", works, ".");
  if (*value >= least && *value <= most) return "";
  return Concat("'", text, "' is too ", *value < least ? "small" : "large", ". Use ", works, ".");
}

}  // namespace

CLI::Validator AtLeast(int64_t least) {
  return CLI::Validator(
      [=](std::string& text) {
        return RangeProblem(text, WholeNumber(text), "whole number", least,
                            std::numeric_limits<int64_t>::max(), Concat(least, " or more"));
      },
      "");
}

CLI::Validator Between(int64_t least, int64_t most) {
  return CLI::Validator(
      [=](std::string& text) {
        return RangeProblem(text, WholeNumber(text), "whole number", least, most,
                            Concat(least, " to ", most));
      },
      Concat("in [", least, " - ", most, "]"));
}

CLI::Validator NumThreads(int least) { return Between(least, kMaxThreads); }

CLI::Validator BetweenNumbers(double least, double most) {
  return CLI::Validator(
      [=](std::string& text) {
        return RangeProblem(text, Number(text), "number", least, most, Concat(least, " to ", most));
      },
      Concat("in [", least, " - ", most, "]"));
}

CLI::Validator OneOf(std::vector<std::string> names) {
  const std::string description = Concat("{", Join(names, ","), "}");
  return CLI::Validator(
      [names = std::move(names)](std::string& text) {
        if (std::ranges::count(names, text) > 0) return std::string();
        return Concat("'", text, "' is none of ", Join(names, ", "), DidYouMean(text, names));
      },
      description);
}

CLI::Validator Folder(const std::string& wanted) {
  return CLI::Validator(
      [wanted](std::string& text) {
        std::error_code ignored;
        if (std::filesystem::is_directory(text, ignored)) return std::string();
        return Concat(std::filesystem::exists(text, ignored) ? "" : "there is no ", "'", text, "'",
                      std::filesystem::exists(text, ignored) ? " is not a folder" : "", ". Use ",
                      wanted, ".");
      },
      "");
}

CLI::Validator SizeInBytes() {
  CLI::AsSizeValue convert(/*kb_is_1000=*/true);
  return CLI::Validator(
      [convert](std::string& text) {
        const std::string met = text;
        const auto problem = [&] {
          return Concat(
              "'", met,
              "' is not a size. Use bytes, or a whole number and a unit, for example 500MB, "
              "5GB or 4GiB.");
        };
        // CLI11 wraps the one and saturates the other.
        const size_t digits = std::min(met.find_first_not_of("0123456789"), met.size());
        uint64_t number = 0;
        if (digits == 0 ||
            std::from_chars(met.data(), met.data() + digits, number).ec != std::errc())
          return problem();
        try {
          return convert(text).empty() ? std::string() : problem();
        } catch (const CLI::ValidationError&) {
          return problem();
        }
      },
      "");
}

std::string NumberProblem(const std::string& text, bool whole) {
  const bool is_one = whole ? WholeNumber(text).has_value() : Number(text).has_value();
  return is_one ? "" : Concat("'", text, "' is not a ", whole ? "whole " : "", "number");
}

}  // namespace halflife::cli
