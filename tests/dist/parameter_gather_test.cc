// ParameterGather collects every rank's slices.
#include "dist/parameter_gather.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "dist/local_communicator.h"
#include "dist/mesh.h"
#include "dist/rehearsal.h"

namespace halflife::dist {
namespace {

constexpr int kParams = 20, kPerLayer = 4;

std::vector<ParamSpec> Specs() {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < kParams; ++i)
    specs.push_back({.name = "p" + std::to_string(i),
                     .shape = {i + 1, 13},
                     .region = i % 4 == 0 ? Region::kFp32 : Region::kCompute});
  return specs;
}

std::vector<std::vector<int>> Layers() {
  std::vector<std::vector<int>> layers(kParams / kPerLayer, std::vector<int>(kPerLayer));
  for (int layer = 0; layer < std::ssize(layers); ++layer)
    std::iota(layers[layer].begin(), layers[layer].end(), layer * kPerLayer);
  return layers;
}

// After the gather every rank has the slices of all ranks, under 32 schedules, for one shard group
// and for several. The parameters of a layer are complete when its Await returns, even if other
// operations are still in flight.
TEST(ParameterGather, BringsEveryRanksSlices) {
  const std::vector<ParamSpec> specs = Specs();
  const auto test = [&](int ranks, int shard, uint64_t seed) {
    const ParameterLayout layout(
        specs, {.first_bucket_bytes = 1024, .bucket_bytes = 4096, .num_slices = ranks});
    const int64_t all = layout.num_elements(), of_copy = layout.num_compute_elements();
    const auto rank_main = [&](Communicator& comm) {
      const DataMesh mesh(comm.rank(), ranks, 1, false, shard);
      const auto shard_group = Split(comm, mesh.ShardGroup()),
                 replicas = Split(comm, mesh.ReplicaGroup());
      const ShardGroups groups(*shard_group, mesh.has_replicas() ? replicas.get() : nullptr);
      ASSERT_EQ(groups.slice(), mesh.slice());
      // Two arrays, as with a compute copy. Element i has the value i after the gather.
      std::vector<double> copy(of_copy, -1);
      std::vector<float> rest(all - of_copy, -1);
      const auto value = [&](int64_t i) -> double {
        return i < of_copy ? copy[i] : double{rest[i - of_copy]};
      };
      for (const Fragment& part : layout.SliceFragments(groups.slice())) {
        for (int64_t i = part.arena_begin; i < part.arena_begin + part.end - part.begin; ++i) {
          if (i < of_copy) copy[i] = static_cast<double>(i);
          if (i >= of_copy) rest[i - of_copy] = static_cast<float>(i);
        }
      }
      ParameterGather gather(
          layout, groups,
          {{.begin = 0, .end = of_copy, .data = Ref(copy.data(), of_copy)},
           {.begin = of_copy, .end = all, .data = Ref(rest.data(), all - of_copy)}},
          Layers());
      gather.Start(nullptr);
      for (int param = 0; param < kParams; ++param) {
        gather.Await(param / kPerLayer);
        for (int64_t i = 0; i < specs[param].count(); ++i)
          ASSERT_EQ(value(layout.offset(param) + i), static_cast<double>(layout.offset(param) + i))
              << "parameter " << param << " element " << i;
      }
      gather.AwaitAll();
      EXPECT_GE(gather.TakeWaitSeconds(), 0);
    };
    LocalWorld::Run(ranks, rank_main, {.schedule = LocalSchedule{.seed = seed}});
  };
  for (uint64_t seed = 0; seed < 32; ++seed) {
    test(3, 3, seed);
    test(4, 2, seed);
    test(6, 3, seed);
  }
}

// Messages of the first layers need not wait for the gathers of all layers: a gather is issued when
// a layer `prefetch` layers before it is awaited, and no gather is issued twice.
TEST(ParameterGather, IssuesFewLayersAhead) {
  const ParameterLayout layout(Specs(),
                               {.first_bucket_bytes = 256, .bucket_bytes = 256, .num_slices = 4});
  std::vector<float> weights(layout.num_elements());
  for (const int prefetch : {0, 1, 2}) {
    Rehearsal rehearsal;
    const auto world = rehearsal.MakeGroup(0, 4, "world");
    ParameterGather gather(layout, *world,
                           {{.begin = 0,
                             .end = layout.num_elements(),
                             .data = Ref(weights.data(), layout.num_elements())}},
                           Layers(), prefetch);
    gather.Start(nullptr);
    EXPECT_TRUE(rehearsal.operations().empty());
    const std::vector<int> bucket_of = BucketsOfParameters(layout);
    for (int layer = 0; layer < std::ssize(Layers()); ++layer) {
      gather.Await(layer);
      std::vector<bool> needed(layout.buckets().size());
      for (int param = 0; param < std::min(kParams, (layer + prefetch + 1) * kPerLayer); ++param)
        needed[bucket_of[param]] = true;
      EXPECT_EQ(std::ssize(rehearsal.operations()), std::ranges::count(needed, true))
          << "prefetch " << prefetch << ", layer " << layer;
    }
    gather.AwaitAll();
    EXPECT_EQ(rehearsal.operations().size(), layout.buckets().size());
  }
}

// Frozen buckets do not change during training, but a load of an older checkpoint may change them.
TEST(ParameterGather, GathersFrozenBucketsOnceAndAfterALoad) {
  LayoutConfig config = {.first_bucket_bytes = 256, .bucket_bytes = 256, .num_slices = 4};
  config.frozen.assign(kParams, false);
  config.frozen[3] = config.frozen[5] = true;
  const ParameterLayout layout(Specs(), config);
  const auto num_buckets = std::ssize(layout.buckets());
  const auto num_frozen = std::ranges::count(layout.buckets(), true, &Bucket::frozen);
  ASSERT_GT(num_frozen, 0);
  std::vector<float> weights(layout.num_elements());
  Rehearsal rehearsal;
  const auto world = rehearsal.MakeGroup(0, 4, "world");
  ParameterGather gather(layout, *world,
                         {{.begin = 0,
                           .end = layout.num_elements(),
                           .data = Ref(weights.data(), layout.num_elements())}},
                         Layers());
  int64_t before = 0;
  const auto issued = [&] {
    gather.AwaitAll();
    const int64_t now = std::ssize(rehearsal.operations());
    return now - std::exchange(before, now);
  };
  gather.Start(nullptr);
  EXPECT_EQ(issued(), num_buckets);
  gather.Start(nullptr);
  EXPECT_EQ(issued(), num_buckets - num_frozen);
  gather.StartAll(nullptr);
  EXPECT_EQ(issued(), num_buckets);
}

}  // namespace
}  // namespace halflife::dist
