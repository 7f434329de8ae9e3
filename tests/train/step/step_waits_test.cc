// Checks for every mixer how often a step makes the host wait for its device, and how many kernels
// it launches. Both are counted on the CPU (ops/torch/host_waits.h).
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "dist/local_communicator.h"
#include "dist/rank_context.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/side_by_side.h"
#include "support/temp_dir.h"
#include "train/step/step.h"
#include "train/step/step_data.h"

namespace halflife::train {
namespace {

using Phases = std::map<std::string, ops::HostCounts>;
using Settings = std::vector<std::string>;

// A small version of the quickstart's model, with z loss and two micro-batches per step.
constexpr char kRecipe[] = R"(
data { path: "data" seq_len: 32 prefetch: 0 }
model { vocab_size: 259 model_dim: 32 num_layers: 2
        channel_mixer { swiglu { width: 64 } } }
optimizer { lr: 3e-3 }
train { steps: 100 global_batch: 4 micro_batch: 2 seed: 3 z_loss: 1e-3 }
)";
// Rows of one document with few targets.
const Settings kMqar = {"data.path=mqar", "data.seq_len=16", "model.vocab_size=64",
                        "model.objective=labelled"};

class StepWaits : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    at::set_num_threads(1);
    dir = new test::TempDir();
    test::PrepareStepData(dir->path());
  }
  static void TearDownTestSuite() { delete dir; }

  // Returns the counts of the step after `steps_before` by phase. The first step fills the caches.
  static Phases CountsOf(const Settings& settings, int64_t steps_before = 1) {
    Phases phases;
    dist::LocalWorld::Run(1, [&](dist::Communicator& comm) {
      const RunConfig config = ParseRunConfig(kRecipe, "test", settings);
      const auto context = dist::MakeLocalRankContext(comm);
      const data::Dataset dataset = data::Dataset::Open(dir->path() / config.data.path);
      model::LanguageModel model(config.model);
      ParameterArena arena(model.parameters(), ParameterArena::Of(config, model, at::kCPU, 0, 1));
      arena.Initialise(config.train.seed);
      data::TokenSource source(dataset, data::Split::kTrain,
                               {.seq_len = config.data.seq_len,
                                .micro_batch = config.train.micro_batch,
                                .global_batch = config.train.global_batch,
                                .seed = config.train.seed,
                                .prefetch = 0,
                                .epoch_end = data::EpochEndOf(config.data.epoch_end)});
      StepRunner runner(config, model, arena, source, *context, {});
      uint64_t num_updates = 0;
      for (int64_t step = 0; step < steps_before; ++step) runner.Run(step, num_updates, {});
      ops::HostWaits waits;
      runner.ObservePhases([&](const char* phase) { waits.EnterPhase(phase); });
      runner.Run(steps_before, num_updates, {});
      phases = waits.Take();
      EXPECT_EQ(runner.num_replays() > 0, config.train.cuda_graphs);
      EXPECT_EQ(num_updates, static_cast<uint64_t>(steps_before) + 1);
    });
    return phases;
  }

  static void ExpectOneRead(const Phases& phases) {
    for (const auto& [phase, counts] : phases) {
      for (const auto& [name, count] : counts.waits)
        ADD_FAILURE() << phase << " waits " << count << " times in " << name;
      EXPECT_EQ(counts.read_backs, phase == "reduce" ? 1 : 0) << phase;
    }
    EXPECT_EQ(phases.count("reduce"), 1u);
  }

  static Settings With(Settings settings, const Settings& more) {
    settings.insert(settings.end(), more.begin(), more.end());
    return settings;
  }

  static inline test::TempDir* dir = nullptr;
};

TEST_F(StepWaits, AStepOfEveryMixerReadsOnce) {
  for (const std::string& mixer : model::NamesOf(model::kMixers)) {
    SCOPED_TRACE(mixer);
    ExpectOneRead(CountsOf(With(kMqar, {"model.mixer=" + mixer})));
  }
}

TEST_F(StepWaits, PackedTextDropoutAndEveryObjectiveReadOnce) {
  for (const char* mixer :
       {"retention", "retnet", "gla", "d2d", "rebased", "mamba", "mamba2", "softmax"}) {
    SCOPED_TRACE(mixer);
    ExpectOneRead(CountsOf({std::string("model.mixer=") + mixer, "model.dropout=0.1"}));
  }
  ExpectOneRead(CountsOf({"model.mixer=d2d", "model.mixer.d2d.legacy_view=32"}));
  ExpectOneRead(CountsOf({"model.mixer=fastformer", "model.objective=masked_token"}));
  ExpectOneRead(CountsOf({"train.precision=bf16"}));
  // Parameters that are used twice get one gradient.
  ExpectOneRead(CountsOf({"model.mixer=rebased", "model.mixer.rebased.norm_scope=per_head",
                          "model.mixer.rebased.shared_affine=true"}));
  for (const char* map : {"hedgehog", "elementwise_product", "t2r"}) {
    SCOPED_TRACE(map);
    ExpectOneRead(CountsOf({"model.mixer=linear_attention",
                            std::string("model.mixer.linear_attention.feature_map=") + map,
                            "model.mixer.linear_attention.tie_feature_map_qk=true"}));
  }
  ExpectOneRead(
      CountsOf({"data.positions=randomised", "data.positions_length=64", "model.mixer=softmax"}));
}

// A graph would replay the uploads of the first batch. Constants are uploaded before the recording.
TEST_F(StepWaits, AGraphOfEveryMixerUploadsNothing) {
  for (const std::string& mixer : model::NamesOf(model::kMixers)) {
    SCOPED_TRACE(mixer);
    const Phases phases = CountsOf(
        With(kMqar, {"model.mixer=" + mixer, "train.cuda_graphs=true", "model.dropout=0.1"}));
    ExpectOneRead(phases);
    for (const char* phase : {"forward", "backward"}) {
      EXPECT_EQ(phases.at(phase).uploads, 0) << phase;
      EXPECT_GT(phases.at(phase).num_kernels(), 0) << phase;
    }
  }
}

// The same for rows that hold several documents, which differ between micro-batches.
TEST_F(StepWaits, AGraphOfPackedRowsUploadsNothing) {
  for (const std::string& mixer : model::NamesOf(model::kMixers)) {
    SCOPED_TRACE(mixer);
    const Settings settings = {"model.mixer=" + mixer, "train.cuda_graphs=true", "data.seq_len=64",
                               "train.global_batch=8", "train.micro_batch=4"};
    const model::LanguageModel model(ParseRunConfig(kRecipe, "test", settings).model);
    if (!model.LayerOfOneDocument().empty() || !model.LayerOfFixedDocuments().empty()) continue;
    const Phases phases = CountsOf(settings, /*steps_before=*/2);
    ExpectOneRead(phases);
    for (const char* phase : {"forward", "backward"})
      EXPECT_EQ(phases.at(phase).uploads, 0) << phase;
  }
}

TEST_F(StepWaits, AGraphOfOtherPartsUploadsNothing) {
  for (const Settings& parts : std::vector<Settings>{
           {"model.mixer=base_conv", "model.mixer.base_conv.kernel_size=-1"},
           {"model.mixer=softmax", "model.mixer.softmax.rope_theta=0", "model.positions=t5"},
           {"model.mixer=leap", "model.norm=layer_norm"}}) {
    SCOPED_TRACE(parts.back());
    const Phases phases = CountsOf(With(With(kMqar, parts), {"train.cuda_graphs=true"}));
    for (const char* phase : {"forward", "backward"})
      EXPECT_EQ(phases.at(phase).uploads, 0) << phase;
  }
}

// Consumers of the columns of a joined product write their gradients next to each other, so the
// backward of a layer concatenates nothing.
TEST_F(StepWaits, TheBackwardOfALayerConcatenatesNothing) {
  const ops::JoinedProductsEverywhere as_on_a_gpu;
  // The end of a step joins the losses of its micro-batches, whatever the number of layers.
  const auto concatenations = [](const Settings& mixer, int64_t num_layers) {
    Phases phases = CountsOf(With(mixer, {"model.num_layers=" + std::to_string(num_layers)}));
    return phases.at("backward").kernels["aten::cat"];
  };
  const std::vector<Settings> mixers = {
      {"model.mixer=gla"},
      {"model.mixer=retention"},
      {"model.mixer=softmax"},
      {"model.mixer=softmax", "model.mixer.softmax.qkv_bias=true"},
      {"model.mixer=mamba"},
      {"model.mixer=mamba2"},
      {"model.mixer=gated_delta_net"},
      {"model.mixer=kda"},
      {"model.mixer=d2d"},
      {"model.mixer=rebased"}};
  for (const Settings& mixer : mixers) {
    SCOPED_TRACE(mixer.back());
    EXPECT_EQ(concatenations(mixer, 3), concatenations(mixer, 2));
  }
  // The count sees a layer that does.
  const Settings joins = {"model.mixer=hgrn2"};
  EXPECT_GT(concatenations(joins, 3), concatenations(joins, 2));
}

// The kernels that a layer launches per micro-batch in forward and backward, as the difference
// between models of three and of two layers. They include the mixer, the channel mixer, the norms,
// and a copy of each gradient that no kernel writes in place. Products are joined as on a GPU. A
// kernel of this project counts as one, although a scan is several launches on a GPU. If only the
// CPU has a fused kernel (softmax_attention/, delta_rule/), this is the CPU's count. A mixer
// without a row has the goal, 30. In kda, the decay and the output gate have a second product each.
// hyena and the convolutions of base_conv that are as long as the row are composed of LibTorch
// operations, and so are rwkv7, the gates of hgrn2 and gsa and the softmax over slots. mla splits
// and joins latents and heads, and parallel has two mixers.
TEST_F(StepWaits, LaunchesOfALayerAndMicroBatch) {
  const ops::JoinedProductsEverywhere as_on_a_gpu;
  const std::map<std::string, int64_t> bounds = {{"based", 20},
                                                 {"base_conv", 25},
                                                 {"gated_conv", 28},
                                                 {"rebased", 22},
                                                 {"softmax", 24},
                                                 {"retention", 25},
                                                 {"linear_attention", 23},
                                                 {"retnet", 28},
                                                 {"gla", 29},
                                                 {"fastformer", 27},
                                                 {"leap", 21},
                                                 {"d2d", 28},
                                                 {"delta_net", 29},
                                                 {"gated_delta_net", 29},
                                                 {"kda", 37},
                                                 {"gated_delta_product", 42},
                                                 {"gsa", 49},
                                                 {"hgrn2", 57},
                                                 {"mla", 38},
                                                 {"hyena", 119},
                                                 {"rwkv7", 285},
                                                 {"parallel", 44},
                                                 {"rwkv_channel_mix", 31}};
  const auto launches = [&](const std::string& mixer, int64_t num_layers) {
    int64_t sum = 0;
    const Phases phases = CountsOf(With(kMqar, {"model.mixer=" + mixer, "train.global_batch=2",
                                                "model.num_layers=" + std::to_string(num_layers)}));
    for (const char* phase : {"forward", "backward"}) sum += phases.at(phase).num_kernels();
    return sum;
  };
  for (const std::string& mixer : model::NamesOf(model::kMixers)) {
    const int64_t of_layer = launches(mixer, 3) - launches(mixer, 2);
    const auto own = bounds.find(mixer);
    EXPECT_GT(of_layer, 0) << mixer;
    EXPECT_LE(of_layer, own == bounds.end() ? 30 : own->second) << mixer;
  }
}

}  // namespace
}  // namespace halflife::train
