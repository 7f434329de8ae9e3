// The choice of an optimizer in a recipe: its name and its own config. The known optimizers are
// listed in optimizers.inc.
//
//   OptimizerChoice choice("adamw");
//   for (Option& option : choice.config().Fields()) ...
//   const std::unique_ptr<Optimizer> optimizer = choice.Make(adamw_config);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "optim/optimizer.h"

namespace halflife::optim {

// One number of a config, under its name in recipes. It borrows the config.
struct Option {
  const char* name;
  std::variant<bool*, int64_t*, double*> place;
};

// A plain struct with default values, which lists its fields for recipes.
class Config {
 public:
  virtual ~Config() = default;
  virtual std::vector<Option> Fields() { return {}; }
  // One line for each value that is not allowed, such as "momentum: 2. Use [0, 1)".
  virtual std::vector<std::string> Problems() const { return {}; }
  virtual std::unique_ptr<Config> Clone() const = 0;
};

// Implements Clone: `struct MuonConfig : ConfigOf<MuonConfig>`.
template <typename Derived>
struct ConfigOf : Config {
  std::unique_ptr<Config> Clone() const override {
    return std::make_unique<Derived>(static_cast<const Derived&>(*this));
  }
};

struct OptimizerKind {
  std::string name;  // as in recipes: optimizer { algorithm { NAME {} } }
  std::function<std::unique_ptr<Config>()> defaults;
  std::function<std::unique_ptr<Optimizer>(const Config&, const AdamWConfig&)> make;
};

// Returns the kind of a class that is constructed from its own config and AdamW's.
template <typename OwnConfig, typename Class>
OptimizerKind KindOf(const char* name) {
  return {.name = name,
          .defaults = [] { return std::make_unique<OwnConfig>(); },
          .make = [](const Config& config, const AdamWConfig& adamw) -> std::unique_ptr<Optimizer> {
            return std::make_unique<Class>(static_cast<const OwnConfig&>(config), adamw);
          }};
}

#define HL_OPTIMIZER(Make) OptimizerKind Make();
#include "optim/optimizers.inc"
#undef HL_OPTIMIZER

std::vector<OptimizerKind> OptimizerKinds();

// A value type: each copy owns its config.
class OptimizerChoice {
 public:
  OptimizerChoice() : OptimizerChoice("adamw") {}
  // With the default config. Throws Error kUsage for an unknown name.
  explicit OptimizerChoice(std::string_view name);
  OptimizerChoice(const OptimizerChoice& other);
  OptimizerChoice& operator=(const OptimizerChoice& other);
  OptimizerChoice(OptimizerChoice&&) noexcept = default;
  OptimizerChoice& operator=(OptimizerChoice&&) noexcept = default;

  const std::string& name() const { return kind_.name; }
  Config& config() { return *config_; }
  const Config& config() const { return *config_; }
  std::unique_ptr<Optimizer> Make(const AdamWConfig& adamw) const;

 private:
  OptimizerKind kind_;
  std::unique_ptr<Config> config_;
};

}  // namespace halflife::optim
