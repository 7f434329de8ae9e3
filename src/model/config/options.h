// Options of a part of a model: a plain struct with its defaults, which lists its fields once.
// Recipes, checkpoints, `halflife mixers` and error messages all read that list; the part itself
// reads the struct.
//
//   struct GluOptions : OptionsOf<GluOptions> {
//     int64_t width = 0;  // 0: 4 model_dim
//     bool bias = false;
//     std::vector<Option> Fields() override {
//       return {{"width", &width, {.min = 0}}, {"bias", &bias}};
//     }
//   };
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/concat.h"

namespace halflife::model {

// The widest that a matrix of a model may be, and the most heads, taps or tokens of a window: far
// above every real model, and products of a few still count in 64 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;

using OptionValue = std::variant<bool, int64_t, double, std::string>;

// What an integer or a word may be; numbers are bounded by their part's Resolve.
struct OptionLimits {
  int64_t min = 1, max = kMaxWidth;
  std::vector<std::string> choices = {};  // of a word; empty: any
};

// One field of a struct of options. It borrows the struct.
struct Option {
  std::string name;
  std::variant<bool*, int64_t*, double*, std::string*> place;
  OptionLimits limits = {};

  OptionValue value() const;
  // An integer is taken for a number, too. False where the type is another.
  bool Set(const OptionValue& value);
};

// "true", "4", "0.5", "-inf", "gelu": as recipes write it, a word without quotes.
std::string Text(const OptionValue& value);
// "bool", "int", "number" or "word".
const char* TypeName(const Option& option);

// What is wrong with a model, a line each with the value met and values that would work.
class ProblemList {
 public:
  // `where` opens each line: "mixer gla".
  explicit ProblemList(std::string where) : where_(std::move(where)) {}

  template <typename... Pieces>
  void Require(bool condition, const Pieces&... pieces) {
    if (!condition) lines_.push_back(Concat(where_, ": ", pieces...));
  }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  std::string where_;
  std::vector<std::string> lines_;
};

// What the parts of a model know about it.
struct ModelSizes {
  int64_t model_dim = 0, num_layers = 0;
};

class PartOptions {
 public:
  virtual ~PartOptions() = default;
  virtual std::vector<Option> Fields() { return {}; }
  virtual std::unique_ptr<PartOptions> Clone() const = 0;
  // Gives fields that derive from others (written 0) their values, and reports those that do not
  // fit. Called once, after Fields' own limits were checked; idempotent.
  virtual void Resolve(const ModelSizes& sizes, ProblemList& problems);
};

// Copies for PartOptions: `struct GluOptions : OptionsOf<GluOptions>`, and with options that a
// family shares `struct GlaOptions : OptionsOf<GlaOptions, DecayedOptions>`.
template <typename Derived, typename Base = PartOptions>
struct OptionsOf : Base {
  using Base::Base;
  std::unique_ptr<PartOptions> Clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

// Reports every field outside its limits, with its default.
void CheckLimits(PartOptions& options, PartOptions& defaults, ProblemList& problems);

}  // namespace halflife::model
