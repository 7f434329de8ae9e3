#include "eval/protocol.h"

#include <charconv>
#include <utility>

#include "core/error.h"
#include "model/blocks/block.h"

namespace halflife::eval {
namespace {

constexpr std::pair<std::string_view, Protocol::Kind> kWithTokens[] = {
    {"sliding:", Protocol::Kind::kSliding}, {"carried:", Protocol::Kind::kCarried}};

// Returns the first layer whose state grows, or "" if there is none.
std::string LayerThatGrows(const model::LanguageModel& model) {
  for (int64_t layer = 0; layer < model.config().num_layers; ++layer)
    if (!model.block(layer).mixer().traits().constant_state())
      return Concat("layer ", layer, ", ", model.config().mixer_of(layer).name());
  return "";
}

}  // namespace

Protocol Protocol::Parse(std::string_view text) {
  Protocol protocol;
  protocol.text_ = text;
  if (text == "segments") return protocol;
  for (const auto& [name, kind] : kWithTokens) {
    if (!text.starts_with(name)) continue;
    const std::string_view digits = text.substr(name.size());
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), protocol.tokens_);
    HL_CHECK_AS(
        ExitCode::kUsage,
        error == std::errc() && end == digits.data() + digits.size() && protocol.tokens_ > 0,
        "--protocol ", text, ": '", digits, "' is not allowed, because ", name,
        " takes a whole number of tokens above 0");
    protocol.kind_ = kind;
    return protocol;
  }
  HL_FAIL(ExitCode::kUsage, "--protocol: there is no '", text,
          "'. Use segments, sliding:STRIDE or carried:PIECE, for example sliding:64.");
}

void Protocol::RequireFits(const model::LanguageModel& model, int64_t length) const {
  if (kind_ == Kind::kSegments) return;
  HL_CHECK_AS(ExitCode::kUsage, model.objective().predicts_next_token(), "--protocol ", text_,
              " scores next tokens, but the model's objective is ", model.config().objective.name(),
              ". Use segments.");
  if (kind_ == Kind::kSliding) {
    HL_CHECK_AS(ExitCode::kUsage, length % tokens_ == 0, "--protocol ", text_, ": ", tokens_,
                " does not divide rows of ", length, " tokens. Use a divisor.");
    return;
  }
  const std::string grows = LayerThatGrows(model);
  HL_CHECK_AS(ExitCode::kUsage, grows.empty(), "--protocol ", text_, ": the state of the mixer of ",
              grows,
              ", grows with the text, so carrying it saves no memory. Use segments or "
              "sliding:STRIDE.");
}

}  // namespace halflife::eval
