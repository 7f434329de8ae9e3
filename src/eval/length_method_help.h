// Help texts of `eval --method`. Does not use LibTorch, because the command line also prints them.
#pragma once

#include <string>

namespace halflife::eval {

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
