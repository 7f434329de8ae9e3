#include "cli/command_line/declare.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "core/host.h"
#include "core/nearest.h"

namespace halflife::cli {
namespace {

// Parses a number like CLI11, including 0x10. A number beyond 64 bits becomes the nearest one,
// which the option refuses.
std::optional<int64_t> WholeNumber(const std::string& text) {
  char* end = nullptr;
  const int64_t value = std::strtoll(text.c_str(), &end, 0);
  if (text.empty() || *end != '\0') return std::nullopt;
  return value;
}

std::optional<double> Number(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || std::isnan(value)) return std::nullopt;
  return value;
}

template <typename Value>
CLI::Validator Range(std::optional<Value> (*parse)(const std::string&), const char* kind,
                     Value least, Value most, const std::string& valid,
                     const std::string& description) {
  return CLI::Validator(
      [=](const std::string& text) {
        const std::optional<Value> value = parse(text);
        if (!value) return Concat("'", text, "' is not a ", kind, ". Use ", valid, ".");
        if (*value >= least && *value <= most) return std::string();
        return Concat("'", text, "' is too ", *value < least ? "small" : "large", ". Use ", valid,
                      ".");
      },
      description);
}

}  // namespace

CLI::Validator AtLeast(int64_t least) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  return Range(WholeNumber, "whole number", least, kMax, Concat(least, " or more"), "");
}

CLI::Validator Between(int64_t least, int64_t most) {
  return Range(WholeNumber, "whole number", least, most, Concat(least, " to ", most),
               Concat("in [", least, " - ", most, "]"));
}

CLI::Validator NumThreads(int least) { return Between(least, kMaxThreads); }

CLI::Validator BetweenNumbers(double least, double most) {
  return Range(Number, "number", least, most, Concat(least, " to ", most),
               Concat("in [", least, " - ", most, "]"));
}

CLI::Validator OneOf(std::vector<std::string> names) {
  const std::string description = Concat("{", Join(names, ","), "}");
  return CLI::Validator(
      [names = std::move(names)](const std::string& text) {
        if (std::ranges::count(names, text) > 0) return std::string();
        const std::string near = DidYouMean(text, names);
        return Concat("'", text, "' is none of ", Join(names, ", "), ". Use one of them",
                      near.empty() ? "." : near);
      },
      description);
}

CLI::Validator NamedValue(const std::map<std::string, int64_t>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  const CLI::Validator check = OneOf(names);
  return CLI::Validator(
      [check, values](std::string& text) {
        const std::string problem = check(text);
        if (problem.empty()) text = Concat(values.at(text));
        return problem;
      },
      check.get_description());
}

CLI::Validator Folder(const std::string& wanted) {
  return CLI::Validator(
      [wanted](const std::string& text) {
        std::error_code ignored;
        if (std::filesystem::is_directory(text, ignored)) return std::string();
        return std::filesystem::exists(text, ignored)
                   ? Concat("'", text, "' is not a folder. Use ", wanted, ".")
                   : Concat("there is no '", text, "'. Use ", wanted, ".");
      },
      "");
}

CLI::Validator SizeInBytes() {
  const CLI::AsSizeValue convert(/*kb_is_1000=*/true);
  return CLI::Validator(
      [convert](std::string& text) {
        const std::string given = text;
        // CLI11 ignores an overflow of the number and reports one of the product as an exception.
        const char* const end =
            given.data() + std::min(given.find_first_not_of("0123456789"), given.size());
        uint64_t number = 0;
        bool valid = std::from_chars(given.data(), end, number).ec == std::errc();
        try {
          valid = valid && convert(text).empty();
        } catch (const CLI::ValidationError&) {
          valid = false;
        }
        return valid ? std::string()
                     : Concat("'", given,
                              "' is not a size. Use bytes, or a whole number and a unit, for "
                              "example 500MB, 5GB or 4GiB.");
      },
      "");
}

std::string NumberProblem(const std::string& text, bool whole) {
  const bool is_one = whole ? WholeNumber(text).has_value() : Number(text).has_value();
  return is_one ? "" : Concat("'", text, "' is not a ", whole ? "whole " : "", "number");
}

void OptionDeclarer::BeginGroup(const std::string& headline) {
  command_.option_defaults()->group(headline);
  mode_ = nullptr;
  begins_mode_ = false;
}

void OptionDeclarer::BeginMode(const std::string& headline) {
  BeginGroup(headline);
  begins_mode_ = true;
}

void OptionDeclarer::CaptureDefault(CLI::Option& option) {
  option.capture_default_str();
  const std::string standard = option.get_default_str();
  if (!standard.starts_with('[') || !standard.ends_with(']')) return;
  // CLI11 writes a list as [a,b]. The help has brackets of its own around a default.
  option.default_str(standard.substr(1, standard.size() - 2));
}

void OptionDeclarer::Finish(const std::string& form, CLI::Option& option) {
  const std::string type = form.substr(form.find(' ') + 1);
  if (!type.starts_with('-')) option.type_name(type);
  if (type.ends_with(",...") && option.get_expected_max() > 1) option.delimiter(',');
  if (mode_ != nullptr) option.needs(mode_);
  if (std::exchange(begins_mode_, false)) mode_ = &option;
}

void Exclude(CLI::App& command, const std::string& mode, const std::vector<std::string>& others) {
  for (const std::string& other : others)
    command.get_option(mode)->excludes(command.get_option(other));
}

void RequireValue(const CLI::App& command, const std::string& mode, const std::string& value,
                  const std::vector<std::string>& names) {
  const CLI::Option& of_mode = *command.get_option(mode);
  if (of_mode.count() > 0 && of_mode.results().back() == value) return;
  for (const std::string& name : names) {
    const CLI::Option& option = *command.get_option(name);
    if (option.count() == 0) continue;
    throw CLI::ParseError(of_mode.count() == 0
                              ? DoesNothingWithout(option, of_mode, value)
                              : Concat(name, " does nothing with ", mode, " ",
                                       of_mode.results().back(), ". Use ", mode, " ", value, "."),
                          CLI::ExitCodes::ValidationError);
  }
}

std::string DoesNothingWithout(const CLI::Option& option, const CLI::Option& mode,
                               const std::string& value) {
  const std::string wanted = mode.get_name() + (value.empty() ? "" : " " + value);
  std::vector<std::string> missing = {value.empty() ? UsageOf(mode) : wanted}, replaced;
  for (const CLI::Option* at = &mode; at != nullptr;) {
    for (const CLI::Option* other : at->get_excludes())
      if (other->count() > 0) replaced.push_back(other->get_name());
    const std::set<CLI::Option*> needs = at->get_needs();
    const auto next = std::ranges::find_if(needs, [](auto* need) { return need->count() == 0; });
    at = next == needs.end() ? nullptr : *next;
    if (at != nullptr) missing.push_back(UsageOf(*at));
  }
  return Concat(option.get_name(), " does nothing without ", wanted, ". Use ", Join(missing, " "),
                replaced.empty() ? " with it" : " instead of ", Join(replaced, " and "), ".");
}

void AddTokenizer(OptionDeclarer& declare, std::string& tokenizer, const std::string& standard) {
  declare(
      "--tokenizer FILE", tokenizer,
      Concat("`bytes`, a sentencepiece .model file, a byte-level BPE tokenizer.json, or a folder "
             "with a tokenizer, such as a Hugging Face model's [",
             standard, "]"));
}

void AddWeights(OptionDeclarer& declare, std::string& weights) {
  declare("--weights", weights,
          "Weights of the step. ema: their moving average, of a run with optimizer.ema_decay",
          OneOf({"main", "ema"}));
}

void AddSpecialTokens(OptionDeclarer& declare, data::SpecialTokens& special,
                      const std::string& texts) {
  declare("--special-tokens", special,
          Concat("How the names of special tokens, such as </s>, are read in ", texts,
                 ". parse: as these tokens, as Hugging Face tokenizers do. plain: as characters"),
          {{"parse", data::SpecialTokens::kParse}, {"plain", data::SpecialTokens::kPlain}});
}

void AddCompute(OptionDeclarer& declare, ComputeOptions& compute) {
  declare("--device", compute.device,
          "Device of the computation. auto: a GPU if one is visible; the ranks of a machine use "
          "different GPUs",
          OneOf({"auto", "cpu", "cuda"}));
  if (compute.precision == "auto") {
    declare("--precision", compute.precision,
            "Type of the computation, like train.precision in training. auto: bf16 on a GPU, fp32 "
            "on the CPU, because bf16 was no faster on the one CPU measured, which has AVX-512",
            OneOf({"auto", "fp32", "bf16"}));
  } else {
    declare("--precision", compute.precision,
            "Type of the computation, like train.precision in training", OneOf({"fp32", "bf16"}));
  }
}

}  // namespace halflife::cli
