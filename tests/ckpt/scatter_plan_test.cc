// The plan of a load: every stored block is read once, and its elements reach exactly the ranks
// that need them, for any number of ranks that saved and load.

#include <gtest/gtest.h>

#include <map>
#include <tuple>

#include "ckpt/ckpt_fixture.h"
#include "ckpt/slice_reader.h"
#include "ckpt/step_dir.h"
#include "ckpt/stored_layout.h"
#include "dist/local_communicator.h"

namespace halflife::ckpt::test {
namespace {

constexpr uint64_t kSmallRound = 64 << 10;

struct Loader {
  Loader(const std::vector<dist::ParamSpec>& specs, int num_ranks)
      : layout(specs, {.num_slices = num_ranks}),
        view{.layout = &layout, .arrays = {{.name = kMainArray}, {.name = "optim/m"}}} {}
  dist::ParameterLayout layout;
  ArenaView view;
};

// (array, tensor, begin, end) of the pieces of each (round, from, to), in order.
using Piece = std::tuple<std::string, std::string, int64_t, int64_t>;
using Exchange = std::map<std::tuple<int, int, int>, std::vector<Piece>>;

TEST(ScatterPlanTest, RanksAgreeWhoSendsWhat) {
  for (const auto& [saved, loading] : {std::pair(1, 3), {2, 4}, {8, 5}, {4, 16}, {3, 1}}) {
    for (const uint64_t seed : {1, 2, 3, 4}) {
      SCOPED_TRACE(testing::Message() << saved << " -> " << loading << ", seed " << seed);
      const std::vector<dist::ParamSpec> specs = RandomSpecs(seed);
      const Manifest manifest = DerivedManifest(specs, saved);
      const Loader loader(specs, loading);
      Exchange sent, expected;
      std::map<std::tuple<const StoredFragment*, uint64_t>, int> reads;
      int64_t elements = 0;
      for (int rank = 0; rank < loading; ++rank) {
        const ScatterPlan plan(manifest, loader.view, rank, kSmallRound);
        for (const ScatterPlan::Read& read : plan.reads()) {
          EXPECT_LT(read.round, plan.num_rounds());
          EXPECT_EQ((++reads[{read.fragment, read.block}]), 1);
          for (const ScatterPlan::Piece& piece : plan.PiecesOf(read)) {
            elements += piece.end - piece.begin;
            if (piece.rank != rank)
              sent[{read.round, rank, piece.rank}].emplace_back(
                  read.fragment->array, read.tensor->name, piece.begin, piece.end);
          }
        }
        for (const ScatterPlan::Receive& receive : plan.receives())
          expected[{receive.round, receive.source, rank}].emplace_back(
              receive.array->name, receive.tensor->name, receive.begin, receive.end);
      }
      EXPECT_EQ(sent, expected);
      EXPECT_EQ(elements, 2 * loader.layout.num_parameters());
    }
  }
}

// 100M parameters, saved by 8 ranks, loaded by 1,024 simulated ones.
TEST(ScatterPlanTest, ManyMoreRanksReadTheStepOnce) {
  std::vector<dist::ParamSpec> specs;
  for (int layer = 0; layer < 24; ++layer)
    specs.push_back({.name = Concat("layers.", layer, ".weight"), .shape = {2048, 2048}});
  const Manifest manifest = DerivedManifest(specs, 8);
  constexpr int kRanks = 1024;
  const Loader loader(specs, kRanks);
  uint64_t bytes = 0;
  for (int rank = 0; rank < kRanks; ++rank) {
    const ScatterPlan plan(manifest, loader.view, rank, kRoundBytes);
    std::map<int, uint64_t> tables;
    for (const ScatterPlan::Read& read : plan.reads()) {
      bytes += static_cast<uint64_t>(read.end - read.begin) * sizeof(float);
      const FileEntry& file = manifest.files[read.fragment->file];
      if (read.first_of_file) bytes += file.data_offset;
      tables[read.fragment->file] = kHashBytes * file.num_blocks;
    }
    for (const auto& [file, table] : tables) bytes += table;
  }
  EXPECT_LE(static_cast<double>(bytes), 1.1 * static_cast<double>(manifest.total_bytes));
}

// The same through files and threads, with rounds so small that there are many.
TEST(SliceReaderTest, ReadsEachBlockOnce) {
  const halflife::test::TempDir run;
  SaveStep(run.path(), {.world = 3, .step = 100}, LargeSpecs());
  const std::filesystem::path step = run / "ckpt" / StepName(100);
  const Manifest manifest = DecodeManifest(ReadManifestBytes(step), "m");
  for (const int world : {1, 2, 5}) {
    std::atomic<uint64_t> bytes = 0;
    dist::LocalWorld::Run(world, [&](dist::Communicator& comm) {
      TestArena arena(LargeSpecs(), world);
      arena.FillWithGarbage();
      const ArenaView view = arena.view();
      SliceReader reader(step, manifest, view, comm, 3 << 20);
      reader.Read();
      bytes += reader.bytes_read();
      EXPECT_EQ(arena.SliceDifferenceFrom(100, comm.rank()), "");
    });
    EXPECT_LE(static_cast<double>(bytes.load()), 1.01 * static_cast<double>(manifest.total_bytes));
  }
}

}  // namespace
}  // namespace halflife::ckpt::test
