// The mesh of ranks: axes with names, and the process groups along them. The mesh of a training
// run has two axes, from outermost to innermost:
//
//   dp   groups of ranks; each group trains on its own rows
//   sp   neighbouring ranks of a group; each rank holds a slice of the group's rows
//
// Gradients are summed over the whole mesh, for ZeRO in two levels (shard_groups.h).
//
//   const DataMesh mesh(context.rank(), context.world_size(), /*sp=*/2);
//   const auto rows = Split(context.world(), mesh.RowGroup());
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "dist/communicator.h"

namespace halflife::dist {

struct MeshAxis {
  std::string name;
  int size = 1;
};

// A set of ranks that communicate, as seen by one of them.
struct ProcessGroup {
  std::string name;
  int color = 0;           // number of this group among those along the same axes
  int rank = 0, size = 1;  // this rank's index within the group, and the number of ranks
  bool is_world = false;   // all ranks in the order of their numbers
};

class Mesh {
 public:
  // `axes` from outermost to innermost, with distinct names: `rank` is the row-major index.
  Mesh(int rank, std::vector<MeshAxis> axes);

  // Throws Error kInternal for an axis that the mesh does not have.
  int size(std::string_view axis) const;
  int index(std::string_view axis) const;  // of this rank along the axis

  // Returns the ranks that differ from this one only along `axes`. They are ordered by their
  // indices along these axes, the first axis being the outermost. The group is called `name`,
  // followed by its color unless `axes` are all axes of the mesh.
  ProcessGroup Group(const std::string& name, const std::vector<std::string>& axes) const;

 private:
  struct Coordinate {
    MeshAxis axis;
    int index = 0;
  };
  const Coordinate& Find(std::string_view axis) const;

  std::vector<Coordinate> coordinates_;  // from outermost to innermost
};

// The mesh of a training run, {dp, sp}, and its groups.
class DataMesh : public Mesh {
 public:
  // `rows_first`: see SumGroup. `shard`: ranks of a shard group; 0: all ranks. Throws Error kUsage
  // if sp or shard does not divide the world size. With fewer ranks than all in a shard group and
  // sp > 1, rows_first must be true, because shard groups are subtrees of the sum.
  DataMesh(int rank, int world_size, int sp, bool rows_first = false, int shard = 0);

  int dp() const { return size("dp"); }
  int sp() const { return size("sp"); }
  int dp_index() const { return index("dp"); }
  int sp_index() const { return index("sp"); }
  bool rows_first() const { return rows_first_; }

  // Returns the ranks that share this rank's rows, in the order of their slices. They have a
  // separate communicator even if they are the world, because their messages must not wait for
  // gradients.
  ProcessGroup RowGroup() const { return Group("rows", {"sp"}); }
  // Returns all ranks in the order of the binary tree that sums gradients. A rank's index is also
  // that of its arena slice.
  //
  // By default, ranks with the same slice of different rows are neighbours. The row groups then
  // form a subtree, as micro-batches on one rank do. The number of either changes no bit if it is a
  // power of two. With rows_first, the ranks that share a row are neighbours instead; this is used
  // if micro-batches are summed after ranks. The group is called `world` if the world is already in
  // this order.
  ProcessGroup SumGroup() const;

  // See shard_groups.h. With one shard group, it is the SumGroup, and a replica group is one rank.
  bool has_replicas() const { return shard_ < world_size_; }
  ProcessGroup ShardGroup() const;
  ProcessGroup ReplicaGroup() const;
  // Returns the number of the slice of each bucket that this rank updates and saves.
  int slice() const;
  // Returns all ranks in the order of their slices. With one shard group, this is the SumGroup.
  ProcessGroup SliceGroup() const;

 private:
  Mesh ShardMesh() const;

  int rank_, world_size_;
  bool rows_first_;
  int shard_;  // ranks of a shard group
};

// Creates the communicator of a group. Collective over `world`.
std::unique_ptr<Communicator> Split(Communicator& world, const ProcessGroup& group,
                                    GroupRole role = GroupRole::kGradients);

// Requires that the ranks of a row either are on one host or are all ranks of several hosts. Throws
// Error kUsage, naming two ranks that violate this. Collective over `control`.
void RequireRowsOnWholeHosts(Communicator& control, const std::string& host, const DataMesh& mesh);

}  // namespace halflife::dist
