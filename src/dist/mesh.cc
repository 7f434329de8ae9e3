#include "dist/mesh.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace halflife::dist {
namespace {

std::vector<MeshAxis> DataAxes(int world_size, int sp) {
  HL_CHECK_AS(ExitCode::kUsage, sp >= 1 && world_size % sp == 0, "parallel.sp ", sp,
              " does not divide the world of ", world_size,
              " ranks. Use a divisor of the world size, for example 1.");
  return {{"dp", world_size / sp}, {"sp", sp}};
}

}  // namespace

Mesh::Mesh(int rank, std::vector<MeshAxis> axes) {
  int rest = rank;
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    coordinates_.push_back({.axis = *axis, .index = rest % axis->size});
    rest /= axis->size;
  }
  std::ranges::reverse(coordinates_);
  HL_CHECK(rest == 0, "rank ", rank, " is outside of the mesh");
}

const Mesh::Coordinate& Mesh::Find(std::string_view axis) const {
  const auto found = std::ranges::find_if(
      coordinates_, [&](const Coordinate& coordinate) { return coordinate.axis.name == axis; });
  HL_CHECK(found != coordinates_.end(), "the mesh has no axis ", axis);
  return *found;
}

int Mesh::size(std::string_view axis) const { return Find(axis).axis.size; }

int Mesh::index(std::string_view axis) const { return Find(axis).index; }

ProcessGroup Mesh::Group(const std::string& name, const std::vector<std::string>& axes) const {
  ProcessGroup group = {.name = name};
  for (const std::string& axis : axes) {
    group.rank = group.rank * size(axis) + index(axis);
    group.size *= size(axis);
  }
  std::vector<std::string> world_axes, group_axes;  // those with more than one rank
  for (const Coordinate& coordinate : coordinates_) {
    if (coordinate.axis.size > 1) world_axes.push_back(coordinate.axis.name);
    if (std::ranges::find(axes, coordinate.axis.name) == axes.end())
      group.color = group.color * coordinate.axis.size + coordinate.index;
  }
  for (const std::string& axis : axes)
    if (size(axis) > 1) group_axes.push_back(axis);
  group.is_world = group_axes == world_axes;
  if (axes.size() < coordinates_.size()) group.name = Concat(name, "_", group.color);
  return group;
}

DataMesh::DataMesh(int rank, int world_size, int sp, bool rows_first, int shard)
    : Mesh(rank, DataAxes(world_size, sp)),
      rank_(rank),
      world_size_(world_size),
      rows_first_(rows_first),
      shard_(shard == 0 ? world_size : shard) {
  HL_CHECK_AS(ExitCode::kUsage, shard_ >= 1 && world_size % shard_ == 0, "parallel.shard ", shard_,
              " does not divide the world of ", world_size, " ranks. Use a divisor, or world.");
  HL_CHECK(!has_replicas() || sp == 1 || rows_first,
           "shard groups of consecutive ranks need sums of rows first");
}

Mesh DataMesh::ShardMesh() const {
  return {rank_, {{"replica", world_size_ / shard_}, {"shard", shard_}}};
}

ProcessGroup DataMesh::ShardGroup() const {
  return has_replicas() ? ShardMesh().Group("shard", {"shard"}) : SumGroup();
}

ProcessGroup DataMesh::ReplicaGroup() const { return ShardMesh().Group("replica", {"replica"}); }

int DataMesh::slice() const {
  if (!has_replicas()) return SumGroup().rank;
  return rank_ % shard_ * (world_size_ / shard_) + rank_ / shard_;
}

ProcessGroup DataMesh::SliceGroup() const {
  if (!has_replicas()) return SumGroup();
  return {.name = "slices", .rank = slice(), .size = world_size_};
}

ProcessGroup DataMesh::SumGroup() const {
  ProcessGroup group = rows_first_ ? Group("sums", {"dp", "sp"}) : Group("sums", {"sp", "dp"});
  if (group.is_world) group.name = "world";
  return group;
}

std::unique_ptr<Communicator> Split(Communicator& world, const ProcessGroup& group,
                                    GroupRole role) {
  return world.Split(group.color, group.rank, group.name, role);
}

void RequireRowsOnWholeHosts(Communicator& control, const std::string& host, const DataMesh& mesh) {
  if (mesh.sp() == 1) return;
  const std::vector<std::string> hosts = AllGatherBytes(control, host, {"hosts", 0});
  const auto group_of = [&](size_t rank) { return rank / static_cast<size_t>(mesh.sp()); };
  // If a host begins or ends within a group and is not the only host of that group, none of its
  // ranks may be in another group.
  for (size_t rank = 1; rank < hosts.size(); ++rank) {
    const bool splits_group =
        hosts[rank] != hosts[rank - 1] && group_of(rank) == group_of(rank - 1);
    if (!splits_group) continue;
    for (const size_t inside : {rank - 1, rank}) {
      for (size_t other = 0; other < hosts.size(); ++other)
        HL_CHECK_AS(ExitCode::kUsage,
                    hosts[other] != hosts[inside] || group_of(other) == group_of(inside),
                    "parallel.sp ", mesh.sp(), ": ranks ", inside, " and ", other, " are both on ",
                    hosts[inside],
                    ", and the first one also shares rows with another host. Use an sp that ",
                    "divides the number of ranks of a host or is a multiple of it.");
    }
  }
}

}  // namespace halflife::dist
