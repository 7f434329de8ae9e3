// Checks which attention kernels (decay, softmax, polynomial) each recipe uses on each kind of
// GPU, so that no recipe silently loses its fast path. No GPU is needed, because a plan depends
// only on the device's limits.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "core/files.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/delta_rule/cuda/workspace.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"
#include "kernels/softmax_attention/softmax_attention_args.h"
#include "model/blocks/block.h"
#include "model/language_model.h"
#include "model/model_cost.h"
#include "support/paths.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

using kernels::DecayKind;

// The arguments of decay attention that depend on the mixer.
struct Decay {
  DecayKind kind;
  kernels::NormKind norm = kernels::NormKind::kNone;
  bool key_scale = false;
  bool shared_keys = false;  // all heads read one head of q and k
};
const std::map<std::string, Decay> kDecayed = {
    {"d2d", {DecayKind::kPerHeadChannel, kernels::NormKind::kSumOfKeys, /*key_scale=*/true}},
    {"gla", {DecayKind::kPerTokenChannel}},
    {"mamba2",
     {DecayKind::kPerToken, kernels::NormKind::kNone, /*key_scale=*/true, /*shared_keys=*/true}},
    {"retention", {DecayKind::kPerHead}},
};
// Mixers of the recipes that do not use attention kernels.
const std::set<std::string> kOthers = {"base_conv", "gated_conv", "mamba"};
// Mixers of the delta rule, in which value heads do not share queries and keys.
const std::map<std::string, kernels::DeltaDecay> kDelta = {
    {"gated_delta_net", kernels::DeltaDecay::kPerToken},
    {"kda", kernels::DeltaDecay::kPerTokenChannel}};
const std::set<std::string> kPolynomial = {"based", "rebased"};
// Mixers with softmax attention, whose state is keys and values.
const std::set<std::string> kAttention = {"gau", "softmax"};
// Recipes whose softmax attention runs in LibTorch on a GPU, because they train in fp32.
const std::set<std::string> kAttentionByLibTorch = {"conv_attention_mqar", "dna_alibi",
                                                    "gau_alpha_6l", "gau_bytes"};

// Recipes that train polynomial attention in fp32, which uses the per-token kernel on a GPU. Rows
// have 48 tokens. 512 rows with 12 heads run in parallel.
const std::set<std::string> kPolynomialByToken = {"simple_mqar"};

struct Device {
  std::string name;
  kernels::DeviceLimits limits;
};
const Device kDevices[] = {{"sm_80", {true, 108, 163 << 10}},
                           {"sm_90", {true, 132, 227 << 10, /*warpgroups=*/true}},
                           {"sm_100", {true, 148, 227 << 10}},
                           {"sm_120", {true, 170, 99 << 10}}};

// Returns the kernel arguments of a layer, as far as a plan reads them.
kernels::DecayAttentionArgs ArgsOf(const RunConfig& config, const std::vector<int64_t>& state,
                                   const Decay& decay) {
  kernels::DecayAttentionArgs args;
  args.batch = args.num_sequences = static_cast<int>(config.train.micro_batch);
  args.seq_len = static_cast<int>(config.data.seq_len);
  args.num_chunks = args.batch * ((args.seq_len + 63) / 64);
  args.num_heads = args.num_q_heads = args.num_k_heads = args.num_v_heads = args.num_decay_heads =
      static_cast<int>(state[0]);
  if (decay.shared_keys) args.num_q_heads = args.num_k_heads = 1;
  args.head_dim_k = static_cast<int>(state[1]);
  args.head_dim_v = static_cast<int>(state[2]);
  args.decay_kind = decay.kind;
  args.norm_kind = decay.norm;
  const auto rows = [&](int dim) {
    kernels::TensorView view;
    view.dtype = DType::kBF16;
    view.stride_h = dim;
    view.stride_t = int64_t{1} * args.num_heads * dim;
    view.stride_b = view.stride_t * args.seq_len;
    return view;
  };
  args.q = args.k = rows(args.head_dim_k);
  args.v = args.out = rows(args.head_dim_v);
  return args;
}

// Expects that tensor cores are used, and that the workspace is within the limit of the plan.
void ExpectTensorCores(kernels::DecayAttentionArgs args) {
  float decay = 0;
  args.log_decay.data = &decay;
  for (const Device& device : kDevices) {
    const kernels::DecayAttentionPlan plan = MakePlan(args, device.limits);
    SCOPED_TRACE(device.name + ": " + kernels::cuda::DescribeRoute(args, plan));
    EXPECT_NE(kernels::cuda::ForwardRoute(args, plan), kernels::cuda::Route::kSimt);
    EXPECT_NE(kernels::cuda::BackwardRoute(args, plan), kernels::cuda::Route::kSimt);
    const bool one_factor =
        !IsPerChannel(args.decay_kind) && args.norm_kind == kernels::NormKind::kNone;
    // With one factor, the recipes' heads have wgmma blocks of 128 columns of V. With decays of
    // channels, there are also blocks of 64 columns, but a head must have one slice of K.
    const bool by_channels = IsPerChannel(args.decay_kind) &&
                             args.norm_kind == kernels::NormKind::kNone &&
                             (args.head_dim_k == 64 || args.head_dim_k == 128);
    EXPECT_EQ(
        plan.forward_warpgroups,
        device.limits.warpgroups && ((one_factor && args.head_dim_v % 128 == 0) || by_channels));
    EXPECT_EQ(plan.backward_warpgroups, device.limits.warpgroups && (one_factor || by_channels));
    EXPECT_EQ(kernels::cuda::StatesByWarpgroups(args, plan),
              device.limits.warpgroups && one_factor);
    EXPECT_LE(ForwardWorkspaceBytes(args, plan), kernels::cuda::WorkspaceLimit(args));
    EXPECT_LE(BackwardWorkspaceBytes(args, plan), kernels::cuda::WorkspaceLimit(args));
  }
}

// Expects that the same heads in fp32 also use tensor cores.
void ExpectTensorCoresInFp32(kernels::DecayAttentionArgs args) {
  float decay = 0;
  args.log_decay.data = &decay;
  for (kernels::TensorView* view : {&args.q, &args.k, &args.v, &args.out})
    view->dtype = DType::kF32;
  for (const Device& device : kDevices) {
    const kernels::DecayAttentionPlan plan = MakePlan(args, device.limits);
    SCOPED_TRACE(device.name + ": " + kernels::cuda::DescribeRoute(args, plan));
    // One decay per token needs more shared memory than sm_120 has.
    const bool fits = device.name != "sm_120" || IsPerChannel(args.decay_kind);
    EXPECT_EQ(kernels::cuda::ForwardRoute(args, plan) != kernels::cuda::Route::kSimt, fits);
    EXPECT_EQ(kernels::cuda::BackwardRoute(args, plan) != kernels::cuda::Route::kSimt, fits);
  }
}

// Expects that the model reports the workspace of its largest kernel. All layers of a recipe are
// equal.
void ExpectPlannedWorkspace(const RunConfig& config, const model::LanguageModel& model,
                            kernels::DecayAttentionArgs args) {
  float decay = 0;
  args.log_decay.data = &decay;
  for (const Device& device : kDevices) {
    const kernels::DecayAttentionPlan plan = MakePlan(args, device.limits);
    EXPECT_EQ(
        model::ModelCost(model, config.data.seq_len)
            .WorkspaceBytes({config.train.micro_batch, config.data.seq_len, true, device.limits}),
        static_cast<double>(
            std::max(ForwardWorkspaceBytes(args, plan), BackwardWorkspaceBytes(args, plan))))
        << device.name;
  }
}

// Expects that the kernels support the gradients of the delta rule with the state [HV, K, V], and
// that the model plans with their memory: the workspace of the backward, and a state per 4 chunks
// of 64 tokens, where the kernels on a CPU keep one per 4 chunks of 32.
void ExpectDeltaKernels(const RunConfig& config, const model::LanguageModel& model, int64_t layer,
                        kernels::DeltaDecay decay) {
  const std::vector<int64_t> state = model.block(layer).mixer().traits().state.at(0).shape;
  const int64_t rows = config.train.micro_batch, seq_len = config.data.seq_len;
  kernels::DeltaRuleArgs args;
  args.q.dtype = DType::kBF16;
  args.decay = decay;
  args.num_heads = args.num_value_heads = static_cast<int>(state[0]);
  args.head_dim_k = static_cast<int>(state[1]);
  args.head_dim_v = static_cast<int>(state[2]);
  args.batch = args.num_sequences = static_cast<int>(rows);
  args.seq_len = static_cast<int>(seq_len);
  args.num_chunks = static_cast<int>(rows * ((seq_len + 63) / 64));
  EXPECT_TRUE(kernels::cuda::SupportsDeltaRuleBackward(args));
  for (const Device& device : kDevices) {
    args.warpgroups = device.limits.warpgroups;
    args.shared_memory_bytes = device.limits.shared_memory_bytes;
    EXPECT_EQ(kernels::delta::CanUseWgmma(args), device.name == "sm_90");
    // The recipes' heads are too wide for the shared memory of sm_120.
    EXPECT_EQ(kernels::cuda::SupportsDeltaRuleBackward(args), device.name != "sm_120");
  }
  args.warpgroups = false;
  EXPECT_EQ(model.block(layer).mixer().WorkspaceBytes({rows, seq_len, true, {}}),
            static_cast<double>(kernels::cuda::DeltaRuleBackwardBytes(args)));
  const auto on = [&](bool is_gpu) {
    return model::ModelCost(model, seq_len, is_gpu).ActivationBytesOfLayer(layer, 2);
  };
  EXPECT_DOUBLE_EQ(on(/*is_gpu=*/false) - on(/*is_gpu=*/true),
                   4.0 * static_cast<double>(state[0] * state[1] * state[2]) *
                       (1.0 / (4 * 32) - 1.0 / (4 * 64)));
}

// Expects that the softmax attention kernels support these heads, packed or not. If a block of wide
// heads does not fit on the device, LibTorch is used; so far only for heads of 128 on sm_120.
void ExpectAttentionKernels(int64_t head_dim, int64_t head_dim_v, bool drops = false) {
  kernels::SoftmaxAttentionArgs args;
  args.q.dtype = DType::kBF16;
  args.head_dim = static_cast<int>(head_dim);
  args.head_dim_v = static_cast<int>(head_dim_v);
  args.num_queries = args.num_keys = 2048;
  const uint64_t sample = 0;
  if (drops) args.dropout.samples = &sample;
  for (const Device& device : kDevices) {
    const std::string why_not = kernels::cuda::WhyNot(args, device.limits.shared_memory_bytes);
    EXPECT_EQ(why_not.empty(), device.name != "sm_120" || args.head_dim <= 64)
        << device.name << ": " << why_not;
  }
}

// Expects the pairwise tensor-core kernel for whole bf16 rows without an initial state, and the
// recurrent (per-token) kernel for fp32 rows.
void ExpectPairs(const RunConfig& config, bool in_fp32) {
  EXPECT_EQ(config.train.precision != "bf16", in_fp32);
  kernels::PolynomialAttentionArgs args;
  args.batch = static_cast<int>(config.train.micro_batch);
  args.seq_len = static_cast<int>(config.data.seq_len);
  args.num_heads = 1, args.head_dim = 16, args.head_dim_v = 64;
  args.weights = {1, 1, 0.5};
  for (kernels::TensorView* view : {&args.q, &args.k, &args.v, &args.out})
    view->dtype = in_fp32 ? DType::kF32 : DType::kBF16;
  EXPECT_EQ(kernels::MakePlan(args, {.is_cuda = true}).quadratic, !in_fp32);
}

TEST(KernelRoutes, EveryRecipeTrainsOnTensorCores) {
  std::set<std::string> met;
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".textproto") continue;
    SCOPED_TRACE(entry.path().filename().string());
    RunConfig config = LoadRunConfig(entry.path(), {});
    if (config.model.vocab_size == 0) config.model.vocab_size = 259;  // The byte tokenizer.
    const model::LanguageModel model(config.model);
    for (int64_t layer = 0; layer < config.model.num_layers; ++layer) {
      const std::string name(config.model.mixer_of(layer).name());
      if (kPolynomial.count(name) == 1) {
        ExpectPairs(config, kPolynomialByToken.count(entry.path().stem().string()) == 1);
        continue;
      }
      if (kAttention.count(name) == 1) {
        const bool by_libtorch = config.train.precision != "bf16";
        EXPECT_EQ(by_libtorch, kAttentionByLibTorch.count(entry.path().stem().string()) == 1);
        if (by_libtorch) continue;
        const std::vector<model::StateTensor> state = model.block(layer).mixer().traits().state;
        if (state.empty()) continue;  // An encoder, see below.
        ExpectAttentionKernels(state.at(0).shape.at(2), state.at(1).shape.at(2),
                               config.model.mixer_of(layer).Get<double>("dropout") > 0);
        continue;
      }
      if (const auto delta = kDelta.find(name); delta != kDelta.end()) {
        EXPECT_EQ(config.train.precision, "bf16");
        ExpectDeltaKernels(config, model, layer, delta->second);
        continue;
      }
      const auto decayed = kDecayed.find(name);
      if (decayed == kDecayed.end()) {
        EXPECT_TRUE(kOthers.count(name) == 1) << name << " is in no list of this test";
        continue;
      }
      met.insert(name);
      EXPECT_TRUE(config.train.precision == "bf16" || config.train.device == "cpu")
          << "decay attention in fp32 computes three bf16 products per product on a GPU";
      const model::StateTensor memory = model.block(layer).mixer().traits().state.at(0);
      ASSERT_EQ(memory.shape.size(), 3u) << memory.name << " is not [H, K, V]";
      kernels::DecayAttentionArgs args = ArgsOf(config, memory.shape, decayed->second);
      float scale = 1;  // Only non-null matters.
      if (decayed->second.key_scale) args.key_scale.data = &scale;
      ExpectTensorCores(args);
      ExpectTensorCoresInFp32(args);
      ExpectPlannedWorkspace(config, model, args);
    }
  }
  EXPECT_EQ(met.size(), kDecayed.size());
  ExpectAttentionKernels(128, 1536, /*drops=*/true);  // gau_alpha
  ExpectAttentionKernels(64, 384);                    // gau_bytes, in bf16
  ExpectAttentionKernels(64, 64);                     // dna_alibi, in bf16
}

// On a GPU, each recipe in fp32 says how to use the tensor cores, and all others do.
TEST(KernelRoutes, RecipesInFp32NameThePrecisionForAGpu) {
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".textproto") continue;
    SCOPED_TRACE(entry.path().filename().string());
    const bool in_fp32 = LoadRunConfig(entry.path(), {}).train.precision == "fp32";
    const std::string text = ReadFile(entry.path(), ExitCode::kInternal);
    EXPECT_EQ(text.find("train.precision=bf16") != std::string::npos, in_fp32);
  }
}

// fp32 keys of 256 channels have no gradient kernel. The plan then counts the LibTorch form, which
// keeps far more and has no workspace.
TEST(KernelRoutes, CountsTheLibTorchFormOfTheDeltaRuleWithoutKernels) {
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  const RunConfig config =
      LoadRunConfig(folder / "gated_delta_net_1.3b.textproto", {"model.vocab_size=259"});
  const model::LanguageModel model(config.model);
  const model::Mixer& mixer = model.block(0).mixer();
  const kernels::DeviceLimits gpu = kDevices[1].limits;
  EXPECT_GT(mixer.WorkspaceBytes({1, 64, /*bf16=*/true, gpu}), 0);
  EXPECT_EQ(mixer.WorkspaceBytes({1, 64, /*bf16=*/false, gpu}), 0);
  EXPECT_LT(mixer.GpuActivationBytesPerToken(64, 2), 0);
  EXPECT_GT(mixer.GpuActivationBytesPerToken(64, 4), 4.0 * 6 * 2 * 256 * 512 / 64);
}

// The plan counts the states that a GPU keeps of decays per channel: in fp32 they have two terms.
TEST(KernelRoutes, CountsTheKeptStatesOfDecaysPerChannel) {
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  const RunConfig config = LoadRunConfig(folder / "gla_340m.textproto", {"model.vocab_size=259"});
  const model::LanguageModel model(config.model);
  const model::Mixer& mixer = model.block(0).mixer();
  const std::vector<int64_t> state = mixer.traits().state.at(0).shape;
  kernels::DecayAttentionArgs args = ArgsOf(config, state, kDecayed.at("gla"));
  float decay = 0;
  args.log_decay.data = &decay;
  const double tokens = 64.0 * args.num_chunks;
  const double on_cpu = 4 * static_cast<double>(state[0] * state[1] * state[2]) / 256;
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (kernels::TensorView* view : {&args.q, &args.k, &args.v, &args.out}) view->dtype = dtype;
    const auto kept =
        static_cast<double>(CheckpointBytes(args, MakePlan(args, kDevices[1].limits)));
    // The checkpoints have a slot more per sequence.
    const double slots = static_cast<double>(args.num_chunks) / 2;
    EXPECT_DOUBLE_EQ(mixer.GpuActivationBytesPerToken(args.seq_len, dtype == DType::kF32 ? 4 : 2),
                     kept * slots / (slots + args.num_sequences) / tokens - on_cpu);
  }
}

// The expected layout of a recipe's layers on a device. A change of the rules that select it must
// change this table. Blocks of the backward are those of its reverse scan, which are smaller by
// warpgroups.
struct GoldenLayout {
  const char* recipe;
  int num_sms;
  kernels::DecayBlock forward;
  int segments, blocks;
  kernels::DecayBlock backward;
  int backward_segments, backward_blocks;
};
constexpr GoldenLayout kGoldenLayouts[] = {
    // Forward blocks of 128 x 64 fit because they stage the output in two halves.
    {"retention_340m", 170, {128, 64}, 1, 256, {64, 128}, 1, 256},
    {"d2d_124m", 132, {64, 64}, 1, 384, {64, 64}, 1, 384},
    {"gla_340m", 132, {128, 64}, 1, 128, {128, 128}, 1, 256},
    {"gla_1.3b", 132, {128, 64}, 1, 256, {128, 128}, 1, 512},
    {"gla_7b", 132, {128, 64}, 1, 64, {128, 128}, 1, 128},
    {"retention_340m", 132, {128, 128}, 1, 128, {128, 128}, 1, 512},
    {"d2d_124m", 108, {64, 64}, 1, 384, {64, 64}, 1, 384},
    {"gla_340m", 108, {128, 64}, 1, 128, {128, 128}, 1, 64},
    {"gla_1.3b", 108, {128, 128}, 1, 128, {128, 128}, 1, 128},
    {"gla_7b", 108, {128, 64}, 1, 64, {128, 128}, 4, 128},
    {"retention_340m", 108, {128, 128}, 1, 128, {128, 128}, 1, 128},
};

TEST(KernelRoutes, RecipesKeepMultiprocessorsBusy) {
  const std::filesystem::path folder = std::filesystem::path(test::kSourceDir) / "launch/recipes";
  for (const GoldenLayout& golden : kGoldenLayouts) {
    SCOPED_TRACE(std::string(golden.recipe) + " on " + std::to_string(golden.num_sms));
    RunConfig config = LoadRunConfig(folder / (std::string(golden.recipe) + ".textproto"), {});
    if (config.model.vocab_size == 0) config.model.vocab_size = 259;
    const model::LanguageModel model(config.model);
    kernels::DecayAttentionArgs args =
        ArgsOf(config, model.block(0).mixer().traits().state.at(0).shape,
               kDecayed.at(std::string(config.model.mixer_of(0).name())));
    float decay = 0;
    args.log_decay.data = &decay;
    const auto* const device =
        std::find_if(std::begin(kDevices), std::end(kDevices),
                     [&](const Device& d) { return d.limits.num_sms == golden.num_sms; });
    ASSERT_NE(device, std::end(kDevices));
    const kernels::DecayAttentionPlan plan = MakePlan(args, device->limits);
    const int states = args.num_sequences * args.num_heads;
    EXPECT_EQ(plan.forward.k, golden.forward.k);
    EXPECT_EQ(plan.forward.v, golden.forward.v);
    EXPECT_EQ(plan.num_segments, golden.segments);
    EXPECT_EQ(states * kernels::cuda::SlicesOf(args, plan.forward).count() * plan.num_segments,
              golden.blocks);
    EXPECT_EQ(plan.backward.k, golden.backward.k);
    EXPECT_EQ(plan.backward.v, golden.backward.v);
    EXPECT_EQ(plan.backward_segments, golden.backward_segments);
    const kernels::DecayBlock scanned = kernels::cuda::ReverseScanBlock(plan);
    EXPECT_EQ(states * kernels::cuda::SlicesOf(args, scanned).count() * plan.backward_segments,
              golden.backward_blocks);
  }
}

// Head sizes of GLA and RetNet in flash-linear-attention's configs from 340 million to 7 billion
// parameters. Heads become wider with the model.
TEST(KernelRoutes, SizesOfPublicModelsTrainOnTensorCores) {
  RunConfig config;
  config.train.micro_batch = 4;
  config.data.seq_len = 2048;
  const Decay gla = kDecayed.at("gla"), retention = kDecayed.at("retention");
  ExpectTensorCores(ArgsOf(config, {4, 128, 256}, gla));         // 340M: 1024 / 4, keys 0.5
  ExpectTensorCores(ArgsOf(config, {4, 256, 512}, gla));         // 1.3B: 2048 / 4
  ExpectTensorCores(ArgsOf(config, {5, 256, 512}, gla));         // 2.7B: 2560 / 5
  ExpectTensorCores(ArgsOf(config, {16, 128, 256}, gla));        // 7B: 4096 / 16
  ExpectTensorCores(ArgsOf(config, {4, 256, 512}, retention));   // 340M: 1024 / 4, values 2
  ExpectTensorCores(ArgsOf(config, {8, 128, 256}, retention));   // the same in 8 heads
  ExpectTensorCores(ArgsOf(config, {8, 256, 512}, retention));   // 1.3B: 2048 / 8
  ExpectTensorCores(ArgsOf(config, {10, 256, 512}, retention));  // 2.7B: 2560 / 10
  ExpectTensorCores(ArgsOf(config, {16, 256, 512}, retention));  // 7B: 4096 / 16
}

}  // namespace
}  // namespace halflife::train
