// NCCL with several ranks: every collective has the result of its definition, in the world and in
// groups. mpirun starts the ranks, which share one GPU (HALFLIFE_SHARE_GPU=1) or have one each.
// Skipped without a GPU.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <vector>

#include "dist/collective_cases.h"
#include "dist/rank_context.h"
#include "support/mpi_main.h"

namespace halflife::dist {
namespace {

constexpr int kSkipped = 77;
RankContext* context = nullptr;  // GoogleTest cannot pass it to a test.
Device gpu;

class GpuMemory final : public test::Memory {
 public:
  ~GpuMemory() override {
    for (const Copy& copy : copies_) EXPECT_EQ(cudaFree(copy.data), cudaSuccess);
  }
  void* Place(std::vector<uint8_t>& bytes) override {
    Copy copy = {.bytes = &bytes};
    constexpr size_t kMin = 16;  // an empty buffer has a place as well
    EXPECT_EQ(cudaMalloc(&copy.data, std::max(bytes.size(), kMin)), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(copy.data, bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
    copies_.push_back(copy);
    return copy.data;
  }
  void Return() override {
    for (const Copy& copy : copies_)
      EXPECT_EQ(cudaMemcpy(copy.bytes->data(), copy.data, copy.bytes->size(), cudaMemcpyDefault),
                cudaSuccess);
  }

 private:
  struct Copy {
    std::vector<uint8_t>* bytes = nullptr;
    void* data = nullptr;
  };
  std::vector<Copy> copies_;
};

// Ranks that share a GPU need milliseconds for each operation, so each dtype has few sizes.
void ExpectDefinitions(Communicator& comm) {
  const std::vector<test::CollectiveCase> cases = test::AllCases();
  for (size_t i = 0; i < cases.size(); ++i) {
    const test::CollectiveCase& one = cases[i];
    // NCCL adds bf16 two at a time and rounds each sum.
    const bool reduces = one.kind == OpKind::kAllReduce || one.kind == OpKind::kReduceScatter;
    if (reduces && one.dtype == DType::kBF16 && one.reduce == ReduceOp::kSum) continue;
    if (one.count == 1 || one.count == 64) continue;
    GpuMemory memory;
    const int index = static_cast<int>(i);
    ASSERT_EQ(test::Run(one, comm, index, gpu, memory),
              test::Expected(one, comm.rank(), comm.size(), index))
        << ToString(one) << " in " << comm.name() << " on rank " << comm.rank();
  }
}

// Adds the parts on the host, by the tree of the CPU.
void SumOnHost(TensorRef parts, int num_parts, TensorRef out, cudaStream_t stream) {
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  std::vector<uint8_t> terms(static_cast<size_t>(parts.bytes())),
      sum(static_cast<size_t>(out.bytes()));
  EXPECT_EQ(cudaMemcpy(terms.data(), parts.data, terms.size(), cudaMemcpyDefault), cudaSuccess);
  std::vector<const void*> in;
  for (int part = 0; part < num_parts; ++part) in.push_back(&terms[part * sum.size()]);
  OrderedReduce(out.dtype, ReduceOp::kSum, in, sum.data(), out.count);
  EXPECT_EQ(cudaMemcpy(out.data, sum.data(), sum.size(), cudaMemcpyDefault), cudaSuccess);
}

// Sums in fp32 and fp64 have a fixed order with SumInOrder.
TEST(NcclRanks, EveryOperationEqualsItsDefinition) {
  context->world().SumInOrder(SumOnHost);
  ExpectDefinitions(context->world());
}

TEST(NcclRanks, GroupsEqualTheirDefinitions) {
  Communicator& world = context->world();
  const std::unique_ptr<Communicator> half = world.Split(world.rank() % 2, world.rank(), "half");
  const std::unique_ptr<Communicator> reversed = world.Split(0, -world.rank(), "reversed");
  ASSERT_EQ(reversed->rank(), world.size() - 1 - world.rank());
  for (Communicator* const comm : {half.get(), reversed.get()}) ExpectDefinitions(*comm);
}

int Main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  int num_gpus = 0;
  if (cudaGetDeviceCount(&num_gpus) != cudaSuccess || num_gpus == 0) {
    std::cout << "SKIPPED: no CUDA device\n";
    return kSkipped;
  }
  const std::unique_ptr<RankContext> owned = RankContext::Create({.timeout_s = 60});
  context = owned.get();
  halflife::test::RequireRanks(*context, argc, argv);
  // All ranks would write the same report.
  if (context->rank() > 0) GTEST_FLAG_SET(output, "");
  gpu = {Device::Kind::kCuda, context->local_rank() % num_gpus};
  EXPECT_EQ(cudaSetDevice(gpu.index), cudaSuccess);
  context->UseDevice(gpu);
  return halflife::test::RunTestsOnAllRanks(*context);
}

}  // namespace
}  // namespace halflife::dist

int main(int argc, char** argv) { return halflife::dist::Main(argc, argv); }
