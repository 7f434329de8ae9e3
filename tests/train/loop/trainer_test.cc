// Whole training runs on rank threads, for behaviour that no single component of the loop
// implements.
#include "train/loop/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>

#include "ckpt/weight_source.h"
#include "core/files.h"
#include "data/examples/prepare_examples.h"
#include "support/expect_error.h"
#include "support/full_disk.h"
#include "train/loop/training_runs.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

constexpr char kRecipe[] = R"(
data { seq_len: 32 prefetch: 0 }
model { model_dim: 16 num_layers: 1 channel_mixer { swiglu { width: 32 } }
        mixer { retention { num_heads: 2 } } }
optimizer { lr: 3e-3 }
train { steps: 4 global_batch: 8 micro_batch: 4 device: "cpu" }
eval { windows: 1 }
log { tensorboard: false }
)";

class TrainerTest : public TrainingRuns {
 protected:
  TrainerTest() : TrainingRuns(kRecipe) {}
};

// The first reader gets the weights late.
class LateWeights : public ckpt::StepWeights {
 public:
  using StepWeights::StepWeights;
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    if (!has_read_.exchange(true)) std::this_thread::sleep_for(std::chrono::seconds(5));
    StepWeights::ReadRange(name, begin, end, out);
  }

 private:
  mutable std::atomic<bool> has_read_ = false;
};

// The deadline of a collective does not apply while another rank reads the weights to start from.
TEST_F(TrainerTest, RanksWaitForOneThatReadsTheInitialWeightsSlowly) {
  ASSERT_EQ(Train({}), ExitCode::kFinished);
  const LateWeights weights(Open(4));
  const RunConfig config =
      ParseRunConfig(kRecipe, "test", {Concat("data.path=", (data_dir->path() / "data").string())});
  EXPECT_EQ(TrainOnThreads(config, dir_ / "late", /*ranks=*/2, {.init_from = &weights}, log_,
                           {.timeout_s = 2}),
            ExitCode::kFinished)
      << log_;
}

// As if hosts had different copies of the dataset. Threads can only have different paths.
TEST_F(TrainerTest, RanksWithDifferentDatasetsAreRefused) {
  const auto body = [&](dist::Communicator& comm) {
    const auto context = dist::MakeLocalRankContext(comm);
    const std::string data = (data_dir->path() / (comm.rank() == 1 ? "other" : "data")).string();
    const RunConfig config = ParseRunConfig(kRecipe, "test", {Concat("data.path=", data)});
    Trainer(config, {}, RunFolder::Open(folder_, *context, {}), *context, {});
  };
  EXPECT_HL_ERROR(dist::LocalWorld::Run(3, body), ExitCode::kUsage,
                  "the ranks have read different datasets: rank 1 with the hash ",
                  ", the others with ", "Copy the same files to all hosts");
}

// Gives another weight to each reader.
class OtherWeights : public ckpt::StepWeights {
 public:
  using StepWeights::StepWeights;
  void ReadRange(const std::string& name, int64_t begin, int64_t end, float* out) const override {
    StepWeights::ReadRange(name, begin, end, out);
    out[0] += static_cast<float>(num_reads_++);
  }

 private:
  mutable std::atomic<int> num_reads_ = 0;
};

TEST_F(TrainerTest, RanksWithDifferentInitialWeightsAreRefused) {
  ASSERT_EQ(Train({}), ExitCode::kFinished);
  const OtherWeights weights(Open(4));
  const RunConfig config =
      ParseRunConfig(kRecipe, "test", {Concat("data.path=", (data_dir->path() / "data").string())});
  EXPECT_HL_ERROR(
      TrainOnThreads(config, dir_ / "other", /*ranks=*/2, {.init_from = &weights}, log_),
      ExitCode::kUsage,
      Concat("the ranks have read different weights from ", weights.where(), ": rank 1 with"));
}

// The same command would go back to the older step again.
TEST_F(TrainerTest, ARunThatWentBackSaysHowItGoesOn) {
  const std::vector<std::string> whole = {"ckpt.every=1", "ckpt.keep_last=9"};
  std::vector<std::string> stopped = whole;
  stopped.emplace_back("train.time_limit_s=0.001");
  ASSERT_EQ(Train({.set = whole}), ExitCode::kFinished);
  EXPECT_EQ(Train({.set = stopped, .resume = "step=1"}), ExitCode::kRequeue);
  EXPECT_THAT(log_, HasSubstr("stopped after step 2 of 4: saved. Start the same command again with "
                              "--resume auto to continue."));
  EXPECT_EQ(Train({.set = stopped}), ExitCode::kRequeue);
  EXPECT_THAT(log_,
              HasSubstr("after step 3 of 4: saved. Start the same command again to continue."));
  EXPECT_EQ(Train({.set = stopped, .resume = "step=1", .skip_data = 1}), ExitCode::kRequeue);
  EXPECT_THAT(log_, HasSubstr("again with --resume auto and without --skip-data to continue."));
}

// All ranks agree on the stop, so the running save can end on all of them. The fault schedule makes
// the save last longer than the step.
TEST_F(TrainerTest, AStopThatAllDecideWaitsForTheSaveUnderWay) {
  const dist::LocalOptions slow = {.timeout_s = 60, .schedule = {{.seed = 1, .max_delay_s = 0.02}}};
  for (const int ranks : {1, 2}) {
    SCOPED_TRACE(Concat(ranks, " ranks"));
    EXPECT_HL_ERROR(Train({.ranks = ranks,
                           .set = {"optimizer.lr=1e16", "schedule.kind=constant", "ckpt.every=1",
                                   "train.on_nonfinite=stop"},
                           .world = slow}),
                    ExitCode::kNonFinite, "step 2: ", "is not finite");
    EXPECT_TRUE(fs::exists(folder_ / "ckpt/step_000000000001/manifest.pb")) << log_;
    EXPECT_THAT(log_, HasSubstr("wrote step 1"));
    fs::remove_all(folder_);
  }
}

// Validations are after steps 3, 6 and 8, saves after step 5 and at the end. No best validation
// coincides with a regular save.
TEST_F(TrainerTest, TheBestValidationIsSavedWhereNoSaveIsDue) {
  const std::vector<std::string> set = {"train.steps=8",    "eval.every=3",
                                        "eval.windows=0",   "ckpt.every=5",
                                        "ckpt.keep_last=9", "ckpt.keep_best=val_loss"};
  for (const char* background : {"true", "false"}) {
    std::vector<std::string> saving = set;
    saving.push_back(Concat("ckpt.background=", background));
    ASSERT_EQ(Train({.set = saving}), ExitCode::kFinished);
    std::vector<double> losses;
    for (const int64_t step : {3, 6, 8}) {
      const auto reader = Open(step);
      losses.push_back(reader.state().metrics.at("val_loss"));
    }
    EXPECT_LT(losses[1], losses[0]) << "of a model that learns";
    fs::remove_all(folder_);
  }
}

// Two further sets: the training split, and another dataset.
TEST_F(TrainerTest, NamedValidationSetsChangeNoBitOfTraining) {
  const std::vector<std::string> set = {"eval.every=2", "ckpt.every=2", "ckpt.keep_last=9"};
  ASSERT_EQ(Train({.ranks = 2, .set = set}), ExitCode::kFinished);
  // Behind the header, which names the attempt.
  const auto arrays = [&] {
    return ReadFile(folder_ / "ckpt/step_000000000004/rank_00001.safetensors", ExitCode::kInternal)
        .substr(4096);
  };
  const std::string expected = arrays();
  fs::remove_all(folder_);
  std::vector<std::string> with_sets = set;
  with_sets.push_back(Concat("eval.set=[{name:\"fit\" path:\"",
                             (data_dir->path() / "data").string(),
                             "\" split:\"train\" windows:3},{name:\"other\" path:\"",
                             (data_dir->path() / "other").string(), "\"}]"));
  with_sets.emplace_back("ckpt.keep_best=val_loss/other");
  ASSERT_EQ(Train({.ranks = 2, .set = with_sets}), ExitCode::kFinished) << log_;
  EXPECT_TRUE(arrays() == expected);
  EXPECT_THAT(log_, HasSubstr("step 4: validation loss of other "));
  const auto reader = Open(4);
  const auto& metrics = reader.state().metrics;
  EXPECT_TRUE(metrics.contains("val_loss") && metrics.contains("val_loss/fit"));
  EXPECT_TRUE(metrics.contains("best_val_loss/other"));
  const std::string lines = ReadFile(folder_ / "metrics.jsonl", ExitCode::kInternal);
  EXPECT_THAT(lines, HasSubstr("\"val_windows_scored/fit\":3"));
  EXPECT_THAT(lines, HasSubstr("\"val_bits_per_byte/other\""));
}

// Without a split of its own, a run validates its named sets only.
TEST_F(TrainerTest, ANamedSetReplacesAMissingValidationSplit) {
  const auto set = [&](const std::string& more) {
    return Concat("eval.set=[{name:\"a\" path:\"", (data_dir->path() / "mqar").string(), "\" ",
                  more, "}]");
  };
  const std::vector<std::string> labelled = {"data.seq_len=16", "model.objective=labelled",
                                             "eval.every=2", "ckpt.keep_best=val_error/a"};
  std::vector<std::string> fits = labelled, empty = labelled;
  fits.push_back(set("split:\"train\""));
  empty.push_back(set(""));
  EXPECT_HL_ERROR(Train({.set = empty, .data = "mqar"}), ExitCode::kData, "set 'a' has no tokens");
  ASSERT_EQ(Train({.set = fits, .data = "mqar"}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("this run validates only the sets of eval.set"));
  EXPECT_THAT(log_, HasSubstr("validation loss of a "));
}

TEST_F(TrainerTest, AValidationSetMustHaveTheTokensOfTheTrainingData) {
  const std::string path = (data_dir->path() / "mqar").string();
  EXPECT_HL_ERROR(Train({.set = {Concat("eval.set=[{name:\"a\" path:\"", path, "\"}]")}}),
                  ExitCode::kUsage, "eval.set 'a': the dataset ", path,
                  " has no tokenizer, and the training data ", "has one. Use a dataset that");
  EXPECT_HL_ERROR(
      Train({.set = {Concat("eval.set=[{name:\"a/b\" path:\"", path,
                            "\" split:\"all\"},{name:\"a\"},{name:\"a\" path:\"x\"}]"),
                     "eval.every=1", "ckpt.keep_best=val_loss/b"}}),
      ExitCode::kUsage, "eval.set.0.name: 'a/b'. Use letters", "eval.set.0.split: 'all'",
      "eval.set.1.path: ''. Use a folder", "eval.set.2.name: a. Use a name that no other",
      "ckpt.keep_best: 'val_loss/b'. Use one of , loss, val_loss, val_error, val_loss/a");
}

// With the same number of classes in another order, losses would be wrong without an error.
TEST_F(TrainerTest, ClassesHaveTheOrderOfTheTrainingData) {
  std::string rows = "text\tlabel\n";
  for (char c = 'a'; c < 'm'; ++c) rows += Concat(c, "\t", c % 2 == 0 ? "no" : "yes", "\n");
  for (const char* name : {"rows.tsv", "held_out.tsv"}) std::ofstream(dir_ / name) << rows;
  const auto prepare = [&](const std::string& out, const std::vector<std::string>& classes) {
    data::PrepareExamples({.labels = data::RowLabels::kClasses,
                           .input = {.paths = {(dir_ / "rows.tsv").string()},
                                     .validation_paths = {(dir_ / "held_out.tsv").string()},
                                     .tokenizer = "bytes"},
                           .rules = {.row_len = 8},
                           .classes = classes,
                           .output = {.out = dir_ / out, .threads = 1}});
    return (dir_ / out).string();
  };
  const std::string own = prepare("own", {"no", "yes"}), other = prepare("other", {"yes", "no"});
  const std::vector<std::string> classifier = {"data.seq_len=8", "model.objective=classification",
                                               "model.objective.classification.num_classes=2",
                                               "model.head.tied=false"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = classifier;
    all.insert(all.end(), more.begin(), more.end());
    return Train({.set = all, .data = ""});
  };
  const auto set = [](const std::string& path) {
    return Concat("eval.set=[{name:\"a\" path:\"", path, "\"}]");
  };
  ASSERT_EQ(with({"data.path=" + own, set(own)}), ExitCode::kFinished) << log_;
  fs::remove_all(folder_);
  EXPECT_HL_ERROR(with({"data.path=" + own, set(other)}), ExitCode::kUsage,
                  "eval.set 'a': the training data ", " numbers the classes no, yes, and ",
                  " numbers yes, no. Prepare it with --classes no,yes.");
  EXPECT_HL_ERROR(with({Concat("data.source=[{name:\"a\" path:\"", own,
                               "\" weight:1},{name:\"b\" path:\"", other, "\" weight:1}]")}),
                  ExitCode::kUsage, "data.source 'b': the training data ",
                  " numbers yes, no. Prepare it with --classes no,yes.");
}

// A long convolution takes text of one document. A set of several is refused before training.
TEST_F(TrainerTest, AValidationSetHasRowsThatTheMixerTakes) {
  data::Prepare({.input = {.paths = {(data_dir->path() / "text.txt").string()},
                           .tokenizer = "bytes",
                           .validation_tail = 0.1},
                 .documents = data::DocumentMode::kFile,
                 .output = {.out = dir_ / "one", .threads = 1}});
  const std::string one = "data.path=" + (dir_ / "one").string();
  const auto set = [](const fs::path& path) {
    return Concat("eval.set=[{name:\"a\" path:\"", path.string(), "\"}]");
  };
  const std::string packed = set(data_dir->path() / "data"), hyena = "model.mixer=hyena";
  EXPECT_HL_ERROR(
      Train({.set = {one, hyena, packed}, .data = ""}), ExitCode::kUsage,
      "eval.set: the mixer of layer 0, hyena, mixes whole rows, and rows of the validation set 'a' "
      "are packed with several documents. Use text that is one document");
  EXPECT_EQ(Train({.set = {one, hyena, set(dir_ / "one")}, .data = ""}), ExitCode::kFinished);
  fs::remove_all(folder_);
  const std::string continues = "data.reset_at_documents=false";
  EXPECT_EQ(Train({.set = {one, hyena, packed, continues}, .data = ""}), ExitCode::kFinished);
}

// At a rate of 0, no validation is better than the first.
TEST_F(TrainerTest, ARunWithoutABetterValidationEnds) {
  const std::vector<std::string> set = {"train.steps=20", "eval.every=2", "train.patience=3",
                                        "optimizer.lr=0"};
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished);
  EXPECT_THAT(log_, HasSubstr("the last 3 validations had no new best val_loss (train.patience)"));
  EXPECT_THAT(log_, HasSubstr("finished: 8 steps"));
  EXPECT_EQ(Train({.set = set}), ExitCode::kFinished);
  EXPECT_THAT(log_, HasSubstr("this run is finished (step 8): nothing to do"));
}

// A blend of two datasets. `weights` are the fields of each source behind its path.
class BlendTest : public TrainerTest {
 protected:
  struct Source {
    std::string name, data;
    std::string weight = "weight:1";
  };
  static std::string Set(const std::vector<Source>& sources) {
    return Concat("data.source=[",
                  Join(sources, ",",
                       [](const Source& source) {
                         return Concat("{name:\"", source.name, "\" path:\"",
                                       (data_dir->path() / source.data).string(), "\" ",
                                       source.weight, "}");
                       }),
                  "]");
  }
  ckpt::DataCursor CursorOf(int64_t step) const { return Open(step).state().data; }
  // Returns the arrays of a checkpoint of one rank.
  std::string Arrays(int64_t step) const {
    return ReadFile(folder_ / "ckpt" / ckpt::StepName(step) / "rank_00000.safetensors",
                    ExitCode::kInternal)
        .substr(4096);
  }
  // Returns samples.jsonl, in which a repeated step has two lines.
  std::string Samples() const { return ReadFile(folder_ / "samples.jsonl", ExitCode::kInternal); }
};

TEST_F(BlendTest, RowsDoNotDependOnRanksAndAResumeIsExact) {
  const std::vector<std::string> set = {
      Set({{"web", "data", "weight:2 weight_at:{step:3 weight:0.5}"}, {"code", "other"}}),
      "train.steps=8",
      "train.log_samples=true",
      "ckpt.every=2",
      "ckpt.keep_last=9",
      "eval.every=4",
      "ckpt.keep_best=val_loss/code"};
  ASSERT_EQ(Train({.set = set, .data = ""}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("step 8: validation loss of web "));
  const std::string samples = Samples(), arrays = Arrays(8);
  const ckpt::DataCursor cursor = CursorOf(8);
  // 3 steps of 8 rows in the ratio 2 : 1, and 5 steps in the ratio 1 : 2.
  ASSERT_EQ(cursor.blend.size(), 2u);
  EXPECT_NEAR(static_cast<double>(cursor.blend[0].drawn), 24 * 2 / 3. + 40 / 3., 5);
  EXPECT_EQ(cursor.blend[0].drawn + cursor.blend[1].drawn, 64u);
  ASSERT_EQ(cursor.segments.size(), 2u);
  EXPECT_EQ(cursor.segments[1].first_sample, 24u);
  const std::string metrics = ReadFile(folder_ / "metrics.jsonl", ExitCode::kInternal);
  EXPECT_THAT(metrics, HasSubstr(Concat("\"drawn/code\":", cursor.blend[1].drawn, ",")));
  EXPECT_THAT(metrics, HasSubstr("\"epoch/web\":"));

  ASSERT_EQ(Train({.set = set, .data = "", .resume = "step=2"}), ExitCode::kFinished);
  EXPECT_TRUE(Arrays(8) == arrays);
  EXPECT_EQ(Samples(), samples + samples.substr(samples.find("{\"step\":3,")));
  fs::remove_all(folder_);
  ASSERT_EQ(Train({.ranks = 2, .set = set, .data = ""}), ExitCode::kFinished);
  EXPECT_EQ(Samples(), samples);
}

TEST_F(BlendTest, ShortDocumentsOfEachSourceAreWarnedOf) {
  ASSERT_EQ(Train({.ranks = 1,
                   .set = {Set({{"web", "data"}, {"code", "other"}}), "train.steps=1",
                           "train.global_batch=1", "train.micro_batch=1", "data.seq_len=1000"},
                   .data = ""}),
            ExitCode::kFinished)
      << log_;
  for (const char* name : {"data", "other"})
    EXPECT_THAT(log_, HasSubstr(Concat((data_dir->path() / name).string(), " have ")));
}

TEST_F(BlendTest, WeightsAndSourcesMayChangeAtAResume) {
  const std::vector<std::string> set = {"ckpt.every=1", "ckpt.keep_last=9", "optimizer.lr=1e-3"};
  const auto with = [&](const std::vector<Source>& sources, const std::string& steps) {
    std::vector<std::string> all = set;
    all.push_back(Set(sources));
    all.push_back("train.steps=" + steps);
    return all;
  };
  ASSERT_EQ(Train({.set = with({{"web", "data"}, {"code", "other"}}, "4"), .data = ""}),
            ExitCode::kFinished);
  const std::vector<uint64_t> before = {CursorOf(4).blend[0].drawn, CursorOf(4).blend[1].drawn};
  const auto changed = with({{"more", "other"}, {"web", "data", "weight:3"}}, "8");
  const std::vector<std::string> steps = {"train.steps"}, both = {"train.steps", "data.source"};
  EXPECT_HL_ERROR(Train({.set = changed, .data = "", .allow_change = steps}), ExitCode::kUsage,
                  "data.source: checkpoint web 1, code 1, this run more 1, web 3");
  ASSERT_EQ(Train({.set = changed, .data = "", .allow_change = both}), ExitCode::kFinished);
  const ckpt::DataCursor cursor = CursorOf(8);
  ASSERT_EQ(cursor.blend.size(), 3u);  // web, code, more
  EXPECT_EQ(cursor.blend[1].drawn, before[1]) << "of the removed source";
  EXPECT_EQ(cursor.blend[1].weight, 0);
  EXPECT_EQ(cursor.blend[0].drawn + cursor.blend[2].drawn, before[0] + 32);
  ASSERT_EQ(cursor.segments.size(), 2u);
  EXPECT_EQ(cursor.segments[1].first_sample, 32u);
  EXPECT_EQ(cursor.segments[1].base, (std::vector<uint64_t>{before[0], before[1], 0}));
  // The same name with other data would not continue its rows.
  for (const char* resume : {"auto", "step=4"}) {
    EXPECT_HL_ERROR(Train({.set = with({{"web", "other"}, {"more", "other"}}, "9"),
                           .data = "",
                           .resume = resume,
                           .allow_change = both}),
                    ExitCode::kUsage, "data.source 'web': the dataset ",
                    "Use that dataset, or give");
    EXPECT_NO_THROW(CursorOf(8)) << "newer steps are renamed only if the run can continue";
  }
}

TEST_F(BlendTest, ImpossibleBlendsAreRefused) {
  EXPECT_HL_ERROR(Train({.set = {Set({{"a", "data"}, {"b", "mqar"}})}, .data = ""}),
                  ExitCode::kUsage, "data.source 'b': the dataset ", "has no tokenizer");
  EXPECT_HL_ERROR(Train({.set = {Set({{"a", "data", "weight:1e-5"},
                                      {"a", "other", "weight:1"},
                                      {"c", "other", "weight_at:{step:5} weight_at:{step:5}"}}),
                                 "data.epoch_end=short", "train.max_epochs=2"}}),
                  ExitCode::kUsage, "data.path: ", "Use '' with data.source",
                  "data.epoch_end: short. Use fill", "train.max_epochs: 2. Use 0",
                  "data.source.1.name: a. Use a name",
                  "data.source.0.weight: 1e-05 at step 0. Use 0, or at least 0.000",
                  "1/8192 of the sum", "data.source.2.weight_at: its steps. Use ascending steps");
}

TEST_F(TrainerTest, TheBestErrorNeedsAnAccuracy) {
  const std::vector<std::string> set = {"ckpt.keep_best=val_error", "eval.every=2"};
  EXPECT_HL_ERROR(Train({.set = set}), ExitCode::kUsage,
                  "ckpt.keep_best: val_error. Use val_loss or loss");
}

// The mask rate is so low that most steps mask no token.
TEST_F(TrainerTest, StepsWithoutATargetAreSkippedAndTheRunGoesOn) {
  const std::vector<std::string> set = {"train.steps=20", "eval.windows=0",
                                        "model.objective=masked_token",
                                        "model.objective.masked_token.rate=0.002"};
  ASSERT_EQ(Train({.ranks = 2, .set = set}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("no row has a target of the objective masked_token; the update was "
                              "skipped"));
  const auto reader = Open(20);
  EXPECT_GT(reader.state().guard.skipped, 0u);
  EXPECT_EQ(reader.state().num_updates + reader.state().guard.skipped, 20u);
}

TEST_F(TrainerTest, ARunWithoutATargetAtAllEndsWithAnError) {
  // Validation masks with its own seed, so here it has targets.
  const std::vector<std::string> set = {"train.steps=2", "eval.windows=0",
                                        "model.objective=masked_token",
                                        "model.objective.masked_token.rate=0.002"};
  EXPECT_HL_ERROR(Train({.set = set}), ExitCode::kData,
                  "step 2: no row of the last 2 steps has a "
                  "target of the objective masked_token",
                  "masked_token.rate too small");
}

TEST_F(TrainerTest, ADatasetWithoutValidationRowsTrainsWithoutValidation) {
  const std::vector<std::string> set = {"data.seq_len=16", "model.objective=labelled"};
  ASSERT_EQ(Train({.set = set, .data = "mqar"}), ExitCode::kFinished);
  EXPECT_THAT(log_, HasSubstr("the dataset has no validation split: this run does not validate"));
  const auto reader = Open(4);
  EXPECT_FALSE(reader.state().metrics.contains("val_loss"));
  EXPECT_TRUE(reader.state().metrics.contains("loss"));
}

// The run is refused before it trains, and before it creates a run folder.
TEST_F(TrainerTest, ADatasetThatCannotBeValidatedIsRefusedAtTheStart) {
  EXPECT_HL_ERROR(Train({.set = {"data.seq_len=16", "model.objective=labelled", "eval.every=2"},
                         .data = "mqar"}),
                  ExitCode::kUsage, "the dataset has no validation split", "eval.every");
  EXPECT_FALSE(fs::exists(folder_));
}

// The documents of the text are shorter than 1000 tokens.
TEST_F(TrainerTest, RowsLongerThanTwoDocumentsAreWarnedOf) {
  const std::string warning =
      " tokens on average, and data.seq_len is 1000. The state restarts at each document";
  const std::vector<std::string> set = {"train.steps=1", "train.global_batch=1",
                                        "train.micro_batch=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), set.begin(), set.end());
    fs::remove_all(folder_);
    EXPECT_EQ(Train({.ranks = 1, .set = more}), ExitCode::kFinished) << log_;
    return log_;
  };
  const std::string warned = with({"data.seq_len=1000"});
  EXPECT_THAT(warned, HasSubstr(warning));
  EXPECT_THAT(warned, HasSubstr("Prepare the text with --documents file, or set "
                                "data.reset_at_documents=false"));
  EXPECT_THAT(with({"data.seq_len=1000", "data.reset_at_documents=false"}),
              Not(HasSubstr(warning)));
  EXPECT_THAT(with({"data.seq_len=32"}), Not(HasSubstr("data.seq_len is 32.")));
}

// The options are those that the warning suggests.
TEST_F(TrainerTest, AnExtendedRunWarnsThatItsRateJumpsAndSaysHowToAvoidIt) {
  const auto lr = [](const std::string& log, int step) {
    const size_t line = log.find(Concat("step ", step, "/"));
    const size_t found = log.find("  lr ", line);
    return line == std::string::npos ? ""
                                     : log.substr(found + 5, log.find("  ", found + 5) - found - 5);
  };
  const std::vector<std::string> wsd = {"schedule.kind=wsd",         "schedule.decay_steps=2",
                                        "schedule.decay_shape=sqrt", "ckpt.every=1",
                                        "ckpt.keep_last=99",         "train.log_every=1"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), wsd.begin(), wsd.end());
    return more;
  };
  ASSERT_EQ(Train({.set = wsd}), ExitCode::kFinished);
  EXPECT_EQ(lr(log_, 4), "0.0003");
  EXPECT_THAT(log_, Not(HasSubstr("jumps")));
  const std::vector<std::string> steps = {"train.steps"};
  ASSERT_EQ(Train({.set = with({"train.steps=8"}), .allow_change = steps}), ExitCode::kFinished);
  EXPECT_THAT(log_, HasSubstr("the learning rate jumps from 0.0003 at step 4 (the checkpoint) to "
                              "0.003 at step 5 (this run's wsd schedule of 8 steps). To keep the "
                              "old rate, stop this run and start it with --resume step=4 --set "
                              "schedule.kind=constant --set optimizer.lr=0.0003 --allow-change "
                              "schedule.kind --allow-change optimizer.lr. To continue from before "
                              "the decay, start it with --resume step=2."));
  EXPECT_EQ(lr(log_, 5), "0.003");
  ASSERT_EQ(Train({.set = with({"train.steps=8", "schedule.kind=constant", "optimizer.lr=0.0003"}),
                   .resume = "step=4",
                   .allow_change = {"train.steps", "schedule.kind", "optimizer.lr"}}),
            ExitCode::kFinished);
  EXPECT_THAT(log_, Not(HasSubstr("jumps")));
  EXPECT_EQ(lr(log_, 5), "0.0003");
  ASSERT_EQ(Train({.set = with({"train.steps=8"}), .resume = "step=2", .allow_change = steps}),
            ExitCode::kFinished);
  EXPECT_THAT(log_, Not(HasSubstr("jumps")));
  EXPECT_EQ(lr(log_, 3), "0.003");
}

TEST_F(TrainerTest, PhasesAreExactAtAResumeAndMayChangeOnlyIfAllowed) {
  const std::string phases =
      "schedule.phase=[{ name: 'up' steps: 2 from: 0 to: 1 }, { name: 'down' to: 0.2 shape: 'sqrt' "
      "}]";
  const std::vector<std::string> set = {phases, "ckpt.every=1", "ckpt.keep_last=9"};
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished);
  const auto arrays = [&] {
    return ReadFile(folder_ / "ckpt/step_000000000004/rank_00000.safetensors", ExitCode::kInternal)
        .substr(4096);
  };
  const std::string expected = arrays();
  for (const char* step : {"step=1", "step=3"}) {
    ASSERT_EQ(Train({.set = set, .resume = step}), ExitCode::kFinished);
    EXPECT_TRUE(arrays() == expected) << step;
  }
  const Run other = {
      .set = {"schedule.phase=[{ name: 'all' }]", "ckpt.every=1", "ckpt.keep_last=9"},
      .resume = "step=1"};
  EXPECT_HL_ERROR(
      Train(other), ExitCode::kUsage,
      "schedule.phase: checkpoint 2 steps from 0 to 1, the rest to 0.2 (sqrt), this run "
      "the rest");
  Run allowed = other;
  allowed.allow_change = {"schedule.phase"};
  EXPECT_EQ(Train(allowed), ExitCode::kFinished);
  // The checkpoints of a command that removes the list do not have it when it starts again.
  Run removed = {.set = {"ckpt.every=1", "ckpt.keep_last=9"},
                 .resume = "step=1",
                 .allow_change = {"schedule.kind", "schedule.phase"}};
  EXPECT_EQ(Train(removed), ExitCode::kFinished);
  removed.resume = "auto";
  EXPECT_EQ(Train(removed), ExitCode::kFinished);
}

// The weights hardly change, and every loss a little above the mean counts as a spike, so about
// half of the steps are spikes. The first can be step 129.
class RollbackTest : public TrainerTest {
 protected:
  static std::vector<std::string> With(std::vector<std::string> more) {
    more.insert(more.end(), {"train.steps=140", "optimizer.lr=1e-6", "train.spike_sigmas=0.02",
                             "train.max_skips=99", "ckpt.keep_last=99"});
    return more;
  }
  ckpt::StepState StateOf(uint64_t step) const { return Open(step).state(); }
  std::string Arrays(int ranks) const {  // Behind the headers, which name the attempt.
    std::string all;
    for (int rank = 0; rank < ranks; ++rank)
      all += ReadFile(folder_ / Concat("ckpt/step_000000000140/rank_0000", rank, ".safetensors"),
                      ExitCode::kInternal)
                 .substr(4096);
    return all;
  }
};

TEST_F(RollbackTest, HasTheBitsOfARunThatIsResumedByHand) {
  for (const int ranks : {1, 2}) {
    const std::string zero = Concat("parallel.zero_stage=", ranks == 1 ? 0 : 3);
    const std::vector<std::string> set = {zero, "ckpt.every=60", "train.rollback_spikes=4",
                                          "train.rollback_window=8"};
    std::vector<std::string> rolls_back = set;
    rolls_back.emplace_back("train.max_rollbacks=99");
    ASSERT_EQ(Train({.ranks = ranks, .set = With(rolls_back)}), ExitCode::kFinished) << log_;
    EXPECT_THAT(log_, HasSubstr("to step 120 because of spikes (rollback 1 of at most 99), and "
                                "skips the data of the "));
    const std::string expected = Arrays(ranks);
    const ckpt::StepState end = StateOf(140), kept = StateOf(120);
    const uint64_t skipped = end.data.next_sample / 8 - 140;
    EXPECT_GE(end.guard.rollbacks, 1u);
    EXPECT_GE(skipped, 9u);
    EXPECT_EQ(end.data.samples, 140u * 8);
    // A run that was stopped after its rollback would continue with the same data.
    EXPECT_EQ(kept.guard.rollbacks, end.guard.rollbacks);
    EXPECT_EQ(kept.data.next_sample, (120 + skipped) * 8);
    EXPECT_EQ(kept.parent_step, "") << "the step is written again, and not its own parent";
    fs::remove_all(folder_);

    ASSERT_EQ(Train({.ranks = ranks, .set = With(set)}), ExitCode::kFinished);
    EXPECT_TRUE(Arrays(ranks) != expected);
    ASSERT_EQ(Train({.ranks = ranks, .set = With(set), .resume = "step=120", .skip_data = skipped}),
              ExitCode::kFinished);
    EXPECT_THAT(log_, HasSubstr(Concat("step 120, without the data of ", skipped, " steps")));
    EXPECT_TRUE(Arrays(ranks) == expected);
    EXPECT_EQ(StateOf(120).data.next_sample, (120 + skipped) * 8) << "as a restart needs it";
    EXPECT_EQ(StateOf(120).parent_step, "");
    EXPECT_EQ(StateOf(140).guard.loss_window, end.guard.loss_window);
    fs::remove_all(folder_);
  }
}

TEST_F(RollbackTest, PassesOverADamagedStep) {
  const fs::path step = folder_ / "ckpt/step_000000000120", array = step / "rank_00000.safetensors";
  bool has_damaged = false;
  const auto damage = [&](const model::LanguageModel&) {
    if (has_damaged || !fs::exists(array)) return std::string("text");
    has_damaged = true;
    std::fstream file(array, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const char last = static_cast<char>(file.get() ^ 1);
    file.seekp(-1, std::ios::end);
    file.put(last);
    return std::string("text");
  };
  ASSERT_EQ(Train({.ranks = 1,
                   .set = With({"ckpt.every=60", "ckpt.background=false", "eval.every=125",
                                "log.tensorboard=true", "train.rollback_spikes=4",
                                "train.rollback_window=8", "train.max_rollbacks=99"}),
                   .sample_text = damage}),
            ExitCode::kFinished)
      << log_;
  EXPECT_THAT(log_, HasSubstr("step 120 is damaged and was renamed to .bad."));
  EXPECT_THAT(log_, HasSubstr("to step 60 because of spikes (rollback 1 of at most 99)"));
  EXPECT_TRUE(fs::exists(step.string() + ".bad"));
}

// Otherwise every rollback would leave whole checkpoints behind, which no retention deletes.
TEST_F(RollbackTest, DeletesTheNewerStepsButNotThoseOfAnEarlierBranch) {
  std::vector<std::string> set =
      With({"ckpt.every=2", "train.rollback_spikes=4", "train.rollback_window=8"});
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished);
  set.emplace_back("train.max_rollbacks=99");
  ASSERT_EQ(Train({.set = set, .resume = "step=120"}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("(rollback 1 of at most 99)"));
  EXPECT_THAT(log_, HasSubstr(".superseded.")) << "the second such step of a number";
  std::vector<std::string> left, earlier;
  for (uint64_t step = 140; step > 120; step -= 2)
    earlier.push_back(ckpt::StepName(step) + ".superseded");
  for (const ckpt::StepDir& step : ckpt::ListSteps(folder_ / "ckpt"))
    if (step.kind == ckpt::StepDir::Kind::kSuperseded) left.push_back(step.path.filename());
  EXPECT_EQ(left, earlier);
}

// With the spikes before it, the next single spike would make the run go back again.
TEST_F(RollbackTest, ToAStepAfterTheFirstSpikeForgetsTheSpikes) {
  std::vector<std::string> set = With({"ckpt.every=1", "train.rollback_spikes=4",
                                       "train.rollback_window=30", "train.max_rollbacks=99"});
  set.emplace_back("ckpt.keep_last=2");
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("ckpt.keep_last 2 and ckpt.every 1 keep checkpoints that span 1 "));
  EXPECT_THAT(log_, HasSubstr(" is the oldest checkpoint, and the first spike is at step "));
  const std::string mark = " to step ";
  const uint64_t back = std::stoull(log_.substr(log_.rfind(mark) + mark.size()));
  EXPECT_GT(back, 129u);
  for (const uint64_t spike : StateOf(140).guard.spikes) EXPECT_GT(spike, back);
}

TEST_F(RollbackTest, ToAStepFromBeforeAChangeThatAnEarlierAttemptAllowed) {
  ASSERT_EQ(Train({.set = With({"ckpt.every=60"})}), ExitCode::kFinished);
  std::vector<std::string> set = With({"ckpt.every=66", "train.max_rollbacks=99",
                                       "train.rollback_window=30", "optimizer.weight_decay=0.3"});
  std::vector<std::string> counts = set;
  counts.emplace_back("train.rollback_spikes=30");
  ASSERT_EQ(
      Train({.set = counts, .resume = "step=120", .allow_change = {"optimizer.weight_decay"}}),
      ExitCode::kFinished);
  ASSERT_FALSE(StateOf(132).guard.spikes.empty());
  set.emplace_back("train.rollback_spikes=4");
  ASSERT_EQ(Train({.set = set, .resume = "step=132"}), ExitCode::kFinished) << log_;
  EXPECT_THAT(log_, HasSubstr("to step 120 because of spikes (rollback 1 of at most 99)"));
}

TEST_F(RollbackTest, EndsAfterTheMostRollbacksOrWithoutACheckpoint) {
  const std::vector<std::string> set = {"train.max_rollbacks=1", "train.rollback_spikes=1",
                                        "train.rollback_window=1"};
  std::vector<std::string> saves = set;
  saves.emplace_back("ckpt.every=60");
  EXPECT_HL_ERROR(Train({.set = With(saves)}), ExitCode::kNonFinite,
                  "is the spike number 1 in 1 steps, and the run has gone back 1 times already "
                  "(train.max_rollbacks)",
                  "Continue from an older step with --resume step=N");
  fs::remove_all(folder_);
  std::vector<std::string> never = set;
  never.emplace_back("ckpt.every=1000");
  EXPECT_HL_ERROR(Train({.set = With(never)}), ExitCode::kNonFinite,
                  "the loss is a spike, and the run has no checkpoint to go back to. Use a smaller "
                  "ckpt.every.");
  EXPECT_HL_ERROR(Train({.set = With({}), .resume = "none", .skip_data = 3}), ExitCode::kUsage,
                  "--skip-data 3: there is no checkpoint");
}

TEST_F(TrainerTest, AWarmUpThatFillsTheRunIsAWarning) {
  ASSERT_EQ(Train({.set = {"schedule.warmup_steps=9"}}), ExitCode::kFinished);
  EXPECT_THAT(log_, HasSubstr("schedule.warmup_steps 9 is not below the run's 4 steps"));
}

TEST_F(TrainerTest, TheSecondFailedSaveInARowEndsTheRunAndSaysWhatToDo) {
  const std::vector<std::string> set = {"ckpt.every=1", "ckpt.background=false",
                                        "train.log_every=1"};
  std::vector<std::string> longer = set;
  longer.emplace_back("train.steps=9");
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished);
  const test::FullDisk full(20'000);  // Less than a shard, more than the log.
  EXPECT_HL_ERROR(Train({.set = longer, .allow_change = {"train.steps"}}), ExitCode::kCheckpointIo,
                  "\nThe run stops: with ckpt.on_error 'warn' training goes on after one failed "
                  "save, but not after two in a row or a failed last save. Free space on the disk "
                  "of ",
                  "or repair it, then start the same command again: it continues from step 4.");
  EXPECT_THAT(log_, HasSubstr("A second consecutive failure will end the run."));
  EXPECT_THAT(log_, HasSubstr("step 6/9"));
  EXPECT_THAT(log_, Not(HasSubstr("step 7/9")));
}

// The checkpoint does not contain the skip yet, so the command must be repeated with it.
TEST_F(TrainerTest, AFailedSaveOfSkippedDataSaysThatTheSkipMustBeRepeated) {
  ASSERT_EQ(Train({.set = {"ckpt.every=1", "ckpt.keep_last=9"}}), ExitCode::kFinished);
  const test::FullDisk full(20'000);  // Less than a shard, more than the log.
  EXPECT_HL_ERROR(Train({.resume = "step=2", .skip_data = 1}), ExitCode::kCheckpointIo,
                  "The run stops: it cannot save its place in the data after --skip-data",
                  "start the same command again with --resume and --skip-data.");
}

// The data would be further on than the epoch that the number of steps names.
TEST_F(TrainerTest, DataIsNotSkippedWhereStepsNameEpochs) {
  const std::vector<std::string> set = {"ckpt.every=1", "ckpt.keep_last=9"};
  ASSERT_EQ(Train({.set = set}), ExitCode::kFinished);
  std::vector<std::string> validates = set, schedules = set, both = set;
  validates.insert(validates.end(), {"eval.every=0", "eval.every_epochs=1"});
  schedules.insert(schedules.end(), {"schedule.per_epoch=true", "train.max_epochs=1"});
  both.insert(both.end(), {"eval.every_epochs=1", "schedule.per_epoch=true", "train.max_epochs=1"});
  const auto expect_newest = [&](const char* step) {
    EXPECT_TRUE(fs::exists(folder_ / "ckpt" / step)) << "refused before it is renamed";
  };
  EXPECT_HL_ERROR(
      Train({.set = validates, .resume = "step=2", .skip_data = 1}), ExitCode::kUsage,
      "--skip-data: this run would leave out the data of 1 step, and eval.every_epochs finds the "
      "epoch from the number of steps, which would be behind the data. Use eval.every instead of "
      "eval.every_epochs, or continue without --skip-data.");
  EXPECT_HL_ERROR(Train({.set = schedules, .resume = "step=2", .skip_data = 2}), ExitCode::kUsage,
                  "the data of 2 steps, and schedule.per_epoch finds the epoch",
                  "Use --set schedule.per_epoch=false --allow-change schedule.per_epoch, or");
  EXPECT_HL_ERROR(Train({.set = both, .resume = "step=2", .skip_data = 1}), ExitCode::kUsage,
                  "schedule.per_epoch and eval.every_epochs find the epoch",
                  "--allow-change schedule.per_epoch and eval.every instead of eval.every_epochs");
  expect_newest("step_000000000004");
  // A later attempt with other settings.
  ASSERT_EQ(Train({.set = set, .resume = "step=2", .skip_data = 1}), ExitCode::kFinished) << log_;
  validates.emplace_back("train.steps=5");
  EXPECT_HL_ERROR(Train({.set = validates, .resume = "step=3", .allow_change = {"train.steps"}}),
                  ExitCode::kUsage,
                  "this run has left out the data of 1 step, and eval.every_epochs finds the "
                  "epoch from the number of steps, which would be behind the data. Use eval.every "
                  "instead of eval.every_epochs.");
  expect_newest("step_000000000004");
}

TEST_F(TrainerTest, PartsOfTheModelHaveTheRecipesNames) {
  ASSERT_EQ(Train({.set = {"optimizer.lr=0.003"}}), ExitCode::kFinished);
  const std::vector<std::string> steps = {"train.steps=9", "model.dropout=0.25"};
  EXPECT_HL_ERROR(Train({.set = steps}), ExitCode::kUsage,
                  "model.dropout: checkpoint 0.0, this run 0.25");
  EXPECT_HL_ERROR(Train({.set = {"optimizer.lr=0.001"}}), ExitCode::kUsage,
                  "optimizer.lr: checkpoint 0.003, this run 0.001\n");
  EXPECT_HL_ERROR(Train({.set = {"model.model_dim=32"}, .allow_change = {"model.model_dim"}}),
                  ExitCode::kUsage, "tensor embeddings.weight: checkpoint [",
                  "Tensors that differ cannot be loaded: --allow-change applies to fields only.");
  EXPECT_EQ(log_.find("may differ without it"), std::string::npos) << log_;
  EXPECT_EQ(Train({.set = steps, .allow_change = {"model.dropout", "train.steps"}}),
            ExitCode::kFinished);
}

// A run that is refused leaves all checkpoints in place.
TEST_F(TrainerTest, AStepPastTheEndIsRefusedBeforeNewerOnesAreRenamed) {
  ASSERT_EQ(Train({.set = {"ckpt.every=1", "ckpt.keep_last=9"}}), ExitCode::kFinished);
  EXPECT_HL_ERROR(Train({.set = {"train.steps=2"}, .resume = "step=3"}), ExitCode::kUsage,
                  "the checkpoint is at step 3, past train.steps 2");
  EXPECT_TRUE(fs::exists(folder_ / "ckpt/step_000000000004"));
}

}  // namespace
}  // namespace halflife::train
