// Save and load without failures: identical bits for any two world sizes, agreement checks,
// retention and branches.
#include "ckpt/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <new>

#include "ckpt/agreement.h"
#include "ckpt/ckpt_fixture.h"
#include "ckpt/reader.h"
#include "ckpt/step_dir.h"
#include "core/files.h"
#include "core/hash.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using testing::ElementsAre;
using testing::HasSubstr;

class WorldPairs : public testing::TestWithParam<std::tuple<int, int>> {};

TEST_P(WorldPairs, SavedAtOneLoadedAtTheOtherIsIdentity) {
  const auto [from, to] = GetParam();
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const TempDir run;
    const auto specs = seed == 1 ? SmallSpecs() : RandomSpecs(seed * 100 + from * 10 + to);
    SaveStep(run.path(), {.world = from, .step = seed}, specs);
    const auto report = LoadStep(run.path(), to, specs);
    ASSERT_TRUE(report);
    EXPECT_EQ(report->state.step, seed);
    EXPECT_FALSE(report->fell_back);
  }
}

INSTANTIATE_TEST_SUITE_P(All, WorldPairs,
                         testing::Combine(testing::Values(1, 2, 3, 4),
                                          testing::Values(1, 2, 3, 4)));

TEST(StoreTest, ScalarsComeBackExactly) {
  const TempDir run;
  SaveStep(run.path(), {.step = 12}, SmallSpecs());
  const StepState expected = MakeState(12);
  const StepState state = LoadStep(run.path(), 1, SmallSpecs())->state;
  EXPECT_EQ(state.num_updates, expected.num_updates);
  EXPECT_EQ(state.last_lr, expected.last_lr);
  EXPECT_EQ(state.data.next_sample, expected.data.next_sample);
  EXPECT_EQ(state.data.tokens, expected.data.tokens);
  EXPECT_EQ(state.data.dataset, expected.data.dataset);
  ASSERT_EQ(state.data.blend.size(), 1u);
  EXPECT_EQ(state.data.blend[0].drawn, 3u);
  EXPECT_EQ(state.guard.loss_window, expected.guard.loss_window);
  EXPECT_EQ(state.guard.skipped, expected.guard.skipped);
  EXPECT_EQ(state.guard.spikes, expected.guard.spikes);
  EXPECT_EQ(state.guard.rollbacks, expected.guard.rollbacks);
  EXPECT_EQ(state.rng_seed, expected.rng_seed);
  EXPECT_EQ(state.trajectory, expected.trajectory);
  EXPECT_EQ(state.run_config_text, expected.run_config_text);
  EXPECT_EQ(state.metrics, expected.metrics);
  EXPECT_EQ(state.parent_step, expected.parent_step);
}

// Gives this thread a host name of its own, as if it ran on another node.
bool TakeHostName(const std::string& name) {
  return ::unshare(CLONE_NEWUTS) == 0 && ::sethostname(name.data(), name.size()) == 0;
}

TEST(StoreTest, NodesAreTheHostsOfTheRanks) {
  const TempDir run;
  std::atomic<bool> named = true;
  dist::LocalWorld::Run(3, [&](dist::Communicator& control) {
    if (!TakeHostName(control.rank() < 2 ? "first" : "second")) named = false;
    TestArena arena(SmallSpecs(), 3);
    arena.Fill(5);
    CheckpointStore(run / "ckpt", control, {}).Save(arena.view(), MakeState(5));
  });
  if (!named) GTEST_SKIP() << "only root gives a thread a host name";
  const StepReader step = StepReader::Open(FindStep(run.path()));
  EXPECT_THAT(step.manifest().hosts, ElementsAre("first", "second"));
  EXPECT_EQ(step.state().mesh.nodes, 2);
}

TEST(StoreTest, SeveralBlocksPerFragment) {
  const TempDir run;
  const SaveReport report = SaveStep(run.path(), {.world = 2, .step = 3}, LargeSpecs());
  EXPECT_GT(report.bytes, 12u * 9'400'000);
  EXPECT_GT(report.durable_seconds, 0);
  EXPECT_LT(report.durable_seconds, report.seconds);  // `seconds` includes retention.
  EXPECT_EQ(LoadStep(run.path(), 3, LargeSpecs())->state.step, 3u);
}

TEST(StoreTest, MemoryThatOneRankLacksIsTheEnvironmentOnAll) {
  const TempDir run;
  std::atomic<int> failed = 0;
  dist::LocalWorld::Run(2, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 2);
    arena.Fill(5);
    CheckpointStore store(run / "ckpt", control, {});
    store.SetOwnershipCheck([] { throw std::bad_alloc(); });
    EXPECT_HL_ERROR(store.Save(arena.view(), MakeState(5)), ExitCode::kEnvironment,
                    "out of memory");
    ++failed;
  });
  EXPECT_EQ(failed, 2);
}

TEST(StoreTest, WeightsOnly) {
  const TempDir run;
  dist::LocalWorld::Run(2, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 2);
    arena.Fill(5);
    const ArenaView view = arena.weights();
    StepState state = MakeState(5);
    state.num_updates = 0;
    CheckpointStore store(run / "ckpt", control, {});
    store.Save(view, state);
    // A step without optimizer state means m = v = 0.
    TestArena loaded(SmallSpecs(), 2);
    loaded.FillWithGarbage();
    ASSERT_TRUE(store.Load({}, MatchingExpectation(), loaded.view()));
    EXPECT_EQ(loaded.DifferenceFrom(5, /*with_states=*/false), "");
  });
}

TEST(StoreTest, WeightsOnlyAfterUpdatesIsRefusedForTraining) {
  const TempDir run;
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 1);
    arena.Fill(5);
    const ArenaView view = arena.weights();
    CheckpointStore store(run / "ckpt", control, {});
    store.Save(view, MakeState(5));
    EXPECT_HL_ERROR(store.Load({}, MatchingExpectation(), arena.view()), ExitCode::kUsage,
                    "optimizer state: checkpoint none, this run optim/m, optim/v",
                    "--allow-change");
  });
}

// The state of one optimizer is not that of another, even where they share an array.
TEST(StoreTest, TheStateOfAnotherOptimizerIsRefused) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 1);
    ArenaView other = arena.view();
    other.arrays[1].name = "optim/momentum";
    CheckpointStore store(run / "ckpt", control, {});
    EXPECT_HL_ERROR(
        store.Load({}, MatchingExpectation(), other), ExitCode::kUsage,
        "optimizer state: checkpoint optim/m, optim/v, this run optim/momentum, optim/v",
        "Resume with the checkpoint's optimizer, or start another run from these weights");
  });
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.optimizer, "adamw");
}

TEST(StoreTest, AnArenaNamesTheArrayThatItLacks) {
  TestArena arena(SmallSpecs(), 1);
  const ArenaView view = arena.view();
  EXPECT_EQ(view.array("optim/v").data, view.arrays[2].data);
  EXPECT_HL_ERROR(view.array("optim/ema"), ExitCode::kInternal, "no array 'optim/ema'");
}

TEST(StoreTest, NothingThereIsAFreshStart) {
  const TempDir run;
  EXPECT_FALSE(LoadStep(run.path(), 2, SmallSpecs()));
  EXPECT_FALSE(LoadStep(run.path(), 2, SmallSpecs(), ParseResume("none")));
}

TEST(StoreTest, ResumeNoneRefusesARunThatHasSteps) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs(), ParseResume("none")), ExitCode::kUsage,
                  "already holds step_000000000010", "--resume auto");
}

TEST(StoreTest, ResumeFromAnExplicitStepOrPath) {
  const TempDir run;
  for (const uint64_t step : {10, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs(), ParseResume("step=10"))->state.step, 10u);
  const TempDir copy;
  fs::copy(run / "ckpt/step_000000000010", copy / "elsewhere", fs::copy_options::recursive);
  const TempDir other;
  const auto request = ParseResume("path=" + (copy / "elsewhere").string());
  EXPECT_EQ(LoadStep(other.path(), 2, SmallSpecs(), request)->state.step, 10u);
  EXPECT_HL_ERROR(LoadStep(run.path(), 1, SmallSpecs(), ParseResume("step=11")),
                  ExitCode::kNoUsableCheckpoint, "there is no ",
                  "step_000000000011; `halflife ckpt ls` lists");
}

TEST(StoreTest, ParseResumeNamesTheForms) {
  EXPECT_EQ(ParseResume("auto").mode, ResumeMode::kAuto);
  EXPECT_EQ(ParseResume("step=1200").step, 1200u);
  for (const char* text : {"", "step=", "step=x", "step=1x", "path=", "newest", "auto "}) {
    EXPECT_HL_ERROR(ParseResume(text), ExitCode::kUsage, "auto, none, step=N or path=DIR");
  }
}

TEST(StoreTest, DifferencesAreListedAllAtOnceWithBothValues) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  auto specs = SmallSpecs();
  specs[2].shape = {16, 32};
  specs[0].aliases.clear();
  specs[1].name = "layers.0.norm.gain";
  Expectation expectation = MatchingExpectation();
  expectation.model_family = "retnet";
  expectation.model_config_json = R"({"num_layers": 3, "mixer": {"name": "gla"}, "bias": true})";
  expectation.trajectory = {{"optimizer.lr", "0.001"}, {"data.seq_len", "512"}, {"seed", "1"}};
  EXPECT_HL_ERROR(
      LoadStep(run.path(), 2, specs, {}, expectation), ExitCode::kUsage,
      "step_000000000010 does not fit this run, 9 differences:",
      "model.mixer: checkpoint gla, this run retnet", "model.num_layers: checkpoint 2, this run 3",
      "model.bias: checkpoint (absent), this run true",
      "optimizer.lr: checkpoint 0.003, this run 0.001", "seed: checkpoint (absent), this run 1",
      "tensor layers.0.attn.q_proj.weight: checkpoint [16, 64], this run [16, 32]",
      "tensor embeddings.weight tied to: checkpoint lm_head.weight, this run nothing",
      "tensor layers.0.norm.weight: only in the checkpoint",
      "tensor layers.0.norm.gain: only in this run's model", "--allow-change");
  EXPECT_THAT(ListCkpt(run.path()), ElementsAre("LATEST", "step_000000000010"));
}

TEST(StoreTest, AllowedChangesPass) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  Expectation expectation = MatchingExpectation();
  expectation.trajectory["optimizer.lr"] = "0.001";
  expectation.allow_change = {"optimizer.lr"};
  EXPECT_TRUE(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation));
}

TEST(StoreTest, FieldsOfEitherSideMayChangeAndNamesOfNeitherAreRefused) {
  const TempDir run;
  Expectation expectation = MatchingExpectation();
  expectation.model_config_json = R"({"num_layers": 2, "mixer": {"kind": "gla"}})";
  expectation.allow_change = {"model.mixer.kind", "model.mixer.name"};
  EXPECT_HL_ERROR(LoadStep(run.path(), 1, SmallSpecs(), {}, expectation), ExitCode::kUsage,
                  "--allow-change 'model.mixer.name' is no field that must agree");
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  EXPECT_TRUE(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation));
  expectation.allow_change.emplace_back("model.mixer.nme");
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation), ExitCode::kUsage,
                  "--allow-change 'model.mixer.nme' is no field",
                  "did you mean 'model.mixer.name'");
}

TEST(StoreTest, APartOfTheModelAllowsAllOfItsFieldsToChange) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  Expectation expectation = MatchingExpectation();
  expectation.model_config_json = R"({"num_layers": 2, "mixer": {"name": "retnet", "decay": 2}})";
  expectation.allow_change = {"model.mixer.name"};
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation), ExitCode::kUsage,
                  "model.mixer.decay: checkpoint (absent), this run 2");
  expectation.allow_change = {"model.mixer"};
  EXPECT_TRUE(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation));
  // Group names outside the model would allow changes of fields that decide which samples were
  // seen.
  expectation.allow_change = {"optimizer"};
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation), ExitCode::kUsage,
                  "--allow-change 'optimizer' is no field");
}

TEST(StoreTest, TensorsThatDifferAreNoMatterOfAllowChange) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  auto specs = SmallSpecs();
  specs[2].shape = {16, 32};
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, specs), ExitCode::kUsage,
                  "Tensors that differ cannot be loaded: --allow-change applies to fields only. "
                  "Resume with the checkpoint's model, or start another run with another --run");
}

TEST(StoreTest, StoredNumbersReadInTheirShortestText) {
  EXPECT_EQ(ReadableValue("0.0030000000000000001"), "0.003");
  EXPECT_EQ(ReadableValue("1.0000000000000001e-09"), "1e-09");
  EXPECT_EQ(ReadableValue("0.10000000000000001"), "0.1");
  for (const char* same : {"0.5", "100000", "18446744073709551615", "wsd", "", "[16, 64]",
                           "(absent)", "0.25x", "12345678e1234567", "inf"})
    EXPECT_EQ(ReadableValue(same), same);
}

// A checkpoint of an older program does not have the newer fields.
TEST(StoreTest, FieldsThatCameLaterMeanTheirDefaults) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  Expectation expectation = MatchingExpectation();
  expectation.trajectory_defaults = {{"data.epoch_end", "fill"}, {"optimizer.lr", "0.1"}};
  expectation.trajectory["data.epoch_end"] = "fill";
  EXPECT_TRUE(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation));
  expectation.trajectory["data.epoch_end"] = "drop";
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs(), {}, expectation), ExitCode::kUsage,
                  "data.epoch_end: checkpoint fill, this run drop");
}

TEST(StoreTest, TheFolderHoldsWhatPeopleAndToolsExpect) {
  const TempDir run;
  SaveStep(run.path(), {.world = 2, .step = 1200}, SmallSpecs());
  const fs::path step = run / "ckpt/step_000000001200";
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(step)) names.push_back(entry.path().filename());
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("manifest.pb", "manifest.txtpb", "XXH128SUMS",
                                            "rank_00000.safetensors", "rank_00001.safetensors"));
  const std::string manifest = ReadFile(step / "manifest.pb", ExitCode::kInternal);
  EXPECT_EQ(ReadFile(run / "ckpt/LATEST", ExitCode::kInternal),
            "step_000000001200 " + ToHex(HashBytes(manifest)) + "\n");
  const std::string sums = ReadFile(step / "XXH128SUMS", ExitCode::kInternal);
  for (const char* name : {"rank_00000.safetensors", "manifest.pb", "manifest.txtpb"}) {
    const std::string hash = ToHex(HashBytes(ReadFile(step / name, ExitCode::kInternal)));
    EXPECT_THAT(sums, HasSubstr(hash + "  " + name + "\n"));
  }
  EXPECT_THAT(ReadFile(step / "manifest.txtpb", ExitCode::kInternal), HasSubstr("step: 1200"));
}

TEST(StoreTest, ShardsAreOrdinarySafetensors) {
  const TempDir run;
  SaveStep(run.path(), {.world = 2, .step = 4}, SmallSpecs());
  const StepReader reader = StepReader::Open(run / "ckpt/step_000000000004");
  size_t num_fragments = 0, num_entries = 0;
  for (const TensorInfo& tensor : reader.tensors()) num_fragments += tensor.num_fragments;
  for (const FileInfo& file : reader.files()) {
    const auto header = safetensors::ReadHeader(reader.path() / file.name, ExitCode::kData);
    EXPECT_EQ(header.data_offset % 4096, 0u);
    EXPECT_EQ(header.metadata.at("magic"), "halflife-ckpt");
    EXPECT_EQ(header.metadata.at("step"), "4");
    EXPECT_EQ(header.entries.back().name, "__hashes__");
    num_entries += header.entries.size() - 1;
    for (const auto& entry : header.entries) {
      if (entry.name == "__hashes__") continue;
      const std::string tensor = entry.name.substr(entry.name.rfind('/') + 1);
      const size_t at = tensor.find('@');
      const TensorEntry* stored = reader.manifest().Find(tensor.substr(0, at));
      ASSERT_NE(stored, nullptr) << entry.name;
      if (at == std::string::npos) {
        EXPECT_EQ(entry.shape, stored->shape);
      } else {
        EXPECT_EQ(entry.shape.size(), 1u);
      }
    }
  }
  EXPECT_EQ(num_entries, num_fragments);
}

TEST(StoreTest, RetentionKeepsTheNewestAndThePinned) {
  const TempDir run;
  const StoreConfig config{.retention = {.keep_last = 2, .keep_every = 40, .keep_best = "loss"}};
  SaveStep(run.path(), {.step = 10, .config = config}, SmallSpecs());
  std::ofstream(run / "ckpt/step_000000000010/KEEP") << "";
  for (uint64_t step = 20; step <= 100; step += 10) {
    SaveStep(run.path(), {.step = step, .config = config}, SmallSpecs());
  }
  // The loss decreases with the step, so the newest step is always the best.
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000010", "step_000000000040", "step_000000000080",
                          "step_000000000090", "step_000000000100"));
}

TEST(StoreTest, DeletesTheStepsThatWereSupersededSinceThen) {
  const TempDir run;
  const auto make = [&](const char* name) { fs::create_directories(run / "ckpt" / name); };
  make("step_000000000010");
  make("step_000000000020.superseded");
  const std::vector<StepDir> before = ListSteps(run / "ckpt");
  for (const char* name : {"step_000000000020.superseded.0af1", "step_000000000030.superseded",
                           "step_000000000040.superseded", "step_000000000050.bad"})
    make(name);
  std::ofstream(run / "ckpt/step_000000000040.superseded/KEEP") << "";
  DeleteSuperseded(run / "ckpt", before);
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("step_000000000010", "step_000000000020.superseded",
                          "step_000000000040.superseded", "step_000000000050.bad"));
}

TEST(StoreTest, TheBestStepOutlivesNewerOnes) {
  const TempDir run;
  const StoreConfig config{.retention = {.keep_last = 2, .keep_every = 0, .keep_best = "loss"}};
  const double losses[] = {3.0, 1.5, 2.5, 2.6, 2.4};
  dist::LocalWorld::Run(1, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 1);
    arena.Fill(1);
    CheckpointStore store(run / "ckpt", control, config);
    for (int i = 0; i < 5; ++i) {
      StepState state = MakeState(i + 1);
      state.metrics = {{"loss", losses[i]}};
      store.Save(arena.view(), state);
    }
  });
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000002", "step_000000000004", "step_000000000005"));
}

TEST(StoreTest, RetentionNeverGoesBelowTwoGoodSteps) {
  const TempDir run;
  EXPECT_HL_ERROR(
      SaveStep(run.path(), {.step = 1, .config = {.retention = {.keep_last = 1}}}, SmallSpecs()),
      ExitCode::kUsage, "keep_last is 1", "at least 2");
  const StoreConfig config{.retention = {.keep_last = 2}};
  for (const uint64_t step : {10, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  // A newest step that does not verify must not displace a good one.
  fs::resize_file(run / "ckpt/step_000000000020/rank_00000.safetensors", 100);
  SaveStep(run.path(), {.step = 30, .config = config}, SmallSpecs());
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000010", "step_000000000020", "step_000000000030"));
}

TEST(StoreTest, SavingAStepAgainReplacesIt) {
  const TempDir run;
  SaveStep(run.path(), {.world = 1, .step = 10}, SmallSpecs());
  std::ofstream(run / "ckpt/step_000000000010/KEEP") << "";
  const std::string before = ReadFile(run / "ckpt/LATEST", ExitCode::kInternal);
  SaveStep(run.path(), {.world = 2, .step = 10}, SmallSpecs());
  EXPECT_NE(ReadFile(run / "ckpt/LATEST", ExitCode::kInternal), before);
  EXPECT_THAT(ListCkpt(run.path()), ElementsAre("LATEST", "step_000000000010"));
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.mesh.world, 2);
  EXPECT_TRUE(fs::exists(run / "ckpt/step_000000000010/KEEP")) << "the step stays pinned";
}

enum class NamedBy { kNumber, kPath, kPathWithSlash, kLink };

class GoingBack : public testing::TestWithParam<NamedBy> {
 protected:
  // Returns a request for a step of this run.
  ResumeRequest Request(uint64_t step) const {
    if (GetParam() == NamedBy::kNumber) return ParseResume(Concat("step=", step));
    std::string path = (run_ / "logs/../ckpt" / StepName(step)).string();
    if (GetParam() == NamedBy::kPathWithSlash) path += "/";
    if (GetParam() == NamedBy::kLink) {
      fs::create_symlink(fs::canonical(path), run_ / "link");
      path = (run_ / "link").string();
    }
    return ParseResume("path=" + path);
  }
  TempDir run_;
};

INSTANTIATE_TEST_SUITE_P(ByNumberAndByPath, GoingBack,
                         testing::Values(NamedBy::kNumber, NamedBy::kPath, NamedBy::kPathWithSlash,
                                         NamedBy::kLink));

TEST_P(GoingBack, RenamesNewerStepsBeforeTheRunContinues) {
  fs::create_directories(run_ / "logs");
  for (const uint64_t step : {10, 20, 30}) SaveStep(run_.path(), {.step = step}, SmallSpecs());
  const LoadReport report = *LoadStep(run_.path(), 2, SmallSpecs(), Request(10));
  EXPECT_EQ(report.state.step, 10u);
  EXPECT_TRUE(report.own);
  EXPECT_EQ(report.path, fs::canonical(run_ / "ckpt/step_000000000010"));
  EXPECT_THAT(ListCkpt(run_.path()),
              ElementsAre("LATEST", "step_000000000010", "step_000000000020.superseded",
                          "step_000000000030.superseded"));
  EXPECT_THAT(ReadFile(run_ / "ckpt/LATEST", ExitCode::kInternal),
              testing::StartsWith("step_000000000010 "));
  // The run has gone back even if it ends before its first save.
  EXPECT_EQ(LoadStep(run_.path(), 1, SmallSpecs())->state.step, 10u);
}

// The first save is above the old steps. Steps between the two are of the abandoned branch.
TEST_P(GoingBack, StepsBelowTheFirstSavePushNoAncestorOut) {
  fs::create_directories(run_ / "logs");
  const StoreConfig config{.retention = {.keep_last = 2}};
  for (const uint64_t step : {10, 20}) SaveStep(run_.path(), {.step = step}, SmallSpecs());
  LoadStep(run_.path(), 1, SmallSpecs(), Request(10));
  SaveStep(run_.path(), {.step = 35, .config = config}, SmallSpecs());
  EXPECT_THAT(ListCkpt(run_.path()),
              ElementsAre("LATEST", "step_000000000010", "step_000000000020.superseded",
                          "step_000000000035"));
  fs::resize_file(run_ / "ckpt/step_000000000035/rank_00000.safetensors", 100);
  EXPECT_EQ(LoadStep(run_.path(), 1, SmallSpecs())->state.step, 10u);
}

TEST_P(GoingBack, AStepPastTheEndIsRefusedAndRenamesNothing) {
  fs::create_directories(run_ / "logs");
  for (const uint64_t step : {20, 30}) SaveStep(run_.path(), {.step = step}, SmallSpecs());
  Expectation expectation = MatchingExpectation();
  expectation.max_step = 15;
  EXPECT_HL_ERROR(LoadStep(run_.path(), 1, SmallSpecs(), Request(20), expectation),
                  ExitCode::kUsage, "the checkpoint is at step 20, past train.steps 15");
  EXPECT_THAT(ListCkpt(run_.path()),
              ElementsAre("LATEST", "step_000000000020", "step_000000000030"));
}

// A step that was renamed to .superseded does not count as saved, so it is saved again.
TEST(StoreTest, ASupersededStepCountsAsNotSaved) {
  const TempDir run;
  for (const uint64_t step : {10, 30}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  LoadStep(run.path(), 1, SmallSpecs(), ParseResume("step=10"));
  const fs::path aside = run / "ckpt/step_000000000030.superseded";
  const LoadReport report =
      *LoadStep(run.path(), 1, SmallSpecs(), ParseResume("path=" + aside.string()));
  EXPECT_EQ(report.state.step, 30u);
  EXPECT_FALSE(report.own);
  SaveStep(run.path(), {.step = 30}, SmallSpecs());
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "ORIGIN", "step_000000000010.superseded", "step_000000000030",
                          "step_000000000030.superseded"));
}

// Steps above and below the step from which the run continues: none of them is its ancestor.
TEST(StoreTest, ABranchFromAnotherFolderRenamesAllSteps) {
  const TempDir run, other;
  SaveStep(other.path(), {.step = 10}, SmallSpecs());
  for (const uint64_t step : {5, 20}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  const fs::path from = other / "ckpt/step_000000000010";
  LoadStep(run.path(), 2, SmallSpecs(), ParseResume("path=" + from.string()));
  EXPECT_THAT(ListCkpt(run.path()), ElementsAre("LATEST", "ORIGIN", "step_000000000005.superseded",
                                                "step_000000000020.superseded"));
  // If the run ends before its first save, it must not resume from the old steps.
  EXPECT_HL_ERROR(LoadStep(run.path(), 1, SmallSpecs()), ExitCode::kNoUsableCheckpoint,
                  "began from ", "/ckpt/step_000000000010 and has saved no step since");
  SaveStep(run.path(), {.step = 15}, SmallSpecs());
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, 15u);
}

// A new run that continues another run's step must not begin from new weights if it ended before
// its first save and is started without --resume path.
TEST(StoreTest, ABranchWithoutAStepDoesNotStartAfresh) {
  const TempDir run, other;
  SaveStep(other.path(), {.step = 10}, SmallSpecs());
  const auto from = ParseResume("path=" + fs::canonical(other / "ckpt/step_000000000010").string());
  LoadStep(run.path(), 2, SmallSpecs(), from);
  EXPECT_HL_ERROR(LoadStep(run.path(), 2, SmallSpecs()), ExitCode::kNoUsableCheckpoint,
                  "the run in " + run.path().string() + " began from " + from.path.string() +
                      " and has saved no step since. Start the same command with --resume path=" +
                      from.path.string());
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs(), from)->state.step, 10u);
  // A fresh start that is asked for forgets the origin.
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs(), ParseResume("none")), std::nullopt);
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs()), std::nullopt);
}

TEST(StoreTest, ARunFolderIsNoStep) {
  const TempDir run, other;
  SaveStep(other.path(), {.step = 10}, SmallSpecs());
  EXPECT_HL_ERROR(
      LoadStep(run.path(), 1, SmallSpecs(), ParseResume("path=" + other.path().string())),
      ExitCode::kUsage, " is not the folder of a step. Use a step in it, for example ",
      "/ckpt/step_000000001200");
}

// A save that replaces a step moves it to the trash before it publishes the new one.
TEST(StoreTest, TheOnlyStepIsRestoredIfItsReplacementWasInterrupted) {
  const TempDir run;
  SaveStep(run.path(), {.step = 10}, SmallSpecs());
  MoveToTrash(run / "ckpt", run / "ckpt/step_000000000010");
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs())->state.step, 10u);
  SaveStep(run.path(), {.step = 20}, SmallSpecs());
  MoveToTrash(run / "ckpt", run / "ckpt/step_000000000010");
  EXPECT_EQ(LoadStep(run.path(), 2, SmallSpecs())->state.step, 20u);
  EXPECT_THAT(ListCkpt(run.path()), ElementsAre("LATEST", "step_000000000020"))
      << "deleted, because another step is there";
}

TEST(StoreTest, ASaveIsTheNewestStepOfItsFolder) {
  const TempDir run;
  for (const uint64_t step : {20, 30, 15}) SaveStep(run.path(), {.step = step}, SmallSpecs());
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre("LATEST", "step_000000000015", "step_000000000020.superseded",
                          "step_000000000030.superseded"));
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, 15u);
}

TEST(StoreTest, NanIsNotSaved) {
  const TempDir run;
  SaveStep(run.path(), {.world = 2, .step = 10}, SmallSpecs());
  const auto save_nan = [&] {
    dist::LocalWorld::Run(2, [&](dist::Communicator& control) {
      TestArena arena(SmallSpecs(), 2);
      arena.Fill(20);
      const ArenaView view = arena.view();
      view.arrays[0].data[view.layout->offset(2) + 17] = std::nanf("");
      CheckpointStore store(run / "ckpt", control, {});
      store.Save(view, MakeState(20));
    });
  };
  EXPECT_HL_ERROR(save_nan(), ExitCode::kNonFinite,
                  "main/layers.0.attn.q_proj.weight holds NaN at element 17");
  EXPECT_EQ(LoadStep(run.path(), 1, SmallSpecs())->state.step, 10u);
}

TEST(StoreTest, ARankThatNeverArrivesEndsTheSave) {
  const TempDir run;
  SaveStep(run.path(), {.world = 2, .step = 10}, SmallSpecs());
  const auto late = [&] {
    dist::LocalWorld::Run(2,
                          [&](dist::Communicator& control) {
                            TestArena arena(SmallSpecs(), 2);
                            arena.Fill(20);
                            CheckpointStore store(run / "ckpt", control, {.timeout_s = 0.1});
                            store.Save(arena.view(), MakeState(20));
                          },
                          {.faults = {{dist::LocalFault::Kind::kHang, 1, "ckpt_written"}}});
  };
  EXPECT_HL_ERROR(late(), ExitCode::kTimeout, "within 0.1 s", "nothing was published");
  EXPECT_THAT(ListCkpt(run.path()),
              ElementsAre(".trash/.tmp_step_000000000020", "LATEST", "step_000000000010"));
}

}  // namespace
}  // namespace halflife::ckpt::test
