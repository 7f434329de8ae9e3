// How the ranks of a world share the work. There are `dp` groups, each of which trains on its own
// rows. A group consists of `sp` neighbouring ranks that each hold a slice of these rows. All ranks
// have all parameters, so gradients are summed over the world.
//
//   const Mesh mesh = Mesh::Of(context.rank(), context.world_size(), /*sp=*/2);
//   const auto row_group = SplitRows(context.world(), mesh);
#pragma once

#include <memory>
#include <string>

#include "dist/communicator.h"

namespace halflife::dist {

struct Mesh {
  int dp = 1, sp = 1;              // dp * sp == the world's size
  int dp_index = 0, sp_index = 0;  // rank == dp_index * sp + sp_index

  // This rank's position in the binary tree that sums gradients, and the index of its arena slice.
  // By default, ranks with the same slice of different rows are neighbours. The row groups then
  // form a subtree, in the same way as micro-batches on one rank do, and the number of either (if
  // it is a power of two) changes no bit. With rows_first, the ranks that share a row are
  // neighbours instead; this is used if micro-batches are summed after ranks.
  bool rows_first = false;
  int sum_rank() const { return rows_first ? dp_index * sp + sp_index : sp_index * dp + dp_index; }
  // Names of the groups that SplitRows and SplitSums create. If the world is already in the order
  // of sums, the world itself is used.
  std::string rows_name() const;
  std::string sums_name() const;

  // Throws Error kUsage if sp does not divide the world size.
  static Mesh Of(int rank, int world_size, int sp, bool rows_first = false);
};

// The ranks that share this rank's rows, in the order of their slices. Collective over `world`.
std::unique_ptr<Communicator> SplitRows(Communicator& world, const Mesh& mesh);

// All ranks in the order of sum_rank; null if `world` already has this order. Collective over
// `world`.
std::unique_ptr<Communicator> SplitSums(Communicator& world, const Mesh& mesh);

// Requires that the ranks of a row either are on one host or are all ranks of several hosts. Throws
// Error kUsage, naming two ranks that violate this. Collective over `control`.
void RequireRowsOnWholeHosts(Communicator& control, const std::string& host, const Mesh& mesh);

}  // namespace halflife::dist
