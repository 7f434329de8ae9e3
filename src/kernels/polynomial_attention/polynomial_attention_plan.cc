#include <cmath>

#include "kernels/common/cpu/head_groups.h"
#include "kernels/common/shape_problems.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels {
namespace {

void CheckShape(const PolynomialAttentionArgs& args, bool is_cuda) {
  ShapeProblems problems("polynomial attention");
  problems.Unless(args.batch >= 0 && args.seq_len >= 0, "batch ", args.batch, ", seq_len ",
                  args.seq_len, ": negative");
  problems.Unless(args.num_heads >= 1, "num_heads is ", args.num_heads);
  problems.Unless(args.head_dim >= 1 && args.head_dim <= kMaxPolynomialDim, "head_dim ",
                  args.head_dim, " is outside 1 .. ", kMaxPolynomialDim);
  problems.Unless(args.head_dim_v >= 1 && args.head_dim_v <= kMaxPolynomialValues, "head_dim_v ",
                  args.head_dim_v, " is outside 1 .. ", kMaxPolynomialValues);
  const PolynomialWeights& w = args.weights;
  problems.Unless(std::isfinite(args.scale) && args.scale != 0, "scale is ", args.scale);
  problems.Unless(std::isfinite(w.a0) && std::isfinite(w.a1) && std::isfinite(w.a2) &&
                      (w.a0 != 0 || w.a1 != 0 || w.a2 != 0),
                  "weights are ", w.a0, ", ", w.a1, ", ", w.a2,
                  ". Use finite weights that are not all 0.");
  problems.Unless(!args.normalise || args.norm_eps > 0, "norm_eps is ", args.norm_eps,
                  ". Use a positive number.");
  const DType dtype = args.q.dtype;
  problems.Unless(
      dtype == DType::kF32 || dtype == DType::kBF16 || (dtype == DType::kF64 && !is_cuda), "q is ",
      Name(dtype), ". Use bf16 or fp32 (on the CPU also fp64).");
  problems.Unless(args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype,
                  "q, k, v, out are ", Name(dtype), ", ", Name(args.k.dtype), ", ",
                  Name(args.v.dtype), ", ", Name(args.out.dtype), ". Use one dtype for all.");
  problems.Throw();
}

// Multiply-adds per token. In the quadratic form a token is paired with half of a sequence, for
// scores and for sums of values; in the chunked form it reads the state and adds to it. Measured,
// forward + backward cost the same at 430, 370 and 330 tokens for d = 16 and V = 64, 21 and 5. This
// rule gives 490, 408 and 306.
bool QuadraticIsCheaper(const PolynomialAttentionArgs& args) {
  constexpr int kVector = 16;  // short rows of values are rounded up to whole vectors
  const double values = (args.head_dim_v + kVector - 1) / kVector * kVector;
  const double features = FeatureLayout(args.head_dim, args.weights).count;
  return (args.head_dim + values) * args.seq_len / 2 < 2 * features * values;
}

// On CUDA, bf16 has a quadratic form on matrix units, while the chunked form is recurrent. With d =
// 16 and V = 64, a warp executes about 1,400 instructions per pair of tiles of 64 tokens, and 7,700
// per token of the recurrent form. A forward would take the same time at 46,000 tokens. Not
// measured.
bool HasQuadraticOnCuda(const PolynomialAttentionArgs& args) {
  return args.q.dtype == DType::kBF16;
}
bool QuadraticIsCheaperOnCuda(const PolynomialAttentionArgs& args) {
  constexpr int kMostTokens = 1 << 15;
  return HasQuadraticOnCuda(args) && args.seq_len <= kMostTokens;
}

}  // namespace

PolynomialAttentionPlan MakePlan(const PolynomialAttentionArgs& args,
                                 const PolynomialPlanRequest& request) {
  CheckShape(args, request.is_cuda);
  PolynomialAttentionPlan plan;
  plan.chunk_size = request.chunk_size > 0 ? request.chunk_size : DefaultChunkSize(request.is_cuda);
  if (!request.is_cuda) {
    const int64_t token_bytes = int64_t{2} * (args.head_dim + args.head_dim_v) * args.num_heads *
                                static_cast<int64_t>(SizeOf(args.q.dtype));
    plan.block_chunks = cpu::ChunksPerBlock(token_bytes, plan.chunk_size, 1);
  }
  switch (request.form) {
    case PolynomialForm::kByShape:
      plan.quadratic = !args.has_state() && (request.is_cuda ? QuadraticIsCheaperOnCuda(args)
                                                             : QuadraticIsCheaper(args));
      break;
    case PolynomialForm::kQuadratic:
      plan.quadratic = !request.is_cuda || HasQuadraticOnCuda(args);
      break;
    case PolynomialForm::kChunked:
      break;
  }
  // A token is paired with all tokens before it.
  if (plan.quadratic) plan.block_chunks = cpu::kUnblocked;
  return plan;
}

}  // namespace halflife::kernels
