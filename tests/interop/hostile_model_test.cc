// Small folders with 23,000 planted faults, opened as models, are refused with an Error or give
// exactly the model of their config.json. Memory use is bounded by the size of the files.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "core/error.h"
#include "core/log.h"
#include "interop/hf_folder_fixture.h"
#include "interop/hf_model.h"
#include "model/language_model.h"
#include "support/mutate.h"
#include "support/temp_dir.h"

namespace halflife::interop {
namespace {

using nlohmann::json;
using Shapes = std::map<std::string, std::vector<int64_t>>;

constexpr int kDamagedBytesPerFile = 2000;
constexpr int kChangedValuesPerClass = 1500;
constexpr const char* kFirstShard = "model-00001-of-00002.safetensors";
constexpr const char* kSecondShard = "model-00002-of-00002.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

// One config per class, with options that change the set of tensors: biases, norms, convolutions,
// softmax layers, tied weights.
constexpr const char* kConfigs[] = {
    R"({"model_type": "llama", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": true, "mlp_bias": false,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "tie_word_embeddings": false, "max_position_embeddings": 64})",
    R"({"model_type": "mistral", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2,
        "rope_scaling": {"type": "linear", "factor": 2.0}, "rope_theta": 500.0,
        "sliding_window": 9, "tie_word_embeddings": true})",
    R"({"model_type": "qwen3", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4,
        "rope_parameters": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 8.0,
                            "original_max_position_embeddings": 64}, "attention_bias": true,
        "use_sliding_window": true, "sliding_window": 9, "max_window_layers": 1,
        "layer_types": ["full_attention", "sliding_attention"], "tie_word_embeddings": false})",
    R"({"model_type": "transformer", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 4, "num_kv_heads": 2, "qkv_bias": true,
        "qk_norm": true, "window_size": 9, "rope_theta": 500.0, "hidden_ratio": 4})",
    R"({"model_type": "retnet", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 2, "num_kv_heads": 1, "expand_k": 1, "expand_v": 2,
        "feature_map": "relu", "use_output_gate": true, "elementwise_affine": true,
        "fuse_norm": false, "attn": {"layers": [1], "num_heads": 2, "qkv_bias": true}})",
    R"({"model_type": "gla", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 2, "expand_k": 0.5, "expand_v": 1,
        "use_short_conv": true, "conv_size": 3, "clamp_min": -0.5, "tie_word_embeddings": true,
        "attn": [{"layers": [0], "num_heads": 2, "window_size": 4}]})",
    R"({"model_type": "delta_net", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 2, "expand_v": 2, "use_gate": true, "conv_size": 3,
        "allow_neg_eigval": true, "norm_eps": 1e-5, "tie_word_embeddings": true})",
    R"({"model_type": "gated_deltanet", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 1, "num_v_heads": 2, "head_dim": 4, "expand_v": 1,
        "output_gate_activation": "sigmoid", "allow_neg_eigval": true})",
    R"({"model_type": "qwen3_5_text", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 3,
        "linear_value_head_dim": 2, "linear_conv_kernel_dim": 3, "attention_bias": true,
        "layer_types": ["linear_attention", "full_attention"], "tie_word_embeddings": true,
        "rms_norm_eps": 1e-5, "initializer_range": 0.1, "attention_dropout": 0.0,
        "full_attention_interval": 2, "use_cache": true, "pad_token_id": 1, "eos_token_id": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                            "partial_rotary_factor": 0.5}})",
    R"({"model_type": "qwen3_next", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 3,
        "linear_value_head_dim": 2, "full_attention_interval": 2, "num_experts": 2,
        "mlp_only_layers": [0], "decoder_sparse_step": 4, "partial_rotary_factor": 0.5})",
    R"({"model_type": "olmo_hybrid", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
        "linear_num_key_heads": 1, "linear_num_value_heads": 2, "linear_key_head_dim": 3,
        "linear_value_head_dim": 2, "linear_allow_neg_eigval": false, "rms_norm_eps": 1e-5,
        "layer_types": ["linear_attention", "full_attention"],
        "rope_parameters": {"rope_type": "default", "rope_theta": null}})",
    R"({"model_type": "kda", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_heads": 2, "head_dim": 4, "use_short_conv": false,
        "safe_gate": true, "lower_bound": -5.0})",
    R"({"model_type": "rwkv7", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "head_dim": 4, "num_heads": 2, "decay_low_rank_dim": 3,
        "gate_low_rank_dim": 3, "a_low_rank_dim": 2, "v_low_rank_dim": 2, "norm_first": true,
        "norm_bias": false, "norm_eps": 1e-4, "hidden_act": "sqrelu", "value_dim": [8, 8]})",
    R"({"model_type": "rwkv", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "attention_hidden_size": 8, "layer_norm_epsilon": 1e-4,
        "context_length": 16, "rescale_every": 6, "tie_word_embeddings": true})",
    R"({"model_type": "kimi_linear", "vocab_size": 5, "hidden_size": 8, "intermediate_size": 6,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
        "kv_lora_rank": 4, "q_lora_rank": 3, "qk_nope_head_dim": 4, "qk_rope_head_dim": 2,
        "v_head_dim": 3, "attention_bias": true, "mla_use_nope": true, "model_max_length": 16,
        "first_k_dense_replace": 2, "linear_attn_config": {"head_dim": 4, "num_heads": 2,
        "short_conv_kernel_size": 3, "kda_layers": [1], "full_attn_layers": [2]}})",
    R"({"model_type": "gpt2", "vocab_size": 5, "n_embd": 8, "n_inner": 6, "n_layer": 2, "n_head": 2,
        "n_positions": 4, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new",
        "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "scale_attn_weights": true,
        "scale_attn_by_inverse_layer_idx": false, "tie_word_embeddings": false})",
    R"({"model_type": "leap", "vocab_size": 5, "hidden_size": 8, "n_layer": 2, "n_head": 2,
        "n_positions": 8, "window_sizes": [8, 4], "rescale": 10, "hidden_dropout_prob": 0.1})",
    R"({"model_type": "fastformer", "vocab_size": 5, "hidden_size": 8, "n_layer": 2, "n_heads": 2,
        "n_positions": 8, "use_local_att": true, "rescale_value": 7})",
    R"({"model_type": "zoology", "vocab_size": 5, "d_model": 8, "n_layers": 2,
        "max_position_embeddings": 8, "pad_vocab_size_multiple": 2,
        "resid_dropout": 0.1, "embed_dropout": 0.1, "drop_path": 0.1, "log_scores": false,
        "state_mixer": {"name": "torch.nn.Identity", "kwargs": {}},
        "sequence_mixer": {"name": "zoology.mixers.hybrid.Hybrid", "kwargs": {"configs": [
            {"name": "a.Hyena", "kwargs": {"l_max": 8, "filter_order": 4}},
            {"name": "a.MHA", "kwargs": {"num_heads": 2, "bias": true, "dropout": 0.1}}]}}})"};

// Replacements for a config's values.
const json kValues = json::parse(R"([
    null, true, false, 0, 1, 2, 3, 4, 6, 8, 16, -1, 1.5, 0.0, -0.25, 1e-310, 1e308,
    "silu", "relu", "default", "", [], {}, [0, 0], [1],
    1073741824, 1073741825, 1099511627776, -9223372036854775808, 18446744073709551615])");

// Returns the parameters of LlamaForCausalLM, based only on its public description.
Shapes LlamaTensors(const json& config) {
  const auto number = [&](const char* key, int64_t absent) {
    const auto found = config.find(key);
    return found == config.end() || found->is_null() ? absent : found->get<int64_t>();
  };
  const auto flag = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && *found == true;
  };
  const int64_t vocab = number("vocab_size", 32000), dim = number("hidden_size", 4096);
  const int64_t width = number("intermediate_size", 11008);
  const int64_t heads = number("num_attention_heads", 32);
  const int64_t head_dim = number("head_dim", dim / heads);
  const int64_t queries = heads * head_dim, keys = number("num_key_value_heads", heads) * head_dim;
  Shapes shapes = {{"model.embed_tokens.weight", {vocab, dim}}, {"model.norm.weight", {dim}}};
  if (!flag("tie_word_embeddings")) shapes["lm_head.weight"] = {vocab, dim};
  for (int64_t i = 0; i < number("num_hidden_layers", 32); ++i) {
    const std::string layer = Concat("model.layers.", i, ".");
    const auto add = [&](const char* name, int64_t out, int64_t in, bool bias) {
      shapes[layer + name + ".weight"] = {out, in};
      if (bias) shapes[layer + name + ".bias"] = {out};
    };
    shapes[layer + "input_layernorm.weight"] = {dim};
    shapes[layer + "post_attention_layernorm.weight"] = {dim};
    add("self_attn.q_proj", queries, dim, flag("attention_bias"));
    add("self_attn.k_proj", keys, dim, flag("attention_bias"));
    add("self_attn.v_proj", keys, dim, flag("attention_bias"));
    add("self_attn.o_proj", dim, queries, flag("attention_bias"));
    add("mlp.gate_proj", width, dim, flag("mlp_bias"));
    add("mlp.up_proj", width, dim, flag("mlp_bias"));
    add("mlp.down_proj", dim, width, flag("mlp_bias"));
  }
  return shapes;
}

Shapes ShapesOf(const HfFolder& folder) {
  Shapes shapes;
  for (const auto& [name, tensor] : folder.tensors()) shapes[name] = tensor.shape;
  return shapes;
}

// Expects that the folder has exactly the model's weights, under other names.
void ExpectSame(const HfModel& model) {
  Shapes left = ShapesOf(model.folder());
  const bool tied = model.config().head.tied;
  // Equal to the embeddings; otherwise HfModel unties them.
  if (tied) left.erase("lm_head.weight");
  if (model.layout().model_type() == "llama") {
    Shapes asked = LlamaTensors(model.folder().config());
    if (!tied) asked["lm_head.weight"] = asked.at("model.embed_tokens.weight");
    EXPECT_EQ(left, asked);
  }
  ConfigReader reader(model.folder().config(), "config.json");
  std::set<std::string> met;
  for (const ckpt::WeightInfo& weight : model.weights()) {
    const auto [name, placement] = model.layout().PlaceOf(model.config(), weight.name, &reader);
    const auto found = left.find(name);
    ASSERT_NE(found, left.end()) << weight.name;
    EXPECT_EQ(found->second, TensorShape(placement, weight.shape)) << weight.name;
    met.insert(name);
    std::vector<float> values(static_cast<size_t>(weight.count()));
    model.ReadRange(weight.name, 0, weight.count(), values.data());
  }
  std::erase_if(left, [&](const auto& entry) { return met.contains(entry.first); });
  EXPECT_TRUE(left.empty()) << left.begin()->first;
}

// Writes two shards of zeros and their index.
void WriteFolder(const std::filesystem::path& folder, const json& config) {
  std::filesystem::create_directories(folder);
  test::WriteText(folder / "config.json", config.dump());
  ConfigReader reader(config, "config.json");
  const Layout& layout = LayoutOf(config.at("model_type"), "config.json");
  const model::LanguageModel model(layout.ReadConfig(reader));
  std::array<std::vector<ckpt::safetensors::Entry>, 2> shards;
  std::array<uint64_t, 2> bytes = {};
  json map;
  for (const dist::ParamSpec& spec : model.parameters().specs()) {
    const auto [name, placement] = layout.PlaceOf(model.config(), spec.name, &reader);
    if (map.contains(name)) continue;
    const size_t shard = map.size() % 2;
    const auto shape = TensorShape(placement, spec.shape);
    const auto count = static_cast<uint64_t>(ckpt::CountElements(shape));
    const uint64_t end = bytes[shard] + sizeof(float) * count;
    shards[shard].push_back({.name = name, .shape = shape, .begin = bytes[shard], .end = end});
    bytes[shard] = end;
    map[name] = shard == 0 ? kFirstShard : kSecondShard;
  }
  for (const size_t shard : {0, 1})
    test::WriteText(folder / (shard == 0 ? kFirstShard : kSecondShard),
                    ckpt::safetensors::BuildHeader(shards[shard], {{"format", "pt"}}, 8) +
                        std::string(bytes[shard], '\0'));
  test::WriteText(folder / kIndex, json({{"weight_map", map}}).dump());
}

// Replaces one value of `config`, or of an object in it, or deletes it.
json WithOneChange(json config, std::mt19937_64& random) {
  json* object = &config;
  while (true) {
    auto member = object->begin();
    std::advance(member, random() % object->size());
    json& value = member.value();
    json* inner = value.is_array() && !value.empty() ? &value.front() : &value;
    if (inner->is_object() && !inner->empty() && random() % 4 != 0) {
      object = inner;
    } else if (random() % 6 == 0) {
      object->erase(member);
      return config;
    } else {
      value = kValues[random() % kValues.size()];
      return config;
    }
  }
}

// A folder's files have less than 16 KiB each, or about 30 times that as JSON. Each of at most 29
// tensors may declare a layer of 16 parameters with less than 1 KiB each. That is 2 MiB
// in total. The rest is for pages of the allocator and the libraries. The smallest arbitrary size
// that is tried, 2^30, would be a thousand times as much.
constexpr int64_t kMaxGrowthBytes = 16 << 20;

int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss * 1024;
}

class HostileModelTest : public testing::Test {
 protected:
  HostileModelTest() { log::Init({.console_level = log::Level::kError}); }
  ~HostileModelTest() override { log::Init({}); }

  void WriteGood(const json& config) {
    WriteFolder(folder_, config);
    num_opened_ = num_refused_ = 0;
    Open("as it was");
    ASSERT_EQ(num_opened_, 1);
    peak_before_ = PeakBytes();
  }
  void ExpectBoundedMemory() const {
#ifndef __SANITIZE_ADDRESS__  // It keeps freed memory.
    EXPECT_LT(PeakBytes() - peak_before_, kMaxGrowthBytes);
#endif
  }

  void Open(const std::string& what) {
    SCOPED_TRACE(what);
    try {
      ExpectSame(HfModel::Open(folder_));
      ++num_opened_;
    } catch (const Error& error) {
      ++num_refused_;
      EXPECT_TRUE(error.code() == ExitCode::kData || error.code() == ExitCode::kUsage)
          << error.what();
    } catch (const std::exception& other) {
      ADD_FAILURE() << other.what();
    }
  }

  test::TempDir dir_;
  std::filesystem::path folder_ = dir_ / "model";
  int num_opened_ = 0, num_refused_ = 0;
  int64_t peak_before_ = 0;
};

TEST_F(HostileModelTest, DamagedBytesOfALlamaFolder) {
  WriteGood(json::parse(kConfigs[0]));
  std::mt19937_64 random(5);
  for (const char* name : {"config.json", kIndex, kFirstShard, kSecondShard}) {
    const std::string good = ReadFile(folder_ / name, ExitCode::kData);
    const size_t data = good.rfind("}") + 1;  // The start of a shard's zeros.
    for (int i = 0; i < kDamagedBytesPerFile; ++i) {
      const std::string bad = test::Mutated(good.substr(0, data), random) + good.substr(data);
      test::WriteText(folder_ / name, bad);
      Open(Concat(name, ", mutation ", i, ": ", bad.substr(0, data)));
      if (HasFailure()) return;
    }
    test::WriteText(folder_ / name, good);
  }
  ExpectBoundedMemory();
  EXPECT_GT(num_refused_, 2 * kDamagedBytesPerFile);
  EXPECT_GT(num_opened_, kDamagedBytesPerFile / 100);  // Spaces, keys without a meaning, metadata.
}

TEST_F(HostileModelTest, ChangedValuesOfEveryClass) {
  std::mt19937_64 random(6);
  for (const char* text : kConfigs) {
    const json config = json::parse(text);
    WriteGood(config);
    for (int i = 0; i < kChangedValuesPerClass; ++i) {
      json bad = WithOneChange(config, random);
      if (random() % 2 == 0 && !bad.empty()) bad = WithOneChange(bad, random);
      test::WriteText(folder_ / "config.json", bad.dump());
      Open(Concat("mutation ", i, ": ", bad.dump()));
      if (HasFailure()) return;
    }
    ExpectBoundedMemory();
    EXPECT_GT(num_refused_, kChangedValuesPerClass / 4) << text;
    EXPECT_GT(num_opened_, kChangedValuesPerClass / 30) << text;
  }
}

}  // namespace
}  // namespace halflife::interop
