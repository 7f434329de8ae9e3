// Runs the CUDA kernels on a RandomProblem in host memory, which is the emulator's device memory,
// and compares the results with the oracle's.
//
//   Problem problem({.seq_len = 65, .heads = 1});
//   problem.Forward(/*with_checkpoints=*/true);
//   problem.Backward();
//   EXPECT_LE(problem.Compare(/*backward=*/true)["dq"], 4e-3);
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "kernels/common/chunks/chunk_table.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/problem.h"

namespace halflife::kernels::test {

struct ProblemShape {
  int batch = 1, seq_len = 65, heads = 2, dim_k = 64, dim_v = 64;
  DecayKind kind = DecayKind::kPerToken;
  DType dtype = DType::kBF16;
  Strength strength = Strength::kMild;
  int q_heads = 0, k_heads = 0, v_heads = 0, decay_heads = 0;  // 0: heads.
  bool norm = false, key_scale = false, states = true;
  bool ternary = false;  // q, k, v and dout are -1, 0 or 1.
  double v_mean = 0;     // Mean of v, whose deviation is 1.
  double norm_eps = 1e-30;
  bool odd_strides = false;  // Rows are not aligned for vector loads.
  int between_rows = 0;      // Elements between rows of the batch.
  bool far = false;          // Rows are more than 2^31 elements apart, see Layout.
  int num_segments = 1;
  int backward_segments = 0;                 // 0: num_segments.
  int batch_tiles = 0;                       // For both directions; 0: MakePlan decides.
  int block_v = 0;                           // For the forward; 0: MakePlan decides.
  bool warpgroups = false;                   // As on a device with warpgroup instructions.
  DecayBlock block;                          // For both directions; none: MakePlan decides.
  int shared_bytes = 227 << 10;              // The device's limit per block.
  bool simt = false, simt_backward = false;  // As if no tensor-core scan fits.
  std::vector<int32_t> document_starts, cu_seqlens;
  int unused_chunks = 0;  // Entries of the table after the chunks.
  uint64_t seed = 1;

  ProblemConfig Config() const {
    return {.B = batch,
            .T = seq_len,
            .H = heads,
            .K = dim_k,
            .V = dim_v,
            .q_heads = q_heads,
            .k_heads = k_heads,
            .v_heads = v_heads,
            .decay_heads = decay_heads,
            .kind = kind,
            .strength = strength,
            .normalised = norm,
            .key_scale = key_scale,
            .states = states,
            .positive = norm,
            .v_mean = v_mean,
            .norm_eps = norm_eps,
            .bf16 = dtype == DType::kBF16,
            .ternary = ternary,
            .document_starts = document_starts,
            .cu_seqlens = cu_seqlens};
  }
  std::string Name() const {
    return Concat("B", batch, " T", seq_len, " H", heads, " K", dim_k, " V", dim_v, " kind ",
                  static_cast<int>(kind), " ", halflife::Name(dtype), " strength ",
                  static_cast<int>(strength), " norm ", norm, " mean of v ", v_mean,
                  warpgroups ? " by warpgroups" : "", " segments ", num_segments, " batch tiles ",
                  batch_tiles, " blocks ", block.k, " x ", block.v, " seed ", seed);
  }
};

// Error relative to the magnitude of the whole tensor. NaN counts as infinite.
struct Errors {
  double difference = 0, size = 0;
  bool finite = true;
  void Add(double got, double want) {
    difference += (got - want) * (got - want);
    size += want * want;
    finite = finite && std::isfinite(got);
  }
  double Rms() const {
    if (!finite) return std::numeric_limits<double>::infinity();
    return std::sqrt(difference / std::max(size, 1e-20));
  }
};

struct Answer {
  Tensor out, dq, dk, dv, dlog_decay, dkey_scale;
};

class Problem {
 public:
  explicit Problem(const ProblemShape& shape)
      : shape_(shape), values_(MakeProblem(shape.Config(), shape.seed)) {
    const ProblemConfig& c = values_.config;
    const auto rows = [&](int heads, int width, DType dtype) {
      return Tensor({c.B, c.T, heads, width}, dtype,
                    {.padding = shape.odd_strides ? 3 : 0,
                     .between_rows = shape.between_rows,
                     .far = shape.far});
    };
    const auto operand = [&](int heads, int width) { return rows(heads, width, shape.dtype); };
    const auto decays = [&] {  // Constant decays are contiguous.
      const Extents extents = {1, 1, c.decay_heads, c.decay_width()};
      return IsPerToken(c.kind) ? rows(c.decay_heads, c.decay_width(), DType::kF32)
                                : Tensor(extents, DType::kF32);
    };
    q_ = operand(c.q_heads, c.K), answer_.dq = operand(c.q_heads, c.K);
    k_ = operand(c.k_heads, c.K), answer_.dk = operand(c.k_heads, c.K);
    v_ = operand(c.v_heads, c.V), answer_.dv = operand(c.v_heads, c.V);
    dout_ = operand(c.H, c.V), answer_.out = operand(c.H, c.V);
    decay_ = decays(), answer_.dlog_decay = decays();
    key_scale_ = rows(c.H, 1, DType::kF32), answer_.dkey_scale = rows(c.H, 1, DType::kF32);
    q_.Set(values_.q);
    k_.Set(values_.k);
    v_.Set(values_.v);
    dout_.Set(values_.dout);
    if (c.kind != DecayKind::kNone) decay_.Set(values_.log_decay);
    if (c.key_scale) key_scale_.Set(values_.key_scale);
    table_ = MakeChunkTable({.batch = c.B,
                             .seq_len = c.T,
                             .chunk_size = 64,
                             .document_starts = c.document_starts,
                             .cu_seqlens = c.cu_seqlens});
    table_.chunks.resize(table_.chunks.size() + shape.unused_chunks);
    const auto copy = [](const Values& x) { return std::vector<float>(x.begin(), x.end()); };
    initial_state_ = copy(values_.initial_state), dfinal_state_ = copy(values_.dfinal_state);
    initial_norm_ = copy(values_.initial_norm), dfinal_norm_ = copy(values_.dfinal_norm);
    const size_t norms = size_t{1} * c.num_sequences() * c.H * c.K;
    for (auto* states : {&final_state_, &dinitial_state_})
      states->assign(norms * c.V, std::nanf(""));
    for (auto* sums : {&final_norm_, &dinitial_norm_}) sums->assign(norms, std::nanf(""));
    denom_.assign(size_t{1} * c.B * c.T * c.H, std::nanf(""));
  }

  DecayAttentionArgs Args() {
    const ProblemConfig& c = values_.config;
    DecayAttentionArgs args;
    args.batch = c.B;
    args.seq_len = c.T;
    args.num_heads = c.H;
    args.num_q_heads = c.q_heads;
    args.num_k_heads = c.k_heads;
    args.num_v_heads = c.v_heads;
    args.num_decay_heads = c.decay_heads;
    args.head_dim_k = c.K;
    args.head_dim_v = c.V;
    args.decay_kind = c.kind;
    args.norm_kind = c.normalised ? NormKind::kSumOfKeys : NormKind::kNone;
    args.scale = values_.scale;
    args.norm_eps = c.norm_eps;
    args.q = q_.view();
    args.k = k_.view();
    args.v = v_.view();
    args.out = answer_.out.view();
    if (c.kind != DecayKind::kNone) args.log_decay = decay_.view();
    if (c.key_scale) args.key_scale = key_scale_.view();
    args.num_sequences = static_cast<int>(table_.sequence_begin.size()) - 1;
    args.num_chunks = static_cast<int>(table_.chunks.size());
    args.chunks = table_.chunks.data();
    args.sequence_begin = table_.sequence_begin.data();
    if (c.states) {
      args.initial_state = initial_state_.data();
      if (c.normalised) args.initial_norm = initial_norm_.data();
    }
    args.final_state = final_state_.data();
    if (c.normalised) {
      args.final_norm = final_norm_.data();
      args.norm_denom = denom_.data();
    }
    return args;
  }
  DecayAttentionPlan Plan() {
    const DecayAttentionArgs args = Args();
    DecayAttentionPlan plan =
        MakePlan(args, {.is_cuda = true, .num_sms = 4, .shared_memory_bytes = shape_.shared_bytes},
                 {.num_segments = shape_.num_segments, .batch_tiles = shape_.batch_tiles});
    if (shape_.backward_segments > 0) plan.backward_segments = shape_.backward_segments;
    if (shape_.block.k > 0 && plan.forward.k > 0) plan.forward = plan.backward = shape_.block;
    if (shape_.block_v > 0 && plan.forward.k > 0) plan.forward.v = shape_.block_v;
    if (shape_.simt) plan.forward = {};
    plan.forward_warpgroups = shape_.warpgroups && cuda::CanUseWgmma(args, plan.forward);
    if (shape_.simt || shape_.simt_backward) plan.backward = {};
    plan.backward_warpgroups = shape_.warpgroups && cuda::CanUseWgmmaBackward(args, plan.backward);
    return plan;
  }
  // Allocates buffers of exactly the planned size.
  void Forward(bool with_checkpoints = false) {
    DecayAttentionArgs args = Args();
    const DecayAttentionPlan plan = Plan();
    workspace_.assign(cuda::ForwardWorkspaceBytes(args, plan), std::byte{0xff});
    args.workspace = workspace_.data();
    if (with_checkpoints) {
      checkpoints_.assign(cuda::CheckpointBytes(args, plan), std::byte{0xff});
      args.checkpoints = checkpoints_.data();
    }
    cuda::Forward(args, plan, nullptr);
  }
  DecayAttentionGradArgs GradArgs() {
    const ProblemConfig& c = values_.config;
    DecayAttentionGradArgs grads;
    grads.forward = Args();
    grads.forward.checkpoints = checkpoints_.data();
    grads.dout = dout_.view();
    grads.dq = answer_.dq.view();
    grads.dk = answer_.dk.view();
    grads.dv = answer_.dv.view();
    if (c.kind != DecayKind::kNone) grads.dlog_decay = answer_.dlog_decay.view();
    if (c.key_scale) grads.dkey_scale = answer_.dkey_scale.view();
    if (c.states) {
      grads.dfinal_state = dfinal_state_.data();
      if (c.normalised) grads.dfinal_norm = dfinal_norm_.data();
    }
    grads.dinitial_state = dinitial_state_.data();
    if (c.normalised) grads.dinitial_norm = dinitial_norm_.data();
    return grads;
  }
  void Backward() { Backward(GradArgs()); }
  void Backward(DecayAttentionGradArgs grads) {
    const DecayAttentionPlan plan = Plan();
    workspace_.assign(cuda::BackwardWorkspaceBytes(grads.forward, plan), std::byte{0xff});
    grads.forward.workspace = workspace_.data();
    cuda::Backward(grads, plan, nullptr);
  }

  // Returns the arguments of a step on each row's first token. The caller sets the state.
  DecayAttentionStepArgs StepArgs() { return StepArgsOf(Args()); }

  // Returns the kernels' results, of the forward or of both directions.
  Result Collect(bool backward) const {
    const ProblemConfig& c = values_.config;
    const auto values = [](const std::vector<float>& x) { return Values(x.begin(), x.end()); };
    Result result;
    result["out"] = answer_.out.Get();
    result["final_state"] = values(final_state_);
    if (c.normalised) result["final_norm"] = values(final_norm_);
    if (!backward) return result;
    result["dq"] = answer_.dq.Get();
    result["dk"] = answer_.dk.Get();
    result["dv"] = answer_.dv.Get();
    result["dinitial_state"] = values(dinitial_state_);
    if (c.normalised) result["dinitial_norm"] = values(dinitial_norm_);
    if (c.kind != DecayKind::kNone)
      result[IsPerToken(c.kind) ? "dlog_decay" : "dlambda"] = answer_.dlog_decay.Get();
    if (c.key_scale) result["dkey_scale"] = answer_.dkey_scale.Get();
    return result;
  }

  // Errors of all results by name, after Forward (and Backward).
  struct Report {
    std::vector<std::pair<std::string, double>> errors;
    double operator[](const std::string& name) const {
      for (const auto& [key, value] : errors)
        if (key == name) return value;
      return std::numeric_limits<double>::infinity();
    }
  };
  Report Compare(bool backward) const {
    const Result want = Reference(values_);
    Report report;
    for (const auto& [name, got] : Collect(backward)) {
      Errors errors;
      const Values& values = want.at(name);
      errors.finite = got.size() == values.size();
      for (size_t i = 0; errors.finite && i < got.size(); ++i) errors.Add(got[i], values[i]);
      report.errors.emplace_back(name, errors.Rms());
    }
    return report;
  }

  const ProblemShape& shape() const { return shape_; }
  const RandomProblem& values() const { return values_; }
  Tensor q_, k_, v_, dout_, decay_, key_scale_;
  Answer answer_;
  std::vector<float> initial_state_, dfinal_state_, initial_norm_, dfinal_norm_;
  std::vector<float> final_state_, dinitial_state_, final_norm_, dinitial_norm_, denom_;
  std::vector<std::byte> workspace_, checkpoints_;
  ChunkTable table_;

 private:
  ProblemShape shape_;
  RandomProblem values_;
};

}  // namespace halflife::kernels::test
