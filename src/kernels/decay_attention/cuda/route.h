// Which kernels run a problem, and what a block of them owns of a state. Host code.
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
  kTensorCores,  // bf16, one decay factor a token or none
  kChannelScan,  // bf16 where each channel has its own decay: tensor cores too
  kSimt,         // everything else, token by token in fp32
};
Route ForwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);
Route BackwardRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

// The compiled block whose scan fits the shared memory and moves the fewest bytes, the smaller one
// of equals; none ({0, 0}) where no scan takes the problem.
DecayBlock ForwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes);
DecayBlock BackwardBlock(const DecayAttentionArgs& args, int64_t shared_memory_bytes);

// Shared memory of the scan in blocks of this size, in bytes; of the backward's with the fewest
// stages that are compiled.
int ForwardSharedBytes(DecayKind kind, const DecayBlock& block);
int BackwardSharedBytes(DecayKind kind, const DecayBlock& block);

// Whether the forward in these blocks can be scanned by Hopper's warpgroups: one factor a token,
// no normaliser, heads that fill their blocks, and rows of the batch that lie equally far apart in
// units of 16 bytes, for the bulk copies.
bool WarpgroupsTake(const DecayAttentionArgs& args, const DecayBlock& block);

// Likewise the backward, whose blocks may have 64 columns of V too; beside a gradient of the output
// that is no such rows, or of an operand whose heads do not begin at units of 16 bytes, it goes by
// warps.
bool BackwardWarpgroupsTake(const DecayAttentionArgs& args, const DecayBlock& block);
bool BackwardWarpgroupsTake(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan);

// Slices of a head that blocks of this size own; 1 and 1 without a block.
struct Slices {
  int keys, values;  // of K, of V

  int count() const { return keys * values; }
};
Slices SlicesOf(const DecayAttentionArgs& args, const DecayBlock& block);

// What a block of the backward's scan owns: by warpgroups of the states of all chunks.
DecayBlock ReverseScanBlock(const DecayAttentionPlan& plan);

// What a scan costs: of its own, and of the scan over segments before it, where there is one.
struct ScanCost {
  double bytes = 0, flops = 0;                  // of a token of one head
  double segment_bytes = 0, segment_flops = 0;  // likewise, of the segments' own states
  int blocks_per_sm = 1;
};
// Operands are moved for each slice that reads them, sums over slices in fp32 to memory and back;
// flops are those of matrix units.
ScanCost ForwardCost(const DecayAttentionArgs& args, const DecayBlock& block,
                     int64_t shared_memory_bytes);
ScanCost BackwardCost(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                      int64_t shared_memory_bytes);

// One line for a log: the kernels that run, and where they are not the fast ones why.
std::string DescribeRoute(const DecayAttentionArgs& args, const DecayAttentionPlan& plan);

}  // namespace halflife::kernels::cuda
