// Reads steps without a communicator, compares and reshards them, and runs `halflife ckpt` on them.
#include "ckpt/reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "ckpt/ckpt_fixture.h"
#include "ckpt/diff.h"
#include "ckpt/run_lock.h"
#include "ckpt/step_dir.h"
#include "ckpt/step_files.h"
#include "ckpt/step_writer.h"
#include "cli/command_line/declare.h"
#include "cli/command_line/options.h"
#include "cli/inspect/artifact.h"
#include "core/files.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

struct CommandResult {
  int code = 0;
  std::string out;
  std::string error;
};

// Parses and runs a command line as main does, and turns an Error into its exit code.
CommandResult RunCkpt(const std::string& arguments) {
  CLI::App app;
  cli::Request request;
  cli::AddCkpt(app, request);
  testing::internal::CaptureStdout();
  CommandResult result;
  try {
    app.parse("ckpt " + arguments);
    result.code = static_cast<int>(cli::Run(std::get<cli::CkptOptions>(request)));
  } catch (const CLI::ParseError&) {
    result.code = static_cast<int>(ExitCode::kUsage);
  } catch (const Error& error) {
    result.code = static_cast<int>(error.code());
    result.error = error.message();
  }
  result.out = testing::internal::GetCapturedStdout();
  return result;
}

class ReaderTest : public testing::Test {
 protected:
  ReaderTest() {
    SaveStep(run_.path(), {.world = 2, .step = 100}, SmallSpecs());
    SaveStep(run_.path(), {.world = 3, .step = 200}, SmallSpecs());
  }
  fs::path step(uint64_t number) const { return run_ / "ckpt" / Concat("step_000000000", number); }
  std::string Run() const { return run_.path().string(); }

  // Saves step 300 with the values of step 200, except for one element of
  // layers.0.mlp.up_proj.weight.
  void SaveVariant(int64_t element, float value) const {
    dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
      TestArena arena(SmallSpecs(), 1);
      arena.Fill(200);
      const ArenaView view = arena.view();
      view.arrays[0].data[view.layout->offset(5) + element] = value;
      CheckpointStore(run_ / "ckpt", control, {}).Save(view, MakeState(300));
    });
  }

  // Saves a step with these metrics and keeps the older steps.
  void SaveMetrics(uint64_t number, const std::map<std::string, double>& metrics) const {
    SaveMetrics(number, metrics, run_.path());
  }
  static void SaveMetrics(uint64_t number, const std::map<std::string, double>& metrics,
                          const fs::path& run) {
    dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
      TestArena arena(SmallSpecs(), 1);
      StepState state = MakeState(number);
      state.metrics = metrics;
      CheckpointStore(run / "ckpt", control, {.retention = {.keep_last = 99}})
          .Save(arena.view(), state);
    });
  }

  const TempDir run_;
};

TEST_F(ReaderTest, FindsTheStepOfARunAFolderOrItself) {
  EXPECT_EQ(FindStep(run_.path()), step(200));
  EXPECT_EQ(FindStep(run_ / "ckpt"), step(200));
  EXPECT_EQ(FindStep(step(100)), step(100));
  EXPECT_EQ(RunOfStep(step(100)), run_.path());
  EXPECT_EQ(RunOfStep(step(100).string() + "/"), run_.path());
  EXPECT_EQ(RunOfStep("/elsewhere/step_000000000100"), fs::path());
  const TempDir empty;
  EXPECT_HL_ERROR(FindStep(empty.path()), ExitCode::kNoUsableCheckpoint, "no checkpoint in",
                  "looked for manifest.pb, ckpt/step_* and step_* in it. Use the folder of a run");
  AtomicWriteFile(empty / "manifest.pb", "HLDATA\x01\n...", ExitCode::kData);
  EXPECT_HL_ERROR(StepReader::Open(FindStep(empty.path())), ExitCode::kNoUsableCheckpoint,
                  "describes a dataset. Use the folder of a run");
  EXPECT_HL_ERROR(FindStep(empty / "x"), ExitCode::kNoUsableCheckpoint, "is not a folder",
                  "Use the folder of a run or of one of its steps, or RUN@latest, RUN@best");
}

TEST_F(ReaderTest, AStepIsNamedAfterItsRunAndAnAt) {
  EXPECT_EQ(FindStep(Run() + "@latest"), step(200));
  EXPECT_EQ(FindStep(Run() + "@100"), step(100));
  EXPECT_EQ(FindStep(Run() + "/@100"), step(100));
  EXPECT_EQ(FindStep(Run() + "/ckpt@100"), step(100));
  for (const char* none : {"300", "0100", "10", "last", ""})
    EXPECT_HL_ERROR(FindStep(Concat(Run(), "@", none)), ExitCode::kNoUsableCheckpoint,
                    Concat("has no step '", none, "'. Use latest, best, or one of 200, 100."));
  const TempDir empty;
  EXPECT_HL_ERROR(FindStep(empty.path().string() + "@best"), ExitCode::kNoUsableCheckpoint,
                  "no checkpoint in");
  EXPECT_HL_ERROR(FindStep("no/such@run"), ExitCode::kNoUsableCheckpoint,
                  "no/such@run is not a folder");
}

TEST_F(ReaderTest, APathThatExistsIsNotSplitAtItsAt) {
  const fs::path run = run_ / "a@latest";
  SaveStep(run, {.step = 700}, SmallSpecs());
  SaveStep(run, {.step = 800}, SmallSpecs());
  SaveStep(run_ / "a", {.step = 900}, SmallSpecs());
  EXPECT_EQ(FindStep(run), run / "ckpt/step_000000000800");
  EXPECT_EQ(FindStep(run.string() + "@700"), run / "ckpt/step_000000000700");
}

TEST_F(ReaderTest, TheBestStepHasTheLowestValueOfTheRunsMeasure) {
  const auto best = [&] { return FindBestStep(run_ / "ckpt"); };
  // Without a validation loss, the training loss is compared, which is 1000 / step here.
  EXPECT_EQ(best()->metric, "loss");
  EXPECT_EQ(best()->path, step(200));
  EXPECT_EQ(best()->value, 5.0);
  SaveMetrics(300, {{"loss", 9}, {"val_loss", 3}, {"val_error", 0.2}});
  SaveMetrics(400, {{"loss", 1}, {"val_loss", 2}, {"val_error", 0.5}});
  SaveMetrics(500, {{"loss", 0.1}});
  EXPECT_EQ(best()->metric, "val_loss");
  EXPECT_EQ(best()->path, step(400));
  // The metric of ckpt.keep_best decides. Of equal steps, the newest is the best.
  SaveMetrics(600, {{"val_loss", 1}, {"val_error", 0.2}, {"best_val_error", 0.2}});
  SaveMetrics(700, {{"val_loss", NAN}, {"val_error", NAN}, {"best_val_error", 0.2}});
  EXPECT_EQ(best()->metric, "val_error");
  EXPECT_EQ(best()->value, 0.2);
  EXPECT_EQ(best()->path, step(600));
  EXPECT_EQ(FindStep(Run() + "@best"), step(600));
  fs::remove(step(600) / "manifest.pb");
  EXPECT_EQ(FindStep(Run() + "@best"), step(300));
}

TEST_F(ReaderTest, WithoutAMeasureNoStepIsTheBest) {
  const TempDir other;
  SaveMetrics(1, {}, other.path());
  EXPECT_FALSE(FindBestStep(other / "ckpt").has_value());
  EXPECT_HL_ERROR(FindStep(other.path().string() + "@best"), ExitCode::kNoUsableCheckpoint,
                  "@best: no step has a measure (keep_best's metric, val_loss or loss)",
                  "@latest, or the number of a step: 1.");
}

TEST_F(ReaderTest, TensorsAreWholeForAnyShards) {
  const StepReader reader = StepReader::Open(step(200));
  EXPECT_EQ(reader.state().step, 200u);
  ASSERT_EQ(reader.tensors().size(), SmallSpecs().size());
  TestArena arena(SmallSpecs(), 1);
  arena.Fill(200);
  const ArenaView view = arena.view();
  for (size_t i = 0; i < reader.tensors().size(); ++i) {
    const TensorInfo& tensor = reader.tensors()[i];
    EXPECT_EQ(tensor.shape, SmallSpecs()[i].shape);
    EXPECT_THAT(tensor.arrays, ElementsAre("main", "optim/m", "optim/v"));
    for (const ArenaArray& array : view.arrays) {
      std::vector<float> values(tensor.count() + 1);  // memcmp needs an address even for 0 bytes.
      reader.ReadTensor(array.name, tensor.name, values.data());
      EXPECT_EQ(std::memcmp(values.data(), array.data + view.layout->offset(static_cast<int>(i)),
                            4 * tensor.count()),
                0)
          << array.name << "/" << tensor.name;
    }
  }
  float tied[3], table[3];
  reader.ReadRange(kMainArray, "lm_head.weight", 100, 103, tied);
  reader.ReadRange(kMainArray, "embeddings.weight", 100, 103, table);
  EXPECT_EQ(std::memcmp(tied, table, sizeof tied), 0);
  EXPECT_HL_ERROR(reader.ReadTensor(kMainArray, "layers.9.weight", tied),
                  ExitCode::kNoUsableCheckpoint, "has no tensor 'layers.9.weight'");
}

TEST_F(ReaderTest, ADeletedStepIsReportedAsSuch) {
  const StepReader reader = StepReader::Open(step(100));
  fs::remove_all(step(100));
  float value;
  EXPECT_HL_ERROR(reader.ReadRange(kMainArray, "embeddings.weight", 0, 1, &value),
                  ExitCode::kCheckpointIo, "the step was deleted while reading");
}

TEST_F(ReaderTest, DiffMeasuresOneChangedElement) {
  std::vector<float> values(193 * 17);
  StepReader::Open(step(200)).ReadTensor(kMainArray, "layers.0.mlp.up_proj.weight", values.data());
  SaveVariant(33, std::nextafterf(values[33], INFINITY));
  const StepReader a = StepReader::Open(step(200)), b = StepReader::Open(step(300));
  const StepDifference difference = DiffSteps(a, b, {});
  EXPECT_FALSE(difference.equal());
  int num_different = 0;
  for (const TensorDifference& tensor : difference.tensors) {
    if (tensor.equal()) continue;
    ++num_different;
    EXPECT_EQ(tensor.name, "layers.0.mlp.up_proj.weight");
    EXPECT_EQ(tensor.array, kMainArray);
    EXPECT_EQ(tensor.first_different, 33);
    EXPECT_THAT(tensor.ulps, ElementsAre(193 * 17 - 1, 1, 0, 0, 0, 0));
    EXPECT_EQ(tensor.max_abs, std::abs(static_cast<double>(tensor.value_a) - tensor.value_b));
  }
  EXPECT_EQ(num_different, 1);
  EXPECT_TRUE(DiffSteps(a, b, {.arrays = {"optim/m", "optim/v"}}).equal());
}

TEST_F(ReaderTest, DiffNamesAddedRemovedAndReshapedTensors) {
  auto specs = SmallSpecs();
  specs[1].name = "layers.0.norm.gain";
  specs[2].shape = {64, 16};
  const TempDir other;
  SaveStep(other.path(), {.step = 200}, specs);
  const StepDifference difference =
      DiffSteps(StepReader::Open(step(200)), StepReader::Open(FindStep(other.path())), {});
  EXPECT_THAT(difference.only_in_a, testing::Contains("optim/m/layers.0.norm.weight"));
  EXPECT_THAT(difference.only_in_b, testing::Contains("main/layers.0.norm.gain"));
  EXPECT_THAT(difference.reshaped,
              ElementsAre("layers.0.attn.q_proj.weight: [16, 64] against [64, 16]"));
}

size_t NumDescriptors() {
  const fs::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

// The step has more files than a process may open.
TEST_F(ReaderTest, AStepOfManyRanksIsReadByFewDescriptors) {
  const TempDir out;
  const StepReader before = StepReader::Open(step(200));
  ReshardStep(before, 300, out / "many");
  const size_t descriptors = NumDescriptors();
  const StepReader many = StepReader::Open(out / "many");
  EXPECT_TRUE(many.Verify(2).empty());
  EXPECT_EQ(GatheredHash(many), GatheredHash(before));
  EXPECT_LE(NumDescriptors(), descriptors + kMaxOpenFiles + 2);
}

// An error while reading, on any thread, is no evidence of damage.
TEST_F(ReaderTest, VerifyThrowsWhereAFileCannotBeOpened) {
  const TempDir out;
  ReshardStep(StepReader::Open(step(200)), 8, out / "eight");
  const StepReader reader = StepReader::Open(out / "eight");
  rlimit usual{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &usual), 0);
  rlimit none = usual;
  none.rlim_cur = 0;  // No new descriptors.
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  std::string message;
  try {
    reader.Verify(4);
  } catch (const Error& error) {
    message = error.message();
    EXPECT_EQ(error.code(), ExitCode::kCheckpointIo);
  }
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &usual), 0);
  EXPECT_THAT(message, testing::HasSubstr("cannot open " + (out / "eight/rank_0000").string()));
}

TEST_F(ReaderTest, ReshardedStepsHoldTheSameState) {
  const TempDir out;
  const StepReader before = StepReader::Open(step(200));
  for (const int world : {1, 2, 5, 64}) {
    const fs::path path = out / Concat("world", world);
    ReshardStep(before, world, path);
    const StepReader after = StepReader::Open(path);
    EXPECT_EQ(after.files().size(), static_cast<size_t>(world));
    EXPECT_EQ(GatheredHash(after), GatheredHash(before));
    EXPECT_TRUE(after.Verify(2).empty());
    EXPECT_EQ(after.state().data.tokens, before.state().data.tokens);
    const auto request = ParseResume("path=" + path.string());
    EXPECT_EQ(LoadStep(out / "run", 2, SmallSpecs(), request)->state.step, 200u);
  }
  EXPECT_HL_ERROR(ReshardStep(before, 2, out / "world5"), ExitCode::kUsage, "exists already",
                  "Use a new folder.");
  EXPECT_HL_ERROR(ReshardStep(before, 2, out / "step_000000000201/"), ExitCode::kUsage,
                  "is the name of step 201, but this is step 200",
                  "Use step_000000000200, or a name that is not a step's.");
  EXPECT_FALSE(fs::exists(out / "step_000000000201"));
}

TEST_F(ReaderTest, CommandLs) {
  std::ofstream(step(100) / "KEEP") << "";
  fs::create_directory(run_ / "ckpt/.tmp_step_000000000300.0123abcd");
  fs::create_directory(run_ / "ckpt/step_000000000050.bad");
  const CommandResult text = RunCkpt("ls " + Run());
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("LATEST"));
  const json rows = json::parse(RunCkpt("ls --json " + Run()).out);
  ASSERT_EQ(rows.size(), 4u);
  const char* states[] = {"tmp", "ok", "pinned", "bad"};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(rows[i]["state"], states[i]);
  EXPECT_EQ(rows[1]["world/dp/sp/stage"], "3/3/1/0");
  EXPECT_EQ(rows[1]["latest"], true);
  EXPECT_EQ(rows[1]["loss"], 5.0);
  EXPECT_EQ(rows[1]["best"], json({{"metric", "loss"}, {"value", 5.0}}));
  EXPECT_TRUE(rows[2]["best"].is_null());
  EXPECT_THAT(text.out, HasSubstr("LATEST, best loss 5.0000\n"));
}

TEST_F(ReaderTest, CommandsTakeAStepByItsNameInTheRun) {
  const json inspected = json::parse(RunCkpt("inspect --json " + Run() + "@100").out);
  EXPECT_EQ(inspected["step"], 100);
  EXPECT_EQ(RunCkpt("diff " + Run() + "@best " + step(200).string()).code, 0);
  EXPECT_EQ(RunCkpt("diff " + Run() + "@100 " + Run() + "@best").code, 1);
  EXPECT_EQ(RunCkpt("verify " + Run() + "@300").code, 1);
  EXPECT_EQ(RunCkpt("verify nothing@here").code, 2);
}

TEST_F(ReaderTest, CommandInspect) {
  const json inspected =
      json::parse(RunCkpt("inspect --json --stats --tensors '*norm*' " + step(100).string()).out);
  EXPECT_EQ(inspected["step"], 100);
  EXPECT_EQ(inspected["cursor"]["tokens"], 100 * 8 * 512);
  ASSERT_EQ(inspected["tensors"].size(), 1u);
  EXPECT_EQ(inspected["tensors"][0]["shape"], json({16}));
  EXPECT_LE(inspected["tensors"][0]["min"], inspected["tensors"][0]["max"]);
  EXPECT_THAT(RunCkpt("inspect " + Run()).out, HasSubstr("layers.0.mlp.up_proj.weight  [193, 17]"));
}

TEST_F(ReaderTest, CommandVerify) {
  const CommandResult good = RunCkpt("verify " + step(100).string() + " " + step(200).string());
  EXPECT_EQ(good.code, 0);
  EXPECT_THAT(good.out, HasSubstr("OK " + step(200).string()));
  fs::resize_file(step(100) / "rank_00001.safetensors", 5000);
  fs::remove(step(200) / "manifest.pb");
  const CommandResult bad = RunCkpt("verify " + step(100).string() + " " + step(200).string());
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out, HasSubstr("rank_00001.safetensors: 5000 bytes, the manifest says"));
  EXPECT_THAT(bad.out, HasSubstr("manifest.pb: missing"));
  EXPECT_EQ(RunCkpt("inspect " + step(100).string()).code, 1);
}

// The hashes are correct, but the model config is not JSON.
TEST_F(ReaderTest, InspectTakesAModelThatIsNoJson) {
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 1);
    StepState state = MakeState(300);
    state.model_config_json = "{\"mixer\":";
    CheckpointStore(run_ / "ckpt", control, {}).Save(arena.view(), state);
  });
  const json described = cli::inspect::DescribeCheckpoint(step(300));
  EXPECT_EQ(described["model"], "{\"mixer\":");
  EXPECT_TRUE(described["mixers"].is_null());
  EXPECT_EQ(json::parse(described.dump()), described);
}

TEST_F(ReaderTest, AStepUnderAnothersNameIsNotThatStep) {
  fs::rename(step(100), step(900));
  EXPECT_HL_ERROR(StepReader::Open(step(900)), ExitCode::kNoUsableCheckpoint, "is of step 100",
                  "was the folder renamed?");
  EXPECT_EQ(RunCkpt("verify " + step(900).string()).code, 1);
  fs::rename(step(900), run_ / "elsewhere");
  EXPECT_EQ(StepReader::Open(run_ / "elsewhere").state().step, 100u);
}

// verify also covers the files for people next to the manifest.
TEST_F(ReaderTest, VerifyReadsTheSumsAndTheTextToo) {
  const auto rewrite = [&](const char* name, const std::string& bytes) {
    std::ofstream(step(100) / name) << bytes;
  };
  const auto only_damage = [&]() -> std::string {
    const auto damages = StepReader::Open(step(100)).Verify(1);
    return damages.size() == 1 ? damages[0].text : Concat(damages.size(), " damages");
  };
  const std::string sums = ReadFile(step(100) / kSumsName, ExitCode::kInternal);
  const std::string text = ReadFile(step(100) / kManifestTextName, ExitCode::kInternal);
  for (size_t at = 0; at < sums.size(); at += 7) {
    std::string altered = sums;
    altered[at] = static_cast<char>(altered[at] ^ 1);
    rewrite(kSumsName, altered);
    EXPECT_THAT(only_damage(), HasSubstr("XXH128SUMS")) << "byte " << at;
  }
  rewrite(kSumsName, sums + "more\n");
  EXPECT_THAT(only_damage(), HasSubstr("XXH128SUMS: does not hold the hashes"));
  rewrite(kSumsName, sums);
  rewrite(kManifestTextName, text + "step: 3\n");
  EXPECT_THAT(only_damage(), HasSubstr("manifest.txtpb: does not have the hash"));
  fs::remove(step(100) / kManifestTextName);
  EXPECT_THAT(only_damage(), HasSubstr("manifest.txtpb: missing"));
  rewrite(kManifestTextName, text);
  EXPECT_TRUE(StepReader::Open(step(100)).Verify(1).empty());
  fs::remove(step(100) / kSumsName);
  EXPECT_THAT(only_damage(), HasSubstr("XXH128SUMS: missing"));
  EXPECT_EQ(RunCkpt("verify " + step(100).string()).code, 1);
}

TEST_F(ReaderTest, CommandDiff) {
  EXPECT_EQ(RunCkpt("diff " + Run() + " " + step(200).string()).code, 0);
  EXPECT_EQ(RunCkpt("diff " + step(100).string() + " " + step(200).string()).code, 1);
  SaveVariant(7, 123.0f);
  const std::string pair = step(200).string() + " " + step(300).string();
  const CommandResult text = RunCkpt("diff --bitwise " + pair);
  EXPECT_EQ(text.code, 1);
  EXPECT_THAT(text.out, HasSubstr("main/layers.0.mlp.up_proj.weight"));
  EXPECT_THAT(text.out, HasSubstr("DIFFERENT"));
  EXPECT_EQ(RunCkpt("diff --state optim/m,optim/v " + pair).code, 0);
  EXPECT_EQ(RunCkpt("diff --state weights " + pair).code, 2);
  EXPECT_EQ(RunCkpt("diff --state '' " + pair).code, 2);  // Without a comparison nothing is equal.
}

TEST_F(ReaderTest, CommandReshard) {
  const fs::path out = run_ / "resharded";
  const CommandResult text = RunCkpt("reshard " + Run() + " --world 4 --out " + out.string());
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, HasSubstr("for 4 ranks; gathered hash"));
  EXPECT_EQ(RunCkpt("diff " + Run() + " " + out.string()).code, 0);
  EXPECT_EQ(RunCkpt("reshard " + Run() + " --world 0 --out " + out.string()).code, 2);
}

TEST_F(ReaderTest, CommandPrune) {
  SaveStep(run_.path(), {.step = 300}, SmallSpecs());
  EXPECT_EQ(RunCkpt("prune --keep-last 1 " + Run()).code, 2);
  const CommandResult of_step = RunCkpt("prune " + step(300).string());
  EXPECT_EQ(of_step.code, 2);
  EXPECT_THAT(of_step.error,
              HasSubstr("holds no ckpt/. Use a run's folder with one, or its ckpt/."));
  {
    const RunLock lock = RunLock::Acquire(run_.path(), {});
    EXPECT_EQ(RunCkpt("prune --keep-last 2 " + Run()).code, 4);
    const CommandResult dry = RunCkpt("prune --keep-last 2 --dry-run " + Run());
    EXPECT_EQ(dry.code, 0);
    EXPECT_THAT(dry.out, HasSubstr("step_000000000100  would go  older than the newest 2"));
    EXPECT_TRUE(fs::exists(step(100)));
  }
  EXPECT_EQ(RunCkpt("prune --keep-last 2 " + Run()).code, 0);
  EXPECT_THAT(ListCkpt(run_.path()),
              ElementsAre("LATEST", "step_000000000200", "step_000000000300"));
}

// A run may keep every hundredth step for a plot. A prune without options must not delete these.
TEST_F(ReaderTest, PruneKeepsWhatTheRecipeAsksFor) {
  for (const uint64_t number : {300, 350, 400, 500})
    SaveStep(run_.path(), {.step = number, .config = {.retention = {.keep_last = 9}}},
             SmallSpecs());
  std::ofstream(run_ / "config.textproto") << "ckpt { keep_last: 2 keep_every: 100 }";
  EXPECT_EQ(RunCkpt("prune " + Run()).code, 0);
  EXPECT_FALSE(fs::exists(step(350)));
  EXPECT_EQ(ListPublished(run_ / "ckpt").size(), 5u);
  EXPECT_EQ(RunCkpt("prune --keep-every 0 --keep-best none " + Run()).code, 0);
  EXPECT_EQ(ListPublished(run_ / "ckpt").size(), 2u);
  std::ofstream(run_ / "config.textproto") << "ckpt { keep_lust: 2 }";
  EXPECT_EQ(RunCkpt("prune " + Run()).code, 2);
  EXPECT_EQ(RunCkpt("prune --keep-last 2 --keep-every 0 --keep-best none " + Run()).code, 0);
}

// A step of another process counts as good only after it was read.
TEST_F(ReaderTest, PruneCountsStepsThatAreWhole) {
  for (const uint64_t number : {300, 400}) {
    SaveStep(run_.path(), {.step = number, .config = {.retention = {.keep_last = 9}}},
             SmallSpecs());
    const fs::path shard = step(number) / "rank_00000.safetensors";
    const auto bytes = fs::file_size(shard);
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(bytes) - 100);
    file << "damage!!";
  }
  const CommandResult pruned = RunCkpt("prune --keep-last 2 " + Run());
  EXPECT_EQ(pruned.code, 0);
  EXPECT_THAT(pruned.out, HasSubstr("step_000000000400  stays  does not verify"));
  EXPECT_THAT(ListCkpt(run_.path()), ElementsAre("LATEST", "step_000000000100", "step_000000000200",
                                                 "step_000000000300", "step_000000000400"));
}

TEST_F(ReaderTest, PruneLocksTheRunThatWasNamed) {
  SaveStep(run_.path(), {.step = 300}, SmallSpecs());
  fs::rename(run_ / "ckpt", run_ / "elsewhere");
  fs::create_directory_symlink("elsewhere", run_ / "ckpt");
  {
    const RunLock lock = RunLock::Acquire(run_.path(), {});
    const CommandResult held = RunCkpt("prune --keep-last 2 " + Run());
    EXPECT_EQ(held.code, 4);
    EXPECT_THAT(held.error, Not(HasSubstr("--steal-lock")));  // An option of `train`.
  }
  EXPECT_EQ(RunCkpt("prune --keep-last 2 " + Run()).code, 0);
  EXPECT_FALSE(fs::exists(step(100)));
}

TEST_F(ReaderTest, PruneKnowsItsMetrics) {
  EXPECT_EQ(RunCkpt("prune --dry-run --keep-best vall_loss " + Run()).code, 2);
  const CommandResult none = RunCkpt("prune --dry-run --keep-best val_error " + Run());
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.error, HasSubstr("no step of"));
  EXPECT_EQ(RunCkpt("prune --dry-run --keep-every -5 " + Run()).code, 2);
}

TEST_F(ReaderTest, CommandUsage) {
  EXPECT_EQ(RunCkpt("").code, 2);
  EXPECT_EQ(RunCkpt("ls /does/not/exist").code, 2);
  EXPECT_EQ(RunCkpt("diff " + Run()).code, 2);
}

// The mean is compared element by element. The new step has no optimizer state.
TEST_F(ReaderTest, AverageWritesTheMeanOfTheWeights) {
  const fs::path out = run_ / "averaged";
  const CommandResult result =
      RunCkpt(Concat("average ", Run(), "@100 ", Run(), "@200 --out ", out.string(), " --json"));
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(json::parse(result.out)["steps"], 2);
  const StepReader a = StepReader::Open(step(100)), b = StepReader::Open(step(200));
  const StepReader mean = StepReader::Open(out);
  EXPECT_EQ(mean.manifest().array_names(), std::vector<std::string>{kMainArray});
  EXPECT_EQ(mean.state().step, 200u);
  EXPECT_EQ(mean.state().num_updates, 0u);
  for (const TensorEntry& tensor : a.manifest().tensors) {
    std::vector<float> left(static_cast<size_t>(tensor.count())), right = left, middle = left;
    a.ReadRange(kMainArray, tensor.name, 0, tensor.count(), left.data());
    b.ReadRange(kMainArray, tensor.name, 0, tensor.count(), right.data());
    mean.ReadRange(kMainArray, tensor.name, 0, tensor.count(), middle.data());
    for (size_t i = 0; i < left.size(); ++i) {
      const double expected = (static_cast<double>(left[i]) + right[i]) / 2;
      const bool same =
          std::isnan(expected) ? std::isnan(middle[i]) : middle[i] == static_cast<float>(expected);
      ASSERT_TRUE(same) << tensor.name << " " << i;
    }
  }
  SaveStep(run_.path(), {.world = 1, .step = 300}, LargeSpecs());
  std::vector<StepReader> different;
  different.push_back(StepReader::Open(step(100)));
  different.push_back(StepReader::Open(step(300)));
  EXPECT_HL_ERROR(AverageSteps(different, run_ / "other"), ExitCode::kUsage,
                  "have other tensors, so they have no mean");
}

}  // namespace
}  // namespace halflife::ckpt::test
