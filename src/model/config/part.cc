#include "model/config/part.h"

#include "core/error.h"
#include "core/nearest.h"

namespace halflife::model {
namespace {

std::unique_ptr<PartOptions> DefaultsOf(const PartKind& kind, std::string_view name) {
  for (const VariantInfo& variant : kind.variants())
    if (variant.name == name) return variant.defaults();
  HL_FAIL(ExitCode::kUsage, "unknown ", kind.name, " '", name,
          "'; known: ", Join(NamesOf(kind), ", "), DidYouMean(name, NamesOf(kind)));
}

}  // namespace

std::vector<std::string> NamesOf(const PartKind& kind) {
  std::vector<std::string> names;
  for (const VariantInfo& variant : kind.variants()) names.push_back(variant.name);
  return names;
}

PartConfig::PartConfig(const PartKind& kind, std::string_view name,
                       const std::vector<Assignment>& options)
    : kind_(&kind), name_(name), options_(DefaultsOf(kind, name)) {
  for (const auto& [option, value] : options) Set(option, value);
}

PartConfig::PartConfig(const PartConfig& other)
    : kind_(other.kind_), name_(other.name_), options_(other.options_->Clone()) {}

PartConfig& PartConfig::operator=(const PartConfig& other) {
  *this = PartConfig(other);
  return *this;
}

std::vector<Assignment> PartConfig::Values() const {
  std::vector<Assignment> values;
  for (const Option& option : options_->Fields()) values.push_back({option.name, option.value()});
  return values;
}

bool PartConfig::Has(std::string_view option) const {
  return std::ranges::count(options_->Fields(), option, &Option::name) > 0;
}

Option PartConfig::Find(std::string_view name) const {
  for (Option& option : options_->Fields())
    if (option.name == name) return option;
  HL_FAIL(ExitCode::kInternal, kind_->name, " ", name_, " has no option ", name);
}

void PartConfig::Set(std::string_view name, const OptionValue& value) {
  Option option = Find(name);
  HL_CHECK(option.Set(value), kind_->name, " ", name_, ": option ", name, " has type ",
           TypeName(option));
}

bool PartConfig::operator==(const PartConfig& other) const {
  return kind_ == other.kind_ && name_ == other.name_ && AreEqual(*options_, *other.options_);
}

bool AreEqual(PartOptions& one, PartOptions& other) {
  if (!std::ranges::equal(one.Fields(), other.Fields(), {}, &Option::value, &Option::value))
    return false;
  const auto same_part = [](const PartConfig* mine, const PartConfig* theirs) {
    return *mine == *theirs;
  };
  if (!std::ranges::equal(one.Parts(), other.Parts(), same_part)) return false;
  return std::ranges::equal(one.Lists(), other.Lists(),
                            [](const OptionList& mine, const OptionList& theirs) {
                              if (mine.size() != theirs.size()) return false;
                              for (size_t i = 0; i < mine.size(); ++i)
                                if (!AreEqual(mine.at(i), theirs.at(i))) return false;
                              return true;
                            });
}

std::vector<std::string> PartConfig::Resolve(const ModelSizes& sizes) {
  ProblemList problems(Concat(kind_->name, " ", name_));
  CheckLimits(*options_, *DefaultsOf(*kind_, name_), problems);
  if (problems.lines().empty()) options_->Resolve(sizes, problems);
  return problems.lines();
}

void RequireResolved(PartConfig& config, const ModelSizes& sizes) {
  const std::vector<std::string> problems = config.Resolve(sizes);
  HL_CHECK_AS(ExitCode::kUsage, problems.empty(), Join(problems, "\n"));
}

}  // namespace halflife::model
