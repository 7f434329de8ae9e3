#include "interop/export.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/files.h"
#include "interop/hf_tokenizer.h"
#include "interop/hf_weights.h"
#include "interop/layout.h"
#include "model/language_model.h"

namespace halflife::interop {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr const char* kHead = "lm_head.weight";
constexpr const char* kEmbeddings = "embeddings.weight";
constexpr int64_t kDefaultPositions = 2048;

std::string DTypeName(ckpt::StoredDType dtype) {
  return dtype == ckpt::StoredDType::kBF16 ? "bfloat16" : "float32";
}

void AddSpecialIds(const data::SpecialIds& ids, ordered_json& json) {
  const auto add = [&](const char* key, int id) {
    json[key] = nullptr;
    if (id >= 0) json[key] = id;
  };
  add("bos_token_id", ids.bos);
  add("eos_token_id", ids.eos);
  add("pad_token_id", ids.pad);
}

// Returns the size of the position table if the model has one, else the row length of its training.
int64_t MaxPositions(const model::LanguageModel& model, const ckpt::StepState& state) {
  if (model.max_positions() > 0) return model.max_positions();
  return state.data.seq_len > 0 ? static_cast<int64_t>(state.data.seq_len) : kDefaultPositions;
}

// Every key is written, because other programs have changed their defaults in the past.
ordered_json ConfigJson(const Layout& layout, const model::LanguageModel& model,
                        const ckpt::StepState& state, const data::SpecialIds& ids,
                        const ExportOptions& options) {
  const model::ModelConfig& config = model.config();
  ordered_json json;
  json["architectures"] = {layout.class_name()};
  json["model_type"] = layout.model_type();
  json["dtype"] = DTypeName(options.dtype);
  json["torch_dtype"] = DTypeName(options.dtype);
  json["vocab_size"] = config.vocab_size;
  layout.WriteConfig(config, json);
  json["tie_word_embeddings"] = config.head.tied && !options.untie;
  json["initializer_range"] = config.initializer_range;
  json["max_position_embeddings"] = MaxPositions(model, state);
  json["use_cache"] = true;
  AddSpecialIds(ids, json);
  return json;
}

// Returns the tensors sorted by their names in the class, so that the bytes do not depend on the
// order in which the model declares its parameters.
std::vector<WeightToWrite> Weights(const Layout& layout, const model::LanguageModel& model,
                                   const ckpt::StepReader& step, bool untie) {
  struct Tensor {
    Placement placement;         // Placement of the last part added.
    std::vector<int64_t> shape;  // Shape of one part.
    std::vector<RangeReader> parts;
  };
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape,
                       RangeReader read) {
    const Placement placement = layout.PlacementOf(name, nullptr);
    Tensor& tensor = tensors[layout.TensorName(name, nullptr)];
    tensor.placement = placement;
    tensor.shape = shape;
    tensor.parts.resize(static_cast<size_t>(placement.num_parts));
    tensor.parts[static_cast<size_t>(placement.part)] = std::move(read);
  };
  const auto stored = [&](const std::string& name) {
    return [&step, name](int64_t begin, int64_t end, float* out) {
      step.ReadRange(ckpt::Kind::kMain, name, begin, end, out);
    };
  };
  const model::ModelConfig& config = model.config();
  for (const dist::ParamSpec& spec : model.parameters().specs()) {
    add(spec.name, spec.shape, stored(spec.name));
    if (spec.name == kEmbeddings && config.head.tied && untie)
      add(kHead, spec.shape, stored(kEmbeddings));
  }
  for (const dist::ParamSpec& zero : layout.ZeroTensors(config)) {
    add(zero.name, zero.shape,
        [](int64_t begin, int64_t end, float* out) { std::fill(out, out + (end - begin), 0.0f); });
  }
  std::vector<WeightToWrite> weights;
  for (auto& [name, tensor] : tensors)
    weights.push_back(
        {.name = name,
         .shape = TensorShape(tensor.placement, tensor.shape),
         .read = TensorReader(tensor.placement, tensor.shape, std::move(tensor.parts))});
  return weights;
}

uint64_t FolderBytes(const fs::path& folder) {
  uint64_t bytes = 0;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (!entry->is_directory()) bytes += entry->file_size(error);
    if (error) break;
  }
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot list ", folder.string(), ": ",
              error.message());
  return bytes;
}

}  // namespace

ExportReport ExportModel(const ckpt::StepReader& step, const data::Tokenizer* tokenizer,
                         const fs::path& out, const ExportOptions& options) {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(out), error)),
              out.string(), " exists already. Choose another folder with --out.");
  const model::ModelConfig config =
      model::Resolved(model::ModelConfigFromJson(step.state().model_config_json));
  HL_CHECK_AS(ExitCode::kUsage,
              tokenizer == nullptr || tokenizer->vocab_size() <= config.vocab_size,
              "the tokenizer has ", tokenizer == nullptr ? 0 : tokenizer->vocab_size(),
              " ids, but the model has only ", config.vocab_size,
              ". Pass the run's own tokenizer with --tokenizer.");
  const Layout& layout = ChooseLayout(config, options.model_type);
  ExportReport report = {.model_type = layout.model_type(),
                         .class_name = layout.class_name(),
                         .has_tokenizer = tokenizer != nullptr};
  const fs::path temporary = TemporaryBeside(out, RandomHex(8));
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    data::SpecialIds ids;
    if (tokenizer != nullptr) {
      WriteHfTokenizer(*tokenizer, temporary);
      ids = tokenizer->special_ids();
    }
    const model::LanguageModel model(config);
    WriteHfWeights(temporary, Weights(layout, model, step, options.untie), options.dtype,
                   options.max_shard_bytes);
    const ordered_json json = ConfigJson(layout, model, step.state(), ids, options);
    AtomicWriteFile(temporary / "config.json", json.dump(2) + "\n", ExitCode::kEnvironment);
    ordered_json generation;
    AddSpecialIds(ids, generation);
    AtomicWriteFile(temporary / "generation_config.json", generation.dump(2) + "\n",
                    ExitCode::kEnvironment);
    report.bytes = FolderBytes(temporary);
    PublishDirectory(temporary, out, ExitCode::kEnvironment);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  return report;
}

}  // namespace halflife::interop
