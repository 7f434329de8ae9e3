#include "model/config/options.h"

#include <algorithm>
#include <cmath>

#include "core/human.h"

namespace halflife::model {
namespace {

void CheckLimits(const Option& option, const OptionValue& default_value, ProblemList& problems) {
  const OptionLimits& limits = option.limits;
  if (int64_t* const* integer = std::get_if<int64_t*>(&option.place)) {
    const int64_t value = **integer;
    problems.Require(value >= limits.min && value <= limits.max, "option ", option.name, " is ",
                     value, ". Use an integer of at least ", limits.min,
                     value > limits.max ? Concat(" and at most ", limits.max) : "", " (default ",
                     Text(default_value), ").");
  } else if (double* const* number = std::get_if<double*>(&option.place)) {
    problems.Require(!std::isnan(**number), "option ", option.name,
                     " is not a number. Use a number (default ", Text(default_value), ").");
  } else if (std::string* const* word = std::get_if<std::string*>(&option.place);
             word != nullptr && !limits.choices.empty()) {
    problems.Require(std::ranges::count(limits.choices, **word) > 0, "option ", option.name,
                     " is '", **word, "'; known: ", Join(limits.choices, ", "), " (default ",
                     Text(default_value), ")");
  }
}

}  // namespace

OptionValue Option::value() const {
  return std::visit([](const auto* field) { return OptionValue(*field); }, place);
}

bool Option::Set(const OptionValue& value) {
  return std::visit(
      [](auto* field, const auto& given) {
        using Field = std::remove_pointer_t<decltype(field)>;
        using Given = std::decay_t<decltype(given)>;
        if constexpr (std::is_same_v<Field, Given>) {
          *field = given;
          return true;
        } else if constexpr (std::is_same_v<Field, double> && std::is_same_v<Given, int64_t>) {
          *field = static_cast<double>(given);
          return true;
        } else {
          return false;
        }
      },
      place, value);
}

std::string Text(const OptionValue& value) {
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const int64_t* integer = std::get_if<int64_t>(&value)) return Concat(*integer);
  if (const double* number = std::get_if<double>(&value)) return ShortestText(*number);
  return std::get<std::string>(value);
}

const char* TypeName(const Option& option) {
  constexpr const char* kNames[] = {"bool", "int", "number", "word"};
  return kNames[option.place.index()];
}

void PartOptions::Resolve(const ModelSizes&, ProblemList&) {}

void CheckLimits(PartOptions& options, PartOptions& defaults, ProblemList& problems) {
  const std::vector<Option> fields = options.Fields(), usual = defaults.Fields();
  for (size_t i = 0; i < fields.size(); ++i) CheckLimits(fields[i], usual[i].value(), problems);
}

}  // namespace halflife::model
