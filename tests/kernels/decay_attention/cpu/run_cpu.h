// Runs the CPU kernels on a RandomProblem and compares results.
#pragma once

#include <gtest/gtest.h>

#include "core/concat.h"
#include "kernels/common/chunks/chunk_table.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/problem.h"
#include "kernels/decay_attention/same_bits.h"

namespace halflife::kernels::test {

struct RunConfig {
  int chunk_size = 64, num_segments = 1, checkpoint_every = 4;
  int block_groups = 0;  // Groups per block; 0: each head runs to its end.
  Layout layout = {};
  int unused_chunks = 0;  // Entries of the table after the chunks.
};

// Bytes that are followed by a guard page.
struct Guarded {
  std::vector<std::byte> data;
  size_t bytes;
  explicit Guarded(size_t count) : data(count + 4096, std::byte{0xFF}), bytes(count) {}
  void* get() { return data.data(); }
  bool intact() const {
    return std::all_of(data.begin() + static_cast<int64_t>(bytes), data.end(),
                       [](std::byte x) { return x == std::byte{0xFF}; });
  }
};

// A problem's tensors and the arguments that point to them. T is the compute type.
template <typename T>
struct CpuCall {
  const RandomProblem& problem;
  RunConfig run;
  DType wide = sizeof(T) == 8 ? DType::kF64 : DType::kF32;
  // For q, k, v, out and their gradients.
  DType narrow = problem.config.bf16 ? DType::kBF16 : wide;
  ChunkTable table;
  Tensor q, k, v, out, dout, dq, dk, dv, log_decay, dlog_decay, key_scale, dkey_scale;
  std::vector<T> initial_state, initial_norm, dfinal_state, dfinal_norm;
  std::vector<T> final_state, final_norm, dinitial_state, dinitial_norm, norm_denom;
  DecayAttentionArgs args;
  DecayAttentionGradArgs grads;
  DecayAttentionPlan plan;

  CpuCall(const RandomProblem& the_problem, const RunConfig& config)
      : problem(the_problem),
        run(config),
        q(Rows(c().q_heads, c().K, narrow)),
        k(Rows(c().k_heads, c().K, narrow)),
        v(Rows(c().v_heads, c().V, narrow)),
        out(Rows(c().H, c().V, narrow)),
        dout(Rows(c().H, c().V, narrow)),
        dq(Rows(c().q_heads, c().K, narrow)),
        dk(Rows(c().k_heads, c().K, narrow)),
        dv(Rows(c().v_heads, c().V, narrow)),
        log_decay(Decays()),
        dlog_decay(Decays()),
        key_scale(Rows(c().H, 1, wide)),
        dkey_scale(Rows(c().H, 1, wide)) {
    q.Set(problem.q);
    k.Set(problem.k);
    v.Set(problem.v);
    dout.Set(problem.dout);
    if (c().kind != DecayKind::kNone) log_decay.Set(problem.log_decay);
    if (c().key_scale) key_scale.Set(problem.key_scale);
    table = MakeChunkTable({.batch = c().B,
                            .seq_len = c().T,
                            .chunk_size = run.chunk_size,
                            .document_starts = c().document_starts,
                            .cu_seqlens = c().cu_seqlens});
    table.chunks.resize(table.chunks.size() + run.unused_chunks);
    const auto copy = [](const Values& x) { return std::vector<T>(x.begin(), x.end()); };
    initial_state = copy(problem.initial_state);
    initial_norm = copy(problem.initial_norm);
    dfinal_state = copy(problem.dfinal_state);
    dfinal_norm = copy(problem.dfinal_norm);
    const int64_t norms = int64_t{1} * c().num_sequences() * c().H * c().K;
    for (auto* states : {&final_state, &dinitial_state}) states->assign(norms * c().V, NAN);
    for (auto* sums : {&final_norm, &dinitial_norm}) sums->assign(norms, NAN);
    norm_denom.assign(int64_t{1} * c().B * c().T * c().H, NAN);
    SetArgs();
    plan = MakePlan(args, DeviceLimits{},
                    {.chunk_size = run.chunk_size, .num_segments = run.num_segments});
    plan.checkpoint_every = run.checkpoint_every;
    plan.block_chunks = run.block_groups > 0 ? run.block_groups * run.checkpoint_every
                                             : DecayAttentionPlan{}.block_chunks;
  }
  CpuCall(const CpuCall&) = delete;

  const ProblemConfig& c() const { return problem.config; }
  Tensor Rows(int heads, int width, DType dtype) const {
    return Tensor({c().B, c().T, heads, width}, dtype, run.layout);
  }
  Tensor Decays() const {
    if (IsPerToken(c().kind)) return Rows(c().decay_heads, c().decay_width(), wide);
    return Tensor({1, 1, c().decay_heads, c().decay_width()}, wide, {run.layout.padding});
  }

  void SetArgs() {
    args.batch = c().B;
    args.seq_len = c().T;
    args.num_heads = c().H;
    args.num_q_heads = c().q_heads;
    args.num_k_heads = c().k_heads;
    args.num_v_heads = c().v_heads;
    args.num_decay_heads = c().decay_heads;
    args.head_dim_k = c().K;
    args.head_dim_v = c().V;
    args.decay_kind = c().kind;
    args.norm_kind = c().normalised ? NormKind::kSumOfKeys : NormKind::kNone;
    args.scale = static_cast<float>(problem.scale);
    args.q = q.view();
    args.k = k.view();
    args.v = v.view();
    args.out = out.view();
    if (c().kind != DecayKind::kNone) args.log_decay = log_decay.view();
    if (c().key_scale) args.key_scale = key_scale.view();
    args.num_sequences = c().num_sequences();
    args.num_chunks = static_cast<int>(table.chunks.size());
    args.chunks = table.chunks.data();
    args.sequence_begin = table.sequence_begin.data();
    const auto optional = [](std::vector<T>& x) { return x.empty() ? nullptr : x.data(); };
    args.initial_state = optional(initial_state);
    args.initial_norm = optional(initial_norm);
    args.final_state = final_state.data();
    if (c().normalised) args.final_norm = final_norm.data();
    args.norm_denom = norm_denom.data();
    grads.dout = dout.view();
    grads.dq = dq.view();
    grads.dk = dk.view();
    grads.dv = dv.view();
    if (c().kind != DecayKind::kNone) grads.dlog_decay = dlog_decay.view();
    if (c().key_scale) grads.dkey_scale = dkey_scale.view();
    grads.dfinal_state = optional(dfinal_state);
    grads.dfinal_norm = optional(dfinal_norm);
    grads.dinitial_state = dinitial_state.data();
    if (c().normalised) grads.dinitial_norm = dinitial_norm.data();
  }

  DecayAttentionStepArgs StepArgs() const { return StepArgsOf(args); }

  Result Run() {
    Guarded checkpoints(CheckpointBytes(args, plan));
    args.checkpoints = checkpoints.get();
    Guarded workspace(ForwardWorkspaceBytes(args, plan));
    args.workspace = workspace.get();
    cpu::Forward(args, plan);
    EXPECT_TRUE(workspace.intact()) << "forward wrote past its workspace";
    EXPECT_TRUE(checkpoints.intact()) << "forward wrote past the checkpoints";
    Guarded reverse(BackwardWorkspaceBytes(args, plan));
    args.workspace = reverse.get();
    grads.forward = args;
    cpu::Backward(grads, plan);
    EXPECT_TRUE(reverse.intact()) << "backward wrote past its workspace";
    args.workspace = args.checkpoints = nullptr;
    return Collect();
  }
  Result Collect() const {
    const auto values = [](const std::vector<T>& x) { return Values(x.begin(), x.end()); };
    Result result;
    result["out"] = out.Get();
    result["final_state"] = values(final_state);
    result["dq"] = dq.Get();
    result["dk"] = dk.Get();
    result["dv"] = dv.Get();
    result["dinitial_state"] = values(dinitial_state);
    if (c().kind != DecayKind::kNone)
      result[IsPerToken(c().kind) ? "dlog_decay" : "dlambda"] = dlog_decay.Get();
    if (c().key_scale) result["dkey_scale"] = dkey_scale.Get();
    if (c().normalised) result["final_norm"] = values(final_norm);
    if (c().normalised) result["dinitial_norm"] = values(dinitial_norm);
    return result;
  }
};

template <typename T>
Result RunCpu(const RandomProblem& problem, const RunConfig& config = {}) {
  return CpuCall<T>(problem, config).Run();
}

// Root-mean-square error relative to that of `want`. NaN and infinity are reported where either has
// them. Gradients that are zero everywhere (a decay of 0, a length of one token) are compared with
// a thousandth of 1.
struct Difference {
  double relative = 0;
  int64_t worst = 0;
  double got = 0, want = 0;
};
inline Difference Compare(const Values& got, const Values& want) {
  Difference difference;
  double error = 0, size = 0, worst = -1;
  for (size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(got[i] - want[i]);
    error += e * e;
    size += want[i] * want[i];
    if (!(e <= worst)) {
      worst = std::isnan(e) ? std::numeric_limits<double>::infinity() : e;
      difference.worst = static_cast<int64_t>(i);
      difference.got = got[i];
      difference.want = want[i];
    }
  }
  const double floor = 1e-3 * std::sqrt(static_cast<double>(want.size()));
  difference.relative = want.empty() ? 0 : std::sqrt(error) / std::max(std::sqrt(size), floor);
  if (got.size() != want.size()) difference.relative = NAN;
  return difference;
}

struct Gates {
  double value = 0, dlog_decay = 0, dlambda = 0;
  double Of(const std::string& name) const {
    return name == "dlog_decay" ? dlog_decay : name == "dlambda" ? dlambda : value;
  }
  Gates Times(double factor) const {
    return {value * factor, dlog_decay * factor, dlambda * factor};
  }
};
// fp64: 2^-53 times the square root of a few thousand summands, times about ten.
constexpr Gates kDoubleGates = {1e-12, 1e-12, 1e-12};
// fp32: a weight has an error of 2 ulp (2.4e-7), and sums of up to 64 terms have 6e-8 per term. A
// decay's gradient is a sum of such errors over the chunk, and that of a constant decay weighs them
// with their distance.
constexpr Gates kFloatGates = {2e-6, 4e-6, 1e-5};
// bf16 storage with fp32 arithmetic: the rounding of a result is 2^-9 / sqrt(3) = 1.1e-3 rms.
// Gradients in fp32 are not rounded.
constexpr Gates kHalfGates = {2.5e-3, 4e-6, 1e-5};

// Returns "[b 0, t 3, h 1, 17]" for an element of the named tensor.
inline std::string Where(const RandomProblem& problem, const std::string& name, int64_t index) {
  const ProblemConfig& c = problem.config;
  const int width = name == "out" || name == "dv" ? c.V
                    : name == "dkey_scale"        ? 1
                    : name == "dlog_decay"        ? c.decay_width()
                                                  : c.K;
  const int heads = name == "dq"           ? c.q_heads
                    : name == "dk"         ? c.k_heads
                    : name == "dv"         ? c.v_heads
                    : name == "dlog_decay" ? c.decay_heads
                                           : c.H;
  if (name.find("state") != std::string::npos || name.find("norm") != std::string::npos ||
      name == "dlambda")
    return Concat("[", index, "]");
  const int64_t row = index / width, token = row / heads;
  return Concat("[b ", token / c.T, ", t ", token % c.T, ", h ", row % heads, ", ", index % width,
                "]");
}
inline void ExpectClose(const RandomProblem& problem, const Result& got, const Result& want,
                        const Gates& gates) {
  const ProblemConfig& c = problem.config;
  for (const auto& [name, values] : want) {
    ASSERT_TRUE(got.contains(name)) << name;
    const Difference d = Compare(got.at(name), values);
    EXPECT_LE(d.relative, gates.Of(name))
        << name << ", worst at " << Where(problem, name, d.worst) << ": " << d.got << ", not "
        << d.want << "; seed " << problem.seed << ", kind " << static_cast<int>(c.kind)
        << ", strength " << static_cast<int>(c.strength) << ", B " << c.B << " T " << c.T << " H "
        << c.H << " K " << c.K << " V " << c.V;
  }
}

}  // namespace halflife::kernels::test
