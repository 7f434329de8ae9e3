// Selects the kernels that run a problem, and the part of a state that each of their blocks owns.
// Host code.
//
//   plan.forward = cuda::ForwardBlock(args, limits.shared_memory_bytes);
//   plan.backward = cuda::BackwardBlock(args, limits.shared_memory_bytes);
//   cuda::DescribeRoute(args, plan);  // "tensor cores: forward in blocks of 128 x 128, ..."
#pragma once

#include <cstdint>
#include <string>

#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cuda {

enum class Route {
  kTensorCores,  // one decay factor per token or none
  kChannelScan,  // per-channel decays; also on tensor cores
  kSimt,         // everything else: the recurrent (per-token) kernels in fp32
};
// Returns the number of bf16 terms of an operand on tensor cores (kernels/common/cuda/tiles.cuh): 1
// for bf16 operands, 2 for fp32 operands, whose products are then three products of bf16.
int NumTerms(const DecayAttentionArgs& args);
Route ForwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
Route BackwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// Returns the compiled block whose scan fits into the shared memory and moves the fewest bytes, the
// smaller one of equals. Returns {0, 0} if no scan supports the problem.
DecayBlock ForwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes);
DecayBlock BackwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes);

// Shared memory of the scan with blocks of this size, in bytes. For the backward, with the smallest
// number of stages that is compiled.
int ForwardSharedBytes(DecayKind kind, const DecayBlock& block, int terms);
int BackwardSharedBytes(DecayKind kind, const DecayBlock& block, int terms);

// Returns true if the forward with these blocks can use Hopper's warpgroup instructions (wgmma).
// Requirements: bf16 operands, no normaliser, heads that fill their blocks and, for bulk copies,
// rows of the batch at equal distances in units of 16 bytes. With one decay factor per token,
// blocks have 128 columns of V or are 64 x 64; with per-channel decays, a head has one slice of K,
// and only rows of v are copied.
bool CanUseWgmma(const DecayAttentionArgs& args, const DecayBlock& block);

// Returns the same for the backward, where blocks may have any size of V and, with one decay factor
// per token, of K. The second overload also checks the tensors of a call. It returns false, and the
// backward uses the kernel without wgmma, if the rows of dout are not at equal distances or if
// heads of dq, dk or dv do not start at units of 16 bytes.
bool CanUseWgmmaBackward(const DecayAttentionArgs& args, const DecayBlock& block);
bool CanUseWgmmaBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan);

// Returns true if the states of segments are scanned with wgmma: with one decay factor per
// token, if one of the plan's directions is. A reverse scan also requires CanReadByRows(dout), that
// is, rows at equal distances.
bool StatesByWarpgroups(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
bool CanReadByRows(const DecayAttentionArgs& args, const TensorView& dout);

// The number of slices of a head with blocks of this size; {1, 1} without a block.
struct Slices {
  int keys, values;  // slices of K, slices of V

  int count() const { return keys * values; }
};
Slices SlicesOf(const DecayAttentionArgs& args, const DecayBlock& block);

// Returns the part of a state that a block of the backward's scan owns. With wgmma, that is the
// scan which computes the states of all chunks.
DecayBlock ReverseScanBlock(const DecayAttentionPlan& plan);

// The cost of a scan, and of the scan over segments before it, if there is one.
struct ScanCost {
  double bytes = 0, flops = 0;  // per token of one head
  // per token of one head, for the segments' own states
  double segment_bytes = 0, segment_flops = 0;
  int blocks_per_sm = 1;
};
// Operands are read once per slice that needs them; sums over slices are written and read in fp32.
// Flops are those of matrix units.
ScanCost ForwardCost(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                     int64_t shared_memory_bytes);
ScanCost BackwardCost(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                      int64_t shared_memory_bytes);

// Returns one line for a log: the kernels that run and, if these are not the fast ones, the reason.
std::string DescribeRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

}  // namespace halflife::kernels::cuda
