#include "eval/length_method.h"

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>

#include "core/error.h"
#include "eval/eval_options.h"

namespace halflife::eval {
namespace {

// A configuration that the steps of a method change one after the other.
struct Edit {
  model::ModelConfig& config;
  const RowLengths& lengths;
  const std::string& step;
  std::optional<int64_t> number;

  int64_t NumberOr(int64_t usual) const { return std::max<int64_t>(1, number.value_or(usual)); }
  // Returns the given number, or the ratio of the row length to the training length (at least 1).
  double Factor() const {
    const auto ratio = static_cast<double>(lengths.length) / static_cast<double>(lengths.train_len);
    return number ? static_cast<double>(*number) : std::max(1.0, ratio);
  }

  void SetInAttention(const char* option, const model::OptionValue& value) const {
    ForAttention([&](model::PartConfig& mixer) { mixer.Set(option, value); });
  }
  void SetPositions(const model::PositionsConfig& positions) const {
    HL_CHECK_AS(ExitCode::kUsage, config.positions.name() == "none", "--method ", step,
                " replaces plain rotation of queries and keys, but the model's positions are ",
                config.positions.name(), ". Use as_trained, window or blocks.");
    ForAttention([&](const model::PartConfig& mixer) {
      HL_CHECK_AS(
          ExitCode::kUsage, mixer.Get<double>("rope_theta") > 0, "--method ", step,
          " rotates queries and keys, but the model's attention was trained without rotation. "
          "Use as_trained, window or blocks.");
    });
    config.positions = positions;
  }
  void ForAttention(const std::function<void(model::PartConfig&)>& change) const {
    bool any = false;
    model::VisitMixers(config, [&](model::PartConfig& mixer) {
      if (!mixer.Has("query_scale")) return;
      change(mixer);
      any = true;
    });
    HL_CHECK_AS(ExitCode::kUsage, any, "--method ", step,
                " needs softmax attention, and this model has none. Use as_trained.");
  }
};

void SetQueryScale(const Edit& edit, const char* form) {
  edit.ForAttention([&](const model::PartConfig& mixer) {
    const auto trained = mixer.Get<std::string>("query_scale");
    HL_CHECK_AS(ExitCode::kUsage, trained == "none", "--method ", edit.step,
                " scales queries, but the model was trained with query_scale ", trained,
                ". Use as_trained, which keeps that scale.");
  });
  edit.SetInAttention("query_scale", std::string(form));
  edit.SetInAttention("query_scale_mode", std::string("eval_only"));
  edit.SetInAttention("query_scale_length", edit.NumberOr(edit.lengths.train_len));
}
model::PositionsConfig SinksAndWindow(const Edit& edit, const char* name) {
  constexpr int64_t kSinks = 4;
  return model::PositionsConfig(
      name, {{"sinks", kSinks}, {"window", edit.NumberOr(edit.lengths.train_len - kSinks)}});
}

void AsTrained(const Edit&) {}
void Window(const Edit& edit) {
  edit.SetInAttention("block", int64_t{0});
  edit.SetInAttention("window", edit.NumberOr(edit.lengths.train_len));
}
void Blocks(const Edit& edit) {
  edit.SetInAttention("window", int64_t{0});
  edit.SetInAttention("block", edit.NumberOr(edit.lengths.train_len / 2));
}
void Sinks(const Edit& edit) { edit.SetInAttention("sinks", edit.NumberOr(4)); }
void StreamingLlm(const Edit& edit) { edit.SetPositions(SinksAndWindow(edit, "streaming_llm")); }
void LmInfinite(const Edit& edit) { edit.SetPositions(SinksAndWindow(edit, "lm_infinite")); }
void Rerope(const Edit& edit) {
  edit.SetPositions(
      model::PositionsConfig("rerope", {{"window", edit.NumberOr(edit.lengths.train_len / 2)}}));
}
void LeakyRerope(const Edit& edit) {
  edit.SetPositions(model::PositionsConfig(
      "rerope",
      {{"window", std::max<int64_t>(1, edit.lengths.train_len / 2)}, {"leak", edit.NumberOr(16)}}));
}
// For ALiBi, divides the slopes (Al-Khateeb et al., 2023), because its scores are linear in
// positions.
void Interpolated(const Edit& edit) {
  model::PositionsConfig& positions = edit.config.positions;
  if (positions.name() == "alibi")
    return positions.Set("slope_scale", positions.Get<double>("slope_scale") / edit.Factor());
  edit.SetPositions(model::PositionsConfig("interpolated", {{"factor", edit.Factor()}}));
}
void NtkAware(const Edit& edit) {
  edit.SetPositions(model::PositionsConfig("ntk_aware", {{"factor", edit.Factor()}}));
}
void Yarn(const Edit& edit) {
  edit.SetPositions(model::PositionsConfig(
      "yarn", {{"factor", edit.Factor()}, {"length", edit.lengths.train_len}}));
}
void InfoScale(const Edit& edit) { SetQueryScale(edit, "info"); }
void LogScale(const Edit& edit) { SetQueryScale(edit, "log"); }
void ScaledBiases(const Edit& edit) { edit.SetInAttention("query_scale_bias", true); }

// The aspect of attention that a step sets. A second step with the same facet would overwrite the
// first.
enum class Facet { kNone, kPattern, kSinks, kPositions, kQueryScale, kScaledBiases };

const char* NameOf(Facet facet) {
  switch (facet) {
    case Facet::kNone:
      break;
    case Facet::kPattern:
      return "the pattern";
    case Facet::kSinks:
      return "the sinks";
    case Facet::kPositions:
      return "the positions";
    case Facet::kQueryScale:
      return "the scale of queries";
    case Facet::kScaledBiases:
      return "whether biases are scaled";
  }
  return "nothing";
}

struct StepKind {
  const char* name;
  const char* number;  // Name of its number in help texts. Empty: takes no number.
  Facet facet;
  void (*apply)(const Edit& edit);
};

const StepKind kSteps[] = {
#define HL_LENGTH_METHOD(name, number, help, facet, Apply) {name, number, Facet::facet, Apply},
#include "eval/length_methods.inc"
#undef HL_LENGTH_METHOD
};

const StepKind& KindOf(const std::string& name) {
  const StepKind* const found = std::ranges::find(kSteps, name, &StepKind::name);
  HL_CHECK_AS(ExitCode::kUsage, found != std::end(kSteps), "--method: there is no '", name,
              "'; known:\n", LengthMethodHelp());
  return *found;
}

std::vector<std::string> Split(std::string_view text, char mark) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(mark, begin), text.size());
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace

LengthMethod LengthMethod::Parse(std::string_view text) {
  LengthMethod method;
  method.text_ = text;
  std::map<Facet, std::string> set;  // The step that set each facet.
  for (const std::string& part : Split(text, '+')) {
    const size_t colon = part.find(':');
    Step step = {.name = part.substr(0, colon), .number = std::nullopt};
    const StepKind& kind = KindOf(step.name);
    const auto [first, is_first] = set.try_emplace(kind.facet, part);
    HL_CHECK_AS(ExitCode::kUsage, is_first || kind.facet == Facet::kNone, "--method ", text, ": ",
                first->second, " and ", part, " both set ", NameOf(kind.facet),
                ", so the second would overwrite the first. Use only one of them.");
    if (colon != std::string::npos) {
      const std::string digits = part.substr(colon + 1);
      int64_t number = 0;
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), number);
      HL_CHECK_AS(ExitCode::kUsage,
                  *kind.number != '\0' && error == std::errc() && number > 0 &&
                      end == digits.data() + digits.size(),
                  "--method ", part, ": '", digits, "' is not allowed, because ", kind.name,
                  *kind.number == '\0' ? " takes no number" : " takes a whole number above 0");
      step.number = number;
    }
    method.steps_.push_back(std::move(step));
  }
  return method;
}

std::vector<LengthMethod> LengthMethod::ParseAll(const std::vector<std::string>& texts,
                                                 const model::LanguageModel& model,
                                                 const RowLengths& lengths) {
  std::vector<LengthMethod> methods;
  for (const std::string& text : texts) methods.push_back(Parse(text));
  for (const LengthMethod& method : methods) method.AppliedTo(model, lengths);
  return methods;
}

std::unique_ptr<model::LanguageModel> LengthMethod::AppliedTo(const model::LanguageModel& model,
                                                              const RowLengths& lengths) const {
  model::ModelConfig config = model.config();
  for (const Step& step : steps_)
    KindOf(step.name).apply(
        {.config = config, .lengths = lengths, .step = text_, .number = step.number});
  auto other = std::make_unique<model::LanguageModel>(config);
  const model::ParameterSet& weights = model.parameters();
  HL_CHECK(other->parameters().size() == weights.size(), "--method ", text_,
           " changes the model's parameters");
  for (int i = 0; i < weights.size(); ++i) other->parameters().Bind(i, weights.tensor(i));
  return other;
}

}  // namespace halflife::eval
