#include <cmath>

#include "kernels/common/shape_problems.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "kernels/delta_rule/delta_rule_partition.h"

namespace halflife::kernels {
namespace {

void CheckDeltaDTypes(ShapeProblems& problems, const DeltaRuleArgs& args) {
  const DType dtype = args.q.dtype;
  const DType wide = dtype == DType::kF64 ? DType::kF64 : DType::kF32;
  problems.Unless(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF64, "q is ",
                  Name(dtype), ". Use bf16 or fp32 (on the CPU also fp64).");
  problems.Unless(args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype,
                  "q, k, v, out are ", Name(dtype), ", ", Name(args.k.dtype), ", ",
                  Name(args.v.dtype), ", ", Name(args.out.dtype), ". Use one dtype for all.");
  problems.Unless(args.log_decay.data == nullptr || args.log_decay.dtype == wide, "log_decay is ",
                  Name(args.log_decay.dtype), " with q of ", Name(dtype), ". Use ", Name(wide),
                  ".");
  problems.Unless(args.beta.data == nullptr || args.beta.dtype == wide, "beta is ",
                  Name(args.beta.dtype), " with q of ", Name(dtype), ". Use ", Name(wide), ".");
}

}  // namespace

void CheckDeltaRuleShape(const DeltaRuleArgs& args) {
  ShapeProblems problems("the delta rule");
  problems.Unless(args.batch >= 0 && args.seq_len >= 0, "batch is ", args.batch, " and seq_len is ",
                  args.seq_len, ". Use numbers >= 0.");
  problems.Unless(args.num_heads >= 1, "num_heads is ", args.num_heads, ". Use at least 1.");
  problems.Unless(args.num_heads >= 1 && args.num_value_heads >= 1 &&
                      args.num_value_heads % args.num_heads == 0,
                  "num_value_heads is ", args.num_value_heads,
                  ". Use a multiple of num_heads, which is ", args.num_heads, ".");
  problems.Unless(args.head_dim_k >= 1 && args.head_dim_k <= kDeltaMaxHeadDimK, "head_dim_k is ",
                  args.head_dim_k, ". Use 1 to ", kDeltaMaxHeadDimK, ".");
  problems.Unless(args.head_dim_v >= 1 && args.head_dim_v <= kDeltaMaxHeadDimV, "head_dim_v is ",
                  args.head_dim_v, ". Use 1 to ", kDeltaMaxHeadDimV, ".");
  problems.Unless(std::isfinite(args.scale), "scale is ", args.scale, ". Use a finite number.");
  const bool has_tokens = args.batch > 0 && args.seq_len > 0;  // without tokens there is no data
  problems.Unless(args.decay != DeltaDecay::kNone || args.log_decay.data == nullptr,
                  "log_decay is given, but the decay is kNone. Pass none.");
  problems.Unless(args.decay == DeltaDecay::kNone || args.log_decay.data != nullptr || !has_tokens,
                  "log_decay is missing. Pass it, or use kNone.");
  problems.Unless(args.beta.data != nullptr || !has_tokens, "beta is missing. Pass [B, T, HV].");
  CheckDeltaDTypes(problems, args);
  problems.Throw();
}

size_t DeltaRuleWorkspaceBytes(const DeltaRuleArgs& args) {
  // With shared heads, dq and dk of every value head, [2, B, T, HV, K].
  if (args.num_heads == args.num_value_heads) return 0;
  return size_t(2) * args.batch * args.seq_len * args.num_value_heads * args.head_dim_k *
         DeltaComputeBytes(args);
}

size_t DeltaRuleCheckpointBytes(const DeltaRuleArgs& args) {
  return static_cast<size_t>(NumDeltaCheckpoints(args.num_chunks, args.num_sequences)) *
         args.num_value_heads * args.head_dim_k * args.head_dim_v * DeltaComputeBytes(args);
}

}  // namespace halflife::kernels
