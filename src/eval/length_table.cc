#include "eval/length_table.h"

#include <algorithm>
#include <charconv>
#include <chrono>
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

void RequireLengths(const model::LanguageModel& model, const LengthTable& table) {
  HL_CHECK_AS(ExitCode::kUsage, !table.lengths.empty(),
              "no length to evaluate. Use --lengths N,...");
  const int64_t longest = std::ranges::max(table.lengths);
  for (const int64_t length : table.lengths)
    HL_CHECK_AS(
        ExitCode::kUsage, length > 0 && longest % length == 0, "--lengths: ", length,
        " does not divide the longest length, ", longest,
        ", but every length must score the same targets. Use divisors of the longest length.");
  HL_CHECK_AS(
      ExitCode::kUsage,
      !table.attention || model.AnyLayerHas(&model::MixerTraits::has_attention_probabilities),
      "--attention needs a layer of softmax attention, and this model has none. Leave out "
      "--attention.");
  HL_CHECK_AS(ExitCode::kUsage, !table.recall || model.objective().predicts_next_token(),
              "--recall needs the objective next_token, but the model's objective is ",
              model.config().objective.name(), ". Leave out --recall.");
  RequirePositions(model, table.lengths);
}

void RequirePositions(const model::LanguageModel& model, const std::vector<int64_t>& lengths) {
  const int64_t longest = std::ranges::max(lengths), most = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || longest <= most, "--lengths: the model supports ",
              most, " positions, fewer than ", longest, ". Use lengths of at most ", most, ".");
}

LengthRow ScoreLength(const model::LanguageModel& model, const data::TokenView& tokens,
                      const LengthTable& table, const LengthMethod& method,
                      const Protocol& protocol, int64_t length, dist::Communicator& control) {
  HL_CHECK_AS(
      ExitCode::kUsage,
      tokens.row_len == 0 || (!table.recall && protocol.kind() == Protocol::Kind::kSegments),
      "--recall and --protocol ", protocol.text(), " need text, but ", tokens.name,
      " has labelled rows. Use --protocol segments and leave out --recall.");
  const int64_t longest = std::ranges::max(table.lengths);
  const int64_t available = data::NumWindows(tokens, longest);
  HL_CHECK_AS(ExitCode::kData, available > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than one window of the longest length, ", longest,
              ", + 1. Use shorter --lengths or more text.");
  const auto other = method.AppliedTo(model, {.train_len = table.train_len, .length = length});
  const auto begin = std::chrono::steady_clock::now();
  LengthRow row = {.method = method.text(),
                   .protocol = protocol.text(),
                   .length = length,
                   .seconds = 0,
                   .result = {},
                   .attention = {}};
  AttentionStatistics attention(other->config().num_layers);
  row.result = Validate(*other, tokens,
                        {.seq_len = length,
                         .num_windows = table.num_windows,
                         .window_len = longest,
                         .stride = protocol.stride(),
                         .piece = protocol.piece(),
                         .batch = std::max<int64_t>(1, table.batch_tokens / length),
                         .bin = table.bin,
                         .recall = table.recall,
                         .half_context = model.objective().predicts_next_token(),
                         .attention = table.attention ? &attention : nullptr},
                        control);
  if (table.attention) row.attention = attention.Summarise(control);
  row.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return row;
}

}  // namespace halflife::eval
