// What the value of an option has to be, as validators for CLI11: a refusal says what was met and
// what would work, where CLI11's own would print the largest double.
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

CLI::Validator AtLeast(int64_t least);  // a whole number
CLI::Validator Between(int64_t least, int64_t most);
CLI::Validator NumThreads(int least);  // up to kMaxThreads, as train.threads
CLI::Validator BetweenNumbers(double least, double most);
CLI::Validator OneOf(std::vector<std::string> names);
// `wanted`: what would work, e.g. "a run's folder".
CLI::Validator Folder(const std::string& wanted);
// Turns "5GB" into its bytes; for transform().
CLI::Validator SizeInBytes();

// Turns a name into what it stands for; for transform().
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

// Of an option without a check that takes a number: "'x' is no whole number", or nothing where the
// text is one.
std::string NumberProblem(const std::string& text, bool whole);

}  // namespace halflife::cli
