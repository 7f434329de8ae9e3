// The mesh: which ranks share a row, the order in which ranks are summed, and valid divisions of
// the world.
#include "dist/mesh.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "dist/local_communicator.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

TEST(Mesh, IsRowMajorOverItsAxes) {
  const Mesh mesh(/*rank=*/17, {{"replicate", 2}, {"shard", 3}, {"sp", 4}});  // 17 = (1, 1, 1)
  EXPECT_EQ(mesh.index("replicate"), 1);
  EXPECT_EQ(mesh.index("shard"), 1);
  EXPECT_EQ(mesh.index("sp"), 1);
  EXPECT_EQ(mesh.size("shard"), 3);
  EXPECT_THROW(mesh.size("tp"), Error);
  EXPECT_THROW(Mesh(24, {{"replicate", 2}, {"shard", 3}, {"sp", 4}}), Error);
}

// Every rank is in one group along any axes, and the ranks of a group are numbered without gaps.
TEST(Mesh, GroupsPartitionTheRanks) {
  const std::vector<MeshAxis> axes = {{"replicate", 2}, {"shard", 3}, {"sp", 4}};
  for (const std::vector<std::string>& along : std::vector<std::vector<std::string>>{
           {"sp"}, {"shard"}, {"shard", "sp"}, {"sp", "replicate"}, {"sp", "shard", "replicate"}}) {
    std::map<int, std::set<int>> ranks_of_color;
    int size = 0;
    for (int rank = 0; rank < 24; ++rank) {
      const ProcessGroup group = Mesh(rank, axes).Group("g", along);
      EXPECT_TRUE(ranks_of_color[group.color].insert(group.rank).second) << rank;
      size = group.size;
    }
    EXPECT_EQ(ranks_of_color.size() * static_cast<size_t>(size), 24u);
    for (const auto& [color, ranks] : ranks_of_color) {
      EXPECT_EQ(std::ssize(ranks), size) << "group " << color;
      EXPECT_EQ(*ranks.rbegin(), size - 1) << "group " << color;
    }
  }
}

TEST(Mesh, NamesGroupsByTheirColor) {
  const Mesh mesh(/*rank=*/17, {{"replicate", 2}, {"shard", 3}, {"sp", 4}});
  EXPECT_EQ(mesh.Group("rows", {"sp"}).name, "rows_4");
  EXPECT_EQ(mesh.Group("all", {"sp", "shard", "replicate"}).name, "all");
  EXPECT_TRUE(mesh.Group("all", {"replicate", "shard", "sp"}).is_world);
  EXPECT_FALSE(mesh.Group("all", {"sp", "shard", "replicate"}).is_world);
}

TEST(DataMesh, NeighboursShareRows) {
  const DataMesh mesh(5, 8, 2);
  EXPECT_EQ(mesh.dp(), 4);
  EXPECT_EQ(mesh.dp_index(), 2);
  EXPECT_EQ(mesh.sp_index(), 1);
  EXPECT_EQ(mesh.RowGroup().name, "rows_2");
  EXPECT_EQ(DataMesh(0, 1, 1).dp(), 1);
}

// Ranks with the same slice are adjacent: of four groups of two, the first slices are ranks 0 to 3.
TEST(DataMesh, SumsAddRanksWithTheSameSliceFirst) {
  for (int rank = 0; rank < 8; ++rank)
    EXPECT_EQ(DataMesh(rank, 8, 2).SumGroup().rank, rank % 2 * 4 + rank / 2);
  LocalWorld::Run(8, [](Communicator& world) {
    const ProcessGroup group = DataMesh(world.rank(), 8, 2).SumGroup();
    EXPECT_EQ(group.name, "sums");
    EXPECT_EQ(Split(world, group)->rank(), group.rank);
  });
  EXPECT_TRUE(DataMesh(3, 8, 8).SumGroup().is_world);
  EXPECT_TRUE(DataMesh(3, 8, 1).SumGroup().is_world);
}

TEST(DataMesh, SumsAddTheSlicesOfARowFirstWithRowsFirst) {
  for (int rank = 0; rank < 8; ++rank) {
    const ProcessGroup group = DataMesh(rank, 8, 2, /*rows_first=*/true).SumGroup();
    EXPECT_EQ(group.rank, rank);
    EXPECT_EQ(group.name, "world");
    EXPECT_TRUE(group.is_world);
  }
}

// Rank r S + s updates slice s R + r: one of the slices that it holds.
TEST(DataMesh, ShardGroupsAreConsecutiveRanks) {
  for (int world = 1; world <= 32; ++world)
    for (int shard = 1; shard <= world; ++shard) {
      if (world % shard != 0) continue;
      std::vector<int> updated(world), sizes(world);
      for (int rank = 0; rank < world; ++rank) {
        const DataMesh mesh(rank, world, 1, false, shard);
        const int replicas = world / shard;
        EXPECT_EQ(mesh.has_replicas(), replicas > 1);
        EXPECT_EQ(mesh.ShardGroup().size, shard);
        EXPECT_EQ(mesh.ShardGroup().rank, rank % shard);
        EXPECT_EQ(mesh.ReplicaGroup().size, replicas);
        EXPECT_EQ(mesh.ReplicaGroup().rank, rank / shard);
        EXPECT_EQ(mesh.slice() / replicas, rank % shard) << "within the range that it holds";
        ++updated[mesh.slice()];
      }
      EXPECT_EQ(std::ranges::count(updated, 1), world);
    }
  EXPECT_EQ(DataMesh(5, 8, 1, false, 4).ShardGroup().name, "shard_1");
  EXPECT_EQ(DataMesh(5, 8, 1, false, 4).ReplicaGroup().name, "replica_1");
  EXPECT_EQ(DataMesh(5, 8, 1, false, 8).ShardGroup().name, "world");
  EXPECT_HL_ERROR(DataMesh(0, 4, 1, false, 3), ExitCode::kUsage, "parallel.shard 3",
                  "Use a divisor, or world.");
}

TEST(DataMesh, DividesTheWorld) {
  EXPECT_HL_ERROR(DataMesh(0, 4, 3), ExitCode::kUsage, "parallel.sp 3", "world of 4 ranks");
}

TEST(DataMesh, RowGroupsAreThoseOfTheMesh) {
  LocalWorld::Run(6, [](Communicator& world) {
    const DataMesh mesh(world.rank(), 6, 3);
    const auto rows = Split(world, mesh.RowGroup());
    EXPECT_EQ(rows->size(), 3);
    EXPECT_EQ(rows->rank(), mesh.sp_index());
    int64_t sum = world.rank();
    rows->AllReduce(Ref(&sum, 1), ReduceOp::kSum, {"ranks", 0}, nullptr).WaitHost();
    EXPECT_EQ(sum, mesh.dp_index() == 0 ? 0 + 1 + 2 : 3 + 4 + 5);
  });
}

// Checks whether rows of `sp` ranks can be placed on these hosts, which are listed by rank.
void Place(const std::vector<std::string>& hosts, int sp) {
  LocalWorld::Run(static_cast<int>(hosts.size()), [&](Communicator& world) {
    RequireRowsOnWholeHosts(world, hosts[world.rank()], DataMesh(world.rank(), world.size(), sp));
  });
}

TEST(DataMesh, RowsLieOnOneHostOrOnAllOfSeveral) {
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 1));
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 2));
  EXPECT_NO_THROW(Place({"a", "a", "b", "b"}, 4));
  EXPECT_NO_THROW(Place({"a", "b", "c", "d"}, 2));
  EXPECT_HL_ERROR(Place({"a", "a", "a", "b", "b", "b"}, 2), ExitCode::kUsage, "parallel.sp 2",
                  "ranks 2 and 0 are both on a");
}

}  // namespace
}  // namespace halflife::dist
