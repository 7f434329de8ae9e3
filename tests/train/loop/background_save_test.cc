// A step that is saved in the background is stored as it was when the save began, even if the arena
// changes afterwards.
#include "train/loop/run_saves.h"

#include <gtest/gtest.h>

#include "core/fault.h"
#include "dist/local_communicator.h"
#include "model/language_model.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"
#include "train/config/run_config.h"

namespace halflife::train {
namespace {

constexpr char kRecipe[] = R"(
data { path: "data" }
model { vocab_size: 259 model_dim: 32 num_layers: 2 channel_mixer { swiglu { width: 64 } }
        mixer { retention { num_heads: 2 } } }
)";

// One rank's arena, with a store that has a communicator of its own.
struct Rank {
  Rank(dist::Communicator& comm, const std::filesystem::path& dir, int zero_stage)
      : config(ParseRunConfig(kRecipe, "test", {})),
        model(config.model),
        arena(model.parameters(), {.layout = {.first_bucket_bytes = 4096,
                                              .bucket_bytes = 8192,
                                              .num_slices = comm.size()},
                                   .zero_stage = zero_stage,
                                   .slice = comm.rank(),
                                   .states = {"m", "v"}}),
        group(comm.Split(0, comm.rank(), "ckpt")),
        store(dir, *group, {}),
        save(store, *group, arena, /*ema_decay=*/0, average) {}

  // Returns a value that is unique to the array, the element and the salt.
  static float Value(int array, int64_t element, float salt) {
    return salt + static_cast<float>(array) + static_cast<float>(element % 8191) / 8192;
  }
  void Fill(float salt) {
    at::Tensor* arrays[] = {&arena.main(), &arena.state("m"), &arena.state("v")};
    const int64_t ends[] = {arena.main_sliced_end(), arena.states_division().end,
                            arena.states_division().end};
    for (int array = 0; array < 3; ++array) {
      auto* const data = arrays[array]->mutable_data_ptr<float>();
      for (const dist::Fragment& part : arena.layout().AllFragments())
        if (ends[array] <= part.arena_begin)
          for (int64_t i = 0; i < part.end - part.begin; ++i)
            data[arena.layout().PlaceOf(part, ends[array]) + i] =
                Value(array, part.arena_begin + i, salt);
      for (const dist::Fragment& part : arena.layout().SliceFragments(group->rank()))
        for (int64_t i = 0; i < part.end - part.begin; ++i)
          data[arena.layout().PlaceOf(part, ends[array]) + i] =
              Value(array, part.arena_begin + i, salt);
    }
  }
  // Loads the stored step into a whole arena and compares it.
  void ExpectSaved(uint64_t step, float salt) {
    const auto count = static_cast<size_t>(arena.layout().num_elements());
    std::vector<float> arrays[3];
    for (std::vector<float>& array : arrays) array.assign(count, -1);
    const auto loaded = store.Load({.mode = ckpt::ResumeMode::kAuto}, {.model_family = "test"},
                                   {.layout = &arena.layout(),
                                    .arrays = {{"main", arrays[0].data()},
                                               {"optim/m", arrays[1].data()},
                                               {"optim/v", arrays[2].data()}}});
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->state.step, step);
    int64_t wrong = 0;
    for (const dist::Fragment& part : arena.layout().AllFragments())
      for (int array = 0; array < 3; ++array)
        for (int64_t i = 0; i < part.end - part.begin; ++i)
          wrong += arrays[array][part.arena_begin + i] != Value(array, part.arena_begin + i, salt);
    EXPECT_EQ(wrong, 0);
  }

  // Loads the stored step as a rank on a GPU does: into host memory for its slices, which are then
  // copied into the arena.
  void ExpectSlicesLoad(uint64_t step, float salt) {
    Fill(-1);
    HostSlices slices(arena, group->rank());
    EXPECT_EQ(slices.bytes(), 0);
    const auto loaded =
        store.Load({.mode = ckpt::ResumeMode::kAuto}, {.model_family = "test"}, slices.View(), [&] {
          slices.Allocate();
          return slices.View();
        });
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->state.step, step);
    EXPECT_EQ(slices.bytes(), 3 * 4 * arena.layout().num_elements() / group->size());
    slices.CopyToArena();
    int64_t wrong = 0;
    const auto stored = arena.stored_arrays();
    for (size_t array = 0; array < stored.size(); ++array)
      for (const dist::Fragment& part : arena.layout().SliceFragments(group->rank()))
        for (int64_t i = 0; i < part.end - part.begin; ++i)
          wrong += stored[array].tensor->const_data_ptr<float>()
                       [arena.layout().PlaceOf(part, stored[array].sliced_end) + i] !=
                   Value(static_cast<int>(array), part.arena_begin + i, salt);
    EXPECT_EQ(wrong, 0);
  }

  static ckpt::StepState State(uint64_t step) {
    ckpt::StepState state;
    state.step = step;
    state.model_family = "test";
    return state;
  }

  RunConfig config;
  model::LanguageModel model;
  ParameterArena arena;
  std::unique_ptr<dist::Communicator> group;
  ckpt::CheckpointStore store;
  FrozenAverage average;
  BackgroundSave save;
};

TEST(BackgroundSave, SavesTheStepThatWas) {
  for (const int world : {1, 2, 3}) {
    for (const int stage : {0, 1, 2}) {
      if (world == 1 && stage > 0) continue;
      SCOPED_TRACE(Concat(world, " ranks, stage ", stage));
      const test::TempDir dir;
      dist::LocalWorld::Run(world, [&](dist::Communicator& comm) {
        Rank rank(comm, dir.path(), stage);
        for (const int step : {1, 2}) {  // The second save reuses the buffer of the copy.
          rank.Fill(static_cast<float>(10 * step));
          rank.save.Begin(Rank::State(step));
          EXPECT_TRUE(rank.save.under_way());
          rank.save.AwaitCopy();
          rank.Fill(-1000);
          const BackgroundSave::Report report = rank.save.Finish();
          EXPECT_TRUE(rank.save.ended());
          EXPECT_FALSE(rank.save.under_way());
          EXPECT_EQ(report.step, step);
          EXPECT_GT(report.save.bytes, 0u);
          EXPECT_GT(report.save.seconds, 0);
          rank.ExpectSaved(step, static_cast<float>(10 * step));
          rank.ExpectSlicesLoad(step, static_cast<float>(10 * step));
        }
      });
    }
  }
}

TEST(BackgroundSave, ReportsErrorsOfTheStoreAndCanContinue) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "no fault points here";
  const test::TempDir dir;
  dist::LocalWorld::Run(1, [&](dist::Communicator& comm) {
    Rank rank(comm, dir.path(), 0);
    rank.Fill(1);
    fault::Arm("ckpt.p1.write:eio:1", 0);
    rank.save.Begin(Rank::State(1));
    rank.save.AwaitCopy();
    EXPECT_HL_ERROR(rank.save.Finish(), ExitCode::kCheckpointIo, "ckpt.p1.write");
    rank.save.Begin(Rank::State(2));
    rank.save.AwaitCopy();
    rank.save.Finish();
    rank.ExpectSaved(2, 1);
  });
}

// If a rank fails elsewhere during a save, neither this rank nor the others wait for the save.
TEST(BackgroundSave, IsGivenUpByARankThatFails) {
  const test::TempDir dir;
  const auto body = [&](dist::Communicator& comm) {
    Rank rank(comm, dir.path(), 0);
    rank.Fill(1);
    if (comm.rank() == 1) {  // The other rank's save waits for this rank's part.
      rank.save.Begin(Rank::State(1));
      HL_FAIL(ExitCode::kData, "no tokens");
    }
    comm.Barrier({"next_step", 0}).WaitHost();
  };
  EXPECT_HL_ERROR(dist::LocalWorld::Run(2, body, {.timeout_s = 60}), ExitCode::kData, "no tokens");
}

}  // namespace
}  // namespace halflife::train
