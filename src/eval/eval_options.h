// Options of scoring and help texts of `eval --method`. Does not use LibTorch, because the command
// line sets the options and prints the texts.
#pragma once

#include <cstdint>
#include <string>

namespace halflife::eval {

struct ScoreConfig {
  int64_t piece = 2048;         // Tokens of a row in one forward pass.
  int64_t batch_tokens = 8192;  // Tokens of one forward pass, including padding.
};

// Returns one line per step: "  window:W         a query sees the last W keys [the training
// length]".
inline std::string LengthMethodHelp() {
  constexpr size_t kWidth = 17;
  std::string text;
  const auto add = [&](std::string name, const std::string& number, const std::string& help) {
    if (!number.empty()) name += ":" + number;
    if (name.size() < kWidth) name.resize(kWidth, ' ');
    text += "  " + name + help + "\n";
  };
#define HL_LENGTH_METHOD(name, number, help, facet, Apply) add(name, number, help);
#include "eval/length_methods.inc"
#undef HL_LENGTH_METHOD
  return text;
}

// Returns "as_trained, window:W, ...".
inline std::string LengthMethodNames() {
  std::string text;
  const auto add = [&](const std::string& name, const std::string& number) {
    text += (text.empty() ? "" : ", ") + name + (number.empty() ? "" : ":" + number);
  };
#define HL_LENGTH_METHOD(name, number, help, facet, Apply) add(name, number);
#include "eval/length_methods.inc"
#undef HL_LENGTH_METHOD
  return text;
}

}  // namespace halflife::eval
