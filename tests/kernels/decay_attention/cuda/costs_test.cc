// Checks the cost of a chunk of 64 tokens in each scan, as counted by the emulator. The table of
// chunk costs in bench/RESULTS.md has these numbers.
#include <ostream>

#include "kernels/decay_attention/cuda/expect.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels::test {
namespace {

// Cost per block and chunk, averaged over whole groups of chunks. A backward scans all chunks of a
// group except the last one twice. With decays per channel, the cost includes all passes: operands,
// scan, gradients.
struct Cost {
  double copied_kib = 0;    // q, k, v, dout, decays per channel and derived values, states.
  double ldmatrix_kib = 0;  // Read from shared memory for products.
  double mma = 0;           // Products of [16, 16] and [16, 8].
  double barriers = 0;
  double wgmma = 0;  // Products of [64, 16] and [16, 64].
  bool operator==(const Cost&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Cost& cost) {
  return out << "{" << cost.copied_kib << ", " << cost.ldmatrix_kib << ", " << cost.mma << ", "
             << cost.barriers << ", " << cost.wgmma << "}";
}

struct Costs {
  Cost forward, backward;
};
enum class Wants { kAll, kNoDecays };
struct Totals {
  emu::Counts forward, backward;
};

Totals Run(const ProblemShape& shape, Wants wants) {
  Problem problem(shape);
  const emu::Counts start = emu::CountsSoFar();
  problem.Forward(/*with_checkpoints=*/true);
  const emu::Counts middle = emu::CountsSoFar();
  DecayAttentionGradArgs grads = problem.GradArgs();
  if (wants == Wants::kNoDecays) grads.dlog_decay = {};
  problem.workspace_.assign(cuda::BackwardWorkspaceBytes(grads.forward, problem.Plan()),
                            std::byte{0xff});
  grads.forward.workspace = problem.workspace_.data();
  cuda::Backward(grads, problem.Plan(), nullptr);
  const emu::Counts end = emu::CountsSoFar();
  const auto minus = [](const emu::Counts& a, const emu::Counts& b) {
    return emu::Counts{a.blocks - b.blocks,
                       a.copied_bytes - b.copied_bytes,
                       a.ldmatrix_bytes - b.ldmatrix_bytes,
                       a.mma - b.mma,
                       a.wgmma - b.wgmma,
                       a.barriers - b.barriers};
  };
  return {minus(middle, start), minus(end, middle)};
}

// Returns the additional cost of a scan with more chunks, which excludes the fixed cost of a block.
Costs CostsOf(ProblemShape shape, Wants wants) {
  constexpr int kChunks = 4;  // Whole groups.
  const auto run = [&](int chunks) {
    shape.seq_len = chunks * 64;
    return Run(shape, wants);
  };
  const Totals few = run(kChunks), more = run(2 * kChunks);
  const auto per_chunk = [](int64_t a, int64_t b) { return static_cast<double>(a - b) / kChunks; };
  const auto cost = [&](const emu::Counts& a, const emu::Counts& b) {
    return Cost{per_chunk(a.copied_bytes, b.copied_bytes) / 1024,
                per_chunk(a.ldmatrix_bytes, b.ldmatrix_bytes) / 1024, per_chunk(a.mma, b.mma),
                per_chunk(a.barriers, b.barriers), per_chunk(a.wgmma, b.wgmma)};
  };
  return {cost(more.forward, few.forward), cost(more.backward, few.backward)};
}

struct Row {
  DecayKind kind;
  bool norm;
  Wants wants;
  int dim;  // K and V.
  Cost forward, backward;
  bool warpgroups = false;
};
constexpr DecayKind kToken = DecayKind::kPerToken, kChannel = DecayKind::kPerTokenChannel;
constexpr bool kWarpgroups = true;
constexpr Row kRows[] = {
    {kToken, false, Wants::kAll, 64, {24, 140, 416, 2}, {44, 364, 1008, 3.75}},
    {kToken, false, Wants::kNoDecays, 64, {24, 140, 416, 2}, {44, 348, 1008, 2.75}},
    {kToken, true, Wants::kAll, 64, {24, 140, 416, 2}, {66, 728, 2016, 7.5}},
    {kChannel, false, Wants::kAll, 64, {60, 80, 288, 16}, {130.875, 251, 720, 39.5}},
    {kChannel, true, Wants::kAll, 64, {60, 80, 288, 24}, {222.75, 502, 1440, 79}},
    {kToken, false, Wants::kAll, 128, {48, 408, 1344, 2}, {88, 1064, 3232, 3.75}},
    {kToken, false, Wants::kNoDecays, 128, {48, 408, 1344, 2}, {88, 1032, 3232, 2.75}},
    {kToken, false, Wants::kAll, 64, {24, 8, 0, 0, 16}, {80.53125, 40, 0, 3, 40}, kWarpgroups},
    {kToken, false, Wants::kAll, 128, {48, 16, 0, 0, 48}, {258.125, 112, 0, 4, 120}, kWarpgroups},
    {kToken, true, Wants::kAll, 128, {48, 408, 1344, 2}, {132, 1722, 5088, 7.5}},
    {kChannel, false, Wants::kAll, 64, {64, 48, 64, 4, 12}, {121, 271, 752, 15, 8}, kWarpgroups},
    {kChannel,
     false,
     Wants::kAll,
     128,
     {120, 96, 128, 4, 40},
     {332, 872, 2272, 17, 32},
     kWarpgroups},
    {kChannel, false, Wants::kAll, 128, {117, 288, 1088, 16}, {258.75, 846, 2624, 39.5}},
    {kChannel, true, Wants::kAll, 128, {117, 288, 1088, 24}, {439.5, 1300, 3968, 79}},
};

TEST(CudaCosts, AChunkOfEachScan) {
  if (kSanitized) GTEST_SKIP() << "counts what other tests show to a sanitizer";
  for (const Row& row : kRows) {
    ProblemShape shape = {.heads = 1, .dim_k = row.dim, .dim_v = row.dim, .kind = row.kind};
    shape.norm = row.norm;
    shape.block = {row.dim, row.dim};
    shape.warpgroups = row.warpgroups;
    SCOPED_TRACE(Concat(shape.Name(), row.wants == Wants::kAll ? "" : ", no gradient of decays"));
    const Costs costs = CostsOf(shape, row.wants);
    EXPECT_EQ(costs.forward, row.forward);
    EXPECT_EQ(costs.backward, row.backward);
  }
}

}  // namespace
}  // namespace halflife::kernels::test
