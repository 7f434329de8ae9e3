#include "ops/focus_pool/focus_pool.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/focus_pool/focus_pool_args.h"
#include "kernels/focus_pool/focus_pool_plan.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

using Runs = std::vector<kernels::FocusRun>;

Runs RunsOf(const FocusPoolInputs& inputs) {
  Runs runs;
  const int64_t batch = inputs.u.size(0), seq_len = inputs.u.size(1);
  if (inputs.chunks == nullptr) {
    for (int64_t b = 0; b < batch && seq_len > 0; ++b)
      runs.push_back({.row = b, .begin = 0, .length = seq_len, .sequence = b, .final_state = b});
    return runs;
  }
  const kernels::ChunkTable& table = inputs.chunks->table;
  for (int n = 0; n < inputs.chunks->num_sequences(); ++n) {
    const int first = table.sequence_begin[n], end = table.sequence_begin[n + 1];
    for (int i = first; i < end; ++i) {
      const kernels::ChunkEntry& chunk = table.chunks[i];
      const bool resets = (chunk.flags & kernels::kChunkResets) != 0;
      if (resets || i == first)
        runs.push_back({.row = chunk.row,
                        .begin = chunk.token,
                        .length = 0,
                        .sequence = resets ? -1 : n,
                        .final_state = -1});
      runs.back().length += chunk.length;
    }
    if (first < end) runs.back().final_state = n;
  }
  return runs;
}

int64_t NumSequences(const FocusPoolInputs& inputs) {
  return inputs.chunks == nullptr ? inputs.u.size(0) : inputs.chunks->num_sequences();
}

// Operands of forward and backward. All are contiguous; states may be undefined.
struct FocusOperands {
  at::Tensor log_weight, u;
  at::Tensor log_scale, mass, sum;     // without a window
  at::Tensor tail_log_weight, tail_u;  // with a window; the log weight of an absent token is -inf
  FocusPoolConfig config = {};
  Runs runs = {};
  int64_t num_sequences = 0;

  template <typename T>
  kernels::FocusPoolShape<T> Shape() const {
    using Compute = kernels::FocusCompute<T>;
    return {.batch = u.size(0),
            .seq_len = u.size(1),
            .num_heads = u.size(2),
            .dim = u.size(3),
            .window = config.window,
            .eps = config.eps,
            .runs = runs.data(),
            .num_runs = static_cast<int64_t>(runs.size()),
            .log_weight = Elements<Compute>(log_weight),
            .u = Elements<T>(u),
            .log_scale = Elements<Compute>(log_scale),
            .mass = Elements<Compute>(mass),
            .sum = Elements<Compute>(sum),
            .tail_log_weight = Elements<Compute>(tail_log_weight),
            .tail_u = Elements<T>(tail_u)};
  }
};

struct FocusPoolOp {
  struct Inputs {
    at::Tensor log_weight, u, mass, sum, tail_log_weight, tail_u;
  };
  struct Outputs {
    at::Tensor out, mass, sum;
    at::Tensor row_max, row_sum, log_scale;  // not differentiable
  };
  struct Saved {
    at::Tensor log_weight, u, log_scale, mass, sum, tail_log_weight, tail_u;  // FocusOperands
    at::Tensor out, row_max, row_sum, final_log_scale, final_mass;            // FocusResults
  };
};

struct FocusResults {
  at::Tensor out, row_max, row_sum;
  at::Tensor log_scale, mass, sum;  // the final state, without a window and if requested

  template <typename T>
  kernels::FocusPoolResults<T> Args() const {
    using Compute = kernels::FocusCompute<T>;
    return {.out = MutableElements<T>(out),
            .row_max = MutableElements<Compute>(row_max),
            .row_sum = MutableElements<Compute>(row_sum),
            .log_scale = MutableElements<Compute>(log_scale),
            .mass = MutableElements<Compute>(mass),
            .sum = MutableElements<Compute>(sum)};
  }
};

// A schedule and its workspace on the device of `in`.
class DeviceWork {
 public:
  DeviceWork(const FocusOperands& in, bool backward) {
    const kernels::FocusPlan plan =
        kernels::MakeFocusPlan(in.runs, {.window = in.config.window,
                                         .has_tail = in.tail_log_weight.defined(),
                                         .backward = backward});
    const at::Device device = in.u.device();
    const bool whole_rows = static_cast<int64_t>(in.runs.size()) == in.u.size(0);
    const auto upload = [&](const auto& table) {
      return whole_rows ? ConstantTable(table, device) : UploadTable(table, device);
    };
    runs_ = upload(in.runs), chunks_ = upload(plan.chunks), blocks_ = upload(plan.blocks);
    const at::TensorOptions floats = in.u.options().dtype(at::kFloat);
    const auto num_chunks = static_cast<int64_t>(plan.chunks.size());
    const bool narrow = kernels::IsNarrow(in.config.window);
    const int64_t count =
        narrow ? 0 : kernels::cuda::FocusTotalsFloats(num_chunks, in.u.size(2), in.u.size(3));
    for (at::Tensor* totals : {&totals_, &carry_, &rest_}) *totals = at::empty({count}, floats);
    if (backward) delta_ = at::empty_like(in.log_weight);
    num_chunks_ = num_chunks, num_blocks_ = static_cast<int64_t>(plan.blocks.size());
  }
  kernels::cuda::FocusWork Args() const {
    return {.runs = static_cast<const kernels::FocusRun*>(runs_.const_data_ptr()),
            .chunks = static_cast<const kernels::FocusChunk*>(chunks_.const_data_ptr()),
            .blocks = static_cast<const kernels::FocusBlock*>(blocks_.const_data_ptr()),
            .num_chunks = num_chunks_,
            .num_blocks = num_blocks_,
            .totals = MutableElements<float>(totals_),
            .carry = MutableElements<float>(carry_),
            .rest = MutableElements<float>(rest_),
            .delta = MutableElements<float>(delta_)};
  }

 private:
  at::Tensor runs_, chunks_, blocks_, totals_, carry_, rest_, delta_;
  int64_t num_chunks_ = 0, num_blocks_ = 0;
};

// Calls body(begin, end) for ranges of the pairs (run, head).
template <typename Body>
void ForPieces(const FocusOperands& in, const Body& body) {
  at::parallel_for(0, static_cast<int64_t>(in.runs.size()) * in.u.size(2), 1, body);
}

// Calls function.operator()<T>() with the storage type of u, fp64 included.
template <typename Function>
void WithElement(const at::Tensor& u, const Function& function) {
  if (u.scalar_type() == at::kDouble) {
    function.template operator()<double>();
  } else {
    WithStorage(u, function);
  }
}

FocusResults Forward(const FocusOperands& in) {
  FocusResults results = {.out = at::empty_like(in.u),
                          .row_max = at::empty_like(in.log_weight),
                          .row_sum = at::empty_like(in.log_weight)};
  if (in.config.want_state && in.config.window == 0) {
    const auto like = [&](const at::Tensor& before, std::vector<int64_t> shape) {
      // Sequences without tokens keep their state.
      return before.defined() ? before.clone() : at::zeros(shape, in.log_weight.options());
    };
    const int64_t heads = in.u.size(2);
    results.log_scale = like(in.log_scale, {in.num_sequences, heads});
    results.mass = like(in.mass, {in.num_sequences, heads});
    results.sum = like(in.sum, {in.num_sequences, heads, in.u.size(3)});
  }
  WithElement(in.u, [&]<typename T>() {
    const kernels::FocusPoolShape<T> shape = in.Shape<T>();
    const kernels::FocusPoolResults<T> args = results.Args<T>();
    RunOn(
        in.u,
        [&] {
          ForPieces(in, [&](int64_t begin, int64_t end) {
            kernels::cpu::FocusPoolForward(shape, args, begin, end);
          });
        },
        [&](auto stream) {
          if constexpr (!std::is_same_v<T, double>) {
            const DeviceWork work(in, /*backward=*/false);
            kernels::cuda::FocusPoolForward(shape, args, work.Args(), stream);
          }
        });
  });
  return results;
}

// Returns the gradient that bypasses the pool: that of the final state, for sequences without
// tokens.
at::Tensor InitialGradient(const FocusOperands& in, const at::Tensor& before,
                           const at::Tensor& after) {
  const at::Tensor gradient = at::zeros_like(before);
  if (!after.defined()) return gradient;
  std::vector<bool> moved(in.num_sequences, false);
  for (const kernels::FocusRun& run : in.runs)
    if (run.final_state >= 0) moved[run.final_state] = true;
  for (int64_t n = 0; n < in.num_sequences; ++n)
    if (!moved[n]) gradient.select(0, n).copy_(after.select(0, n));
  return gradient;
}

FocusPoolOp::Inputs Backward(const FocusOperands& in, const FocusResults& results,
                             const FocusPoolOp::Outputs& grads) {
  const at::Tensor dout = grads.out.defined() ? grads.out.contiguous() : at::zeros_like(in.u);
  const int64_t states = in.num_sequences, heads = in.u.size(2);
  const auto or_zeros = [&](const at::Tensor& x, const std::vector<int64_t>& shape) {
    return x.defined() ? x.contiguous() : at::zeros(shape, in.log_weight.options());
  };
  const bool to_state = results.mass.defined() && (grads.mass.defined() || grads.sum.defined());
  const at::Tensor dmass = to_state ? or_zeros(grads.mass, {states, heads}) : at::Tensor();
  const at::Tensor dsum =
      to_state ? or_zeros(grads.sum, {states, heads, in.u.size(3)}) : at::Tensor();
  FocusPoolOp::Inputs d = {.log_weight = at::empty_like(in.log_weight), .u = at::empty_like(in.u)};
  if (in.mass.defined()) {
    d.mass = InitialGradient(in, in.mass, dmass);
    d.sum = InitialGradient(in, in.sum, dsum);
  }
  if (in.tail_log_weight.defined()) {
    d.tail_log_weight = at::zeros_like(in.tail_log_weight);
    d.tail_u = at::zeros_like(in.tail_u);
  }
  WithElement(in.u, [&]<typename T>() {
    using Compute = kernels::FocusCompute<T>;
    const kernels::FocusPoolShape<T> shape = in.Shape<T>();
    const kernels::FocusPoolResults<T> saved = results.Args<T>();
    const kernels::FocusPoolGrads<T> args = {
        .dout = Elements<T>(dout),
        .dmass = Elements<Compute>(dmass),
        .dsum = Elements<Compute>(dsum),
        .dlog_weight = MutableElements<Compute>(d.log_weight),
        .du = MutableElements<T>(d.u),
        .dinitial_mass = MutableElements<Compute>(d.mass),
        .dinitial_sum = MutableElements<Compute>(d.sum),
        .dtail_log_weight = MutableElements<Compute>(d.tail_log_weight),
        .dtail_u = MutableElements<T>(d.tail_u)};
    RunOn(
        in.u,
        [&] {
          ForPieces(in, [&](int64_t begin, int64_t end) {
            kernels::cpu::FocusPoolBackward(shape, saved, args, begin, end);
          });
        },
        [&](auto stream) {
          if constexpr (!std::is_same_v<T, double>) {
            const DeviceWork work(in, /*backward=*/true);
            kernels::cuda::FocusPoolBackward(shape, saved, args, work.Args(), stream);
          }
        });
  });
  return d;
}

// `tail_log_weight` holds -inf for absent tokens. `tail_u` has u's dtype.
FocusPoolOp::Outputs RunPool(const FocusPoolInputs& inputs, const FocusPoolConfig& config,
                             const Runs& runs, const at::Tensor& tail_log_weight,
                             const at::Tensor& tail_u) {
  const FocusPoolState& state = inputs.initial_state;
  const auto forward = [&]() -> ForwardOf<FocusPoolOp> {
    const FocusOperands in = {.log_weight = inputs.log_weight.contiguous(),
                              .u = inputs.u.contiguous(),
                              .log_scale = Contiguous(state.log_scale),
                              .mass = Contiguous(state.mass),
                              .sum = Contiguous(state.sum),
                              .tail_log_weight = Contiguous(tail_log_weight),
                              .tail_u = Contiguous(tail_u),
                              .config = config,
                              .runs = runs,
                              .num_sequences = NumSequences(inputs)};
    const FocusResults r = Forward(in);
    const auto backward = [config, runs,
                           sequences = in.num_sequences](const BackwardOf<FocusPoolOp>& call) {
      const FocusPoolOp::Saved& saved = call.saved;
      const FocusOperands operands = {.log_weight = saved.log_weight,
                                      .u = saved.u,
                                      .log_scale = saved.log_scale,
                                      .mass = saved.mass,
                                      .sum = saved.sum,
                                      .tail_log_weight = saved.tail_log_weight,
                                      .tail_u = saved.tail_u,
                                      .config = config,
                                      .runs = runs,
                                      .num_sequences = sequences};
      const FocusResults results = {.out = saved.out,
                                    .row_max = saved.row_max,
                                    .row_sum = saved.row_sum,
                                    .log_scale = saved.final_log_scale,
                                    .mass = saved.final_mass};
      return Backward(operands, results, call.grads);
    };
    return {.outputs = {.out = r.out,
                        .mass = r.mass,
                        .sum = r.sum,
                        .row_max = r.row_max,
                        .row_sum = r.row_sum,
                        .log_scale = r.log_scale},
            .saved = {.log_weight = in.log_weight,
                      .u = in.u,
                      .log_scale = in.log_scale,
                      .mass = in.mass,
                      .sum = in.sum,
                      .tail_log_weight = in.tail_log_weight,
                      .tail_u = in.tail_u,
                      .out = r.out,
                      .row_max = r.row_max,
                      .row_sum = r.row_sum,
                      .final_log_scale = r.log_scale,
                      .final_mass = r.mass},
            .backward = backward,
            .num_constant = 3};
  };
  return Apply<FocusPoolOp>({.name = "FocusPool",
                             .inputs = {.log_weight = inputs.log_weight,
                                        .u = inputs.u,
                                        .mass = state.mass,
                                        .sum = state.sum,
                                        .tail_log_weight = tail_log_weight,
                                        .tail_u = tail_u},
                             .undefined_grads = true,
                             .forward = forward});
}

// Returns the last window - 1 tokens of every sequence, in LibTorch calls that autograd
// differentiates.
FocusPoolState Tail(const FocusPoolInputs& inputs, const FocusPoolConfig& config,
                    const Runs& runs) {
  const FocusPoolState& before = inputs.initial_state;
  const int64_t length = config.window - 1, heads = inputs.u.size(2), dim = inputs.u.size(3);
  const at::TensorOptions wide = inputs.log_weight.options();
  std::vector<at::Tensor> present, log_weight, u;
  const auto old = [&](const at::Tensor& tail, int64_t n, std::vector<int64_t> shape) {
    return tail.defined() && n >= 0 ? tail.select(0, n) : at::zeros(shape, wide);
  };
  std::vector<const kernels::FocusRun*> last(NumSequences(inputs), nullptr);
  for (const kernels::FocusRun& run : runs)
    if (run.final_state >= 0) last[run.final_state] = &run;
  for (int64_t n = 0; n < static_cast<int64_t>(last.size()); ++n) {
    const kernels::FocusRun run = last[n] != nullptr ? *last[n] : kernels::FocusRun{n, 0, 0, n, n};
    const int64_t from_run = std::min(length, run.length), kept = length - from_run;
    const auto join = [&](const at::Tensor& tail, const at::Tensor& tokens) {
      return at::cat({tail.narrow(0, from_run, kept), tokens.to(wide.dtype())}, 0);
    };
    const auto tokens = [&](const at::Tensor& x) {
      return x.select(0, run.row).narrow(0, run.begin + run.length - from_run, from_run);
    };
    present.push_back(
        join(old(before.tail_present, run.sequence, {length}), at::ones({from_run}, wide)));
    log_weight.push_back(join(old(before.tail_log_weight, run.sequence, {length, heads}),
                              tokens(inputs.log_weight)));
    u.push_back(join(old(before.tail_u, run.sequence, {length, heads, dim}), tokens(inputs.u)));
  }
  return {.tail_present = at::stack(present),
          .tail_log_weight = at::stack(log_weight),
          .tail_u = at::stack(u)};
}

void CheckState(const FocusPoolInputs& inputs, const FocusPoolConfig& config) {
  const FocusPoolState& s = inputs.initial_state;
  const at::Tensor &log_weight = inputs.log_weight, &u = inputs.u;
  const int64_t count = NumSequences(inputs), heads = u.size(2), dim = u.size(3);
  const auto fits = [&](const at::Tensor& x, std::vector<int64_t> shape) {
    return FitsWith(u, x, shape) && x.scalar_type() == log_weight.scalar_type();
  };
  const bool sums = s.log_scale.defined() || s.mass.defined() || s.sum.defined();
  const bool tail = s.tail_present.defined() || s.tail_log_weight.defined() || s.tail_u.defined();
  HL_CHECK(!sums || (config.window == 0 && fits(s.log_scale, {count, heads}) &&
                     fits(s.mass, {count, heads}) && fits(s.sum, {count, heads, dim})),
           "FocusPool got u ", Describe(u), ", window ", config.window, ", log_scale ",
           Describe(s.log_scale), ", mass ", Describe(s.mass), " and sum ", Describe(s.sum),
           ". Without a window, use [", count, ", H], the same and [", count,
           ", H, P] of the compute dtype on the same device, or none.");
  const int64_t length = config.window - 1;
  HL_CHECK(!tail || (config.window > 0 && fits(s.tail_present, {count, length}) &&
                     fits(s.tail_log_weight, {count, length, heads}) &&
                     fits(s.tail_u, {count, length, heads, dim})),
           "FocusPool got u ", Describe(u), ", window ", config.window, ", tail_present ",
           Describe(s.tail_present), ", tail_log_weight ", Describe(s.tail_log_weight),
           " and tail_u ", Describe(s.tail_u), ". With a window, use [", count,
           ", window - 1], the same with H and with H, P, on the device of u, or none.");
}

void Check(const FocusPoolInputs& inputs, const FocusPoolConfig& config) {
  const at::Tensor &log_weight = inputs.log_weight, &u = inputs.u;
  CheckDTypes("FocusPool", {log_weight, u});
  HL_CHECK(
      u.defined() && u.dim() == 4 && FitsWith(u, log_weight, {u.size(0), u.size(1), u.size(2)}) &&
          log_weight.scalar_type() == ComputeType(u),
      "FocusPool got u ", Describe(u), " with log_weight ", Describe(log_weight),
      ". Use u [B, T, H, P] and log_weight [B, T, H] in fp32 (fp64 for fp64 u), on one device.");
  HL_CHECK(IsFused(u) || u.is_cpu(), "FocusPool got u ", Describe(u),
           ". In this build, use fp32 or bf16, or fp64 on the CPU.");
  HL_CHECK(config.window >= 0 && config.eps >= 0 && std::isfinite(config.eps),
           "FocusPool with window ", config.window, " and eps ", config.eps,
           ". Use non-negative numbers.");
  HL_CHECK(inputs.chunks == nullptr ||
               (inputs.chunks->batch == u.size(0) && inputs.chunks->seq_len == u.size(1)),
           "FocusPool got u ", Describe(u),
           " with chunks of another batch. Make chunks for this batch.");
  CheckState(inputs, config);
}

}  // namespace

FocusPoolOutput FocusPool(const FocusPoolInputs& inputs, const FocusPoolConfig& config) {
  Check(inputs, config);
  if (inputs.segment != nullptr) return OverSegments(inputs, config);
  const Runs runs = RunsOf(inputs);
  const FocusPoolState& state = inputs.initial_state;
  at::Tensor tail_log_weight, tail_u;
  if (state.tail_present.defined() && config.window > 1) {
    const double nothing = -std::numeric_limits<double>::infinity();
    tail_log_weight =
        at::where(state.tail_present.unsqueeze(2) != 0, state.tail_log_weight, nothing);
    tail_u = state.tail_u.to(inputs.u.scalar_type());
  }
  const FocusPoolOp::Outputs outputs = RunPool(inputs, config, runs, tail_log_weight, tail_u);
  FocusPoolOutput result = {
      .out = outputs.out, .row_max = outputs.row_max, .row_sum = outputs.row_sum};
  if (config.want_state && config.window == 0)
    result.final_state = {.log_scale = outputs.log_scale, .mass = outputs.mass, .sum = outputs.sum};
  if (config.want_state && config.window > 0) result.final_state = Tail(inputs, config, runs);
  return result;
}

at::Tensor FocusPoolStep(const at::Tensor& log_weight, const at::Tensor& u,
                         const FocusPoolConfig& config, FocusPoolState& state) {
  HL_CHECK(log_weight.dim() == 2 && u.dim() == 3, "FocusPoolStep got u ", Describe(u),
           " with log_weight ", Describe(log_weight), ". Use [B, H, P] and [B, H].");
  const c10::AutoGradMode no_grad(false);
  const FocusPoolOutput result = FocusPool(
      {.log_weight = log_weight.unsqueeze(1), .u = u.unsqueeze(1), .initial_state = state},
      {.window = config.window, .eps = config.eps, .want_state = config.window == 0});
  if (config.window == 0) {
    state.log_scale.copy_(result.final_state.log_scale);
    state.mass.copy_(result.final_state.mass);
    state.sum.copy_(result.final_state.sum);
    return result.out.squeeze(1);
  }
  const int64_t length = config.window - 1;
  const auto push = [&](at::Tensor& tail, const at::Tensor& last) {
    if (length == 0) return;
    // Cloned because source and destination overlap.
    if (length > 1) tail.narrow(1, 0, length - 1).copy_(tail.narrow(1, 1, length - 1).clone());
    tail.select(1, length - 1).copy_(last);
  };
  push(state.tail_present, at::ones({u.size(0)}, log_weight.options()));
  push(state.tail_log_weight, log_weight);
  push(state.tail_u, u);
  return result.out.squeeze(1);
}

}  // namespace halflife::ops
