// A run never continues from a wrong state: after any damage to a step, a load either falls back to
// an older exact state with a warning or fails, and `verify` names the damaged block.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "ckpt/ckpt_fixture.h"
#include "ckpt/reader.h"
#include "ckpt/step_dir.h"
#include "ckpt/stored_layout.h"
#include "core/files.h"
#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::ckpt::test {
namespace {

namespace fs = std::filesystem;
using halflife::test::TempDir;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kOlder[] = "step_000000000100", kNewer[] = "step_000000000200";

void FlipBit(const fs::path& file, uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 0x10));
  ASSERT_TRUE(stream.good());
}

// Returns the offset of the last byte before the table of block hashes.
uint64_t LastDataByte(const fs::path& step, size_t file) {
  const FileEntry entry = StepReader::Open(step).manifest().files[file];
  return entry.bytes - kHashBytes * entry.num_blocks - 1;
}

// Saves two good steps with two ranks. `damage` then breaks the newer one.
class DamageTest : public testing::Test {
 protected:
  DamageTest() {
    SaveStep(run_.path(), {.world = 2, .step = 100}, SmallSpecs());
    SaveStep(run_.path(), {.world = 2, .step = 200}, SmallSpecs());
  }
  fs::path newer() const { return run_ / "ckpt" / kNewer; }
  fs::path older() const { return run_ / "ckpt" / kOlder; }

  void ExpectFallback(const std::string& what, int world = 3) {
    const auto report = LoadStep(run_.path(), world, SmallSpecs());
    ASSERT_TRUE(report);
    EXPECT_EQ(report->state.step, 100u);
    EXPECT_TRUE(report->fell_back);
    ASSERT_EQ(report->damage.size(), 1u);
    EXPECT_THAT(report->damage[0], HasSubstr("CHECKPOINT step 200 DAMAGED: "));
    EXPECT_THAT(report->damage[0], HasSubstr(what));
    EXPECT_THAT(report->damage[0], HasSubstr("FALLING BACK to step 100 (100 steps"));
    EXPECT_THAT(ListCkpt(run_.path()), Contains(std::string(kNewer) + ".bad"));
    EXPECT_THAT(ListCkpt(run_.path()), Not(Contains(kNewer)));
    EXPECT_THAT(ReadFile(run_ / "ckpt/LATEST", ExitCode::kInternal), HasSubstr(kOlder));
  }

  const TempDir run_;
};

TEST_F(DamageTest, TheBannerCountsStepsAndTokens) {
  FlipBit(newer() / "rank_00001.safetensors", 4096);
  const auto report = LoadStep(run_.path(), 1, SmallSpecs());
  // 100 steps of 8 samples with 512 tokens.
  EXPECT_THAT(report->damage,
              ElementsAre(HasSubstr("(100 steps, 409.6k tokens will be repeated).")));
}

TEST_F(DamageTest, BitFlipInAShardHeader) {
  FlipBit(newer() / "rank_00000.safetensors", 40);
  EXPECT_THAT(StepReader::Open(newer()).Verify(2)[0].text,
              HasSubstr("rank_00000.safetensors header: hash mismatch"));
  ExpectFallback("rank_00000.safetensors header: hash mismatch");
}

TEST_F(DamageTest, BitFlipInTheHeaderPadding) {
  FlipBit(newer() / "rank_00001.safetensors", 4095);
  ExpectFallback("rank_00001.safetensors header: hash mismatch");
}

TEST_F(DamageTest, BitFlipInTheLastByte) {
  const fs::path file = newer() / "rank_00001.safetensors";
  FlipBit(file, LastDataByte(newer(), 1));
  const auto damages = StepReader::Open(newer()).Verify(1);
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_EQ(damages[0].file, "rank_00001.safetensors");
  EXPECT_NE(damages[0].tensor, "");
  ExpectFallback("rank_00001.safetensors block 0 of optim/v/" + damages[0].tensor);
}

TEST_F(DamageTest, BitFlipInTheTableOfHashes) {
  const fs::path file = newer() / "rank_00001.safetensors";
  FlipBit(file, fs::file_size(file) - 1);
  const auto damages = StepReader::Open(newer()).Verify(1);
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_EQ(damages[0].text, "rank_00001.safetensors table of block hashes: hash mismatch");
  ExpectFallback("rank_00001.safetensors table of block hashes: hash mismatch");
}

TEST_F(DamageTest, BitFlipAnywhereInTheManifest) {
  const auto size = fs::file_size(newer() / "manifest.pb");
  for (const uint64_t offset : {uint64_t{0}, uint64_t{9}, uint64_t{16}, size / 2, size - 1}) {
    SCOPED_TRACE(testing::Message() << "byte " << offset);
    FlipBit(newer() / "manifest.pb", offset);
    EXPECT_HL_ERROR(StepReader::Open(newer()), ExitCode::kNoUsableCheckpoint, "manifest.pb");
    FlipBit(newer() / "manifest.pb", offset);
  }
  FlipBit(newer() / "manifest.pb", size / 2);
  ExpectFallback("manifest.pb: hash mismatch");
}

TEST_F(DamageTest, TruncatedFiles) {
  for (const char* name : {"rank_00001.safetensors", "manifest.pb"}) {
    const auto size = fs::file_size(newer() / name);
    for (const uint64_t cut : {uint64_t{1}, std::min<uint64_t>(4096, size), size / 2, size}) {
      SCOPED_TRACE(testing::Message() << name << " cut by " << cut);
      const TempDir copy;
      fs::copy(run_.path(), copy / "run", fs::copy_options::recursive);
      fs::resize_file(copy / "run/ckpt" / kNewer / name, size - cut);
      const auto report = LoadStep(copy / "run", 1, SmallSpecs());
      EXPECT_EQ(report->state.step, 100u);
      EXPECT_THAT(report->damage, ElementsAre(HasSubstr(name)));
    }
  }
}

TEST_F(DamageTest, MissingShard) {
  fs::remove(newer() / "rank_00000.safetensors");
  ExpectFallback("rank_00000.safetensors: missing");
}

TEST_F(DamageTest, MissingManifest) {
  fs::remove(newer() / "manifest.pb");
  ExpectFallback("manifest.pb: missing");
}

TEST_F(DamageTest, SwappedShardsOfEqualSize) {
  // One tensor that is split into equal halves.
  const TempDir run;
  const std::vector<dist::ParamSpec> specs = {{.name = "w", .shape = {64, 64}}};
  for (const uint64_t step : {100, 200}) SaveStep(run.path(), {.world = 2, .step = step}, specs);
  const fs::path step = run / "ckpt" / kNewer;
  const fs::path a = step / "rank_00000.safetensors", b = step / "rank_00001.safetensors";
  ASSERT_EQ(fs::file_size(a), fs::file_size(b));
  fs::rename(a, step / "x");
  fs::rename(b, a);
  fs::rename(step / "x", b);
  const auto report = LoadStep(run.path(), 1, specs);
  EXPECT_EQ(report->state.step, 100u);
  EXPECT_THAT(report->damage, ElementsAre(HasSubstr("rank_00000.safetensors header")));
}

TEST_F(DamageTest, ShardOfAnotherStep) {
  fs::copy_file(older() / "rank_00001.safetensors", newer() / "rank_00001.safetensors",
                fs::copy_options::overwrite_existing);
  ExpectFallback("rank_00001.safetensors header: hash mismatch");
}

TEST_F(DamageTest, ManifestOfAnotherStep) {
  fs::copy_file(older() / "manifest.pb", newer() / "manifest.pb",
                fs::copy_options::overwrite_existing);
  ExpectFallback("manifest.pb is of step 100");
}

TEST_F(DamageTest, AnExtraFileIsNoPartOfTheStep) {
  fs::copy_file(older() / "rank_00001.safetensors", newer() / "rank_00007.safetensors");
  EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
  const auto damages = StepReader::Open(newer()).Verify(1);
  ASSERT_EQ(damages.size(), 1u);
  EXPECT_EQ(damages[0].text, "rank_00007.safetensors: not a file of this step");
}

TEST_F(DamageTest, ALinkForTheTrashIsNotEmptied) {
  const fs::path theirs = run_ / "theirs", trash = run_ / "ckpt/.trash";
  fs::create_directory(theirs);
  std::ofstream(theirs / "file") << "theirs";
  fs::remove_all(trash);
  fs::create_directory_symlink(theirs, trash);
  EmptyTrash(run_ / "ckpt");
  EXPECT_TRUE(fs::exists(theirs / "file"));
  fs::create_directory_symlink(theirs, trash);
  fs::remove_all(MoveToTrash(run_ / "ckpt", older()));
  EXPECT_TRUE(fs::is_directory(fs::symlink_status(trash)));
  EXPECT_EQ(std::distance(fs::directory_iterator(theirs), {}), 1);
}

TEST_F(DamageTest, AHintOfAnySizeIsOnlyAHint) {
  fs::resize_file(run_ / "ckpt/LATEST", 1ull << 40);
  EXPECT_EQ(ReadLatest(run_ / "ckpt"), "");
  EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
}

TEST_F(DamageTest, FilesForPeopleAreNotRead) {
  fs::remove(newer() / "manifest.txtpb");
  FlipBit(newer() / "XXH128SUMS", 3);
  EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
}

TEST_F(DamageTest, WhatALoadDoesNotNeedIsNotRead) {
  const fs::path file = newer() / "rank_00001.safetensors";
  // In optim/v, which a load of only the weights does not read.
  FlipBit(file, LastDataByte(newer(), 1));
  dist::LocalWorld::Run(2, [&](dist::Communicator& control) {
    TestArena arena(SmallSpecs(), 2);
    const ArenaView weights = arena.weights();
    CheckpointStore store(run_ / "ckpt", control, {});
    const auto report = store.Load({}, MatchingExpectation(), weights);
    EXPECT_EQ(report->state.step, 200u);
    EXPECT_EQ(arena.DifferenceFrom(200, /*with_states=*/false), "");
  });
}

TEST_F(DamageTest, NothingUsableIsExit76AndStaysSo) {
  FlipBit(newer() / "manifest.pb", 100);
  fs::remove(older() / "rank_00001.safetensors");
  EXPECT_HL_ERROR(LoadStep(run_.path(), 2, SmallSpecs()), ExitCode::kNoUsableCheckpoint,
                  "step 200: manifest.pb: hash mismatch",
                  "step 100: rank_00001.safetensors: missing", "renamed to .bad");
  // The next start must not treat the folder as empty.
  EXPECT_HL_ERROR(LoadStep(run_.path(), 2, SmallSpecs()), ExitCode::kNoUsableCheckpoint,
                  "step_000000000200.bad, step_000000000100.bad");
  EXPECT_HL_ERROR(LoadStep(run_.path(), 2, SmallSpecs(), ParseResume("none")), ExitCode::kUsage,
                  "already holds");
}

TEST_F(DamageTest, AnExplicitStepNeverFallsBack) {
  FlipBit(newer() / "rank_00000.safetensors", 5000);
  EXPECT_HL_ERROR(LoadStep(run_.path(), 2, SmallSpecs(), ParseResume("step=200")),
                  ExitCode::kNoUsableCheckpoint, newer().string() + " is damaged",
                  "rank_00000.safetensors block 0 of main/", "--resume auto");
  EXPECT_THAT(ListCkpt(run_.path()), Contains(kNewer));
}

TEST_F(DamageTest, AnIoErrorIsNoDamage) {
  fs::remove(newer() / "manifest.pb");
  fs::create_symlink("manifest.pb", newer() / "manifest.pb");  // Every read fails with ELOOP.
  EXPECT_HL_ERROR(LoadStep(run_.path(), 2, SmallSpecs()), ExitCode::kCheckpointIo, "manifest.pb",
                  "Too many levels of symbolic links");
  EXPECT_THAT(ListCkpt(run_.path()), Contains(kNewer));
}

TEST_F(DamageTest, StaleOrBrokenLatestIsAHintOnly) {
  for (const char* text : {"step_000000000100 0\n", "step_000000009999 0\n", "", "\x01garbage"}) {
    std::ofstream(run_ / "ckpt/LATEST") << text;
    EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
    EXPECT_THAT(ReadFile(run_ / "ckpt/LATEST", ExitCode::kInternal), HasSubstr(kNewer));
  }
}

TEST_F(DamageTest, LeftoversAreNeverAdopted) {
  const fs::path leftover = run_ / "ckpt/.tmp_step_000000000300.0123abcd";
  fs::copy(newer(), leftover, fs::copy_options::recursive);  // Complete, but never published.
  fs::create_directories(run_ / "ckpt/.trash/step_000000000050.01234567");
  EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
  EXPECT_THAT(ListCkpt(run_.path()), ElementsAre("LATEST", kOlder, kNewer));
}

TEST_F(DamageTest, AStepSavedAgainAfterAFallbackIsUsed) {
  FlipBit(newer() / "rank_00000.safetensors", 5000);
  ExpectFallback("rank_00000.safetensors block 0");
  SaveStep(run_.path(), {.world = 1, .step = 200}, SmallSpecs());
  EXPECT_EQ(LoadStep(run_.path(), 2, SmallSpecs())->state.step, 200u);
  EXPECT_THAT(ListCkpt(run_.path()),
              ElementsAre("LATEST", kOlder, kNewer, "step_000000000200.bad"));
}

TEST(LargeDamageTest, VerifyNamesTheBlockOfALongFragment) {
  const TempDir run;
  SaveStep(run.path(), {.world = 1, .step = 100}, LargeSpecs());
  SaveStep(run.path(), {.world = 1, .step = 200}, LargeSpecs());
  const fs::path step = run / "ckpt" / kNewer;
  const StepReader reader = StepReader::Open(step);
  const TensorEntry& large = *reader.manifest().Find("large");
  const StoredFragment* v = nullptr;
  for (const StoredFragment& f : large.fragments) v = f.array == "optim/v" ? &f : v;
  ASSERT_EQ(NumBlocks(FragmentBytes(*v), reader.manifest().block_bytes), 36u);
  const uint64_t data = reader.manifest().files[0].data_offset + v->offset;
  const fs::path file = step / "rank_00000.safetensors";
  for (const uint64_t block : {0, 1, 20, 35}) {
    const uint64_t at = data + block * kBlockBytes;
    FlipBit(file, at + 77);
    const auto damages = reader.Verify(1);
    ASSERT_EQ(damages.size(), 1u);
    EXPECT_EQ(damages[0].tensor, "large");
    EXPECT_EQ(damages[0].offset, at);
    EXPECT_THAT(damages[0].text, HasSubstr("rank_00000.safetensors block " + std::to_string(block) +
                                           " of optim/v/large: hash mismatch (elements [" +
                                           std::to_string(block * kBlockBytes / 4)));
    FlipBit(file, at + 77);
  }
  EXPECT_TRUE(reader.Verify(1).empty());
  FlipBit(file, data + kBlockBytes);
  const auto report = LoadStep(run.path(), 2, LargeSpecs());
  EXPECT_EQ(report->state.step, 100u);
  EXPECT_THAT(report->damage, ElementsAre(HasSubstr("block 1 of optim/v/large")));
}

}  // namespace
}  // namespace halflife::ckpt::test
