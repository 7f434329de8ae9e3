// Options of a part of a model: a plain struct with default values, which lists its fields once.
// Recipes, checkpoints, `halflife mixers` and error messages read that list. The part itself reads
// the struct.
//
//   struct GluOptions : OptionsOf<GluOptions> {
//     int64_t width = 0;  // 0: 4 model_dim
//     bool bias = false;
//     std::vector<Option> Fields() override {
//       return {{"width", &width, {.min = 0}}, {"bias", &bias}};
//     }
//   };
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/concat.h"

namespace halflife::model {

// Upper bound of matrix widths and of the number of heads, convolution taps and window tokens. It
// exceeds every real model, and products of a few such numbers still fit in 64 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;

using OptionValue = std::variant<bool, int64_t, double, std::string>;

// Allowed values of an integer or a word. Floating-point options are checked by the part's Resolve.
struct OptionLimits {
  int64_t min = 1, max = kMaxWidth;
  std::vector<std::string> choices = {};  // For words. Empty: any word.
};

// One field of a struct of options. It borrows the struct.
struct Option {
  std::string name;
  std::variant<bool*, int64_t*, double*, std::string*> place;
  OptionLimits limits = {};

  OptionValue value() const;
  // Sets the field. An integer is also accepted for a floating-point field. Returns false if the
  // types differ.
  bool Set(const OptionValue& value);
};

// Formats a value as recipes write it, words without quotes: "true", "4", "0.5", "-inf", "gelu".
std::string Text(const OptionValue& value);
// "bool", "int", "number" or "word".
const char* TypeName(const Option& option);

// Collects the problems of a model, one line each, with the value found and the values that are
// allowed.
class ProblemList {
 public:
  // Every line starts with `where`, for example "mixer gla".
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

// The sizes of the model that its parts know.
struct ModelSizes {
  int64_t model_dim = 0, num_layers = 0;
};

class PartConfig;
struct OptionList;

class PartOptions {
 public:
  virtual ~PartOptions() = default;
  virtual std::vector<Option> Fields() { return {}; }
  // Parts inside the options: fields of the schema that are called as the kind of the part, such as
  // `mixer`.
  virtual std::vector<PartConfig*> Parts() { return {}; }
  // Lists of options inside the options: repeated messages of the schema.
  virtual std::vector<OptionList> Lists() { return {}; }
  virtual std::unique_ptr<PartOptions> Clone() const = 0;
  // Sets fields that derive from others (their value is 0 until then), and reports values that do
  // not fit. Called after the limits of Fields() were checked. Idempotent.
  virtual void Resolve(const ModelSizes& sizes, ProblemList& problems);
};

// Implements Clone for a struct of options: `struct GluOptions : OptionsOf<GluOptions>`. For
// options that a family shares, name the base: `struct GlaOptions : OptionsOf<GlaOptions,
// GatedHeadOptions>`.
template <typename Derived, typename Base = PartOptions>
struct OptionsOf : Base {
  using Base::Base;
  std::unique_ptr<PartOptions> Clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

// A list of options in a struct of options. It borrows the struct.
struct OptionList {
  std::string name;
  std::function<size_t()> size;
  std::function<PartOptions&(size_t index)> at;
  std::function<PartOptions&()> add;  // Appends an entry with default values, and returns it.
  std::function<void()> clear;
};
template <typename Entry>
OptionList ListOf(std::string name, std::vector<Entry>* entries) {
  return {.name = std::move(name),
          .size = [entries] { return entries->size(); },
          .at = [entries](size_t index) -> PartOptions& { return entries->at(index); },
          .add = [entries]() -> PartOptions& { return entries->emplace_back(); },
          .clear = [entries] { entries->clear(); }};
}

// Reports every field that is outside its limits, together with its default.
void CheckLimits(PartOptions& options, PartOptions& defaults, ProblemList& problems);

// Converts an option to JSON, for reports (model_config.h converts a whole model). Infinite values
// become strings, because JSON has no infinities.
nlohmann::json ToJson(const OptionValue& value);

}  // namespace halflife::model
