// How the ranks of a world share the work: `dp` groups that train on rows of their own, each of
// `sp` neighbouring ranks that hold the slices of these rows. Parameters are on all ranks alike, so
// gradients are summed over the world.
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

  // Gradients are summed in the order of this number, by a binary tree; slices of the arena have
  // it, too. Ranks with the same slice of their rows are neighbours: row groups then are a subtree,
  // as micro-batches on one rank are, and powers of two of either change no bit. With rows_first,
  // where micro-batches are summed after ranks, the slices of a row are.
  bool rows_first = false;
  int sum_rank() const { return rows_first ? dp_index * sp + sp_index : sp_index * dp + dp_index; }
  // Of the groups that SplitRows and SplitSums make; where the world is in the order of sums, it
  // sums itself.
  std::string rows_name() const;
  std::string sums_name() const;

  // Error kUsage where sp does not divide the world.
  static Mesh Of(int rank, int world_size, int sp, bool rows_first = false);
};

// The ranks that share this rank's rows, in the order of their slices. Collective over `world`.
std::unique_ptr<Communicator> SplitRows(Communicator& world, const Mesh& mesh);

// All ranks by their sum_rank; null: the world is in this order. Collective over `world`.
std::unique_ptr<Communicator> SplitSums(Communicator& world, const Mesh& mesh);

// A row's ranks lie on one host, or are all ranks of several: Error kUsage, naming two ranks that
// break it. Collective over `control`.
void RequireRowsOnWholeHosts(Communicator& control, const std::string& host, const Mesh& mesh);

}  // namespace halflife::dist
