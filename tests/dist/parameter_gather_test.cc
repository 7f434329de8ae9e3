// ParameterGather collects every rank's slices.
#include "dist/parameter_gather.h"

#include <gtest/gtest.h>

#include "dist/local_communicator.h"

namespace halflife::dist {
namespace {

// After the gather every rank has the slices of all ranks, under 32 schedules. A parameter is
// complete when its Await returns, even if other operations are still in flight.
TEST(ParameterGather, BringsEveryRanksSlices) {
  constexpr int kRanks = 3;
  std::vector<ParamSpec> specs;
  for (int i = 0; i < 20; ++i)
    specs.push_back({.name = "p" + std::to_string(i),
                     .shape = {i + 1, 13},
                     .region = i % 4 == 0 ? Region::kFp32 : Region::kCompute});
  const ParameterLayout layout(
      specs, {.first_bucket_bytes = 1024, .bucket_bytes = 4096, .num_slices = kRanks});
  const int64_t all = layout.num_elements(), of_copy = layout.num_compute_elements();
  for (uint64_t seed = 0; seed < 32; ++seed) {
    const auto rank_main = [&](Communicator& comm) {
      // Two arrays, as with a compute copy. Element i has the value i after the gather.
      std::vector<double> copy(of_copy, -1);
      std::vector<float> rest(all - of_copy, -1);
      const auto value = [&](int64_t i) -> double {
        return i < of_copy ? copy[i] : double{rest[i - of_copy]};
      };
      for (const Fragment& part : layout.SliceFragments(comm.rank())) {
        for (int64_t i = part.arena_begin; i < part.arena_begin + part.end - part.begin; ++i) {
          if (i < of_copy) copy[i] = static_cast<double>(i);
          if (i >= of_copy) rest[i - of_copy] = static_cast<float>(i);
        }
      }
      ParameterGather gather(
          layout, comm,
          {{.begin = 0, .end = of_copy, .data = Ref(copy.data(), of_copy)},
           {.begin = of_copy, .end = all, .data = Ref(rest.data(), all - of_copy)}});
      gather.Start(nullptr);
      for (int param = 0; param < 20; ++param) {
        gather.Await(param);
        for (int64_t i = 0; i < specs[param].count(); ++i)
          ASSERT_EQ(value(layout.offset(param) + i), static_cast<double>(layout.offset(param) + i))
              << "parameter " << param << " element " << i;
      }
      gather.AwaitAll();
      EXPECT_GE(gather.TakeWaitSeconds(), 0);
    };
    LocalWorld::Run(kRanks, rank_main, {.schedule = LocalSchedule{.seed = seed}});
  }
}

}  // namespace
}  // namespace halflife::dist
