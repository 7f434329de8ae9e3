// Saves and loads between processes. Run as `mpirun -n N ckpt_mpi_test --ranks=N`.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "ckpt/ckpt_fixture.h"
#include "core/fault.h"
#include "dist/rank_context.h"
#include "support/expect_error.h"
#include "support/mpi_main.h"

namespace halflife::ckpt::test {
namespace {

dist::RankContext* context = nullptr;  // Set by main, for the tests of this process.

// Provides a folder that all ranks share. Rank 0 owns it.
class MpiStoreTest : public testing::Test {
 protected:
  MpiStoreTest() {
    if (context->rank() == 0) owned_ = std::make_unique<halflife::test::TempDir>();
    const std::string mine = owned_ ? owned_->path().string() : "";
    run_ = dist::BroadcastBytes(control(), mine, 0, {"test_folder", 0});
  }
  ~MpiStoreTest() override {
    fault::Arm("", 0);
    control().Barrier({"test_end", 0}).WaitHost();
  }
  static dist::Communicator& control() { return context->control(); }

  std::unique_ptr<halflife::test::TempDir> owned_;
  std::filesystem::path run_;
};

TEST_F(MpiStoreTest, ProcessesSaveAndThreadsLoadTheSame) {
  for (const auto& specs : {SmallSpecs(), RandomSpecs(7)}) {
    TestArena arena(specs, control().size());
    CheckpointStore store(run_ / "ckpt", control(), {});
    arena.Fill(10);
    store.Save(arena.view(), MakeState(10));
    arena.FillWithGarbage();
    const auto report = store.Load({}, MatchingExpectation(), arena.view());
    EXPECT_EQ(report->state.step, 10u);
    EXPECT_EQ(arena.DifferenceFrom(10), "");
    control().Barrier({"loaded", 0}).WaitHost();
    if (control().rank() == 0) {
      EXPECT_EQ(LoadStep(run_, 3, specs)->state.step, 10u);
    }
    control().Barrier({"compared", 0}).WaitHost();
  }
}

TEST_F(MpiStoreTest, OneFailingRankFailsTheSaveForAll) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  TestArena arena(SmallSpecs(), control().size());
  CheckpointStore store(run_ / "ckpt", control(), {});
  arena.Fill(10);
  store.Save(arena.view(), MakeState(10));
  fault::Arm("ckpt.p1.fsync:enospc:1:1", control().rank());
  EXPECT_HL_ERROR(store.Save(arena.view(), MakeState(20)), ExitCode::kCheckpointIo,
                  "rank 1: injected at ckpt.p1.fsync: No space left on device");
  const auto report = store.Load({}, MatchingExpectation(), arena.view());
  EXPECT_EQ(report->state.step, 10u);
  EXPECT_EQ(arena.DifferenceFrom(10), "");
}

// With sequence parallelism or shard groups, the store's group has the order of slices. Errors name
// the ranks of the world.
TEST_F(MpiStoreTest, ErrorsOfAStoreInAnotherOrderNameTheRankOfTheWorld) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  const int rank = control().rank();
  const std::unique_ptr<dist::Communicator> reversed = control().Split(0, -rank, "reversed");
  TestArena arena(SmallSpecs(), reversed->size());
  CheckpointStore store(run_ / "ckpt", *reversed, {.timeout_s = 1.2});
  arena.Fill(10);
  fault::Arm("ckpt.p1.fsync:enospc:1:0", rank);
  EXPECT_HL_ERROR(store.Save(arena.view(), MakeState(10)), ExitCode::kCheckpointIo,
                  "rank 0: injected at ckpt.p1.fsync");
  fault::Arm("ckpt.p1.write:delay:1:0", rank);  // 2 seconds
  EXPECT_HL_ERROR(store.Save(arena.view(), MakeState(10)), ExitCode::kCheckpointIo, "rank 0 took");
}

// The late rank cancels the save. The group stays usable, so the next save succeeds.
TEST_F(MpiStoreTest, ALateRankCancelsOnlyTheSave) {
  if (!fault::CompiledIn()) GTEST_SKIP() << "this build has no fault points";
  TestArena arena(SmallSpecs(), control().size());
  CheckpointStore store(run_ / "ckpt", control(), {.timeout_s = 1.2});
  arena.Fill(10);
  fault::Arm("ckpt.p1.write:delay:1:1", control().rank());  // 2 seconds
  EXPECT_HL_ERROR(
      store.Save(arena.view(), MakeState(10)), ExitCode::kCheckpointIo,
      "not all ranks had written their shard within 1.2 s (ckpt.timeout_s): rank 1 took",
      "nothing was published");
  fault::Arm("", control().rank());
  arena.Fill(20);
  store.Save(arena.view(), MakeState(20));
  arena.FillWithGarbage();
  EXPECT_EQ(store.Load({}, MatchingExpectation(), arena.view())->state.step, 20u);
  EXPECT_EQ(arena.DifferenceFrom(20), "");
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto owner = dist::RankContext::Create({.timeout_s = 60});
  context = owner.get();
  halflife::test::RequireRanks(*context, argc, argv);
  return halflife::test::RunTestsOnAllRanks(*context);
}

}  // namespace
}  // namespace halflife::ckpt::test

int main(int argc, char** argv) { return halflife::ckpt::test::Main(argc, argv); }
