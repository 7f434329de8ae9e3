// Checks that every kernel of polynomial attention makes on a call before it accesses memory: a
// plan within the kernel's limits, a chunk table, and no missing tensors. For a decoding step also
// sizes and dtypes, which MakePlan() checks for the other calls. C++17, because CUDA's dispatch
// includes it.
#pragma once

#include "core/error.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels {

inline void CheckPolynomialView(const char* name, const TensorView& view) {
  HL_CHECK(view.data != nullptr, "polynomial attention: ", name, " is missing");
  HL_CHECK(view.stride_b >= 0 && view.stride_t >= 0 && view.stride_h >= 0,
           "polynomial attention: ", name, " has strides ", view.stride_b, ", ", view.stride_t,
           ", ", view.stride_h, " of b, t, h. Use a copy without negative strides.");
}

inline void CheckCall(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                      int max_chunk_size) {
  HL_CHECK(plan.chunk_size >= 1 && plan.chunk_size <= max_chunk_size,
           "polynomial attention: chunks of ", plan.chunk_size, " tokens. Use 1 to ",
           max_chunk_size, ".");
  HL_CHECK(args.num_sequences == 0 || args.sequence_begin != nullptr,
           "polynomial attention: ", args.num_sequences,
           " sequences without sequence_begin. Use MakeChunkTable().");
  HL_CHECK(args.num_chunks == 0 || args.chunks != nullptr,
           "polynomial attention: ", args.num_chunks,
           " chunks without their table. Use MakeChunkTable().");
  HL_CHECK(!plan.quadratic || !args.has_state(),
           "polynomial attention: the quadratic form reads and writes no state. Use the chunked "
           "form, or no state.");
  HL_CHECK(args.normalise || (args.initial_norm == nullptr && args.final_norm == nullptr),
           "polynomial attention: a normaliser state without normalise. Set normalise, or pass no "
           "such state.");
  if (args.num_chunks == 0) return;
  CheckPolynomialView("q", args.q);
  CheckPolynomialView("k", args.k);
  CheckPolynomialView("v", args.v);
  CheckPolynomialView("out", args.out);
}

inline void CheckCall(const PolynomialAttentionGradArgs& grads, const PolynomialAttentionPlan& plan,
                      int max_chunk_size) {
  const PolynomialAttentionArgs& args = grads.forward;
  CheckCall(args, plan, max_chunk_size);
  HL_CHECK(!plan.quadratic || (grads.dfinal_state == nullptr && grads.dinitial_state == nullptr &&
                               grads.dfinal_norm == nullptr && grads.dinitial_norm == nullptr),
           "polynomial attention: the quadratic form has no gradient of a state");
  if (args.num_chunks == 0) return;
  CheckPolynomialView("dout", grads.dout);
  CheckPolynomialView("dq", grads.dq);
  CheckPolynomialView("dk", grads.dk);
  CheckPolynomialView("dv", grads.dv);
  HL_CHECK(!args.normalise || args.norm_denom != nullptr,
           "polynomial attention: a normalised backward needs the forward's norm_denom");
}

inline void CheckStep(const PolynomialAttentionStepArgs& args, bool is_cuda) {
  HL_CHECK_AS(ExitCode::kUsage,
              args.batch >= 0 && args.num_heads >= 1 && args.head_dim >= 1 &&
                  args.head_dim <= kMaxPolynomialDim && args.head_dim_v >= 1 &&
                  args.head_dim_v <= kMaxPolynomialValues,
              "polynomial attention step of ", args.batch, " rows, ", args.num_heads,
              " heads of sizes ", args.head_dim, " and ", args.head_dim_v, ". Use at most ",
              kMaxPolynomialDim, " and ", kMaxPolynomialValues, ".");
  const DType dtype = args.q.dtype;
  HL_CHECK_AS(
      ExitCode::kUsage,
      (dtype == DType::kF32 || dtype == DType::kBF16 || (dtype == DType::kF64 && !is_cuda)) &&
          args.k.dtype == dtype && args.v.dtype == dtype && args.out.dtype == dtype,
      "polynomial attention step with q, k, v, out of ", Name(dtype), ", ", Name(args.k.dtype),
      ", ", Name(args.v.dtype), ", ", Name(args.out.dtype), ". Use one of bf16, fp32",
      is_cuda ? "" : ", fp64", " for all.");
  if (args.batch == 0) return;  // no rows, no data
  CheckPolynomialView("q", args.q);
  CheckPolynomialView("k", args.k);
  CheckPolynomialView("v", args.v);
  CheckPolynomialView("out", args.out);
  HL_CHECK(args.state != nullptr && (!args.normalise || args.norm != nullptr),
           "polynomial attention step without a state", args.normalise ? " and its norm" : "");
}

}  // namespace halflife::kernels
