// Runs the CPU kernels of the delta rule on a problem, with operands of type S (float, double or
// Bf16). States, decays and beta have the compute type.
#pragma once

#include <type_traits>
#include <vector>

#include "kernels/common/chunks/chunk_table.h"
#include "kernels/delta_rule/problem.h"

namespace halflife::kernels::test::delta {

template <typename S>
using ComputeOf = std::conditional_t<std::is_same_v<S, double>, double, float>;

template <typename S>
struct Array {
  std::vector<S> data;

  explicit Array(size_t count) : data(count) {}
  explicit Array(const Values& values) : data(values.size()) {
    for (size_t i = 0; i < values.size(); ++i) {
      if constexpr (std::is_same_v<S, Bf16>) {
        data[i] = RoundToBf16(static_cast<float>(values[i]));
      } else {
        data[i] = static_cast<S>(values[i]);
      }
    }
  }
  Values values() const {
    Values values;
    for (const S x : data) {
      if constexpr (std::is_same_v<S, Bf16>) {
        values.push_back(Widen(x));
      } else {
        values.push_back(x);
      }
    }
    return values;
  }
  // Returns a contiguous [B, T, heads, width], or an absent view if the tensor is empty.
  TensorView View(int64_t T, int64_t heads, int64_t width) {
    TensorView view;
    view.data = data.empty() ? nullptr : data.data();
    view.stride_h = width;
    view.stride_t = heads * width;
    view.stride_b = T * heads * width;
    view.dtype = std::is_same_v<S, Bf16>     ? DType::kBF16
                 : std::is_same_v<S, double> ? DType::kF64
                                             : DType::kF32;
    return view;
  }
};

// The memory of one problem, and the arguments that point to it.
template <typename S>
struct Call {
  using C = ComputeOf<S>;

  Problem problem;
  ChunkTable table;
  Array<S> q, k, v, dout, out, dq, dk, dv;
  Array<C> log_decay, beta, initial_state, dfinal_state;
  Array<C> final_state, dlog_decay, dbeta, dinitial_state;
  std::vector<std::byte> checkpoints, workspace;
  DeltaRuleGradArgs grads;

  explicit Call(const Problem& the_problem)
      : problem(the_problem),
        q(problem.data.q),
        k(problem.data.k),
        v(problem.data.v),
        dout(problem.data.dout),
        out(problem.data.v.size()),
        dq(problem.data.q.size()),
        dk(problem.data.k.size()),
        dv(problem.data.v.size()),
        log_decay(problem.data.log_decay),
        beta(problem.data.beta),
        initial_state(problem.data.initial_state),
        dfinal_state(problem.data.dfinal_state),
        final_state(problem.data.initial_state.size()),
        dlog_decay(problem.data.log_decay.size()),
        dbeta(problem.data.beta.size()),
        dinitial_state(problem.data.initial_state.size()) {
    const Case& c = problem.config;
    table = MakeChunkTable({.batch = c.B,
                            .seq_len = c.T,
                            .chunk_size = c.chunk_size,
                            .document_starts = c.document_starts,
                            .cu_seqlens = c.cu_seqlens});
    table.chunks.resize(table.chunks.size() + c.unused_chunks);
    const int64_t T = c.T, H = c.H, HV = c.value_heads(), K = c.K, V = c.V;
    const int64_t decays = c.decay == DeltaDecay::kPerTokenChannel ? K : 1;
    DeltaRuleArgs& args = grads.forward;
    args.batch = c.B;
    args.seq_len = c.T;
    args.num_heads = c.H;
    args.num_value_heads = c.value_heads();
    args.head_dim_k = c.K;
    args.head_dim_v = c.V;
    args.decay = c.decay;
    args.scale = problem.data.scale;
    args.warpgroups = c.warpgroups;
    args.q = q.View(T, H, K);
    args.k = k.View(T, H, K);
    args.v = v.View(T, HV, V);
    args.out = out.View(T, HV, V);
    args.log_decay = log_decay.View(T, HV, decays);
    args.beta = beta.View(T, HV, 1);
    args.num_sequences = c.num_sequences();
    args.num_chunks = static_cast<int>(table.chunks.size());
    args.chunks = table.chunks.data();
    args.sequence_begin = table.sequence_begin.data();
    args.initial_state = initial_state.data.data();
    args.final_state = final_state.data.data();
    checkpoints.resize(DeltaRuleCheckpointBytes(args));
    workspace.resize(DeltaRuleWorkspaceBytes(args));
    args.checkpoints = checkpoints.data();
    args.workspace = workspace.data();
    grads.dout = dout.View(T, HV, V);
    grads.dq = dq.View(T, H, K);
    grads.dk = dk.View(T, H, K);
    grads.dv = dv.View(T, HV, V);
    grads.dlog_decay = dlog_decay.View(T, HV, decays);
    grads.dbeta = dbeta.View(T, HV, 1);
    grads.dfinal_state = dfinal_state.data.data();
    grads.dinitial_state = dinitial_state.data.data();
  }
  Call(const Call&) = delete;

  Result Get(bool backward) const {
    Result result = {{"out", out.values()}, {"final_state", final_state.values()}};
    if (!backward) return result;
    result["dq"] = dq.values();
    result["dk"] = dk.values();
    result["dv"] = dv.values();
    result["dbeta"] = dbeta.values();
    result["dinitial_state"] = dinitial_state.values();
    if (!log_decay.data.empty()) result["dlog_decay"] = dlog_decay.values();
    return result;
  }
};

template <typename S>
Result RunCpu(const Problem& problem) {
  Call<S> call(problem);
  cpu::DeltaRuleForward(call.grads.forward);
  cpu::DeltaRuleBackward(call.grads);
  return call.Get(/*backward=*/true);
}

// M [n, HV, K, K], N and Z [n, HV, K, V] of a whole problem, without its states.
struct Summary {
  Values transition, state, adjoint;
};
template <typename S>
Summary Summarise(const Problem& problem) {
  using C = ComputeOf<S>;
  Call<S> call(problem);
  const Case& c = problem.config;
  const size_t heads = static_cast<size_t>(c.num_sequences()) * c.value_heads();
  Array<C> transition(heads * c.K * c.K), state(heads * c.K * c.V), adjoint(heads * c.K * c.V);
  DeltaSegmentArgs segment = {.forward = call.grads.forward, .dout = call.grads.dout};
  segment.transition = transition.data.data();
  segment.state = state.data.data();
  segment.adjoint = adjoint.data.data();
  cpu::DeltaRuleSummarise(segment);
  cpu::DeltaRuleBackwardSummarise(segment);
  return {transition.values(), state.values(), adjoint.values()};
}

}  // namespace halflife::kernels::test::delta
