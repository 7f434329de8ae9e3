// The layouts of Hugging Face classes: which models they express, and configs in both directions.
#include "interop/layout.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "model/language_model.h"
#include "model/mixers/parallel.h"
#include "support/expect_error.h"

namespace halflife::interop {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

model::ModelConfig Model(const std::string& mixer, std::vector<model::Assignment> options = {}) {
  options.insert(options.begin(), {"num_heads", 4});
  model::ModelConfig config = {.vocab_size = 50, .model_dim = 64, .num_layers = 3};
  config.mixer = model::MixerConfig(mixer, options);
  config.channel_mixer = model::ChannelMixerConfig("swiglu", {{"width", 96}});
  return config;
}

// Returns the recipe of GPT-2.
model::ModelConfig Gpt2Model() {
  model::ModelConfig config =
      Model("softmax", {{"qkv_bias", true}, {"out_bias", true}, {"rope_theta", 0}});
  config.positions = model::PositionsConfig("learned", {{"max_positions", 20}});
  config.norm = model::NormConfig("layer_norm", {{"eps", 2e-5}});
  config.channel_mixer = model::ChannelMixerConfig(
      "mlp", {{"width", 96}, {"activation", "gelu_tanh"}, {"bias", true}});
  return config;
}

// Returns a dense Kimi Linear with latent attention in layer 1.
model::ModelConfig KimiModel() {
  model::ModelConfig config =
      Model("kda", {{"head_dim", 24}, {"conv_size", 3}, {"gate_bias", false}});
  config.hybrid = {{.layers = {1},
                    .mixer = model::MixerConfig("mla", {{"num_heads", 2},
                                                        {"kv_lora_rank", 20},
                                                        {"q_lora_rank", 12},
                                                        {"qk_nope_head_dim", 10},
                                                        {"qk_rope_head_dim", 7},
                                                        {"v_head_dim", 9},
                                                        {"rope_theta", 0},
                                                        {"bias", true}})}};
  return config;
}

// Returns RWKV-4, whose blocks are two layers.
model::ModelConfig RwkvModel() {
  model::ModelConfig config = {.vocab_size = 50, .model_dim = 64, .num_layers = 4};
  config.mixer = model::MixerConfig("rwkv4");
  config.hybrid = {
      {.every = 2, .first = 1, .mixer = model::MixerConfig("rwkv_channel_mix", {{"width", 96}})}};
  config.channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
  config.norm = model::NormConfig("layer_norm", {{"eps", 2e-5}});
  config.final_norm = model::NormConfig("layer_norm");
  config.embedding.norm = true;
  return config;
}

// Returns RWKV-7 with sizes other than the defaults.
model::ModelConfig Rwkv7Model() {
  model::ModelConfig config = RwkvModel();
  config.mixer = model::MixerConfig("rwkv7", {{"head_dim", 16},
                                              {"decay_low_rank_dim", 8},
                                              {"gate_low_rank_dim", 7},
                                              {"a_low_rank_dim", 6},
                                              {"v_low_rank_dim", 5}});
  config.hybrid[0].mixer->Set("form", "rwkv7");
  config.final_norm.reset();
  return config;
}

// Returns the layers of `group` as a hybrid group that differs from the model in its window.
std::vector<model::LayerGroup> Windowed(const model::ModelConfig& config, model::LayerGroup group,
                                        int64_t window = 9) {
  group.mixer = config.mixer;
  group.mixer->Set("window", window);
  return {std::move(group)};
}

// Returns the recipe of Qwen3-Next without experts.
model::ModelConfig QwenHybrid() {
  model::ModelConfig config = Model("gated_delta_net", {{"num_v_heads", 8}, {"expand_v", 1.5}});
  config.norm.Set("zero_centered", true);
  config.hybrid = {{.every = 2,
                    .first = 1,
                    .mixer = Model("softmax", {{"num_kv_heads", 2},
                                               {"head_dim", 24},
                                               {"qk_norm", true},
                                               {"qk_norm_eps", 1e-6},
                                               {"qk_norm_zero_centered", true},
                                               {"output_gate", "sigmoid"},
                                               {"partial_rotary_factor", 0.25}})
                                 .mixer}};
  return config;
}

// Returns the recipe of OLMo Hybrid.
model::ModelConfig OlmoHybrid() {
  model::ModelConfig config =
      Model("gated_delta_net", {{"allow_neg_eigval", true}, {"expand_v", 2.0}, {"norm_eps", 1e-5}});
  config.hybrid = {{.layers = {2},
                    .mixer = Model("softmax", {{"qk_norm", true},
                                               {"qk_norm_eps", 1e-6},
                                               {"qk_norm_over", "all_heads"},
                                               {"rope_theta", 0.0}})
                                 .mixer,
                    .block = model::BlockConfig("output_norm")}};
  return config;
}

std::string Chosen(const model::ModelConfig& config, const std::string& model_type = "auto") {
  return ChooseLayout(config, model_type).model_type();
}

// The command line's list of layouts agrees with the layouts.
TEST(LayoutsTest, AreListedByTheirNames) {
  std::vector<std::pair<std::string, bool>> listed, made;
#define HL_LAYOUT(Make, model_type, class_name, mixer, exports) \
  listed.emplace_back(model_type, exports);
#include "interop/layouts/layouts.inc"
#undef HL_LAYOUT
  for (const Layout* layout : Layouts()) made.emplace_back(layout->model_type(), layout->exports());
  EXPECT_EQ(listed, made);
}

TEST(ChooseLayoutTest, PrefersTheClassThatNeedsNoOtherPackage) {
  EXPECT_EQ(Chosen(Model("softmax")), "llama");
  EXPECT_EQ(Chosen(Model("softmax"), "transformer"), "transformer");
  EXPECT_EQ(Chosen(Model("softmax", {{"qk_norm", true}})), "transformer");
  EXPECT_EQ(Chosen(Model("softmax", {{"qk_norm", true}, {"qk_norm_eps", 1e-6}})), "qwen3");
  EXPECT_EQ(Chosen(Model("softmax", {{"window", 8}})), "mistral");
  EXPECT_EQ(Chosen(Model("softmax", {{"window", 8}, {"qkv_bias", true}})), "qwen2");
  EXPECT_EQ(Chosen(Model("softmax"), "mistral"), "mistral");
  EXPECT_EQ(Chosen(Model("softmax", {{"qkv_bias", true}})), "llama");
  EXPECT_EQ(Chosen(Model("retention")), "retnet");
  EXPECT_EQ(Chosen(Model("gla")), "gla");
  EXPECT_EQ(Chosen(Model("delta_net")), "delta_net");
  EXPECT_EQ(Chosen(Model("gated_delta_net")), "gated_deltanet");
  EXPECT_EQ(Chosen(QwenHybrid()), "qwen3_5_text");
  EXPECT_EQ(Chosen(QwenHybrid(), "qwen3_next"), "qwen3_next");
  EXPECT_EQ(Chosen(OlmoHybrid()), "olmo_hybrid");
  EXPECT_EQ(Chosen(Model("kda")), "kda");
  EXPECT_EQ(Chosen(Model("gated_delta_product")), "gated_deltaproduct");
  EXPECT_EQ(Chosen(Model("hgrn2")), "hgrn2");
  EXPECT_EQ(Chosen(Model("gsa")), "gsa");
  EXPECT_EQ(Chosen(KimiModel()), "kimi_linear");
  EXPECT_EQ(Chosen(RwkvModel()), "rwkv");
  EXPECT_EQ(Chosen(Rwkv7Model()), "rwkv7");
  EXPECT_EQ(Chosen(Gpt2Model()), "gpt2");
}

TEST(ChooseLayoutTest, ListsWhatNoClassExpresses) {
  EXPECT_HL_ERROR(Chosen(Model("softmax", {{"qk_norm", true}, {"out_bias", true}})),
                  ExitCode::kUsage, "llama: qk_norm is on", "transformer: out_bias is on");
  EXPECT_HL_ERROR(Chosen(Model("retention", {{"rope_theta", 500}})), ExitCode::kUsage,
                  "retnet: rope_theta is 500. Only 10000 is supported.");
  EXPECT_HL_ERROR(Chosen(Model("gla"), "llama"), ExitCode::kUsage,
                  "llama is for the mixer softmax, but the model has gla");
  model::ModelConfig config = Model("gla");
  config.channel_mixer.Set("bias", true);
  config.hybrid = {{.layers = {1}, .mixer = Model("retention").mixer},
                   {.layers = {2}, .mixer = Model("softmax", {{"qk_norm", true}}).mixer}};
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage, "bias of the channel mixer is on",
                  "hybrid layers have the mixer retention", "qk_norm is on in the hybrid layers");
}

TEST(ChooseLayoutTest, ListsWhatKimiLinearHasNot) {
  model::ModelConfig config = Model("kda", {{"num_v_heads", 8},
                                            {"expand_v", 2.0},
                                            {"use_short_conv", false},
                                            {"allow_neg_eigval", true},
                                            {"lower_bound", -5.0}});
  config.hybrid = KimiModel().hybrid;
  config.hybrid[0].mixer->Set("rope_theta", 500);
  config.hybrid.push_back({.layers = {0}, .mixer = model::MixerConfig("mla")});
  config.hybrid.push_back({.layers = {2}, .mixer = Model("softmax").mixer});
  EXPECT_HL_ERROR(Chosen(config, "kimi_linear"), ExitCode::kUsage,
                  "kimi_linear: num_v_heads of kda is not num_heads",
                  "expand_v of kda is 2. Only 1 is supported.", "use_short_conv of kda is off",
                  "allow_neg_eigval of kda is on", "lower_bound of kda is -5. Only 0 is supported.",
                  "gate_bias of kda is on, and the class has no such bias",
                  "hybrid layers have different options of mla",
                  "hybrid layers have the mixer softmax. Only mla is supported.",
                  "rope_theta of mla is");
  EXPECT_EQ(Chosen(Model("kda", {{"gate_bias", false}}), "kimi_linear"), "kimi_linear");
  EXPECT_HL_ERROR(Chosen(KimiModel(), "kda"), ExitCode::kUsage,
                  "kda: hybrid layers have the mixer mla", "gate_bias is off");
}

TEST(ChooseLayoutTest, ListsWhatHybridClassesHaveNot) {
  model::ModelConfig config = QwenHybrid();
  config.mixer.Set("allow_neg_eigval", true);
  config.mixer.Set("output_gate", "sigmoid");
  config.mixer.Set("norm_eps", 1e-3);
  config.hybrid[0].mixer->Set("window", 9);
  config.hybrid[0].mixer->Set("qk_norm_eps", 1e-5);
  config.hybrid[0].mixer->Set("rope_theta", 0.0);
  config.hybrid.push_back({.layers = {2}, .mixer = Model("retention").mixer});
  EXPECT_HL_ERROR(Chosen(config, "qwen3_5_text"), ExitCode::kUsage,
                  "qwen3_5_text: layer 2 has the mixer retention. Only gated_delta_net and softmax",
                  "output_gate is sigmoid. Only silu is supported.",
                  "allow_neg_eigval is true. Only false is supported.",
                  "norm_eps is 0.001, and eps of the norm is 1e-06. Use one value for both",
                  "in the softmax layers, window is 9. Only 0 is supported.",
                  "qk_norm_eps is 1e-05, and eps of the norm is 1e-06.", "q and k are not rotated");
  config = OlmoHybrid();
  config.mixer.Set("norm_eps", 0.0);
  config.hybrid[0].block.reset();
  EXPECT_HL_ERROR(Chosen(config, "olmo_hybrid"), ExitCode::kUsage,
                  "the block of layer 2, softmax, is pre_norm. Only output_norm is supported.",
                  "norm_eps of gated_delta_net is 0, and eps of the norm is 1e-06. Only norm_eps "
                  "1e-05 is supported.");
  config.hybrid.clear();
  EXPECT_HL_ERROR(Chosen(config, "olmo_hybrid"), ExitCode::kUsage, "the layers are all alike.");
}

// Options of softmax layers and of blocks that older classes do not have.
TEST(ChooseLayoutTest, ListsOptionsOfHybridModels) {
  model::ModelConfig config = Model("softmax", {{"output_gate", "sigmoid"},
                                                {"partial_rotary_factor", 0.5},
                                                {"score_scale", 0.5},
                                                {"key_multiplier", 2.0},
                                                {"qk_norm", true},
                                                {"qk_norm_zero_centered", true},
                                                {"qk_norm_over", "all_heads"}});
  config.norm.Set("zero_centered", true);
  config.block.Set("residual_multiplier", 0.5);
  config.hybrid = {{.layers = {1}, .block = model::BlockConfig("output_norm")}};
  for (const char* model_type : {"llama", "mistral", "qwen3", "qwen2", "transformer"})
    EXPECT_HL_ERROR(Chosen(config, model_type), ExitCode::kUsage, "the norm is zero_centered",
                    "residual_multiplier of the block is 0.5",
                    "hybrid layers have a block of their own", "output_gate is sigmoid",
                    "partial_rotary_factor is 0.5", "score_scale is 0.5", "key_multiplier is 2",
                    "qk_norm_zero_centered is true", "qk_norm_over is all_heads");
}

TEST(ChooseLayoutTest, ListsWhatRwkvHasNot) {
  model::ModelConfig config = RwkvModel();
  config.num_layers = 3;
  config.embedding.norm = false;
  config.final_norm.reset();
  config.hybrid[0].mixer->Set("form", "rwkv7");
  EXPECT_HL_ERROR(
      Chosen(config), ExitCode::kUsage, "rwkv: the embedding has no norm",
      "no rescale_every gives the eps of the norms. Set final_norm with an eps of 1e-05",
      "num_layers is 3. Only even numbers are supported",
      "the form of rwkv_channel_mix is rwkv7. Only rwkv4 is supported.");
  config = RwkvModel();
  config.hybrid.clear();
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage,
                  "layer 1 has the mixer rwkv4. Only rwkv_channel_mix is supported there.");
  config = RwkvModel();
  config.mixer.Set("wkv_dtype", "bf16");
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage, "wkv_dtype is bf16. Only fp32 is supported.");
}

TEST(ChooseLayoutTest, ListsWhatRwkv7HasNot) {
  model::ModelConfig config = Rwkv7Model();
  config.mixer.Set("value_residual", false);
  config.mixer.Set("key_eps", 0.1);
  config.hybrid[0].mixer->Set("form", "rwkv4");
  config.final_norm = model::NormConfig("none");
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage, "rwkv7: the form of rwkv_channel_mix is rwkv4",
                  "the model has a separate final_norm", "value_residual is off",
                  "key_eps is 0.1. Only 1e-06 and 1e-24 are supported.");
}

TEST(ChooseLayoutTest, ListsWhatMamba2HasNot) {
  model::ModelConfig config = Model("mamba2", {{"head_dim", 20}, {"norm", "norm_first"}});
  config.hybrid = {{.layers = {1}, .mixer = Model("softmax").mixer}};
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage, "mamba2: the channel_mixer is swiglu",
                  "the model has hybrid layers",
                  "norm is norm_first. Only gate_first is supported.",
                  "num_heads x head_dim is 80. Only multiples of model_dim, 64, are supported.");
}

// Returns a model of Mamba-2 with softmax attention in layer 1.
model::ModelConfig HybridModel(const std::vector<model::Assignment>& mamba2 = {},
                               std::vector<model::Assignment> softmax = {}) {
  std::vector<model::Assignment> sizes = {{"head_dim", 32}};
  sizes.insert(sizes.end(), mamba2.begin(), mamba2.end());
  model::ModelConfig config = Model("mamba2", sizes);
  config.hybrid = {{.layers = {1}, .mixer = Model("softmax", std::move(softmax)).mixer}};
  return config;
}
model::ModelConfig ParallelModel(std::vector<model::ParallelPart> parts) {
  model::ModelConfig config = Model("softmax");
  config.mixer = model::ParallelMixer(std::move(parts));
  return config;
}

// Returns models of granitemoehybrid, bamba, nemotron_h and falcon_h1.
std::vector<model::ModelConfig> HybridModels() {
  model::ModelConfig granite =
      HybridModel({{"dt_limit_min", 0.25}, {"use_bias", true}, {"state_size", 24}},
                  {{"score_scale", 0.3}, {"rope_theta", 0}, {"num_kv_heads", 2}});
  granite.embedding.scale = 12;
  granite.head.logit_scale = 1 / 4.9;
  granite.block.Set("residual_multiplier", 0.22);
  model::ModelConfig bamba =
      HybridModel({{"num_groups", 2}},
                  {{"partial_rotary_factor", 0.25}, {"qkv_bias", true}, {"out_bias", true}});
  bamba.channel_mixer.Set("bias", true);
  model::ModelConfig nemotron = HybridModel({{"dt_limit_min", 0.001}}, {{"rope_theta", 0}});
  nemotron.channel_mixer =
      model::ChannelMixerConfig("mlp", {{"width", 96}, {"activation", "relu2"}, {"bias", true}});
  nemotron.hybrid.push_back({.layers = {0, 1}, .channel_mixer = model::ChannelMixerConfig("none")});
  model::ModelConfig falcon = ParallelModel(
      {model::ParallelPart(HybridModel({{"norm", "norm_first"},
                                        {"use_in_bias", true},
                                        {"b_multiplier", 0.5},
                                        {"dt_multiplier", 3.0}})
                               .mixer,
                           1.25, 0.25),
       model::ParallelPart(Model("softmax", {{"key_multiplier", 0.4}}).mixer, 0.75, 0.9)});
  falcon.channel_mixer.Set("gate_multiplier", 0.9);
  falcon.channel_mixer.Set("down_multiplier", 0.3);
  falcon.head.logit_scale = 0.04;
  falcon.positions = model::PositionsConfig("interpolated", {{"factor", 2.5}});
  return {granite, bamba, nemotron, falcon};
}

TEST(ChooseLayoutTest, HybridsOfMamba2) {
  EXPECT_EQ(Chosen(HybridModel()), "granitemoehybrid");
  EXPECT_EQ(Chosen(HybridModel({}, {{"partial_rotary_factor", 0.5}})), "bamba");
  model::ModelConfig config = HybridModel({}, {{"rope_theta", 0}});
  config.channel_mixer = model::ChannelMixerConfig("mlp", {{"width", 96}});
  config.hybrid.push_back({.layers = {0, 1}, .channel_mixer = model::ChannelMixerConfig("none")});
  EXPECT_EQ(Chosen(config), "nemotron_h");
  EXPECT_EQ(Chosen(ParallelModel({model::ParallelPart(Model("softmax").mixer),
                                  model::ParallelPart(HybridModel().mixer, 0.5, 2)})),
            "falcon_h1");
}

TEST(ChooseLayoutTest, ListsWhatHybridsOfMamba2HaveNot) {
  model::ModelConfig config = HybridModel({{"norm", "none"}, {"dt_limit_max", 2.0}},
                                          {{"qk_norm", true}, {"window", 8}, {"out_bias", true}});
  config.hybrid.push_back({.layers = {2}, .mixer = Model("gla").mixer});
  config.hybrid.push_back({.layers = {0}, .mixer = HybridModel().mixer});
  EXPECT_HL_ERROR(Chosen(config, "granitemoehybrid"), ExitCode::kUsage,
                  "granitemoehybrid: layer 2 has the mixer gla. Only mamba2 and softmax",
                  "qk_norm of softmax is true. Only false is supported.",
                  "window of softmax is 8. Only 0 is supported.",
                  "qkv_bias and out_bias of softmax differ. Use the same value for both.");
  EXPECT_HL_ERROR(Chosen(HybridModel({{"norm", "none"}, {"dt_limit_max", 2.0}}), "nemotron_h"),
                  ExitCode::kUsage, "nemotron_h: layer 0 has the channel_mixer swiglu. Only mlp",
                  "softmax rotates q and k. Only a rope_theta of 0 is supported.",
                  "norm of mamba2 is none. Only gate_first is supported.",
                  "dt_limit_max of mamba2 is 2. Only inf is supported.");
  model::ModelConfig unlike = HybridModel({{"head_dim", 20}}, {{"rope_theta", 0}});
  unlike.hybrid.push_back({.layers = {2}, .mixer = HybridModel().mixer});
  unlike.channel_mixer.Set("gate_multiplier", 2.0);
  EXPECT_HL_ERROR(Chosen(unlike, "bamba"), ExitCode::kUsage,
                  "bamba: gate_multiplier of the channel mixer is 2. Only 1 is supported.",
                  "layer 2 has other options of mamba2 than an earlier layer. Use the same",
                  "softmax does not rotate q and k",
                  "num_heads x head_dim of mamba2 is 80. Only multiples of model_dim, 64, are");
  EXPECT_HL_ERROR(Chosen(ParallelModel({model::ParallelPart(Model("gla").mixer)})),
                  ExitCode::kUsage, "falcon_h1: the parts of parallel are not mamba2 and softmax.");
}

TEST(ChooseLayoutTest, ListsWhatGpt2HasNot) {
  model::ModelConfig config = Gpt2Model();
  config.mixer = Model("softmax", {{"num_kv_heads", 2}, {"head_dim", 8}, {"qk_norm", true}}).mixer;
  config.mixer.Set("window", 5);
  config.norm.Set("bias", false);
  config.channel_mixer.Set("bias", false);
  config.head.bias = true;
  config.head.logit_scale = 0.5;
  config.final_norm = model::NormConfig("none");
  config.hybrid = {{.layers = {1}, .mixer = Model("retention").mixer}};
  EXPECT_HL_ERROR(Chosen(config, "gpt2"), ExitCode::kUsage, "gpt2: the norm has no bias",
                  "bias of the channel mixer is off", "the head has a bias",
                  "the head's logit_scale is 0.5", "final_norm", "qkv_bias is off",
                  "out_bias is off", "qk_norm is on", "window is 5", "rope_theta is 10000",
                  "num_kv_heads is 2", "head_dim is not model_dim / num_heads", "hybrid layers");
  model::ModelConfig alibi = Model("softmax");
  alibi.positions = model::PositionsConfig("alibi");
  EXPECT_HL_ERROR(Chosen(alibi, "llama"), ExitCode::kUsage,
                  "the positions is alibi. Only none, interpolated, llama3, yarn are supported.");
  model::ModelConfig odd =
      Model("softmax", {{"head_dim", 16}, {"partial_rotary_factor", 0.2}, {"rope_theta", 10000.0}});
  odd.positions = model::PositionsConfig("yarn", {{"factor", 4.0}, {"length", 64}});
  EXPECT_HL_ERROR(Chosen(odd, "llama"), ExitCode::kUsage, "yarn rotates 3 channels of each head",
                  "Set partial_rotary_factor so that it rotates an even number");
  EXPECT_HL_ERROR(Chosen(Model("softmax", {{"block", 8}, {"cos_scale", 4.0}}), "llama"),
                  ExitCode::kUsage, "llama: block is 8. Only 0 is supported.", "cos_scale is 4");
  EXPECT_HL_ERROR(Chosen(Model("softmax"), "gpt2"), ExitCode::kUsage,
                  "the norm is rms_norm. Only layer_norm is supported.",
                  "the channel_mixer is swiglu. Only mlp is supported.",
                  "the positions is none. Only learned is supported.");
  EXPECT_HL_ERROR(Chosen(Gpt2Model(), "llama"), ExitCode::kUsage,
                  "the norm is layer_norm. Only rms_norm is supported.", "q and k are not rotated");
}

TEST(LayoutOfTest, UnknownFamilyListsTheKnownOnes) {
  EXPECT_HL_ERROR(LayoutOf("bert", "x/config.json"), ExitCode::kData,
                  "x/config.json: model_type is 'bert', which is not known. Use a model with one "
                  "of llama, mistral, qwen3, qwen2, transformer, "
                  "gpt2, retnet, gla");
}

// expand_ratio wins over num_heads, also by its default, unless it is null.
TEST(LayoutTest, HeadsOfHgrn2) {
  const auto heads = [](nlohmann::json config) {
    config["hidden_size"] = 256;
    ConfigReader reader(config, "config.json");
    return LayoutOf("hgrn2", "x").ReadConfig(reader).mixer.Get<int64_t>("num_heads");
  };
  EXPECT_EQ(heads({{"num_heads", 8}}), 2);
  EXPECT_EQ(heads({{"num_heads", 8}, {"expand_ratio", 64}}), 4);
  EXPECT_EQ(heads({{"num_heads", 8}, {"expand_ratio", nullptr}}), 8);
}

// The class has lower bounds even if no layer reads them.
TEST(LayoutTest, LowerBoundsThatNoLayerReads) {
  model::ModelConfig model = Model("hgrn2");
  const Layout& layout = ChooseLayout(model, "auto");
  EXPECT_THAT(layout.ZeroTensors(model), IsEmpty());
  model.num_layers = 1;
  const std::vector<dist::ParamSpec> zeros = layout.ZeroTensors(model);
  ASSERT_EQ(zeros.size(), 1u);
  EXPECT_EQ(zeros[0].shape, (std::vector<int64_t>{1, model.model_dim}));
  EXPECT_EQ(layout.TensorName(zeros[0].name, nullptr), "model.lower_bounds");
  EXPECT_TRUE(layout.IsUnused("model.lower_bounds"));
  model.mixer.Set("use_lower_bound", false);
  EXPECT_THAT(layout.ZeroTensors(model), IsEmpty());
}

TEST(LayoutTest, DeltaProductThatItsClassCannotExpress) {
  EXPECT_HL_ERROR(Chosen(Model("gated_delta_product", {{"num_heads", 2}, {"num_v_heads", 4}})),
                  ExitCode::kUsage,
                  "gated_deltaproduct: num_v_heads is 4. Only num_heads, 2, is supported.");
  model::ModelConfig model = Model("gated_delta_product");
  model.hybrid = {{.layers = {0}, .mixer = Model("softmax").mixer},
                  {.layers = {1}, .mixer = Model("softmax", {{"window", 5}}).mixer}};
  EXPECT_HL_ERROR(Chosen(model), ExitCode::kUsage,
                  "gated_deltaproduct: the model has several groups of hybrid layers. Only one is "
                  "supported.");
}

TEST(LayoutTest, GsaThatItsClassCannotExpress) {
  EXPECT_HL_ERROR(Chosen(Model("gsa", {{"expand_v", 2.0}})), ExitCode::kUsage,
                  "gsa: expand_v is 2. Only 1 is supported.");
  EXPECT_HL_ERROR(Chosen(Model("gsa", {{"gate_normaliser", 2.5}})), ExitCode::kUsage,
                  "gsa: gate_normaliser is 2.5. Only whole numbers are supported.");
}

// config.json -> model -> config.json, for every class, with every option changed from its default.
TEST(LayoutTest, ConfigsRoundTrip) {
  std::vector<model::ModelConfig> models = {
      Model("retention", {{"num_kv_heads", 2},
                          {"expand_v", 1.5},
                          {"use_output_gate", false},
                          {"feature_map", "gelu_tanh"},
                          {"norm_affine", false}}),
      Model("gla", {{"use_short_conv", true}, {"conv_size", 3}, {"clamp_min", -0.25}}),
      Model("softmax", {{"qk_norm", true}, {"window", 7}, {"rope_theta", 1234.5}}),
      Model("softmax", {{"qkv_bias", true}, {"out_bias", true}, {"head_dim", 24}}),
      Gpt2Model(),
      Gpt2Model(),
      Model("softmax", {{"rope_theta", 500.0}}),
      Model("softmax"),
      Model("softmax"),
      Model("softmax", {{"window", 7}, {"head_dim", 24}, {"num_kv_heads", 2}}),
      Model("softmax", {{"qk_norm", true}, {"qk_norm_eps", 1e-6}, {"head_dim", 24}}),
      Model("softmax", {{"qk_norm", true}, {"qk_norm_eps", 1e-6}, {"window", 7}}),
      Model("softmax", {{"qkv_bias", true}, {"window", 7}}),
      Model("delta_net", {{"use_output_gate", true}, {"qk_activation", "none"}, {"conv_size", 3}}),
      Model("delta_net", {{"use_short_conv", false}, {"use_beta", false}, {"expand_k", 0.5}}),
      Model("gated_delta_net", {{"num_v_heads", 8}, {"expand_v", 1.5}, {"output_gate", "none"}}),
      Model("gated_delta_net", {{"head_dim", 24}, {"output_gate", "sigmoid"}}),
      Model("kda", {{"lower_bound", -5.0}, {"allow_neg_eigval", true}}),
      Model("kda", {{"use_short_conv", false}, {"head_dim", 8}, {"num_v_heads", 8}}),
      KimiModel(),
      Model("gated_delta_product", {{"num_householder", 3}, {"use_output_gate", false}}),
      Model("gated_delta_product",
            {{"head_dim", 24}, {"use_forget_gate", false}, {"allow_neg_eigval", true}}),
      Model("hgrn2", {{"num_heads", 8}, {"use_short_conv", true}, {"conv_size", 3}}),
      Model("hgrn2", {{"use_lower_bound", false}, {"norm_affine", false}}),
      Model("gsa", {{"num_kv_heads", 2},
                    {"expand_k", 0.5},
                    {"num_slots", 7},
                    {"feature_map", "t2r"},
                    {"gate_normaliser", 4.0}}),
      Model("gsa", {{"use_short_conv", true}, {"conv_size", 3}, {"norm_affine", false}}),
      QwenHybrid(),
      OlmoHybrid(),
      RwkvModel(),
      Rwkv7Model()};
  for (const double limit : {0.0, 0.25}) {
    models.push_back(Model("mamba2", {{"head_dim", 32},
                                      {"state_size", 24},
                                      {"num_groups", 2},
                                      {"conv_kernel", 3},
                                      {"use_bias", true},
                                      {"use_conv_bias", false},
                                      {"dt_limit_min", limit}}));
    models.back().channel_mixer = model::ChannelMixerConfig(model::kNoChannelMixer);
  }
  for (model::ModelConfig& model : HybridModels()) models.push_back(std::move(model));
  models[1].hybrid = {{.layers = {0, 2}, .mixer = Model("softmax", {{"window", 5}}).mixer}};
  models[3].channel_mixer.Set("bias", true);
  models[5].channel_mixer.Set("activation", "relu");
  models[5].dropout = 0.25;
  models[10].hybrid = Windowed(models[10], {.every = 1, .first = 1});
  models[12].hybrid = Windowed(models[12], {.layers = {1}}, /*window=*/0);
  models[6].positions = model::PositionsConfig("interpolated", {{"factor", 2.5}});
  models[7].positions = model::PositionsConfig(
      "llama3", {{"factor", 8.0}, {"length", 100}, {"fast", 5.0}, {"slow", 1.5}});
  models[8].positions = model::PositionsConfig("yarn", {{"factor", 3.0},
                                                        {"length", 100},
                                                        {"fast", 16.0},
                                                        {"slow", 2.0},
                                                        {"truncate", false},
                                                        {"attention_factor", 1.25}});
  for (const model::ModelConfig& model : models) {
    const Layout& layout = ChooseLayout(model, "auto");
    nlohmann::ordered_json written = {{"vocab_size", 50}, {"tie_word_embeddings", false}};
    layout.WriteConfig(model::Resolved(model), written);
    const nlohmann::json parsed = nlohmann::json::parse(written.dump());
    ConfigReader reader(parsed, "config.json");
    const model::ModelConfig back = layout.ReadConfig(reader);
    EXPECT_NO_THROW(reader.Check());
    EXPECT_THAT(model::Problems(back), IsEmpty()) << layout.model_type();
    EXPECT_EQ(model::Resolved(back).positions, model::Resolved(model).positions);
    nlohmann::ordered_json again = {{"vocab_size", 50}, {"tie_word_embeddings", false}};
    layout.WriteConfig(model::Resolved(back), again);
    EXPECT_EQ(again.dump(2), written.dump(2));
    EXPECT_EQ(model::LanguageModel(back).CountParameters().total(),
              model::LanguageModel(model).CountParameters().total());
  }
}

TEST(LayoutTest, AsksForEveryProblemAtOnce) {
  const auto json = nlohmann::json::parse(
      R"({"hidden_act": "gelu", "rope_scaling": {"type": "linear"}, "hidden_size": "wide",
          "num_attention_heads": -4, "rope_parameters": {"rope_type": "dynamic"}})");
  ConfigReader reader(json, "x/config.json");
  LayoutOf("llama", "").ReadConfig(reader);
  EXPECT_HL_ERROR(reader.Check(), ExitCode::kData,
                  "x/config.json contains settings that halflife does not support",
                  "hidden_act is 'gelu'. Only silu is supported.",
                  "rope_scaling.factor is missing. Set it to",
                  "hidden_size is \"wide\". Only integers", "num_attention_heads is -4",
                  "rope_parameters.rope_type is 'dynamic'");
}

model::ModelConfig Read(const char* model_type, const std::string& config) {
  const auto json = nlohmann::json::parse(config);
  ConfigReader reader(json, "x/config.json");
  model::ModelConfig model = LayoutOf(model_type, "").ReadConfig(reader);
  reader.Check();
  return model;
}

// Several arguments of fla's classes may be None, which is not their default.
TEST(LayoutTest, NullsOfFla) {
  EXPECT_EQ(Read("retnet", R"({"hidden_ratio": null})").channel_mixer.Get<double>("ratio"), 4);
  for (const char* type : {"retnet", "gla", "linear_attn", "hgrn2", "gsa"}) {
    SCOPED_TRACE(type);
    EXPECT_FALSE(Read(type, R"({"elementwise_affine": null})").mixer.Get<bool>("norm_affine"));
    EXPECT_TRUE(Read(type, "{}").mixer.Get<bool>("norm_affine"));
  }
  const auto key_eps = [](const char* config) {
    return Read("rwkv7", config).mixer.Get<double>("key_eps");
  };
  EXPECT_EQ(key_eps(R"({"fuse_norm": null})"), key_eps(R"({"fuse_norm": false})"));
  EXPECT_NE(key_eps(R"({"fuse_norm": null})"), key_eps("{}"));
  // null is false also where the default is true.
  for (const auto& [type, key] : {std::pair{"gla", "use_output_gate"},
                                  {"delta_net", "use_beta"},
                                  {"delta_net", "use_short_conv"},
                                  {"gated_deltanet", "use_gate"},
                                  {"gated_deltaproduct", "use_output_gate"},
                                  {"hgrn2", "use_lower_bound"},
                                  {"rwkv7", "norm_bias"},
                                  {"rwkv7", "norm_first"}}) {
    SCOPED_TRACE(Concat(type, ", ", key));
    const std::string with_null = model::ToJson(Read(type, Concat("{\"", key, "\": null}")));
    EXPECT_EQ(with_null, model::ToJson(Read(type, Concat("{\"", key, "\": false}"))));
    EXPECT_NE(with_null, model::ToJson(Read(type, "{}")));
  }
  for (const auto& [type, config] :
       {std::pair{"transformer", R"({"rope_theta": null})"},
        {"gla", R"({"attn": {"layers": [0], "num_heads": 4, "rope_theta": null}})"}})
    EXPECT_HL_ERROR(Read(type, config), ExitCode::kData,
                    "rope_theta is null, which the class cannot run. Set it to a number.");
  // In fp64, 100 * 0.29 is below 29.
  const std::string slots = R"({"hidden_size": 100, "num_heads": 1, "num_slots": null, )";
  for (const char* key : {R"("expand_k": 0.29})", R"("exapnd_k": 0.29})"})
    EXPECT_EQ(Read("gsa", slots + key).mixer.Get<int64_t>("num_slots"), 29);
}

// Older versions of fla's Mamba have the key of transformers for the rank.
TEST(LayoutTest, RankOfFlasMamba) {
  for (const char* key : {"dt_rank", "time_step_rank"})
    EXPECT_EQ(Read("mamba", Concat(R"({"norm_eps": 1e-5, ")", key, R"(": 5})"))
                  .mixer.Get<int64_t>("dt_rank"),
              5);
}

// The class of transformers ignores fla's key.
TEST(LayoutTest, LimitsOfFlaInAMamba2OfTransformers) {
  EXPECT_HL_ERROR(Read("mamba2", R"({"layer_norm_epsilon": 1e-5, "dt_limit": [0.1, 1.0]})"),
                  ExitCode::kData, "time_step_limit and dt_limit differ");
  EXPECT_NO_THROW(Read("mamba2", R"({"dt_limit": [0.1, 1.0]})"));
}

TEST(LayoutTest, ShortConvolutionsOfOneTap) {
  for (const char* type :
       {"delta_net", "gated_deltanet", "kda", "gated_deltaproduct", "gla", "gsa", "hgrn2"})
    EXPECT_THAT(model::Problems(Read(type, R"({"use_short_conv": true, "conv_size": 1})")),
                IsEmpty())
        << type;
}

// fla derives the ranks of RWKV-7 whose keys are null.
TEST(LayoutTest, RanksOfRwkv7) {
  const auto ranks = [](const std::string& keys) {
    const model::MixerConfig mixer = Read("rwkv7", R"({"hidden_size": 2048, )" + keys + "}").mixer;
    std::vector<int64_t> all;
    for (const char* rank :
         {"decay_low_rank_dim", "gate_low_rank_dim", "a_low_rank_dim", "v_low_rank_dim"})
      all.push_back(mixer.Get<int64_t>(rank));
    return all;
  };
  const std::string nulls = R"("decay_low_rank_dim": null, "gate_low_rank_dim": null,
                               "a_low_rank_dim": null, "v_low_rank_dim": null)";
  EXPECT_THAT(ranks(R"("head_dim": 64)"), ElementsAre(64, 128, 64, 16));
  EXPECT_THAT(ranks(nulls), ElementsAre(128, 224, 128, 64));
  EXPECT_THAT(ranks(nulls + R"(, "head_dim": 128)"), ElementsAre(224, 224, 224, 160));
  EXPECT_HL_ERROR(ranks(R"("head_dim": null, "num_heads": 4096, "value_dim": 4096)"),
                  ExitCode::kData, "value_dim is not hidden_size, 2048");
}

double RopeTheta(const std::string& config) {
  return Read("llama", config).mixer.Get<double>("rope_theta");
}

TEST(LayoutTest, RopeByItsOldAndItsNewKeys) {
  EXPECT_EQ(RopeTheta("{}"), 10000);
  EXPECT_EQ(RopeTheta(R"({"rope_theta": 700.0})"), 700);
  EXPECT_EQ(RopeTheta(R"({"rope_theta": 700.0, "rope_parameters": {"rope_theta": 500}})"), 500);
  EXPECT_EQ(RopeTheta(R"({"rope_theta": 700.0, "rope_parameters": {"type": "default"}})"), 700);
  EXPECT_EQ(RopeTheta(R"({"rope_theta": 700.0, "rope_scaling": null})"), 700);
  EXPECT_HL_ERROR(RopeTheta(R"({"rope_theta": 1})"), ExitCode::kData,
                  "rope_theta is 1. Use a number above 1.");
}

TEST(LayoutTest, RopeScalingsByTheirOldAndTheirNewKeys) {
  const auto positions = [](const std::string& members) {
    return Read("llama", Concat("{\"rope_theta\": 700.0, ", members, "}")).positions;
  };
  using model::PositionsConfig;
  const PositionsConfig linear("interpolated", {{"factor", 2.0}});
  EXPECT_EQ(positions(R"("rope_scaling": {"type": "linear", "factor": 2})"), linear);
  EXPECT_EQ(positions(R"("rope_scaling": {"rope_type": "linear", "factor": 2.0})"), linear);
  EXPECT_EQ(positions(R"("rope_parameters": {"type": "linear", "factor": 2})"), linear);
  // Both keys, with the same meaning.
  EXPECT_EQ(positions(R"("rope_parameters": {"rope_type": "linear", "factor": 2},
                         "rope_scaling": {"type": "linear", "factor": 2.0})"),
            linear);
  // transformers ignores an empty object.
  EXPECT_EQ(positions(R"("rope_parameters": {"rope_type": "linear", "factor": 2},
                         "rope_scaling": {})"),
            linear);
  EXPECT_EQ(
      positions(R"("rope_parameters": {
                "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.5,
                "high_freq_factor": 5.0, "original_max_position_embeddings": 8192})"),
      PositionsConfig("llama3", {{"factor", 8.0}, {"length", 8192}, {"fast", 5.0}, {"slow", 1.5}}));
  // The training length is max_position_embeddings unless it is given.
  EXPECT_EQ(positions(R"("max_position_embeddings": 4096,
                         "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 0})"),
            PositionsConfig("yarn", {{"factor", 4.0}, {"length", 4096}}));
  // A factor of null is the ratio of the lengths.
  EXPECT_EQ(positions(R"("max_position_embeddings": 4096,
                         "rope_scaling": {"type": "yarn", "factor": null,
                                          "original_max_position_embeddings": 512})"),
            PositionsConfig("yarn", {{"factor", 8.0}, {"length", 512}}));
  // Some folders have the length as a floating-point number.
  EXPECT_EQ(positions(R"("rope_scaling": {"type": "yarn", "factor": 8,
                                          "original_max_position_embeddings": 512.0})"),
            PositionsConfig("yarn", {{"factor", 8.0}, {"length", 512}}));
}

// m(k) = 0.1 k ln(4) + 1 = 0.138629436 k + 1.
TEST(LayoutTest, TheFactorOfYarn) {
  const auto factor = [](const std::string& members) {
    return Read("llama",
                Concat(R"({"rope_scaling": {"rope_type": "yarn", "factor": 4)", members, "}}"))
        .positions.Get<double>("attention_factor");
  };
  EXPECT_EQ(factor(""), 0);  // That of YaRN.
  EXPECT_EQ(factor(R"(, "attention_factor": 1.5, "mscale": 1, "mscale_all_dim": 2)"), 1.5);
  EXPECT_NEAR(factor(R"(, "mscale": 2, "mscale_all_dim": 0.5)"), 1.277258872 / 1.069314718, 1e-8);
  EXPECT_EQ(factor(R"(, "mscale": 0.707, "mscale_all_dim": 0.707)"), 1);
  EXPECT_EQ(factor(R"(, "mscale": 2)"), 0);  // Has no effect without the other.
}

TEST(LayoutTest, RefusesOtherRotations) {
  const auto refused = [](const std::string& members, const auto&... words) {
    EXPECT_HL_ERROR(Read("llama", "{" + members + "}"), ExitCode::kData, words...);
  };
  for (const char* type : {"dynamic", "longrope"})
    refused(Concat(R"("rope_scaling": {"type": ")", type, R"(", "factor": 2})"),
            Concat("rope_scaling.rope_type is '", type,
                   "', whose frequencies depend on the length of the text. Use a model with the "
                   "rope_type default, linear, llama3 or yarn."));
  refused(R"("rope_parameters": {"rope_type": "mrope"})",
          "rope_parameters.rope_type is 'mrope'. Use a model with the rope_type default");
  refused(R"("rope_parameters": {"rope_type": "linear", "factor": 2},
             "rope_scaling": {"type": "linear", "factor": 3})",
          "rope_parameters and rope_scaling differ. Remove one of them.");
  refused(R"("rope_parameters": {"rope_type": "linear", "factor": 0})",
          "rope_parameters.factor is 0. Use a number above 0.");
  refused(R"("rope_parameters": {"rope_type": "yarn", "factor": 0.5})",
          "rope_parameters.factor is 0.5. Use a number of at least 1.");
  refused(R"("rope_parameters": {"rope_type": "linear", "factor": null})",
          "rope_parameters.factor is missing.");
  refused(R"("rope_parameters": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4})",
          "rope_parameters.high_freq_factor is missing. Add it (Llama 3.1 has 4).",
          "rope_parameters.high_freq_factor is 4 and low_freq_factor 4. Use a high_freq_factor");
  refused(R"("rope_parameters": {"rope_type": "yarn", "factor": 8,
                                 "original_max_position_embeddings": 512.5})",
          "original_max_position_embeddings is 512.5. Only integers from 1");
  refused(R"("rope_parameters": {"rope_type": "yarn", "factor": 8, "attention_factor": 0.0})",
          "rope_parameters.attention_factor is 0. Use a number above 0, or remove the key.");
  refused(R"("rope_parameters": {"rope_type": "yarn", "factor": 8,
                                 "original_max_position_embeddings": 4})",
          "rope_parameters.original_max_position_embeddings is 4, so the ramp of yarn");
  refused(R"("original_max_position_embeddings": 9,
             "rope_parameters": {"rope_type": "yarn", "factor": 8})",
          "original_max_position_embeddings is outside", "Move it into rope_parameters.");
  refused(R"("partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25})",
          "partial_rotary_factor is 0.5. Use a model that rotates whole heads",
          "rope_parameters.partial_rotary_factor is 0.25");
  refused(R"("rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2}})",
          "rope_parameters.full_attention is an object of its own. Use a model whose layers");
  for (const char* no : {"false", "null"})
    refused(Concat(R"("is_causal": )", no),
            "is_causal is false, so tokens see later tokens. Use a causal model.");
  refused(R"("rope_parameters": {"rope_type": null, "factor": 2})",
          "rope_parameters.rope_type is null. Use a name, such as \"default\".");
  refused(R"("per_layer_config": {"0": {"rms_norm_eps": 0.5}})",
          "per_layer_config gives some layers other settings. Use a model without this key.");
  refused(R"("quantization_config": {"quant_method": "fp8"})",
          "quantization_config is set, so the weights are quantized. Use a folder of the same");
  refused(R"("rope_scaling": 2)", "rope_scaling is not an object. Use one, such as");
}

TEST(LayoutTest, RefusesWhatKimiLinearHasNotByName) {
  const auto refused = [](const std::string& members, const auto&... words) {
    EXPECT_HL_ERROR(Read("kimi_linear", R"({"num_hidden_layers": 4, "first_k_dense_replace": 4, )" +
                                            members + "}"),
                    ExitCode::kData, words...);
  };
  refused(R"("first_k_dense_replace": 1)",
          "first_k_dense_replace is 1, so layers 1 to 3 have experts. Use a model");
  refused(R"("mlp_layer_types": ["dense", "dense", "sparse", "dense"])",
          "mlp_layer_types has sparse for 1 of 4 layers");
  refused(R"("layer_types": ["full_attention"])",
          "layer_types is not a list with one name for each of the 4 layers.");
  refused(R"("layer_types": ["full_attention", "sliding", "full_attention", "full_attention"])",
          "layer_types has \"sliding\" for layer 1. Use a model that has only linear_attention "
          "and full_attention.");
  refused(
      R"("linear_attn_config": {"kda_layers": [1, 2, 3], "full_attn_layers": [3]})",
      "linear_attn_config.kda_layers and full_attn_layers do not name each of the 4 layers once.");
  refused(R"("linear_attn_config": {"kda_layers": [0], "full_attn_layers": [1, 2, 3]})",
          "linear_attn_config.kda_layers is not a list of layers. Use numbers from 1 to 4.");
  refused(R"("num_key_value_heads": 8)",
          "num_key_value_heads is 8, but the class makes a key for each "
          "of the 32 heads. Set it to 32.");
  refused(R"("mla_use_nope": false)", "mla_use_nope is false.");
  refused(R"("attn_res_block_size": 4)",
          "attn_res_block_size is set, which transformers 5.23 does not");
  refused(R"("num_nextn_predict_layers": 1)", "num_nextn_predict_layers is not 0.");
  refused(R"("hidden_act": "gelu")", "hidden_act is 'gelu'. Only silu is supported.");
}

// transformers reads a null inside the object of the rotation, or at the top level, as no rotation.
TEST(LayoutTest, RotationOfOlmoHybrid) {
  const auto theta = [](const std::string& keys) {
    const model::ModelConfig config =
        Read("olmo_hybrid", R"({"num_hidden_layers": 4)" + keys + "}");
    return config.mixer_of(3).Get<double>("rope_theta");
  };
  EXPECT_EQ(theta(""), 10000);
  EXPECT_EQ(theta(R"(, "rope_theta": null)"), 0);
  EXPECT_EQ(theta(R"(, "rope_theta": null, "rope_parameters": {"rope_type": "default"})"), 0);
  EXPECT_EQ(theta(R"(, "rope_theta": 500, "rope_parameters": {"rope_theta": null})"), 0);
  EXPECT_EQ(theta(R"(, "rope_theta": null, "rope_parameters": {"rope_theta": 500})"), 500);
}

// Each halving of the residual stream multiplies eps of the later norms by 4.
TEST(LayoutTest, RescaleEveryOfRwkv) {
  for (const auto& [every, halvings] : {std::pair{0, 0}, {-3, 0}, {6, 1}, {3, 2}, {8, 1}, {9, 0}}) {
    const model::ModelConfig config =
        Read("rwkv", Concat(R"({"num_hidden_layers": 8, "layer_norm_epsilon": 2e-3, )",
                            R"("hidden_size": 64, "rescale_every": )", every, "}"));
    EXPECT_EQ(config.final_norm.value_or(config.norm).Get<double>("eps"),
              std::ldexp(1e-5, 2 * halvings));
    for (int layer = 0; layer < 16; ++layer) {
      const int before = every > 0 ? layer / 2 / every : 0;
      EXPECT_EQ(config.block_of(layer).Get<double>("norm_eps"),
                before == 0 ? 0 : std::ldexp(2e-3, 2 * before));
    }
    nlohmann::ordered_json written;
    ChooseLayout(config, "rwkv").WriteConfig(model::Resolved(config), written);
    EXPECT_EQ(written["rescale_every"], halvings == 0 ? 0 : every);
  }
  model::ModelConfig config = RwkvModel();
  config.final_norm = model::NormConfig("layer_norm", {{"eps", 3e-5}});
  EXPECT_HL_ERROR(
      ChooseLayout(config, "rwkv"), ExitCode::kUsage,
      "no rescale_every gives the eps of the norms. Set final_norm with an eps of 1e-05");
}

TEST(LayoutTest, RefusesWhatRwkvHasNotByName) {
  EXPECT_HL_ERROR(Read("rwkv7", R"({"hidden_size": 96, "head_dim": 64, "attn": {}, "num_heads": 3,
                                    "hidden_act": "relu", "value_dim": [96, 48]})"),
                  ExitCode::kData, "hidden_act is 'relu'. Only sqrelu is supported.",
                  "attn is set, which the class cannot run.",
                  "head_dim is 64. Only divisors of hidden_size, 96, are supported.",
                  "value_dim is not hidden_size, 96. Only this width is supported.");
}

// The defaults of transformers 5.23, which are not those of null.
TEST(LayoutTest, MistralAndQwenByTheirDefaults) {
  const auto heads = [](const char* model_type, const std::string& config) {
    const model::ModelConfig model = Read(model_type, config);
    return std::vector<int64_t>{model.mixer.Get<int64_t>("num_kv_heads"),
                                model.mixer.Get<int64_t>("head_dim"),
                                model.mixer.Get<int64_t>("window")};
  };
  using List = std::vector<int64_t>;
  EXPECT_EQ(heads("mistral", "{}"), (List{8, 128, 4096}));
  EXPECT_EQ(heads("mistral", R"({"sliding_window": null, "num_attention_heads": 16})"),
            (List{8, 256, 0}));
  EXPECT_EQ(heads("qwen2", "{}"), (List{32, 128, 0}));
  EXPECT_EQ(heads("qwen2", R"({"num_key_value_heads": null, "num_attention_heads": 64})"),
            (List{64, 64, 0}));
  EXPECT_EQ(heads("qwen3", R"({"num_attention_heads": 64, "sliding_window": 4096})"),
            (List{32, 128, 0}));
  const model::ModelConfig qwen3 = Read("qwen3", R"({"rms_norm_eps": 1e-4})");
  EXPECT_EQ(qwen3.mixer.Get<double>("qk_norm_eps"), 1e-4);
  EXPECT_FALSE(qwen3.mixer.Get<bool>("qkv_bias"));
  EXPECT_TRUE(Read("qwen2", "{}").mixer.Get<bool>("qkv_bias"));
}

// Returns the window of each layer of a Qwen model of four layers with windows of 7.
std::vector<int64_t> QwenWindows(const std::string& members) {
  const model::ModelConfig config =
      Read("qwen2", R"({"num_hidden_layers": 4, "sliding_window": 7, )" + members + "}");
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < 4; ++layer)
    windows.push_back(config.mixer_of(layer).Get<int64_t>("window"));
  return windows;
}

TEST(LayoutTest, WindowsOfSomeLayersOfQwen) {
  using List = std::vector<int64_t>;
  const std::string on = R"("use_sliding_window": true)";
  EXPECT_EQ(QwenWindows(R"("max_window_layers": 1)"), (List{0, 0, 0, 0}));
  EXPECT_EQ(QwenWindows(on), (List{0, 0, 0, 0}));  // From layer 28 on.
  EXPECT_EQ(QwenWindows(on + R"(, "max_window_layers": 3)"), (List{0, 0, 0, 7}));
  EXPECT_EQ(QwenWindows(on + R"(, "max_window_layers": 0)"), (List{7, 7, 7, 7}));
  EXPECT_EQ(QwenWindows(on + R"(, "max_window_layers": 0, "layer_types": [
      "full_attention", "sliding_attention", "full_attention", "sliding_attention"])"),
            (List{0, 7, 0, 7}));
  const std::string all = R"("layer_types": ["sliding_attention", "sliding_attention",
                                             "sliding_attention", "sliding_attention"])";
  EXPECT_EQ(QwenWindows(on + ", " + all), (List{7, 7, 7, 7}));
  EXPECT_HL_ERROR(QwenWindows(all), ExitCode::kData,
                  "layer_types has sliding_attention, but no window is in use. Set "
                  "use_sliding_window to true and sliding_window to the number of visible keys.");
  EXPECT_HL_ERROR(QwenWindows(R"("layer_types": ["full_attention"])"), ExitCode::kData,
                  "layer_types is not a list with one name for each of the 4 layers. Correct the "
                  "list, or remove the key.");
  EXPECT_HL_ERROR(QwenWindows(R"("layer_types": ["full_attention", "linear_attention",
                                                 "full_attention", "full_attention"])"),
                  ExitCode::kData, "layer_types has \"linear_attention\" for layer 1. Use a model");
}

TEST(LayoutTest, RefusesOtherMistralsAndQwens) {
  EXPECT_HL_ERROR(Read("mistral", R"({"layer_types": ["full_attention"]})"), ExitCode::kData,
                  "layer_types is set, but all layers of the class have the same window. Remove");
  EXPECT_HL_ERROR(Read("mistral", R"({"sliding_window": 0})"), ExitCode::kData,
                  "sliding_window is 0. Only integers from 1");
  EXPECT_HL_ERROR(Read("qwen3", R"({"head_dim": null})"), ExitCode::kData,
                  "head_dim is null. Set it to the width of a head, or remove the key (128).");
}

TEST(ChooseLayoutTest, ListsWhatMistralAndQwenHaveNot) {
  EXPECT_HL_ERROR(Chosen(Model("softmax", {{"qk_norm", true}, {"out_bias", true}}), "qwen3"),
                  ExitCode::kUsage, "qwen3: out_bias is on without qkv_bias",
                  "qk_norm_eps is 1e-05, and eps of the norm is 1e-06. Use one value for both.");
  EXPECT_HL_ERROR(
      Chosen(Model("softmax", {{"qk_norm", true}, {"qk_norm_eps", 1e-6}}), "transformer"),
      ExitCode::kUsage, "qk_norm_eps is 1e-06. Only 1e-05 is supported.");
  EXPECT_HL_ERROR(Chosen(Model("softmax", {{"out_bias", true}}), "qwen2"), ExitCode::kUsage,
                  "qwen2: qkv_bias is off", "out_bias is on");
  model::ModelConfig config = Model("softmax", {{"window", 5}, {"qkv_bias", true}});
  config.hybrid = Windowed(config, {.layers = {1}}, /*window=*/6);
  EXPECT_HL_ERROR(Chosen(config), ExitCode::kUsage, "mistral: qkv_bias is on",
                  "mistral: the model has hybrid layers", "qwen3: qk_norm is off",
                  "qwen2: layers have the windows 5 and 6. Only one window is supported.");
  config.hybrid[0].mixer->Set("num_heads", 2);
  EXPECT_HL_ERROR(Chosen(config, "qwen2"), ExitCode::kUsage,
                  "hybrid layers differ in more than the window");
}

model::ModelConfig ReadGpt2(const char* config) {
  const auto json = nlohmann::json::parse(config);
  ConfigReader reader(json, "x/config.json");
  model::ModelConfig model = LayoutOf("gpt2", "").ReadConfig(reader);
  reader.Check();
  return model::Resolved(std::move(model));
}

TEST(LayoutTest, Gpt2ByItsDefaultsAndOtherNames) {
  const model::ModelConfig usual = ReadGpt2("{}");
  EXPECT_TRUE(usual.head.tied);
  EXPECT_EQ(usual.channel_mixer.Get<int64_t>("width"), 4 * 768);
  EXPECT_EQ(usual.channel_mixer.Get<std::string>("activation"), "gelu_tanh");
  EXPECT_EQ(model::LanguageModel(usual).CountParameters().total(), 124439808);
  const model::ModelConfig other =
      ReadGpt2(R"({"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
                   "max_position_embeddings": 9, "n_embd": 48, "n_inner": null,
                   "activation_function": "gelu"})");
  EXPECT_EQ(other.model_dim, 48);
  EXPECT_EQ(other.num_layers, 3);
  EXPECT_EQ(other.mixer.Get<int64_t>("num_heads"), 4);
  EXPECT_EQ(other.positions.Get<int64_t>("max_positions"), 9);
  EXPECT_EQ(other.channel_mixer.Get<int64_t>("width"), 4 * 48);
  EXPECT_EQ(other.channel_mixer.Get<std::string>("activation"), "gelu");
}

TEST(LayoutTest, RefusesWhatGpt2CanAndWeCannot) {
  EXPECT_HL_ERROR(
      ReadGpt2(R"({"scale_attn_weights": false, "add_cross_attention": true,
                               "scale_attn_by_inverse_layer_idx": true, "n_head": 2,
                               "num_attention_heads": 3, "activation_function": "laplace"})"),
      ExitCode::kData, "scale_attn_weights is false. Only true is supported.",
      "scale_attn_by_inverse_layer_idx is true. Only false is supported.",
      "add_cross_attention is true. Only false is supported.",
      "n_head is 2, but num_attention_heads, which means the same, is 3",
      "activation_function is 'laplace'. Only null and these names are supported: relu");
}

std::string FeatureMap(const std::string& model_type, const std::string& name) {
  const nlohmann::json json = {{"feature_map", name}, {"num_heads", 2}};
  ConfigReader reader(json, "c");
  const model::ModelConfig config = LayoutOf(model_type, "").ReadConfig(reader);
  reader.Check();
  return config.mixer.Get<std::string>("feature_map");
}

TEST(LayoutTest, FeatureMapsByTheirOtherNames) {
  EXPECT_EQ(FeatureMap("retnet", "gelu"), "gelu");
  EXPECT_EQ(FeatureMap("retnet", "gelu_new"), "gelu_tanh");
  EXPECT_EQ(FeatureMap("retnet", "relu2"), "relu2");
  EXPECT_HL_ERROR(FeatureMap("retnet", "xielu"), ExitCode::kData,
                  "feature_map is 'xielu'. Only null and these names are supported: relu");
}

// fla has a separate table for gla, in which gelu is the tanh approximation.
TEST(LayoutTest, FeatureMapsOfGlaAreThoseOfFla) {
  const std::pair<const char*, const char*> pairs[] = {{"relu", "relu"},
                                                       {"relu2", "sqrelu"},
                                                       {"silu", "silu"},
                                                       {"sigmoid", "sigmoid"},
                                                       {"gelu_tanh", "gelu"}};
  for (const auto& [ours, theirs] : pairs) {
    EXPECT_EQ(FeatureMap("gla", theirs), ours);
    nlohmann::ordered_json written;
    const model::ModelConfig config = Model("gla", {{"feature_map", ours}});
    ChooseLayout(config, "auto").WriteConfig(model::Resolved(config), written);
    EXPECT_EQ(written["feature_map"], theirs);
  }
  EXPECT_EQ(FeatureMap("gla", "swish"), "silu");
  for (const char* unknown : {"gelu_new", "gelu_pytorch_tanh", "relu2", "linear", "logsigmoid"})
    EXPECT_HL_ERROR(FeatureMap("gla", unknown), ExitCode::kData,
                    Concat("feature_map is '", unknown,
                           "'. Only null and these names are supported: "
                           "relu, sqrelu, silu, sigmoid, gelu."));
  for (const char* ours : {"gelu", "tanh", "mish"})
    EXPECT_HL_ERROR(Chosen(Model("gla", {{"feature_map", ours}})), ExitCode::kUsage,
                    Concat("gla: feature_map is ", ours,
                           ". Only none, relu, relu2, silu, sigmoid, gelu_tanh are supported."));
  EXPECT_EQ(Chosen(Model("retention", {{"feature_map", "gelu"}})), "retnet");
}

}  // namespace
}  // namespace halflife::interop
