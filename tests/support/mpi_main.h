// The main function of test programs that mpirun starts: mpirun -n N program --ranks=N.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <iostream>
#include <string>

#include "dist/rank_context.h"

namespace halflife::test {

// Ends the world if it does not have the number of ranks of `--ranks=N`, the first argument that
// GoogleTest leaves. After a failed launch, for example, fewer cases would be tested.
inline void RequireRanks(dist::RankContext& context, int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";
  if (wanted == "--ranks=" + std::to_string(context.world_size())) return;
  std::cerr << "the world has " << context.world_size() << " ranks, not " << wanted << "\n";
  context.AbortWorld(1);
}

// Runs all tests. Every rank returns an error if a test of any rank failed.
inline int RunTestsOnAllRanks(dist::RankContext& context) {
  int32_t failed = RUN_ALL_TESTS();
  context.control()
      .AllReduce(Ref(&failed, 1), dist::ReduceOp::kMax, {"verdict", 0}, nullptr)
      .WaitHost();
  return failed;
}

}  // namespace halflife::test
