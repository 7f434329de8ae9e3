#include "cli/eval_modes.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/files.h"
#include "core/human.h"
#include "core/json_text.h"
#include "eval/attention_statistics.h"
#include "eval/batch_tensors.h"

namespace halflife::cli {
namespace {

using nlohmann::ordered_json;

std::vector<float> Values(const at::Tensor& x) {
  const at::Tensor flat = x.to(at::kCPU, at::kFloat).contiguous();
  return {flat.const_data_ptr<float>(), flat.const_data_ptr<float>() + flat.numel()};
}

// Returns x [T, H] as one list per head.
ordered_json ByHead(const at::Tensor& x) {
  ordered_json json = ordered_json::array();
  for (int64_t head = 0; head < x.size(1); ++head) json.push_back(Values(x.select(1, head)));
  return json;
}

ordered_json TopJson(const at::Tensor& shares, int64_t count) {
  ordered_json json = ordered_json::array();
  for (const eval::TokenShare& token : eval::LargestTokens(shares, count))
    json.push_back({{"token", token.token}, {"share", token.share}});
  return json;
}

// Describes the first row.
ordered_json PoolJson(const model::Explanation& pool, int64_t top) {
  const at::Tensor importance = pool.Importance()[0], focus = pool.Focus()[0];
  ordered_json json = {{"window", pool.window},
                       {"importance", Values(importance.mean(1))},
                       {"focus", Values(focus.mean(1))},
                       {"top_importance", TopJson(importance.mean(1), top)},
                       {"top_focus", TopJson(focus.mean(1), top)}};
  for (int64_t head = 0; head < importance.size(1); ++head)
    json["top_importance_of_heads"].push_back(TopJson(importance.select(1, head), top));
  json["log_weight"] = ByHead(pool.log_weight[0]);
  json["row_max"] = ByHead(pool.row_max[0]);
  json["row_sum"] = ByHead(pool.row_sum[0]);
  // Mean over the channels of a head.
  if (pool.gate.defined()) json["gate"] = ByHead(pool.gate[0].mean(2));
  return json;
}

ordered_json WindowJson(const infer::LoadedModel& loaded, const data::Batch& batch, int64_t top) {
  const eval::BatchTensors tensors = eval::ToTensors(batch, loaded.model->device());
  ordered_json json = {{"tokens", ordered_json::array()}, {"layers", ordered_json::array()}};
  for (const int32_t id : batch.inputs) {
    ordered_json token = {{"id", id}};
    if (loaded.tokenizer != nullptr) token["text"] = loaded.tokenizer->Decode({id});
    json["tokens"].push_back(std::move(token));
  }
  for (const eval::LayerExplanation& of_layer :
       eval::ExplainLayers(*loaded.model, tensors.inputs, tensors.slice)) {
    ordered_json layer = {{"layer", of_layer.layer},
                          {"mixer", loaded.model->config().mixer_of(of_layer.layer).name()}};
    for (const model::Explanation& pool : of_layer.pools)
      layer["pools"].push_back(PoolJson(pool, top));
    json["layers"].push_back(std::move(layer));
  }
  return json;
}

// Formats each token as `"gold" 0.042 at 17`.
std::string TokensText(const ordered_json& top, const ordered_json& tokens, int digits) {
  std::string text;
  for (const ordered_json& token : top) {
    const ordered_json& said = tokens[token["token"].get<size_t>()];
    text += Concat(text.empty() ? "" : ", ",
                   said.contains("text") ? JsonText(said["text"]) : said["id"].dump(), " ",
                   Fixed(token["share"].get<double>(), digits), " at ", token["token"].dump());
  }
  return text;
}

// Builds the text from the JSON, so that both contain the same values.
std::string ExplanationText(const ordered_json& out) {
  std::string text;
  for (size_t window = 0; window < out["windows"].size(); ++window) {
    const ordered_json& json = out["windows"][window];
    text += Concat("window ", window, ", ", json["tokens"].size(), " tokens\n");
    for (const ordered_json& layer : json["layers"]) {
      const bool several = layer["pools"].size() > 1;
      for (size_t i = 0; i < layer["pools"].size(); ++i) {
        const ordered_json& pool = layer["pools"][i];
        text += Concat(
            "layer ", layer["layer"].dump(), ", ", layer["mixer"].get<std::string>(),
            several ? Concat(", pool ", i) : "",
            pool["window"] == 0 ? "" : Concat(", windows of ", pool["window"].dump()),
            "\n  share in the last row   ", TokensText(pool["top_importance"], json["tokens"], 4),
            "\n  weight over the mean    ", TokensText(pool["top_focus"], json["tokens"], 2), "\n");
      }
    }
  }
  return text;
}

}  // namespace

ExitCode ExplainWindows(const EvalOptions& options, const infer::LoadedModel& loaded,
                        const data::TokenView& tokens, int64_t seq_len) {
  const int64_t there = data::NumWindows(tokens, seq_len),
                count = std::min(options.windows > 0 ? options.windows : 1, there);
  HL_CHECK_AS(ExitCode::kData, count > 0, tokens.name, " has ", tokens.info.num_tokens,
              " tokens, fewer than a window of ", seq_len, " and one to predict. Use --seq-len ",
              std::max<int64_t>(tokens.info.num_tokens - 1, 1), " or less.");
  ordered_json out = {{"model", loaded.path.string()},
                      {"step", loaded.state.step},
                      {"seq_len", seq_len},
                      {"windows", ordered_json::array()}};
  for (int64_t window = 0; window < count; ++window)
    out["windows"].push_back(
        WindowJson(loaded, data::ReadWindows(tokens, seq_len, window, 1), options.top));
  WriteOutput(options.explain, JsonText(out) + "\n", ExitCode::kEnvironment);
  if (!IsStandardOutput(options.explain))
    std::cout << (options.json ? JsonText(out, 2) + "\n" : ExplanationText(out)) << std::flush;
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
