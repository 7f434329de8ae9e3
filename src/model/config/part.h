// A part of a model, chosen by name with its options: which mixer, which norm, which block. A kind
// of part is a list of variants (mixers/mixers.inc, norms/norms.inc, ...); each is one file that
// brings its options and its maker.
//
//   MixerConfig mixer("gla", {{"num_heads", 4}, {"use_short_conv", true}});
//   mixer.Set("expand_k", 1);
//   const auto heads = mixer.Get<int64_t>("num_heads");
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/config/options.h"

namespace halflife::model {

// What a variant brings, without the making of it: enough for recipes, checkpoints and help.
struct VariantInfo {
  std::string name;
  std::function<std::unique_ptr<PartOptions>()> defaults;
};

struct PartKind {
  const char* name;   // "mixer", as in recipes
  const char* usual;  // the variant of a model that does not say
  std::vector<VariantInfo> (*variants)();
};

struct Assignment {
  std::string name;
  OptionValue value;
};

// A value: copies own their options.
class PartConfig {
 public:
  // Error kUsage for a name that no variant of `kind` has; Error kInternal for an assignment to an
  // option that it does not have, or of another type.
  PartConfig(const PartKind& kind, std::string_view name,
             const std::vector<Assignment>& options = {});
  PartConfig(const PartConfig& other);
  PartConfig& operator=(const PartConfig& other);
  PartConfig(PartConfig&&) noexcept = default;
  PartConfig& operator=(PartConfig&&) noexcept = default;

  const PartKind& kind() const { return *kind_; }
  const std::string& name() const { return name_; }
  PartOptions& options() { return *options_; }
  const PartOptions& options() const { return *options_; }
  // All fields with their values, in the order that the variant lists them.
  std::vector<Assignment> Values() const;

  bool Has(std::string_view option) const;
  void Set(std::string_view option, const OptionValue& value);
  // T is bool, int64_t, double or std::string.
  template <typename T>
  T Get(std::string_view option) const {
    return std::get<T>(Find(option).value());
  }
  bool operator==(const PartConfig& other) const;

  // Fills in what derives from the model's sizes. One line for each problem.
  std::vector<std::string> Resolve(const ModelSizes& sizes);

 private:
  Option Find(std::string_view option) const;
  const PartKind* kind_;
  std::string name_;
  std::unique_ptr<PartOptions> options_;
};

// The choice among the variants of one kind: `using NormConfig = ConfigOf<kNorms>`.
template <const PartKind& kKind>
struct ConfigOf : PartConfig {
  ConfigOf() : PartConfig(kKind, kKind.usual) {}
  explicit ConfigOf(std::string_view name, const std::vector<Assignment>& options = {})
      : PartConfig(kKind, name, options) {}
};

// Names of all variants of a kind.
std::vector<std::string> NamesOf(const PartKind& kind);

// The maker of one variant of `Interface`, out of its options and the part's context.
template <typename Interface, typename Context>
struct Variant : VariantInfo {
  std::function<std::unique_ptr<Interface>(const PartOptions&, const Context&)> make;
};

template <typename Variant>
std::vector<VariantInfo> InfosOf(const std::vector<Variant>& variants) {
  return {variants.begin(), variants.end()};
}

// A variant whose class is built from its own struct of options.
template <typename Options, typename Class, typename Interface, typename Context>
Variant<Interface, Context> VariantOf(const char* name) {
  return {{name, [] { return std::make_unique<Options>(); }},
          [](const PartOptions& options, const Context& context) -> std::unique_ptr<Interface> {
            return std::make_unique<Class>(static_cast<const Options&>(options), context);
          }};
}

// Resolves the options; Error kUsage with all that is wrong with them.
void RequireResolved(PartConfig& config, const ModelSizes& sizes);

// Makes the part that `config` names, out of resolved options. Errors as RequireResolved's.
template <typename Interface, typename Context>
std::unique_ptr<Interface> MakePart(const std::vector<Variant<Interface, Context>>& variants,
                                    PartConfig config, const ModelSizes& sizes,
                                    const Context& context) {
  RequireResolved(config, sizes);
  const auto found = std::ranges::find(variants, config.name(), &VariantInfo::name);
  return found->make(config.options(), context);  // PartConfig knows no other names
}

}  // namespace halflife::model
