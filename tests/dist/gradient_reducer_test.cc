// GradientReducer launches buckets in order and sums them under every schedule of the ranks.
#include "dist/gradient_reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "core/bfloat16.h"
#include "dist/local_communicator.h"
#include "dist/mesh.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

ParameterLayout MakeLayout(int num_params, int num_slices = 1) {
  std::vector<ParamSpec> specs;
  for (int i = 0; i < num_params; ++i) {
    specs.push_back({.name = "layers." + std::to_string(i) + ".weight",
                     .shape = {i + 1, 13},
                     .region = i % 4 == 0 ? Region::kFp32 : Region::kCompute,
                     .aliases = {}});
  }
  return ParameterLayout(
      specs, {.first_bucket_bytes = 1024, .bucket_bytes = 4096, .num_slices = num_slices});
}

// Forwards to a communicator and records what is launched.
class Recorder final : public Communicator {
 public:
  explicit Recorder(Communicator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  const std::string& name() const override { return inner_.name(); }
  Work AllReduce(TensorRef inout, ReduceOp op, OpTag tag, cudaStream_t s) override {
    launched.push_back(tag.index);
    streams.push_back(s);
    bytes += inout.bytes();
    return inner_.AllReduce(inout, op, tag, s);
  }
  Work ReduceScatter(TensorRef in, TensorRef out, ReduceOp op, OpTag tag, cudaStream_t s) override {
    bytes += in.bytes();
    return inner_.ReduceScatter(in, out, op, tag, s);
  }
  Work AllGather(TensorRef in, TensorRef out, OpTag tag, cudaStream_t s) override {
    return inner_.AllGather(in, out, tag, s);
  }
  Work AllGatherV(TensorRef in, TensorRef out, std::span<const int64_t> counts, OpTag tag,
                  cudaStream_t s) override {
    return inner_.AllGatherV(in, out, counts, tag, s);
  }
  Work AllToAll(TensorRef in, TensorRef out, OpTag tag, cudaStream_t s) override {
    return inner_.AllToAll(in, out, tag, s);
  }
  Work AllToAllV(TensorRef in, TensorRef out, std::span<const int64_t> to_counts,
                 std::span<const int64_t> from_counts, OpTag tag, cudaStream_t s) override {
    return inner_.AllToAllV(in, out, to_counts, from_counts, tag, s);
  }
  Work Broadcast(TensorRef inout, int root, OpTag tag, cudaStream_t s) override {
    return inner_.Broadcast(inout, root, tag, s);
  }
  Work SendRecv(TensorRef send, int to, TensorRef recv, int from, OpTag tag,
                cudaStream_t s) override {
    return inner_.SendRecv(send, to, recv, from, tag, s);
  }
  Work Barrier(OpTag tag) override { return inner_.Barrier(tag); }
  std::unique_ptr<Communicator> Split(int color, int key, std::string name,
                                      GroupRole role) override {
    return inner_.Split(color, key, std::move(name), role);
  }
  void Abort(const std::string& cause) noexcept override { inner_.Abort(cause); }

  std::vector<int> launched;
  std::vector<cudaStream_t> streams;  // Streams of the sums, in launch order.
  size_t bytes = 0;                   // Bytes to sum.

 private:
  Communicator& inner_;
};

TEST(GradientReducer, LaunchesInOrderAndSumsUnderEverySchedule) {
  constexpr int kRanks = 4, kParams = 24, kSteps = 2;
  const ParameterLayout layout = MakeLayout(kParams);
  const int num_buckets = static_cast<int>(layout.buckets().size());
  ASSERT_GE(num_buckets, 4);
  std::vector<int> ascending(num_buckets);
  std::iota(ascending.begin(), ascending.end(), 0);
  for (uint64_t seed = 0; seed < 32; ++seed) {
    SCOPED_TRACE(seed);
    const auto rank_main = [&](Communicator& world) {
      Recorder comm(world);
      std::vector<float> grads(layout.num_elements());
      GradientReducer reducer(layout, comm, Ref(grads.data(), layout.num_elements()));
      // Each rank has its own order.
      std::mt19937 random(static_cast<unsigned>(seed * 100 + world.rank()));
      for (int step = 0; step < kSteps; ++step) {
        comm.launched.clear();
        reducer.BeginStep(nullptr);
        std::vector<int> order(kParams);
        std::iota(order.begin(), order.end(), 0);
        std::shuffle(order.begin(), order.end(), random);
        for (const int param : order) {
          float* const grad = grads.data() + layout.offset(param);
          for (int64_t i = 0; i < layout.specs()[param].count(); ++i) {
            grad[i] = static_cast<float>((world.rank() + 1) * (param + step + i));
          }
          reducer.MarkReady(param);
        }
        reducer.Finish();
        EXPECT_EQ(comm.launched, ascending);
        EXPECT_GE(reducer.TakeWaitSeconds(), 0);
        for (int param = 0; param < kParams; ++param) {
          for (int64_t i = 0; i < layout.specs()[param].count(); ++i) {
            // 1 + 2 + 3 + 4 times small integers is exact in fp32.
            ASSERT_EQ(grads[layout.offset(param) + i], 10 * (param + step + i));
          }
        }
      }
    };
    LocalWorld::Run(kRanks, rank_main,
                    {.schedule = LocalSchedule{.seed = seed, .max_delay_s = 2e-4}});
  }
}

// A wire for gradients in bf16, which transfers each bucket once in each direction.
class NarrowWire final : public GradientWire {
 public:
  explicit NarrowWire(std::vector<float>& gradients)
      : gradients_(gradients), travelling_(gradients.size()) {}
  TensorRef Load(int64_t begin, int64_t count) override {
    for (int64_t i = begin; i < begin + count; ++i) travelling_[i] = RoundToBf16(gradients_[i]);
    return {&travelling_[begin], count, DType::kBF16, {}};
  }
  void Store(int64_t begin, int64_t count) override {
    for (int64_t i = begin; i < begin + count; ++i) gradients_[i] = Widen(travelling_[i]);
  }

 private:
  std::vector<float>& gradients_;
  std::vector<Bf16> travelling_;
};

// Each of three ranks adds 0.1, so the roundings of the terms and of the sum are both visible.
TEST(GradientReducer, SumsWhatTravelsAndStoresWhatItReceives) {
  constexpr int kRanks = 3, kParams = 9;
  const ParameterLayout layout = MakeLayout(kParams, kRanks);
  constexpr float kOwn = 0.1f;
  const float sum = Widen(RoundToBf16(3 * Widen(RoundToBf16(kOwn))));
  EXPECT_NE(sum, 3 * kOwn);
  for (const ReducedTo to : {ReducedTo::kAllRanks, ReducedTo::kSlices}) {
    LocalWorld::Run(kRanks, [&](Communicator& world) {
      Recorder comm(world);
      std::vector<float> grads(layout.num_elements(), kOwn);
      NarrowWire wire(grads);
      GradientReducer reducer(layout, comm, Ref(grads.data(), layout.num_elements()), to, &wire);
      reducer.BeginStep(nullptr);
      reducer.MarkAllReady();
      reducer.Finish();
      std::vector<float> want(layout.num_elements(), to == ReducedTo::kSlices ? kOwn : sum);
      for (const Bucket& bucket : layout.buckets()) {
        const auto slice = layout.SliceOf(bucket, world.rank());
        std::fill_n(want.begin() + slice.arena_begin, slice.count, sum);
      }
      EXPECT_EQ(grads, want);
      EXPECT_EQ(comm.bytes, 2u * layout.num_elements());
    });
  }
}

// Two levels: each rank receives the sum over all ranks of the slice that it updates, with the bits
// of one level.
TEST(GradientReducer, SumsInShardGroupsAndThenOverThem) {
  constexpr int kRanks = 8, kParams = 24;
  const ParameterLayout layout = MakeLayout(kParams, kRanks);
  const auto gradient = [](int rank, int64_t i) {
    return std::sin(static_cast<float>(rank * 1000 + i));
  };
  const auto sums = [&](int shard, uint64_t seed) {
    std::vector<float> received(layout.num_elements());  // The slices of all ranks.
    LocalWorld::Run(
        kRanks,
        [&](Communicator& world) {
          const DataMesh mesh(world.rank(), kRanks, 1, false, shard);
          const auto shard_group = Split(world, mesh.ShardGroup()),
                     replicas = Split(world, mesh.ReplicaGroup());
          const ShardGroups groups(*shard_group, mesh.has_replicas() ? replicas.get() : nullptr);
          std::vector<float> grads(layout.num_elements());
          for (int64_t i = 0; i < layout.num_elements(); ++i) grads[i] = gradient(world.rank(), i);
          GradientReducer reducer(layout, groups, Ref(grads.data(), layout.num_elements()),
                                  ReducedTo::kSlices);
          reducer.BeginStep(nullptr);
          reducer.MarkAllReady();
          reducer.Finish();
          for (const Bucket& bucket : layout.buckets()) {
            const auto own = groups.UpdatedOf(layout, bucket);
            std::copy_n(grads.begin() + own.arena_begin, own.count,
                        received.begin() + own.arena_begin);
          }
        },
        {.schedule = LocalSchedule{.seed = seed, .max_delay_s = 2e-4}});
    return received;
  };
  const std::vector<float> want = sums(kRanks, 0);
  for (const int shard : {1, 2, 4})
    for (uint64_t seed = 0; seed < 8; ++seed) EXPECT_EQ(sums(shard, seed), want) << shard;
}

// The current stream of a step may differ from that at construction.
TEST(GradientReducer, EveryStepSumsOnItsOwnStream) {
  const ParameterLayout layout = MakeLayout(6);
  const std::unique_ptr<Communicator> alone = MakeSelfCommunicator("world");
  Recorder comm(*alone);
  std::vector<float> grads(layout.num_elements());
  GradientReducer reducer(layout, comm, Ref(grads.data(), layout.num_elements()));
  int places[2];  // Streams are only compared by address.
  for (int& place : places) {
    const auto stream = reinterpret_cast<cudaStream_t>(&place);
    comm.streams.clear();
    reducer.BeginStep(stream);
    reducer.MarkAllReady();
    reducer.Finish();
    EXPECT_EQ(comm.streams, std::vector<cudaStream_t>(layout.buckets().size(), stream));
  }
}

TEST(GradientReducer, NamesWhatIsMissingLateOrDouble) {
  const ParameterLayout layout = MakeLayout(6);
  const std::unique_ptr<Communicator> comm = MakeSelfCommunicator("world");
  std::vector<float> grads(layout.num_elements());
  const TensorRef arena = Ref(grads.data(), layout.num_elements());
  {
    GradientReducer reducer(layout, *comm, arena);
    EXPECT_HL_ERROR(reducer.MarkReady(0), ExitCode::kInternal, "outside a step");
    reducer.BeginStep(nullptr);
    for (const int param : {0, 2, 3, 5}) reducer.MarkReady(param);
    EXPECT_HL_ERROR(reducer.MarkReady(3), ExitCode::kInternal, "layers.3.weight",
                    "more readers than the 1 of its ParamSpec");
    EXPECT_HL_ERROR(reducer.Finish(), ExitCode::kInternal,
                    "no gradient reached: layers.1.weight, layers.4.weight;");
  }
  EXPECT_HL_ERROR(GradientReducer(layout, *comm, arena.Slice(0, 64)), ExitCode::kInternal,
                  "gradient arena has 64 elements");
}

}  // namespace
}  // namespace halflife::dist
