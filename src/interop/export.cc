#include "interop/export.h"

#include <c10/util/BFloat16.h>
#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "ckpt/merged_weights.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "interop/hf_tokenizer.h"
#include "interop/layout.h"
#include "model/language_model.h"

namespace halflife::interop {
namespace {

namespace fs = std::filesystem;
using ckpt::StoredDType;
using nlohmann::ordered_json;

constexpr int64_t kPieceElements = 1 << 20;

// A weight that `transformers` reads: in one model.safetensors, or in numbered shards with an
// index.
struct WeightToWrite {
  std::string name;
  std::vector<int64_t> shape;  // Outermost first.
  RangeReader read;
  StoredDType dtype;  // kF32 or kBF16.

  int64_t num_elements() const { return ckpt::CountElements(shape); }
  uint64_t bytes() const { return static_cast<uint64_t>(num_elements()) * ckpt::SizeOf(dtype); }
};

struct Shard {
  std::vector<const WeightToWrite*> weights;
  uint64_t bytes = 0;
};

std::vector<Shard> Cut(const std::vector<WeightToWrite>& weights, uint64_t max_shard_bytes) {
  std::vector<Shard> shards(1);
  for (const WeightToWrite& weight : weights) {
    const uint64_t bytes = weight.bytes();
    if (!shards.back().weights.empty() && shards.back().bytes + bytes > max_shard_bytes)
      shards.emplace_back();
    shards.back().weights.push_back(&weight);
    shards.back().bytes += bytes;
  }
  return shards;
}

std::string ShardFileName(size_t index, size_t count) {
  if (count == 1) return "model.safetensors";
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", index + 1, count);
  return name;
}

void CheckFinite(const WeightToWrite& weight, int64_t begin, const std::vector<float>& before,
                 int64_t i, float after) {
  HL_CHECK_AS(ExitCode::kNonFinite, std::isfinite(after), "weight ", weight.name, ", element ",
              begin + i, ": ", before[static_cast<size_t>(i)],
              std::isfinite(before[static_cast<size_t>(i)])
                  ? " does not fit into bf16. Export with --dtype fp32."
                  : " is not finite");
}

void WriteWeight(const WeightToWrite& weight, int fd, const fs::path& path) {
  const int64_t total = weight.num_elements();
  std::vector<float> values;
  std::vector<c10::BFloat16> rounded;
  for (int64_t begin = 0; begin < total; begin += kPieceElements) {
    const int64_t count = std::min(kPieceElements, total - begin);
    values.resize(static_cast<size_t>(count));
    weight.read(begin, begin + count, values.data());
    if (weight.dtype == StoredDType::kF32) {
      for (int64_t i = 0; i < count; ++i)
        CheckFinite(weight, begin, values, i, values[static_cast<size_t>(i)]);
      WriteAll(fd, values.data(), values.size() * sizeof(float), path, ExitCode::kEnvironment);
      continue;
    }
    rounded.resize(values.size());
    for (int64_t i = 0; i < count; ++i) {
      rounded[static_cast<size_t>(i)] = c10::BFloat16(values[static_cast<size_t>(i)]);
      CheckFinite(weight, begin, values, i, static_cast<float>(rounded[static_cast<size_t>(i)]));
    }
    WriteAll(fd, rounded.data(), rounded.size() * sizeof(c10::BFloat16), path,
             ExitCode::kEnvironment);
  }
}

void WriteShard(const Shard& shard, const fs::path& path) {
  std::vector<ckpt::safetensors::Entry> entries;
  uint64_t offset = 0;
  for (const WeightToWrite* weight : shard.weights) {
    const uint64_t bytes = weight->bytes();
    entries.push_back({.name = weight->name,
                       .dtype = weight->dtype,
                       .shape = weight->shape,
                       .begin = offset,
                       .end = offset + bytes});
    offset += bytes;
  }
  const std::string head = ckpt::safetensors::BuildHeader(entries, {{"format", "pt"}}, 8);
  Fd file = OpenFile(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, ExitCode::kEnvironment);
  WriteAll(file.get(), head.data(), head.size(), path, ExitCode::kEnvironment);
  for (const WeightToWrite* weight : shard.weights) WriteWeight(*weight, file.get(), path);
  Fsync(file.get(), path, ExitCode::kEnvironment);
  file.Close(path, ExitCode::kEnvironment);
}

// Writes the weights in the given order to an existing folder, rounded to nearest even. Needs a few
// MiB of memory. A weight larger than `max_shard_bytes` gets its own shard. The bytes are a
// function of the arguments. Throws kNonFinite if a weight is not finite before or after rounding,
// and kEnvironment if writing fails.
void WriteHfWeights(const fs::path& folder, const std::vector<WeightToWrite>& weights,
                    uint64_t max_shard_bytes) {
  const std::vector<Shard> shards = Cut(weights, max_shard_bytes);
  nlohmann::ordered_json weight_map = nlohmann::ordered_json::object();
  uint64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = ShardFileName(i, shards.size());
    WriteShard(shards[i], folder / name);
    total += shards[i].bytes;
    for (const WeightToWrite* weight : shards[i].weights) weight_map[weight->name] = name;
  }
  if (shards.size() == 1) return;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}},
                                        {"weight_map", std::move(weight_map)}};
  AtomicWriteFile(folder / "model.safetensors.index.json", index.dump(2) + "\n",
                  ExitCode::kEnvironment);
}

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

// Returns false if transformers fails with a cache for the model.
bool CanCache(const Layout& layout, const model::ModelConfig& config) {
  if (!layout.needs_attention_to_cache()) return true;
  for (int64_t layer = 0; layer < config.num_layers; ++layer)
    if (const std::string& mixer = config.mixer_of(layer).name();
        mixer == "softmax" || mixer == "mla")
      return true;
  return false;
}

// Returns config.json with every key, including those at their default, because other programs have
// changed their defaults in the past.
ordered_json ConfigJson(const Layout& layout, const model::LanguageModel& model,
                        const ckpt::StepState& state, const data::SpecialIds& ids,
                        ckpt::StoredDType dtype, bool untie) {
  const model::ModelConfig& config = model.config();
  ordered_json json;
  json["architectures"] = {layout.class_name()};
  json["model_type"] = layout.model_type();
  json["dtype"] = DTypeName(dtype);
  json["torch_dtype"] = DTypeName(dtype);
  json["vocab_size"] = config.vocab_size;
  layout.WriteConfig(config, json);
  json["tie_word_embeddings"] = config.head.tied && !untie;
  json["initializer_range"] = config.initializer_range;
  json["max_position_embeddings"] = MaxPositions(model, state);
  json["use_cache"] = CanCache(layout, config);
  AddSpecialIds(ids, json);
  return json;
}

// Returns true for parameters of decays and step sizes, which fla and mamba_ssm keep in fp32 when
// the model is bf16: a rounded A_log changes exp(A_log) by up to |A_log| / 256.
bool IsDecayParameter(const std::string& name) {
  return name.ends_with(".A_log") || name.ends_with(".dt_bias");
}

// Returns true if no element changes when it is rounded to bf16.
bool FitsBf16(const RangeReader& read, int64_t num_elements) {
  std::vector<float> values(static_cast<size_t>(num_elements));
  read(0, num_elements, values.data());
  return std::ranges::all_of(values,
                             [](float x) { return static_cast<float>(c10::BFloat16(x)) == x; });
}

// Returns the tensors sorted by their names in the class, so that the bytes do not depend on the
// order in which the model declares its parameters. They are written as `dtype`, except for
// parameters of decays that bf16 would change.
std::vector<WeightToWrite> Weights(const Layout& layout, const model::LanguageModel& model,
                                   const ckpt::WeightSource& source, bool untie,
                                   StoredDType dtype) {
  struct Tensor {
    bool is_decay = false;
    Placement placement;         // Placement of the last part added.
    std::vector<int64_t> shape;  // Shape of one part.
    std::vector<RangeReader> parts;
    std::vector<RowsOfTensor> rows;  // Parameters that are some rows of the tensor.
  };
  std::map<std::string, Tensor> tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape,
                       RangeReader read) {
    const auto [name_of_class, placement] = layout.PlaceOf(model.config(), name, nullptr);
    Tensor& tensor = tensors[name_of_class];
    tensor.is_decay = IsDecayParameter(name);
    tensor.placement = placement;
    tensor.shape = shape;
    if (placement.num_rows > 0) {
      tensor.rows.push_back({placement, shape, std::move(read)});
      return;
    }
    tensor.parts.resize(static_cast<size_t>(placement.num_parts));
    tensor.parts[static_cast<size_t>(placement.part)] = std::move(read);
  };
  const auto stored = [&](const std::string& name) {
    return [&source, name](int64_t begin, int64_t end, float* out) {
      source.ReadRange(name, begin, end, out);
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
  for (auto& [name, tensor] : tensors) {
    WeightToWrite weight = {
        .name = name,
        .shape = TensorShape(tensor.placement, tensor.shape),
        .read = tensor.rows.empty()
                    ? TensorReader(tensor.placement, tensor.shape, std::move(tensor.parts))
                    : TensorOfRows(name, std::move(tensor.rows)),
        .dtype = dtype};
    if (tensor.is_decay && !FitsBf16(weight.read, weight.num_elements()))
      weight.dtype = StoredDType::kF32;
    weights.push_back(std::move(weight));
  }
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

// Publishes what `write` puts into an empty folder as `out`, by one rename. Returns its bytes.
uint64_t PublishFolder(const fs::path& out, const std::function<void(const fs::path&)>& write) {
  std::error_code error;
  const fs::path temporary = TemporaryPathFor(out, RandomHex(8));
  fs::create_directories(temporary, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot create ", temporary.string(), ": ",
              error.message());
  try {
    write(temporary);
    const uint64_t bytes = FolderBytes(temporary);
    PublishDirectory(temporary, out, ExitCode::kEnvironment);
    return bytes;
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
}

// Returns the module of the class that computes with a matrix of the model, such as
// "model.layers.0.self_attn.q_proj".
std::string ModuleOf(const Layout& layout, const model::ModelConfig& config,
                     const std::string& parameter) {
  constexpr std::string_view kWeight = ".weight";
  const auto [tensor, place] = layout.PlaceOf(config, parameter, nullptr);
  const bool whole = !place.transposed && place.num_parts == 1 && place.num_rows == 0 &&
                     place.leading_ones == 0 && place.trailing_ones == 0 &&
                     tensor.ends_with(kWeight);
  HL_CHECK_AS(ExitCode::kUsage, whole, parameter, " is stored in ", tensor, " of ",
              layout.class_name(),
              ", which is not the matrix of a linear layer of its own, as an adapter needs. Export "
              "the merged model without --adapter, or train with lora.targets that leave out such "
              "matrices.");
  return tensor.substr(0, tensor.size() - kWeight.size());
}

// Writes the files of peft's LoraModel: A and B are the weights of linear layers lora_A and lora_B
// within the module of each target.
void WriteAdapter(const fs::path& folder, const Layout& layout, const model::ModelConfig& config,
                  const ckpt::StepReader& step, StoredDType dtype) {
  std::vector<WeightToWrite> weights;
  std::vector<std::string> modules;
  int64_t rank = 0;
  for (const ckpt::TensorInfo& tensor : step.tensors()) {
    const bool is_a = tensor.name.ends_with(ckpt::kLoraA);
    const std::string ending(is_a ? ckpt::kLoraA : ckpt::kLoraB);
    const std::string parameter = tensor.name.substr(0, tensor.name.size() - ending.size());
    const std::string module = ModuleOf(layout, config, parameter);
    if (is_a) modules.push_back(module), rank = tensor.shape[0];
    weights.push_back(
        {.name = Concat("base_model.model.", module, is_a ? ".lora_A" : ".lora_B", ".weight"),
         .shape = tensor.shape,
         .read = [&step, name = tensor.name](
                     int64_t begin, int64_t end,
                     float* out) { step.ReadRange(ckpt::kMainArray, name, begin, end, out); },
         .dtype = dtype});
  }
  std::ranges::sort(weights, {}, &WeightToWrite::name);
  Shard shard;
  for (const WeightToWrite& weight : weights) shard.weights.push_back(&weight);
  WriteShard(shard, folder / "adapter_model.safetensors");
  const ordered_json json = {{"peft_type", "LORA"},
                             {"task_type", "CAUSAL_LM"},
                             {"base_model_name_or_path", nullptr},
                             {"r", rank},
                             {"lora_alpha", ckpt::LoraAlpha(step)},
                             {"lora_dropout", 0.0},
                             {"bias", "none"},
                             {"fan_in_fan_out", false},
                             {"inference_mode", true},
                             {"target_modules", modules}};
  AtomicWriteFile(folder / "adapter_config.json", json.dump(2) + "\n", ExitCode::kEnvironment);
}

void WriteModel(const fs::path& folder, const fs::path& out, const Layout& layout,
                const model::ModelConfig& config, const ckpt::StepReader& step,
                const data::Tokenizer* tokenizer, const ExportOptions& options) {
  const bool untie = options.untie || !layout.can_tie();
  data::SpecialIds ids;
  if (tokenizer != nullptr) {
    WriteHfTokenizer(*tokenizer, folder,
                     layout.loads_byt5() ? BytesForm::kByT5 : BytesForm::kTokenizerJson);
    if (const std::string warning = layout.TokenizerWarning(); !warning.empty())
      HL_WARN("interop", out.string(), ": ", warning);
    ids = tokenizer->special_ids();
  }
  const model::LanguageModel model(config);
  const auto source = ckpt::WeightsOfStep(ckpt::StepReader::Open(step.path()), options.weights);
  WriteHfWeights(folder, Weights(layout, model, *source, untie, options.dtype),
                 options.max_shard_bytes);
  const ordered_json json = ConfigJson(layout, model, step.state(), ids, options.dtype, untie);
  AtomicWriteFile(folder / "config.json", json.dump(2) + "\n", ExitCode::kEnvironment);
  ordered_json generation;
  AddSpecialIds(ids, generation);
  if (!CanCache(layout, config)) {
    generation["use_cache"] = false;
    HL_WARN("interop", out.string(),
            ": no layer has attention. transformers has no cache for such models of the class ",
            layout.class_name(), ", so use_cache is false, and long texts take long. Use halflife ",
            "to generate them.");
  }
  AtomicWriteFile(folder / "generation_config.json", generation.dump(2) + "\n",
                  ExitCode::kEnvironment);
}

}  // namespace

ExportReport ExportModel(const ckpt::StepReader& step, const data::Tokenizer* tokenizer,
                         const fs::path& out, const ExportOptions& options) {
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, !fs::exists(fs::symlink_status(NamedFolder(out), error)),
              out.string(), " exists already. Choose another folder with --out.");
  HL_CHECK_AS(ExitCode::kUsage, !options.adapter || ckpt::IsLoraStep(step), step.path().string(),
              " is not a step of a LoRA run, so it has no adapter. Export it without --adapter.");
  const model::ModelConfig config =
      model::Resolved(model::ModelConfigFromJson(step.state().model_config_json));
  HL_CHECK_AS(ExitCode::kUsage,
              tokenizer == nullptr || tokenizer->vocab_size() <= config.vocab_size,
              "the tokenizer has ", tokenizer == nullptr ? 0 : tokenizer->vocab_size(),
              " ids, but the model has only ", config.vocab_size,
              ". Pass the run's own tokenizer with --tokenizer.");
  HL_CHECK(options.dtype == StoredDType::kF32 || options.dtype == StoredDType::kBF16,
           "cannot write weights as ", ckpt::Name(options.dtype));
  HL_CHECK_AS(ExitCode::kUsage, !options.adapter || options.weights == ckpt::kMainArray,
              "--adapter writes the LoRA weights themselves. Use --weights main with it.");
  const Layout& layout = ChooseLayout(config, options.model_type);
  const uint64_t bytes = PublishFolder(out, [&](const fs::path& folder) {
    if (options.adapter) return WriteAdapter(folder, layout, config, step, options.dtype);
    WriteModel(folder, out, layout, config, step, tokenizer, options);
  });
  return {.model_type = layout.model_type(),
          .class_name = layout.class_name(),
          .bytes = bytes,
          .has_tokenizer = tokenizer != nullptr && !options.adapter};
}

}  // namespace halflife::interop
