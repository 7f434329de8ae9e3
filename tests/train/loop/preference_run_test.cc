// Whole runs on pairs of answers (train.preference): a small model learns them, and ranks, stages,
// slices and resumes give equal bits.
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "ckpt/merged_weights.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_writer.h"
#include "core/concat.h"
#include "core/philox.h"
#include "data/examples/prepare_examples.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "train/loop/training_runs.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;

// Returns pairs in which the preferred answer repeats the prompt's letter, and the rejected one
// does not.
std::string MakePairs(int count) {
  const RandomKey key = MakeRandomKey(5, RandomPurpose::kTest, 3);
  std::string lines;
  for (int i = 0; i < count; ++i) {
    const RandomCounter draw = Draw(key, static_cast<uint64_t>(i), 0, 0);
    const char letter = static_cast<char>('a' + draw.x[0] % 4),
               other = static_cast<char>('a' + (draw.x[0] + 1 + draw.x[1] % 3) % 4);
    const auto text = [&](char c) { return std::string(1 + draw.x[2] % 3, c); };
    lines += Concat(R"({"prompt": "n)", i, " ", letter, R"(", "chosen": ")", text(letter),
                    R"(", "rejected": ")", text(other), text(other), "\"}\n");
  }
  return lines;
}

constexpr char kRecipe[] = R"(
data { seq_len: 64 prefetch: 0 }
model { model_dim: 16 num_layers: 2 channel_mixer { swiglu { width: 32 } }
        mixer { gla { num_heads: 2 } } }
optimizer { lr: 3e-3 }
schedule { warmup_steps: 2 }
train { steps: 8 global_batch: 8 micro_batch: 2 device: "cpu" log_every: 1
        preference { loss: "dpo" } }
eval { every: 4 windows: 5 }
ckpt { background: false }
log { tensorboard: false }
)";

class PreferenceRun : public testing::Test {
 protected:
  struct Run {
    std::string folder;
    int ranks = 1;
    std::vector<std::string> set = {};
    std::string from = "base", resume = "auto";
  };

  static void SetUpTestSuite() {
    at::set_num_threads(1);
    data_dir = new test::TempDir();
    std::ofstream(*data_dir / "pairs.jsonl") << MakePairs(600);
    data::PrepareExamples({.labels = data::RowLabels::kPreferences,
                           .input = {.paths = {(*data_dir / "pairs.jsonl").string()},
                                     .tokenizer = "bytes",
                                     .validation_fraction = 0.2},
                           .rules = {.row_len = 64},
                           .output = {.out = *data_dir / "data", .threads = 1}});
    std::ofstream(*data_dir / "text.jsonl") << R"({"prompt": "a", "answer": "b"})";
    data::PrepareExamples({.labels = data::RowLabels::kAnswers,
                           .input = {.paths = {(*data_dir / "text.jsonl").string()},
                                     .tokenizer = "bytes",
                                     .validation_fraction = 0},
                           .rules = {.row_len = 64},
                           .output = {.out = *data_dir / "answers", .threads = 1}});
    Train({.folder = "base",
           .set = {"train.preference.loss=none", "train.steps=1", "train.global_batch=2",
                   "eval.every=0", Concat("data.path=", (*data_dir / "answers").string())},
           .from = ""});
  }
  static void TearDownTestSuite() { delete data_dir; }

  static ExitCode Train(const Run& run) {
    std::vector<std::string> set = {Concat("data.path=", (*data_dir / "data").string())};
    set.insert(set.end(), run.set.begin(), run.set.end());
    std::unique_ptr<ckpt::WeightSource> from;
    if (!run.from.empty())
      from = ckpt::WeightsOfStep(ckpt::StepReader::Open(ckpt::FindStep(*data_dir / run.from)));
    std::string log;
    return TrainOnThreads(ParseRunConfig(kRecipe, "test", set), *data_dir / run.folder, run.ranks,
                          {.resume = ckpt::ParseResume(run.resume), .init_from = from.get()}, log);
  }
  using Losses = std::map<std::pair<int, std::string>, double>;
  static Losses Metrics(const std::string& folder) {
    Losses losses;
    std::ifstream file(*data_dir / folder / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      const auto json = nlohmann::json::parse(line);
      for (const char* name : {"loss", "grad_norm", "pairs", "reward_margin", "reward_accuracy",
                               "val_loss", "val_reward_margin", "val_accuracy", "val_pairs"})
        if (json.contains(name)) losses[{json["step"], name}] = json[name];
    }
    return losses;
  }
  static std::string Digest(const std::string& folder) {
    return ToHex(ckpt::GatheredHash(ckpt::StepReader::Open(ckpt::FindStep(*data_dir / folder))));
  }

  static test::TempDir* data_dir;
};
test::TempDir* PreferenceRun::data_dir = nullptr;

// The first step has the loss of equal models. Then the model learns to prefer the chosen answers
// of held-out prompts.
TEST_F(PreferenceRun, LearnsPreferences) {
  for (const std::string loss : {"dpo", "ipo"}) {
    SCOPED_TRACE(loss);
    Train({.folder = loss,
           .set = {Concat("train.preference.loss=", loss), "train.steps=120", "eval.every=120",
                   "eval.windows=0", "optimizer.lr=1e-2"}});
    const Losses metrics = Metrics(loss);
    const double equal = loss == "dpo" ? std::log(2) : 25;  // (1 / (2 beta))^2
    EXPECT_NEAR(metrics.at({1, "loss"}), equal, 1e-5 * equal);
    EXPECT_NEAR(metrics.at({0, "val_loss"}), equal, 1e-9 * equal);
    EXPECT_NEAR(metrics.at({0, "val_reward_margin"}), 0, 1e-7);
    EXPECT_LT(metrics.at({120, "val_loss"}), 0.6 * equal);
    EXPECT_GT(metrics.at({120, "val_accuracy"}), 0.95);
    EXPECT_GT(metrics.at({120, "val_reward_margin"}), 0.1);
    EXPECT_GT(metrics.at({120, "val_pairs"}), 80);
  }
}

// From stage 2 on, each micro-batch is summed over ranks, which parallel.slices does on any mesh.
TEST_F(PreferenceRun, AnyNumberOfRanksGivesEqualBits) {
  const std::vector<std::string> in_turn = {"parallel.slices=1"};
  Train({.folder = "one"});
  Train({.folder = "in_turn", .set = in_turn});
  ASSERT_EQ(Metrics("one").size(), 8u * 5 + 3 * 4);
  for (const auto& [ranks, zero] :
       std::vector<std::pair<int, int>>{{2, 0}, {4, 1}, {4, 2}, {2, 3}, {4, 3}}) {
    SCOPED_TRACE(Concat(ranks, " ranks, stage ", zero));
    const std::string folder = Concat("r", ranks, "z", zero);
    std::vector<std::string> set = zero >= 2 ? in_turn : std::vector<std::string>();
    set.push_back(Concat("parallel.zero_stage=", zero));
    Train({.folder = folder, .ranks = ranks, .set = set});
    const std::string same = zero >= 2 ? "in_turn" : "one";
    EXPECT_EQ(Metrics(folder), Metrics(same));
    EXPECT_EQ(Digest(folder), Digest(same));
  }
  Train({.folder = "block", .set = {"train.recompute=block"}});
  EXPECT_EQ(Digest("block"), Digest("one"));
}

// Slices of rows: equal bits on any mesh with parallel.slices, and rounding apart from whole rows.
TEST_F(PreferenceRun, RowsOverSeveralRanks) {
  Train({.folder = "whole"});
  const std::vector<std::string> slices = {"parallel.slices=2"};
  Train({.folder = "slices", .ranks = 2, .set = slices});
  Train({.folder = "slices4", .ranks = 4, .set = {"parallel.slices=2", "parallel.zero_stage=3"}});
  EXPECT_EQ(Metrics("slices4"), Metrics("slices"));
  Train({.folder = "sp", .ranks = 4, .set = {"parallel.sp=2"}});
  const Losses whole = Metrics("whole");
  for (const std::string folder : {"slices", "sp"}) {
    const Losses sliced = Metrics(folder);
    ASSERT_EQ(sliced.size(), whole.size());
    for (const auto& [key, value] : whole) {
      if (key == std::pair(0, std::string("val_accuracy"))) continue;  // ties, up to rounding
      EXPECT_NEAR(sliced.at(key), value, 1e-4 * std::max(1.0, std::abs(value)))
          << folder << " step " << key.first << " " << key.second;
    }
  }
}

void FlipLastByte(const fs::path& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(byte);
}

TEST_F(PreferenceRun, ResumesExactly) {
  const std::vector<std::string> saves = {"ckpt.every=2", "ckpt.keep_last=9"};
  Train({.folder = "saved", .set = saves});
  const std::string whole = Digest("saved");
  const Losses metrics = Metrics("saved");
  Train({.folder = "saved", .set = saves, .resume = "step=2"});
  EXPECT_EQ(Digest("saved"), whole);
  EXPECT_EQ(Metrics("saved"), metrics);
  // Another run continues this one, with its reference.
  Train({.folder = "other",
         .set = saves,
         .from = "",
         .resume = Concat("path=", (*data_dir / "saved/ckpt/step_000000000004").string())});
  EXPECT_EQ(Digest("other"), whole);
  EXPECT_TRUE(fs::exists(*data_dir / "other" / kReferenceFile));
  // A step outside of a run needs the file in the own folder. The loaded model is no reference.
  const fs::path loose = *data_dir / "loose_step";
  fs::create_directories(loose);
  fs::copy(*data_dir / "saved/ckpt/step_000000000004", loose / "step_000000000004",
           fs::copy_options::recursive);
  const Run from_loose = {.folder = "from_loose",
                          .set = saves,
                          .resume = Concat("path=", (loose / "step_000000000004").string())};
  EXPECT_HL_ERROR(Train(from_loose), ExitCode::kNoUsableCheckpoint,
                  (*data_dir / "from_loose" / kReferenceFile).string(),
                  " with the scores of the initial model is missing. Restore that file from the "
                  "run whose step is resumed");
  fs::create_directories(*data_dir / "from_loose");  // a run that fails removes its new folder
  fs::copy(*data_dir / "saved" / kReferenceFile, *data_dir / "from_loose" / kReferenceFile);
  Train(from_loose);
  EXPECT_EQ(Digest("from_loose"), whole);
  FlipLastByte(*data_dir / "saved" / kReferenceFile);
  EXPECT_HL_ERROR(Train({.folder = "saved", .set = saves, .resume = "step=2"}),
                  ExitCode::kNoUsableCheckpoint, (*data_dir / "saved" / kReferenceFile).string(),
                  " is damaged: the scores do not have the hash of its header. Restore the file");
  fs::remove(*data_dir / "saved" / kReferenceFile);
  EXPECT_HL_ERROR(Train({.folder = "saved", .set = saves, .resume = "step=2"}),
                  ExitCode::kNoUsableCheckpoint, kReferenceFile,
                  " with the scores of the initial model is missing. Restore that file");
  EXPECT_EQ(ckpt::ParseStepName(ckpt::FindStep(*data_dir / "saved"))->step, 8)
      << "newer steps were renamed before the reference was read";
  EXPECT_HL_ERROR(Train({.folder = "other", .set = {"train.preference.beta=0.2"}}),
                  ExitCode::kUsage, "train.preference.beta");
}

// The pairs of a dataset take hours, so a rank may be later than the deadline of a collective.
TEST_F(PreferenceRun, ScoresWaitForASlowRank) {
  const data::Dataset dataset = data::Dataset::Open(*data_dir / "data");
  const data::TokenView view = data::ViewOf(dataset, data::Split::kValidation);
  const std::vector<int64_t> rows = {0, 1, 2, 3};
  const auto score = [&](int ranks, bool waits) {
    std::vector<double> values;
    const auto body = [&](dist::Communicator& comm) {
      at::set_num_threads(1);
      model::LanguageModel model({.vocab_size = dataset.info().vocab_size,
                                  .model_dim = 16,
                                  .num_layers = 1,
                                  .mixer = model::MixerConfig("gla", {{"num_heads", 2}}),
                                  .channel_mixer = model::ChannelMixerConfig("none", {})});
      model.BindOwnMemory(/*seed=*/1, /*requires_grad=*/false);
      const auto pause = [&] {
        if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
      };
      const AnswerScores scores = ScoreAnswers(
          model, view, rows, {.seq_len = 64, .batch = 2, .waits_for_all = waits, .on_batch = pause},
          comm);
      if (comm.rank() == 0) values = scores.values();
    };
    dist::LocalWorld::Run(ranks, body, {.timeout_s = 0.5});
    return values;
  };
  EXPECT_EQ(score(2, /*waits=*/true), score(1, /*waits=*/true));
  EXPECT_THROW(score(2, /*waits=*/false), Error);
}

// With LoRA the base is the reference: the first loss is that of equal models.
TEST_F(PreferenceRun, WithLora) {
  const std::vector<std::string> lora = {"lora.rank=4", "train.steps=60", "optimizer.lr=3e-2",
                                         "eval.every=60"};
  Train({.folder = "lora", .set = lora});
  const Losses metrics = Metrics("lora");
  EXPECT_NEAR(metrics.at({1, "loss"}), std::log(2), 1e-5);
  EXPECT_LT(metrics.at({60, "val_loss"}), std::log(2) - 0.01);
  Train({.folder = "lora2", .ranks = 2, .set = lora});
  EXPECT_EQ(Digest("lora2"), Digest("lora"));
}

// The reference has no dropout, so the trained model has none either. Otherwise the first loss
// would compare answers by their lengths.
TEST_F(PreferenceRun, IsWithoutDropout) {
  Train({.folder = "dropout", .set = {"model.dropout=0.5", "train.steps=1"}});
  EXPECT_NEAR(Metrics("dropout").at({1, "loss"}), std::log(2), 1e-5);
}

TEST_F(PreferenceRun, RefusesLoraWithoutTrainedParameters) {
  EXPECT_HL_ERROR(
      Train({.folder = "frozen",
             .set = {"lora.rank=4", "optimizer.group=[{ match: \".\" frozen: true }]"}}),
      ExitCode::kUsage, "optimizer.group: all parameters are frozen");
}

TEST_F(PreferenceRun, Refuses) {
  EXPECT_HL_ERROR(Train({.folder = "alone", .from = ""}), ExitCode::kUsage,
                  "train.preference.loss dpo compares the answers with those of another model, and "
                  "none is named. Use --init-from RUN.");
  EXPECT_HL_ERROR(
      Train({.folder = "text",
             .set = {Concat("data.path=", (*data_dir / "answers").string()), "eval.every=0"}}),
      ExitCode::kUsage,
      "has no pairs of answers, and train.preference.loss is dpo. Use a dataset of "
      "`halflife prepare --labels preferences`");
  EXPECT_HL_ERROR(Train({.folder = "none", .set = {"train.preference.loss=none"}}),
                  ExitCode::kUsage,
                  "has pairs of answers, and train.preference.loss is none. Use --set "
                  "train.preference.loss=dpo.");
  EXPECT_HL_ERROR(
      Train({.folder = "set",
             .set = {"train.preference.loss=none",
                     Concat("data.path=", (*data_dir / "answers").string()),
                     Concat("eval.set=[{name:\"pairs\" path:\"", (*data_dir / "data").string(),
                            "\"}]")}}),
      ExitCode::kUsage,
      "eval.set: the validation set 'pairs' holds pairs of answers, which only a run with "
      "train.preference compares",
      "Use a dataset of `halflife prepare --labels answers` or messages.");
  EXPECT_FALSE(fs::exists(*data_dir / "set")) << "refused before the first step";
  EXPECT_HL_ERROR(
      Train({.folder = "bad", .set = {"train.preference.loss=kto", "train.preference.beta=0"}}),
      ExitCode::kUsage, "train.preference.loss: 'kto'. Use one of none, dpo, ipo",
      "train.preference.beta: 0. Use a number > 0");
  EXPECT_HL_ERROR(Train({.folder = "z", .set = {"train.z_loss=1e-4"}}), ExitCode::kUsage,
                  "train.preference.loss: dpo. Use none with train.z_loss above 0");
}

}  // namespace
}  // namespace halflife::train
