#include "cli/part_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/command_line/help.h"
#include "core/error.h"
#include "core/human.h"
#include "core/nearest.h"
#include "model/channel_mixers/channel_mixer.h"
#include "model/config/options.h"
#include "model/mixer.h"
#include "train/config/foreign_names.h"
#include "train/config/model_schema.h"

namespace halflife::cli {
namespace {

using Json = nlohmann::ordered_json;
using train::KindHelp, train::VariantHelp;

constexpr int64_t kModelDim = 1024, kSeqLen = 2048;
constexpr size_t kLineWidth = 100;

std::vector<KindHelp> Kinds() {
  std::vector<KindHelp> kinds = train::HelpOfParts();
  std::ranges::stable_partition(
      kinds, [](const KindHelp& kind) { return kind.name == model::kMixers.name; });
  return kinds;
}

Json OptionsJson(const VariantHelp& variant) {
  Json options = Json::array();
  for (const train::OptionHelp& option : variant.options) {
    options.push_back({{"name", option.name},
                       {"type", option.type},
                       {"default", model::ToJson(option.usual)},
                       {"meaning", option.meaning},
                       {"choices", option.choices}});
  }
  return options;
}

Json StateJson(const model::StateTensor& tensor) {
  Json shape = Json::array();
  int64_t num_elements = 1;
  for (const int64_t size : tensor.shape) {
    const bool grows = size == model::StateTensor::kGrows;
    shape.push_back(grows ? Json("tokens") : Json(size));
    if (!grows) num_elements *= size;
  }
  return {{"name", tensor.name},
          {"shape", shape},
          {"dtype", tensor.compute_dtype ? "compute" : "fp32"},
          {"grows", tensor.grows()},
          {"bytes", num_elements * static_cast<int64_t>(sizeof(float))}};
}

model::PartContext Context(model::ParameterSet& parameters) {
  return {.sizes = {.model_dim = kModelDim, .num_layers = 1}, .parameters = &parameters};
}

void AddMixer(const std::string& name, Json& json) {
  model::ParameterSet parameters;
  const auto mixer = model::MakeMixer(model::MixerConfig(name), Context(parameters));
  const model::FlopCount flops = mixer->FlopsPerToken(kSeqLen);
  json["cost"] = {{"model_dim", kModelDim},
                  {"seq_len", kSeqLen},
                  {"parameters", parameters.num_elements()},
                  {"matmul_flops", flops.matmul},
                  {"mixing_flops", flops.mixing}};
  json["state"] = Json::array();
  for (const model::StateTensor& tensor : mixer->traits().state)
    json["state"].push_back(StateJson(tensor));
}

void AddChannelMixer(const std::string& name, Json& json) {
  model::ParameterSet parameters;
  const auto mixer = model::MakeChannelMixer(model::ChannelMixerConfig(name), Context(parameters));
  json["cost"] = {{"model_dim", kModelDim},
                  {"parameters", parameters.num_elements()},
                  {"matmul_flops", mixer->FlopsPerToken().matmul}};
}

// Formats rows of words. The last cell is wrapped.
std::string WrappedTable(const std::vector<std::vector<std::string>>& rows,
                         const std::string& indent) {
  std::vector<size_t> widths(rows[0].size() - 1);
  for (const auto& row : rows)
    for (size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    std::string line = indent;
    for (size_t i = 0; i < widths.size(); ++i) line += Padded(row[i], widths[i] + 2);
    text += line + WrapText(row.back(), kLineWidth - line.size(), kLineWidth, line.size()) + "\n";
  }
  return text;
}

std::string DefaultText(const Json& value) {
  if (value.is_number_float()) return model::Text(value.get<double>());
  return value.is_string() ? value.get<std::string>() : value.dump();
}

std::string OptionsText(const Json& options) {
  if (options.empty()) return "It has no options.\n";
  std::vector<std::vector<std::string>> rows = {{"option", "type", "default", "meaning"}};
  for (const Json& option : options) {
    std::string meaning = option["meaning"];
    const std::vector<std::string> choices = option["choices"];
    if (!choices.empty()) meaning += Concat(". One of ", Join(choices, ", "));
    rows.push_back({option["name"], option["type"], DefaultText(option["default"]), meaning});
  }
  return WrappedTable(rows, "");
}

// "kv [4, 128, 256]"
std::string TensorText(const Json& tensor) {
  std::vector<std::string> sizes;
  for (const Json& size : tensor["shape"])
    sizes.push_back(size.is_string() ? size.get<std::string>() : size.dump());
  return Concat(tensor["name"].get<std::string>(), " [", Join(sizes, ", "), "]");
}

std::string StateText(const Json& state) {
  if (state.empty()) return "none";
  std::vector<std::string> tensors, sizes;
  uint64_t constant = 0, each_token = 0;
  for (const Json& tensor : state) {
    tensors.push_back(TensorText(tensor));
    (tensor["grows"].get<bool>() ? each_token : constant) += tensor["bytes"].get<uint64_t>();
  }
  if (constant > 0) sizes.push_back(HumanBytes(constant) + " a row of any length");
  if (each_token > 0) sizes.push_back(HumanBytes(each_token) + " more with each token of a row");
  return Concat(Join(tensors, ", "), ": ", Join(sizes, " and "), ", in fp32");
}

// Prints one equation per line. The schema separates them by two spaces.
std::string EquationText(const std::string& equations) {
  std::string text;
  for (size_t begin = 0; begin < equations.size();) {
    const size_t gap = std::min(equations.find(",  ", begin), equations.size());
    const std::string equation = equations.substr(begin, gap - begin);
    text += "  " + WrapText(equation, kLineWidth - 2, kLineWidth, 4) + "\n";
    begin = gap + 3;
  }
  return text;
}

std::string CostText(const Json& part) {
  const Json& cost = part["cost"];
  const auto count = [&](const char* key) { return HumanCount(cost[key].get<double>()); };
  std::string flops = count("matmul_flops") + " in matrices";
  if (cost.contains("mixing_flops"))
    flops +=
        Concat(", ", count("mixing_flops"), " between tokens at seq_len ", cost["seq_len"].dump());
  std::vector<std::vector<std::string>> rows = {{"parameters", count("parameters")},
                                                {"FLOPs of a token, forward", flops}};
  if (part.contains("state")) rows.push_back({"state", StateText(part["state"])});
  return Concat("In each layer of a model of model_dim ", cost["model_dim"].dump(),
                ", with the defaults:\n", WrappedTable(rows, "  "), "\n");
}

// Shows how a recipe and --set select the part.
std::string UseText(const Json& part) {
  const std::string kind = part["kind"], name = part["name"];
  const bool has_options = !part["options"].empty();
  const std::string path = Concat("model.", kind);
  return WrappedTable(
      {{"recipe",
        Concat("model { ", kind, " { ", name, has_options ? " { OPTION: VALUE }" : " {}", " } }")},
       {"override",
        Concat("--set ", path, "=", name,
               has_options ? Concat(" --set ", path, ".", name, ".OPTION=VALUE") : "")}},
      "");
}

}  // namespace

Json DescribeParts() {
  Json parts = Json::array();
  for (const KindHelp& kind : Kinds()) {
    Json variants = Json::array();
    for (const VariantHelp& variant : kind.variants)
      variants.push_back({{"name", variant.name}, {"summary", variant.summary}});
    parts.push_back({{"kind", kind.name}, {"usual", kind.usual}, {"variants", variants}});
  }
  return parts;
}

std::string PartsText(const Json& parts) {
  std::vector<std::vector<std::string>> mixers, others;
  for (const Json& kind : parts) {
    const bool is_mixer = kind["kind"] == model::kMixers.name;
    std::vector<std::string> names;
    for (const Json& variant : kind["variants"]) {
      names.push_back(variant["name"]);
      if (variant["name"] == kind["usual"]) names.back() += " (default)";
      if (is_mixer) mixers.push_back({names.back(), variant["summary"]});
    }
    if (!is_mixer) others.push_back({kind["kind"], Join(names, ", ")});
  }
  return Concat("Mixers:\n", WrappedTable(mixers, "  "), "\nOther parts of a model:\n",
                WrappedTable(others, "  "),
                "\n`halflife mixers NAME` describes a mixer, `halflife mixers ",
                others.front().front(), ".NAME` another part.\n");
}

Json DescribePart(const std::string& name) {
  std::vector<std::string> known;
  for (const KindHelp& kind : Kinds()) {
    for (const VariantHelp& variant : kind.variants) {
      const std::string path = kind.name + "." + variant.name;
      const bool is_mixer = kind.name == model::kMixers.name;
      known.push_back(is_mixer ? variant.name : path);
      if (name != known.back() && name != path) continue;
      Json json = {{"kind", kind.name}, {"name", variant.name}, {"summary", variant.summary}};
      if (!variant.equation.empty()) json["equation"] = variant.equation;
      if (is_mixer) AddMixer(variant.name, json);
      if (kind.name == model::kChannelMixers.name) AddChannelMixer(variant.name, json);
      json["options"] = OptionsJson(variant);
      return json;
    }
  }
  const std::string kind = model::kMixers.name;
  const train::ForeignName* foreign = train::FindForeignName("model." + kind, name);
  HL_CHECK_AS(ExitCode::kUsage, foreign == nullptr, "no part of a model is called '", name, "'. ",
              foreign == nullptr ? "" : train::AnswerTo(*foreign, train::RecipeForm::kSet));
  HL_FAIL(ExitCode::kUsage, "no part of a model is called '", name, "'", DidYouMean(name, known),
          "\nUse one of ", Join(known, ", "));
}

std::string PartText(const Json& part) {
  std::string text =
      Concat(part["name"].get<std::string>(), ": ", part["summary"].get<std::string>(), "\n\n");
  if (part.contains("equation")) text += EquationText(part["equation"]) + "\n";
  if (part.contains("cost")) text += CostText(part);
  return text + OptionsText(part["options"]) + "\n" + UseText(part);
}

}  // namespace halflife::cli
