// The checks that every kernel of the delta rule makes before it accesses memory: sizes and dtypes,
// a chunk table, buffers, and tensors with supported strides. C++17, so that CUDA's dispatch can
// include this header.
#pragma once

#include <cstdint>
#include <utility>

#include "core/error.h"
#include "kernels/delta_rule/delta_rule_args.h"

namespace halflife::kernels {

struct DeltaExtents {
  int64_t batch, seq_len, heads, width;
};

inline void CheckDeltaRead(const char* name, const TensorView& view, DType dtype) {
  HL_CHECK(view.data != nullptr, "delta rule: ", name, " is missing");
  HL_CHECK(view.dtype == dtype, "delta rule: ", name, " is ", Name(view.dtype), ". Pass ",
           Name(dtype), ".");
  HL_CHECK(view.stride_b >= 0 && view.stride_t >= 0 && view.stride_h >= 0, "delta rule: ", name,
           " has strides ", view.stride_b, ", ", view.stride_t, ", ", view.stride_h,
           " of b, t, h. Pass a copy without negative strides.");
}

// Checks that each element of an output has its own address: going from the smallest stride to the
// largest, every stride must pass over all elements of the inner dimensions.
inline void CheckDeltaWritten(const char* name, const TensorView& view, DType dtype,
                              const DeltaExtents& extents) {
  CheckDeltaRead(name, view, dtype);
  std::pair<int64_t, int64_t> dims[] = {{view.stride_h, extents.heads},
                                        {view.stride_t, extents.seq_len},
                                        {view.stride_b, extents.batch}};
  const auto order = [&](int a, int b) {
    if (dims[b].first < dims[a].first) std::swap(dims[a], dims[b]);
  };
  order(0, 1), order(1, 2), order(0, 1);
  int64_t inside = extents.width;
  for (const auto& [stride, size] : dims) {
    if (size <= 1) continue;
    HL_CHECK(stride >= inside, "delta rule: ", name, " [", extents.batch, ", ", extents.seq_len,
             ", ", extents.heads, ", ", extents.width, "] with strides ", view.stride_b, ", ",
             view.stride_t, ", ", view.stride_h,
             " of b, t, h would be written twice at one address. Pass a contiguous tensor.");
    inside += (size - 1) * stride;
  }
}

inline DType DeltaComputeType(const DeltaRuleArgs& args) {
  return args.q.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

inline void CheckDeltaTable(const DeltaRuleArgs& args) {
  HL_CHECK(args.num_sequences == 0 || args.sequence_begin != nullptr,
           "delta rule: ", args.num_sequences,
           " sequences without sequence_begin. Build it with MakeChunkTable.");
  HL_CHECK(args.num_chunks == 0 || args.chunks != nullptr, "delta rule: ", args.num_chunks,
           " chunks without their table. Build it with MakeChunkTable.");
}

inline void CheckDeltaForward(const DeltaRuleArgs& args) {
  CheckDeltaRuleShape(args);
  CheckDeltaTable(args);
  if (args.num_chunks == 0) return;
  CheckDeltaRead("q", args.q, args.q.dtype);
  CheckDeltaRead("k", args.k, args.q.dtype);
  CheckDeltaRead("v", args.v, args.q.dtype);
  CheckDeltaWritten("out", args.out, args.q.dtype,
                    {args.batch, args.seq_len, args.num_value_heads, args.head_dim_v});
}

inline void CheckDeltaBackward(const DeltaRuleGradArgs& grads) {
  const DeltaRuleArgs& args = grads.forward;
  CheckDeltaRuleShape(args);
  CheckDeltaTable(args);
  if (args.num_chunks == 0) return;
  const int64_t B = args.batch, T = args.seq_len;
  const DType dtype = args.q.dtype, wide = DeltaComputeType(args);
  CheckDeltaRead("q", args.q, dtype);
  CheckDeltaRead("k", args.k, dtype);
  CheckDeltaRead("v", args.v, dtype);
  CheckDeltaRead("dout", grads.dout, dtype);
  CheckDeltaWritten("dq", grads.dq, dtype, {B, T, args.num_heads, args.head_dim_k});
  CheckDeltaWritten("dk", grads.dk, dtype, {B, T, args.num_heads, args.head_dim_k});
  CheckDeltaWritten("dv", grads.dv, dtype, {B, T, args.num_value_heads, args.head_dim_v});
  const int decays = args.decay == DeltaDecay::kPerTokenChannel ? args.head_dim_k : 1;
  if (grads.dlog_decay.data != nullptr) {
    HL_CHECK(args.decay != DeltaDecay::kNone, "delta rule: dlog_decay without log_decay");
    CheckDeltaWritten("dlog_decay", grads.dlog_decay, wide, {B, T, args.num_value_heads, decays});
  }
  if (grads.dbeta.data != nullptr)
    CheckDeltaWritten("dbeta", grads.dbeta, wide, {B, T, args.num_value_heads, 1});
  HL_CHECK(args.checkpoints != nullptr, "delta rule: a backward without the forward's checkpoints");
  HL_CHECK(args.workspace != nullptr || DeltaRuleWorkspaceBytes(args) == 0, "delta rule: needs ",
           DeltaRuleWorkspaceBytes(args), " bytes of workspace, got none");
}

inline void CheckDeltaSegment(const DeltaSegmentArgs& segment, bool reverse) {
  const DeltaRuleArgs& args = segment.forward;
  CheckDeltaRuleShape(args);
  CheckDeltaTable(args);
  HL_CHECK(!reverse || segment.adjoint != nullptr,
           "delta rule: a backward summary without a buffer for Z");
  if (args.num_chunks == 0) return;
  CheckDeltaRead("k", args.k, args.q.dtype);
  if (reverse) {
    CheckDeltaRead("q", args.q, args.q.dtype);
    CheckDeltaRead("dout", segment.dout, args.q.dtype);
  } else if (segment.state != nullptr) {
    CheckDeltaRead("v", args.v, args.q.dtype);
  }
}

// Checks a step as a forward of one token per row.
inline void CheckDeltaStep(const DeltaRuleStepArgs& args) {
  DeltaRuleArgs forward;
  forward.batch = args.batch;
  forward.seq_len = 1;
  forward.num_heads = args.num_heads;
  forward.num_value_heads = args.num_value_heads;
  forward.head_dim_k = args.head_dim_k;
  forward.head_dim_v = args.head_dim_v;
  forward.decay = args.decay;
  forward.scale = args.scale;
  forward.q = args.q;
  forward.k = args.k;
  forward.v = args.v;
  forward.out = args.out;
  forward.log_decay = args.log_decay;
  forward.beta = args.beta;
  CheckDeltaRuleShape(forward);
  if (args.batch == 0) return;  // without rows there is no data
  CheckDeltaRead("q", args.q, args.q.dtype);
  CheckDeltaRead("k", args.k, args.q.dtype);
  CheckDeltaRead("v", args.v, args.q.dtype);
  CheckDeltaWritten("out", args.out, args.q.dtype,
                    {args.batch, 1, args.num_value_heads, args.head_dim_v});
  HL_CHECK(args.state != nullptr, "delta rule: a step without a state");
}

}  // namespace halflife::kernels
