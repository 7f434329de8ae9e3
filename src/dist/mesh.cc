#include "dist/mesh.h"

#include <vector>

#include "core/error.h"

namespace halflife::dist {

Mesh Mesh::Of(int rank, int world_size, int sp, bool rows_first) {
  HL_CHECK_AS(ExitCode::kUsage, sp >= 1 && world_size % sp == 0, "parallel.sp ", sp,
              " does not divide the world of ", world_size,
              " ranks. Use a divisor of the world size, for example 1.");
  return {.dp = world_size / sp,
          .sp = sp,
          .dp_index = rank / sp,
          .sp_index = rank % sp,
          .rows_first = rows_first};
}

std::string Mesh::rows_name() const { return Concat("rows_", dp_index); }

std::string Mesh::sums_name() const { return rows_first || sp == 1 || dp == 1 ? "world" : "sums"; }

std::unique_ptr<Communicator> SplitRows(Communicator& world, const Mesh& mesh) {
  return world.Split(mesh.dp_index, mesh.sp_index, mesh.rows_name());
}

std::unique_ptr<Communicator> SplitSums(Communicator& world, const Mesh& mesh) {
  const std::string name = mesh.sums_name();
  return name == "world" ? nullptr : world.Split(0, mesh.sum_rank(), name);
}

void RequireRowsOnWholeHosts(Communicator& control, const std::string& host, const Mesh& mesh) {
  if (mesh.sp == 1) return;
  const std::vector<std::string> hosts = AllGatherBytes(control, host, {"hosts", 0});
  const auto group_of = [&](size_t rank) { return rank / static_cast<size_t>(mesh.sp); };
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
                    "parallel.sp ", mesh.sp, ": ranks ", inside, " and ", other, " are both on ",
                    hosts[inside],
                    ", and the first one also shares rows with another host. Use an sp that ",
                    "divides the number of ranks of a host or is a multiple of it.");
    }
  }
}

}  // namespace halflife::dist
