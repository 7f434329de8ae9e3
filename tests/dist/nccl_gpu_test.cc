// NCCL with one rank on one GPU: rendezvous, every operation, stream order, and the end of a group.
// Skipped without a GPU.
#include "dist/nccl_communicator.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/rank_context.h"
#include "support/expect_error.h"

namespace halflife::dist {
namespace {

// The values that fake_gpu/cuda_runtime.h and fake_gpu/nccl.h repeat.
static_assert(cudaSuccess == 0 && cudaErrorNotReady == 600 && cudaErrorLaunchFailure == 719);
static_assert(cudaStreamNonBlocking == 1 && cudaEventDisableTiming == 2);
static_assert(ncclSuccess == 0 && ncclInvalidArgument == 4 && ncclRemoteError == 6 &&
              ncclInProgress == 7);
static_assert(ncclUint8 == 1 && ncclInt32 == 2 && ncclInt64 == 4 && ncclFloat32 == 7 &&
              ncclFloat64 == 8 && ncclBfloat16 == 9);
static_assert(ncclSum == 0 && ncclMax == 2 && ncclMin == 3);
static_assert(sizeof(ncclUniqueId) == 128 && NCCL_MAJOR == 2);

constexpr int64_t kCount = 1000;

// fp32 numbers on the GPU.
class Numbers {
 public:
  explicit Numbers(float first) {
    EXPECT_EQ(cudaMalloc(&data_, kCount * sizeof(float)), cudaSuccess);
    std::vector<float> host(kCount);
    for (int64_t i = 0; i < kCount; ++i) host[i] = first + static_cast<float>(i);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), kCount * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
  }
  ~Numbers() { EXPECT_EQ(cudaFree(data_), cudaSuccess); }
  Numbers(const Numbers&) = delete;
  Numbers& operator=(const Numbers&) = delete;

  TensorRef ref() const { return {data_, kCount, DType::kF32, {Device::Kind::kCuda, 0}}; }
  void* data() const { return data_; }
  std::vector<float> values() const {
    std::vector<float> host(kCount);
    EXPECT_EQ(cudaMemcpy(host.data(), data_, kCount * sizeof(float), cudaMemcpyDefault),
              cudaSuccess);
    return host;
  }

 private:
  void* data_ = nullptr;
};

class NcclGpuTest : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device";
    // Not MakeDeviceWorld, which does not use NCCL for one rank.
    world_ = MakeNcclCommunicator(*control_, {Device::Kind::kCuda, 0}, "world",
                                  {.timeout_s = 60, .init_timeout_s = 120});
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    world_.reset();
    if (stream_ == nullptr) return;
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }

  std::unique_ptr<Communicator> control_ = MakeSelfCommunicator("control");
  std::unique_ptr<Communicator> world_;
  cudaStream_t stream_ = nullptr;
};

TEST_F(NcclGpuTest, EveryOperationOfOneRankIsACopy) {
  const std::vector<float> want = Numbers(3).values();
  const Numbers in(3);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
    world_->AllReduce(in.ref(), op, {"sum", 0}, stream_).WaitHost();
    EXPECT_EQ(in.values(), want);
  }
  const auto expect_copy = [&](const char* what, const auto& run) {
    SCOPED_TRACE(what);
    const Numbers out(-1);
    run(out.ref()).WaitHost();
    EXPECT_EQ(out.values(), want);
  };
  const std::vector<int64_t> counts = {kCount};
  expect_copy("reduce-scatter", [&](TensorRef out) {
    return world_->ReduceScatter(in.ref(), out, ReduceOp::kSum, {"a", 0}, stream_);
  });
  expect_copy("all-gather", [&](TensorRef out) {
    return world_->AllGather(in.ref(), out, {"b", 0}, stream_);
  });
  expect_copy("all-gather of pieces", [&](TensorRef out) {
    return world_->AllGatherV(in.ref(), out, counts, {"c", 0}, stream_);
  });
  expect_copy("all-to-all", [&](TensorRef out) {
    return world_->AllToAll(in.ref(), out, {"d", 0}, stream_);
  });
  expect_copy("all-to-all of pieces", [&](TensorRef out) {
    return world_->AllToAllV(in.ref(), out, counts, counts, {"v", 0}, stream_);
  });
  expect_copy("send and receive", [&](TensorRef out) {
    return world_->SendRecv(in.ref(), 0, out, 0, {"e", 0}, stream_);
  });
  world_->Broadcast(in.ref(), 0, {"f", 0}, stream_).WaitHost();
  EXPECT_EQ(in.values(), want);
  world_->Barrier({"g", 0}).WaitHost();
}

// Work that the producer has queued runs before the operation. Work that the consumer queues later
// runs after it.
TEST_F(NcclGpuTest, OperationsFollowTheStreams) {
  const Numbers x(1);
  for (int round = 0; round < 50; ++round) {
    const Numbers copy(0);
    ASSERT_EQ(cudaMemsetAsync(x.data(), round, kCount * sizeof(float), stream_), cudaSuccess);
    Work work = world_->AllGather(x.ref(), copy.ref(), {"gather", round}, stream_);
    work.WaitOn(stream_);
    ASSERT_EQ(cudaMemsetAsync(x.data(), 0xff, kCount * sizeof(float), stream_), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    const std::vector<float> got = copy.values();
    const auto* const bytes = reinterpret_cast<const unsigned char*>(got.data());
    EXPECT_EQ(bytes[0], round);
    EXPECT_EQ(bytes[kCount * sizeof(float) - 1], round);
  }
}

TEST_F(NcclGpuTest, GroupsOfAGroupWorkAndEnd) {
  const std::unique_ptr<Communicator> part = world_->Split(0, 0, "part");
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(part->size(), 1);
  const Numbers x(2);
  part->AllReduce(x.ref(), ReduceOp::kSum, {"x", 0}, stream_).WaitHost();
  EXPECT_EQ(x.values(), Numbers(2).values());
}

TEST_F(NcclGpuTest, NothingRunsAfterAnAbort) {
  const Numbers x(2);
  world_->Abort("the test asked for it");
  EXPECT_HL_ERROR(world_->AllReduce(x.ref(), ReduceOp::kSum, {"x", 0}, stream_).WaitHost(),
                  ExitCode::kPeerLost, "the test asked for it");
}

}  // namespace
}  // namespace halflife::dist
