// Checks creation, clean-up and ownership of a run folder, and the record of the first failure.
#include "train/record/run_folder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/concat.h"
#include "dist/local_communicator.h"
#include "dist/rank_context.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::train {
namespace {

namespace fs = std::filesystem;

class RunFolderTest : public testing::Test {
 protected:
  // Runs the body as the only rank of a world of one.
  template <typename Body>
  static void WithContext(const Body& body) {
    dist::LocalWorld::Run(1, [&](dist::Communicator& comm) {
      const auto owned = dist::MakeLocalRankContext(comm);
      dist::RankContext& context = *owned;
      body(context);
    });
  }
  const test::TempDir dir_;
};

TEST_F(RunFolderTest, AFailedStartRemovesWhatItCreated) {
  std::ofstream(dir_ / "neighbour") << "x";
  WithContext([&](dist::RankContext& context) {
    {
      const RunFolder folder = RunFolder::Open(dir_ / "a/b/run", context, {});
      EXPECT_TRUE(folder.is_new());
      EXPECT_TRUE(fs::exists(dir_ / "a/b/run/ckpt"));
    }
    EXPECT_FALSE(fs::exists(dir_ / "a"));
    EXPECT_TRUE(fs::exists(dir_ / "neighbour"));
  });
}

// Old records would blame ranks that do not exist in this attempt.
TEST_F(RunFolderTest, FlightRecordsOfEarlierAttemptsGo) {
  fs::create_directories(dir_ / "run/flight");
  std::ofstream(dir_ / "run/flight/r00003.flight") << "of a run of four ranks";
  WithContext([&](dist::RankContext& context) {
    const RunFolder folder = RunFolder::Open(dir_ / "run", context, {});
    EXPECT_FALSE(fs::exists(dir_ / "run/flight"));
  });
}

TEST_F(RunFolderTest, KeptAndExistingFoldersStay) {
  WithContext([&](dist::RankContext& context) {
    {
      RunFolder made = RunFolder::Open(dir_ / "run", context, {});
      RunFolder moved = std::move(made);
      moved.Keep();
    }
    EXPECT_TRUE(fs::exists(dir_ / "run/ckpt"));
    std::ofstream(dir_ / "run/.DONE.tmp-0123456789abcdef") << "left by a kill";
    {
      const RunFolder again = RunFolder::Open(dir_ / "run/", context, {});
      EXPECT_FALSE(again.is_new());
      EXPECT_FALSE(fs::exists(dir_ / "run/.DONE.tmp-0123456789abcdef"));
    }
    EXPECT_TRUE(fs::exists(dir_ / "run/ckpt"));
  });
}

TEST_F(RunFolderTest, ADatasetIsNoRunFolder) {
  fs::create_directories(dir_ / "dataset");
  std::ofstream(dir_ / "dataset/manifest.pb") << "x";
  WithContext([&](dist::RankContext& context) {
    EXPECT_HL_ERROR(RunFolder::Open(dir_ / "dataset", context, {}), ExitCode::kUsage,
                    Concat("--run ", (dir_ / "dataset").string(), " holds a dataset"),
                    "Choose another folder with --run.");
  });
  EXPECT_EQ(std::distance(fs::directory_iterator(dir_ / "dataset"), {}), 1) << "nothing is written";
}

TEST_F(RunFolderTest, ALockedFolderDoesNotChange) {
  WithContext([&](dist::RankContext& context) {
    const RunFolder first = RunFolder::Open(dir_ / "run", context, {});
    EXPECT_HL_ERROR(RunFolder::Open(dir_ / "run", context, {}), ExitCode::kEnvironment, "in use");
    EXPECT_TRUE(fs::exists(dir_ / "run/run.lock"));
  });
}

// The rank that fails first creates the file, and writes it a moment later.
TEST_F(RunFolderTest, TheFirstCauseIsReadWhenItIsWritten) {
  fs::create_directories(dir_ / "run/abort");
  std::ofstream(dir_ / "run/abort/FIRST").close();
  std::thread first_rank([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    std::ofstream(dir_ / "run/abort/FIRST") << "rank 1: the disk is full\n";
  });
  const std::string words = RecordAbort(dir_ / "run", 0, "rank 1 is lost", true);
  first_rank.join();
  EXPECT_EQ(words, "stopped because another rank failed first: rank 1: the disk is full\n");
}

TEST_F(RunFolderTest, AFirstCauseThatIsNeverWrittenHidesNoOther) {
  fs::create_directories(dir_ / "run/abort");
  std::ofstream(dir_ / "run/abort/FIRST").close();
  EXPECT_EQ(RecordAbort(dir_ / "run", 0, "rank 1 is lost", true), "rank 1 is lost");
}

}  // namespace
}  // namespace halflife::train
