// Checks of option values, as validators for CLI11. Their errors name the value and the valid ones.
// (The errors of CLI11 would contain the largest double.)
//
//   command.add_option("--batch", options.batch, "Windows of one forward")->check(AtLeast(1));
//   command.add_option("--dtype", dtype, "Of all tensors")->check(OneOf({"fp32", "bf16"}));
#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include "core/concat.h"

namespace halflife::cli {

CLI::Validator AtLeast(int64_t least);  // A whole number.
CLI::Validator Between(int64_t least, int64_t most);
CLI::Validator NumThreads(int least);  // Up to kMaxThreads, like train.threads.
CLI::Validator BetweenNumbers(double least, double most);
CLI::Validator OneOf(std::vector<std::string> names);
// `wanted` is the correct form, for example "a run's folder".
CLI::Validator Folder(const std::string& wanted);
// Converts "5GB" to bytes. For transform().
CLI::Validator SizeInBytes();

// Converts a name to its value. For transform().
template <typename Value>
CLI::Validator OneOf(const std::map<std::string, Value>& values) {
  std::vector<std::string> names;
  std::map<std::string, std::string> texts;
  for (const auto& [name, value] : values) {
    names.push_back(name);
    if constexpr (std::is_enum_v<Value>) {
      texts[name] = Concat(static_cast<int64_t>(value));
    } else {
      texts[name] = Concat(value);
    }
  }
  CLI::Validator check = OneOf(names);
  return CLI::Validator(
      [check, texts](std::string& text) {
        const std::string problem = check(text);
        if (problem.empty()) text = texts.at(text);
        return problem;
      },
      check.get_description());
}

// For an option without a check that needs a number. Returns for example "'x' is not a whole
// number", or "" if the text is a number.
std::string NumberProblem(const std::string& text, bool whole);

}  // namespace halflife::cli
