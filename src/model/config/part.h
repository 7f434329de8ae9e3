// The choice of one part of a model, by name and with its options: which mixer, which norm, which
// block. A kind of part is a list of variants (mixers/mixers.inc, norms/norm.cc, ...). Each
// variant has a struct of options and a class.
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

// The name and the default options of a variant. Recipes, checkpoints and help texts use only
// these.
struct VariantInfo {
  std::string name;
  std::function<std::unique_ptr<PartOptions>()> defaults;
};

struct PartKind {
  const char* name;   // "mixer", as in recipes.
  const char* usual;  // The variant that is used if the recipe names none.
  std::vector<VariantInfo> (*variants)();
};

struct Assignment {
  std::string name;
  OptionValue value;
};

// A value type: each copy owns its options.
class PartConfig {
 public:
  // Throws kUsage if `kind` has no variant of this name. Throws kInternal for an assignment to an
  // option that does not exist or has another type.
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
  // Returns all fields with their values, in the order in which the variant lists them.
  std::vector<Assignment> Values() const;

  bool Has(std::string_view option) const;
  void Set(std::string_view option, const OptionValue& value);
  // T must be the type of the option: bool, int64_t, double or std::string.
  template <typename T>
  T Get(std::string_view option) const {
    return std::get<T>(Find(option).value());
  }
  bool operator==(const PartConfig& other) const;

  // Sets options that derive from the model's sizes. Returns one line per problem.
  std::vector<std::string> Resolve(const ModelSizes& sizes);

 private:
  Option Find(std::string_view option) const;
  const PartKind* kind_;
  std::string name_;
  std::unique_ptr<PartOptions> options_;
};

// A choice among the variants of one kind: `using NormConfig = ConfigOf<kNorms>`.
template <const PartKind& kKind>
struct ConfigOf : PartConfig {
  ConfigOf() : PartConfig(kKind, kKind.usual) {}
  explicit ConfigOf(std::string_view name, const std::vector<Assignment>& options = {})
      : PartConfig(kKind, name, options) {}
};

// True if both have the same values, also in the parts and lists inside them. Both are of one type.
bool AreEqual(PartOptions& one, PartOptions& other);

// Returns the names of all variants of a kind.
std::vector<std::string> NamesOf(const PartKind& kind);

// A variant of `Interface` with the function that makes it from its options and the part's context.
template <typename Interface, typename Context>
struct Variant : VariantInfo {
  std::function<std::unique_ptr<Interface>(const PartOptions&, const Context&)> make;
};

template <typename Variant>
std::vector<VariantInfo> InfosOf(const std::vector<Variant>& variants) {
  return {variants.begin(), variants.end()};
}

// Returns the variant of a class that is constructed from its own struct of options.
template <typename Options, typename Class, typename Interface, typename Context>
Variant<Interface, Context> VariantOf(const char* name) {
  return {{name, [] { return std::make_unique<Options>(); }},
          [](const PartOptions& options, const Context& context) -> std::unique_ptr<Interface> {
            return std::make_unique<Class>(static_cast<const Options&>(options), context);
          }};
}

// Resolves the options. Throws kUsage with all problems.
void RequireResolved(PartConfig& config, const ModelSizes& sizes);

// Makes the part that `config` names, with resolved options. Throws the errors of RequireResolved.
template <typename Interface, typename Context>
std::unique_ptr<Interface> MakePart(const std::vector<Variant<Interface, Context>>& variants,
                                    PartConfig config, const ModelSizes& sizes,
                                    const Context& context) {
  RequireResolved(config, sizes);
  const auto found = std::ranges::find(variants, config.name(), &VariantInfo::name);
  // Found, because PartConfig accepts no other names.
  return found->make(config.options(), context);
}

}  // namespace halflife::model
