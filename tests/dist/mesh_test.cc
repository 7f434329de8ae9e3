// The mesh: which ranks share a row, the order in which ranks are summed, and valid divisions of
// the world.
#include "dist/mesh.h"

#include <gtest/gtest.h>

#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

TEST(Mesh, NeighboursShareRows) {
  const Mesh mesh = Mesh::Of(5, 8, 2);
  EXPECT_EQ(mesh.dp, 4);
  EXPECT_EQ(mesh.dp_index, 2);
  EXPECT_EQ(mesh.sp_index, 1);
  EXPECT_EQ(Mesh::Of(0, 1, 1).dp, 1);
}

// Ranks with the same slice are adjacent: of four groups of two, the first slices are ranks 0 to 3.
TEST(Mesh, SumsGoOverRanksWithTheSameSliceFirst) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(Mesh::Of(rank, 8, 2).sum_rank(), rank % 2 * 4 + rank / 2);
  LocalWorld::Run(8, [](Communicator& world) {
    const Mesh mesh = Mesh::Of(world.rank(), 8, 2);
    const auto sums = SplitSums(world, mesh);
    EXPECT_EQ(sums->rank(), mesh.sum_rank());
    EXPECT_EQ(SplitSums(world, Mesh::Of(world.rank(), 8, 8)), nullptr);
    EXPECT_EQ(SplitSums(world, Mesh::Of(world.rank(), 8, 1)), nullptr);
  });
}

TEST(Mesh, SumsGoOverTheSlicesOfARowFirstWhereAskedTo) {
  for (int rank = 0; rank < 8; ++rank) EXPECT_EQ(Mesh::Of(rank, 8, 2, true).sum_rank(), rank);
  LocalWorld::Run(8, [](Communicator& world) {
    const Mesh mesh = Mesh::Of(world.rank(), 8, 2, true);
    EXPECT_EQ(mesh.sums_name(), "world");
    EXPECT_EQ(SplitSums(world, mesh), nullptr) << "the world is in this order";
  });
}

TEST(Mesh, DividesTheWorld) {
  EXPECT_HL_ERROR(Mesh::Of(0, 4, 3), ExitCode::kUsage, "parallel.sp 3", "world of 4 ranks");
}

TEST(Mesh, RowGroupsAreThoseOfTheMesh) {
  LocalWorld::Run(6, [](Communicator& world) {
    const Mesh mesh = Mesh::Of(world.rank(), 6, 3);
    const auto rows = SplitRows(world, mesh);
    EXPECT_EQ(rows->size(), 3);
    EXPECT_EQ(rows->rank(), mesh.sp_index);
    int64_t sum = world.rank();
    rows->AllReduce(Ref(&sum, 1), ReduceOp::kSum, {"ranks", 0}, nullptr).WaitHost();
    EXPECT_EQ(sum, mesh.dp_index == 0 ? 0 + 1 + 2 : 3 + 4 + 5);
  });
}

// Checks whether rows of `sp` ranks can be placed on these hosts, which are listed by rank.
void Place(const std::vector<std::string>& hosts, int sp) {
  LocalWorld::Run(static_cast<int>(hosts.size()), [&](Communicator& world) {
    RequireRowsOnWholeHosts(world, hosts[world.rank()], Mesh::Of(world.rank(), world.size(), sp));
  });
}

TEST(Mesh, RowsLieOnOneHostOrOnAllOfSeveral) {
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 1));
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 2));
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 4));
  EXPECT_NO_THROW(Place({"a", "b", "c", "d"}, 2));
  EXPECT_HL_ERROR(Place({"a", "a", "a", "b", "b", "b"}, 2), ExitCode::kUsage, "parallel.sp 2",
                  "ranks 2 and 0 are both on a");
}

}  // namespace
}  // namespace halflife::dist
