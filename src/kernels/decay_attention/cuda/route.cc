#include "kernels/decay_attention/cuda/route.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "core/concat.h"
#include "kernels/decay_attention/cuda/blocks.h"

namespace halflife::kernels::cuda {
namespace {

constexpr DecayBlock kBlocks[] = {
#define HL_DECAY_INSTANCE(K, V) {K, V},
#include "kernels/decay_attention/cuda/instances/instances.inc"
};

bool HasScan(const DecayAttentionArgs& args) {
  const DType dtype = args.q.dtype;
  return (dtype == DType::kBF16 || dtype == DType::kF32) && args.head_dim_k <= kMaxHeadDimK;
}
Route RouteOf(const DecayAttentionArgs& args, const DecayBlock& block) {
  if (!HasScan(args) || block.k == 0) return Route::kSimt;
  return IsPerChannel(args.decay_kind) ? Route::kChannelScan : Route::kTensorCores;
}

// Memory traffic for `width` channels of a result, in bytes: an element of `bytes`, or an fp32
// write and read per slice, then that element.
double ResultBytes(int width, int num_slices, double bytes) {
  return num_slices == 1 ? bytes * width : (8.0 * num_slices + bytes) * width;
}
double ForwardBytesPerToken(const DecayAttentionArgs& args, const DecayBlock& block) {
  const int K = args.head_dim_k, V = args.head_dim_v;
  const Slices slices = SlicesOf(args, block);
  const double bytes = 2 * NumTerms(args);
  return bytes * (2 * K * slices.values + V * slices.keys) + ResultBytes(V, slices.keys, bytes);
}
double BackwardBytesPerToken(const DecayAttentionArgs& args, const DecayBlock& block) {
  const int K = args.head_dim_k, V = args.head_dim_v;
  const Slices slices = SlicesOf(args, block);
  const double bytes = 2 * NumTerms(args);
  return 2 * bytes * (K * slices.values + V * slices.keys) +
         2 * ResultBytes(K, slices.values, bytes) + ResultBytes(V, slices.keys, bytes);
}

// Products of bf16 per product of operands.
double NumProducts(const DecayAttentionArgs& args) { return NumTerms(args) == 1 ? 1 : 3; }

// Returns the cost of the segments' own states, each of which needs two operands.
ScanCost SegmentCost(const DecayAttentionArgs& args, const Slices& slices) {
  const double K = args.head_dim_k, V = args.head_dim_v;
  ScanCost cost;
  cost.segment_bytes = 2 * NumTerms(args) * (K * slices.values + V * slices.keys);
  cost.segment_flops = NumProducts(args) * 2 * K * V;
  return cost;
}
int BlocksPerSm(int by_registers, int64_t shared_memory_bytes, int bytes) {
  return static_cast<int>(std::clamp<int64_t>(shared_memory_bytes / bytes, 1, by_registers));
}

template <typename SharedBytes, typename BytesPerToken>
DecayBlock BestBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes,
                     const SharedBytes& shared_bytes, const BytesPerToken& bytes_per_token) {
  DecayBlock best;
  if (!HasScan(args)) return best;
  double best_bytes = std::numeric_limits<double>::infinity();
  const int terms = NumTerms(args);
  for (const DecayBlock& block : kBlocks) {  // in ascending size
    if (terms > 1 && block.k * block.v > decay::kTwoTermsBlock * decay::kTwoTermsBlock) continue;
    if (shared_bytes(args.decay_kind, block, terms) > shared_memory_bytes) continue;
    const double bytes = bytes_per_token(args, block);
    if (bytes >= best_bytes) continue;
    best = block;
    best_bytes = bytes;
  }
  return best;
}

// Returns true if the rows of each token and head start at multiples of 16 bytes.
bool HasWholeUnits(const TensorView& x) {
  const int64_t unit = 16 / static_cast<int64_t>(SizeOf(x.dtype));
  return x.stride_b % unit == 0 && x.stride_t % unit == 0 && x.stride_h % unit == 0 &&
         reinterpret_cast<uintptr_t>(x.data) % 16 == 0;
}

std::string DescribeBlock(const DecayAttentionArgs& args, const DecayBlock& block) {
  if (block.k == 0) return "token by token, as no block fits the shared memory";
  const Slices slices = SlicesOf(args, block);
  std::string text = Concat("in blocks of ", block.k, " x ", block.v);
  if (slices.count() > 1) text += Concat(", ", slices.keys, " x ", slices.values, " a head");
  return text;
}

}  // namespace

int NumTerms(const DecayAttentionArgs& args) { return args.q.dtype == DType::kF32 ? 2 : 1; }

Route ForwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return RouteOf(args, plan.forward);
}
Route BackwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return RouteOf(args, plan.backward);
}

DecayBlock ForwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes) {
  return BestBlock(args, shared_memory_bytes, ForwardSharedBytes, ForwardBytesPerToken);
}
DecayBlock BackwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes) {
  return BestBlock(args, shared_memory_bytes, BackwardSharedBytes, BackwardBytesPerToken);
}

int ForwardSharedBytes(DecayKind kind, const DecayBlock& block, int terms) {
  return IsPerChannel(kind) ? decay::ChannelScanBytes(block.k, block.v, terms)
                            : decay::ChunkScanBytes(block.k, block.v, terms);
}
int BackwardSharedBytes(DecayKind kind, const DecayBlock& block, int terms) {
  if (IsPerChannel(kind)) return decay::ChannelReverseScanBytes(block.k, block.v, terms);
  const bool one_stage = terms > 1 || decay::WantsOneStage(block.k, block.v);
  return decay::ReverseScanBytes(block.k, block.v, one_stage ? 1 : 2, terms);
}

bool CanUseWgmmaBackward(const DecayAttentionArgs& args, const DecayBlock& block) {
  const int k = args.head_dim_k, v = args.head_dim_v;
  const bool fits = HasScan(args) && args.q.dtype == DType::kBF16 &&
                    args.norm_kind == NormKind::kNone && args.batch > 0 &&
                    args.seq_len > 0 &&  // a tensor map needs at least one row
                    block.k > 0 && k % block.k == 0 && v % block.v == 0 &&
                    IsMatrixOfRows(args.v, args.batch, args.num_v_heads, v);
  if (IsPerChannel(args.decay_kind)) return fits && k == block.k;
  return fits && IsMatrixOfRows(args.q, args.batch, args.num_q_heads, k) &&
         IsMatrixOfRows(args.k, args.batch, args.num_k_heads, k);
}
bool CanUseWgmmaBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan) {
  const DecayAttentionArgs& args = grads.forward;
  return plan.backward_warpgroups && CanReadByRows(args, grads.dout) && HasWholeUnits(grads.dq) &&
         HasWholeUnits(grads.dk) && HasWholeUnits(grads.dv);
}
bool StatesByWarpgroups(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  return !IsPerChannel(args.decay_kind) && (plan.forward_warpgroups || plan.backward_warpgroups);
}
bool CanReadByRows(const DecayAttentionArgs& args, const TensorView& dout) {
  return IsMatrixOfRows(dout, args.batch, args.num_heads, args.head_dim_v);
}
bool CanUseWgmma(const DecayAttentionArgs& args, const DecayBlock& block) {
  return (IsPerChannel(args.decay_kind) || decay::HasFastWarpgroupScan(block.k, block.v)) &&
         CanUseWgmmaBackward(args, block);
}

DecayBlock ReverseScanBlock(const DecayAttentionPlan& plan) {
  if (plan.backward_warpgroups) return {decay::kStateBlock, decay::kStateBlock};
  return plan.backward;
}

Slices SlicesOf(const DecayAttentionArgs& args, const DecayBlock& block) {
  if (block.k == 0) return {1, 1};
  return {(args.head_dim_k + block.k - 1) / block.k, (args.head_dim_v + block.v - 1) / block.v};
}

ScanCost ForwardCost(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     int64_t shared_memory_bytes) {
  const DecayBlock& block = plan.forward;
  const double K = args.head_dim_k, V = args.head_dim_v, C = decay::kChunk;
  const Slices slices = SlicesOf(args, block);
  ScanCost cost = SegmentCost(args, slices);
  cost.bytes = ForwardBytesPerToken(args, block);
  cost.flops = NumProducts(args) * (C * (K * slices.values + V * slices.keys) + 4 * K * V);
  cost.blocks_per_sm =
      plan.forward_warpgroups
          ? decay::WarpgroupScanBlocksPerSm(block.k, block.v)
          : BlocksPerSm(decay::ScanBlocksPerSm(block.k, block.v, NumTerms(args)),
                        shared_memory_bytes,
                        ForwardSharedBytes(args.decay_kind, block, NumTerms(args)));
  return cost;
}
namespace {

// Returns the cost of the two scans that store the states of all chunks, one per direction, which
// run in parallel. The gradients after them process chunks independently, so segments do not change
// their cost.
ScanCost ChunkStatesCost(const DecayAttentionArgs& args, const DecayBlock& block) {
  const double K = args.head_dim_k, V = args.head_dim_v;
  ScanCost cost = SegmentCost(args, SlicesOf(args, block));
  cost.bytes = 4 * (K + V) + 4 * K * V / decay::kChunk;
  cost.flops = 4 * K * V;
  return cost;
}

}  // namespace

ScanCost BackwardCost(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                      int64_t shared_memory_bytes) {
  const DecayBlock& block = plan.backward;
  if (plan.backward_warpgroups) return ChunkStatesCost(args, block);
  const double K = args.head_dim_k, V = args.head_dim_v, C = decay::kChunk;
  const Slices slices = SlicesOf(args, block);
  ScanCost cost = SegmentCost(args, slices);
  cost.bytes = BackwardBytesPerToken(args, block);
  // Products: scores, dq and dk of pairs; gradients of scores and dv; five products with states.
  cost.flops = NumProducts(args) * (C * (3 * K * slices.values + 2 * V * slices.keys) + 10 * K * V);
  cost.blocks_per_sm = BlocksPerSm(decay::ReverseScanBlocksPerSm(block.k), shared_memory_bytes,
                                   BackwardSharedBytes(args.decay_kind, block, NumTerms(args)));
  return cost;
}

std::string DescribeRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  const std::string shape = Concat("K ", args.head_dim_k, ", V ", args.head_dim_v, ", ");
  return Concat(shape, "on tensor cores", NumTerms(args) == 2 ? " in three products of bf16" : "",
                ": forward ", DescribeBlock(args, plan.forward),
                plan.forward_warpgroups ? " by warpgroups" : "", "; backward ",
                DescribeBlock(args, plan.backward),
                plan.backward_warpgroups ? " by warpgroups" : "");
}

}  // namespace halflife::kernels::cuda
