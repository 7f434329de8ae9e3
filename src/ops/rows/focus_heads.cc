#include "ops/rows/focus_heads.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/focus_heads_args.h"
#include "ops/rows/layer_norm.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

at::Tensor TokenRows(const at::Tensor& x) {
  return !x.defined() || RowStride(x).has_value() ? x : x.contiguous();
}
template <typename T>
kernels::FocusRows<const T> ReadRows(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {.data = Elements<T>(x), .stride = RowStride(x).value()};
}
template <typename T>
kernels::FocusRows<T> WriteRows(const at::Tensor& x) {
  if (!x.defined()) return {};
  return {.data = MutableElements<T>(x), .stride = RowStride(x).value()};
}

struct FocusLeavesOp {
  struct Inputs {
    at::Tensor x, times, direction, value;
  };
  struct Outputs {
    at::Tensor log_weight, payload;
  };
  using Saved = Inputs;  // as they were given
};

struct FocusGateOp {
  struct Inputs {
    at::Tensor query, pooled;
  };
  struct Outputs {
    at::Tensor out;
  };
  using Saved = Inputs;  // as they were given
};

bool IsOfTokens(const FocusLeavesInputs& in) { return in.direction.sizes() == in.x.sizes(); }

// x, times, direction and value in the form that the kernels read.
struct LeafOperands {
  at::Tensor x, times, direction, value;
  FocusLeavesConfig config;

  bool of_tokens() const { return direction.sizes() == x.sizes(); }
  int64_t num_heads() const { return x.size(2) / config.head_dim; }
  int64_t num_tokens() const { return x.size(0) * x.size(1); }

  template <typename T>
  kernels::FocusLeavesShape<T> Shape() const {
    kernels::FocusLeavesShape<T> shape;
    shape.x = ReadRows<T>(x), shape.times = ReadRows<T>(times), shape.value = ReadRows<T>(value);
    if (of_tokens()) {
      shape.direction = ReadRows<T>(direction);
    } else {
      shape.vector = Elements<float>(direction);
    }
    shape.num_tokens = num_tokens(), shape.num_heads = num_heads(), shape.dim = config.head_dim;
    shape.pool_x = config.pool_x, shape.norm = config.norm, shape.norm_value = config.norm_value,
    shape.elu = config.elu;
    shape.eps = static_cast<float>(config.eps), shape.scale = static_cast<float>(config.scale);
    return shape;
  }
};

LeafOperands OperandsOf(const FocusLeavesOp::Inputs& in, const FocusLeavesConfig& config) {
  LeafOperands operands = {.x = TokenRows(in.x),
                           .times = TokenRows(in.times),
                           .direction = in.direction,
                           .value = TokenRows(in.value),
                           .config = config};
  operands.direction =
      operands.of_tokens() ? TokenRows(operands.direction) : operands.direction.contiguous();
  return operands;
}

FocusLeavesOp::Outputs LeavesForward(const LeafOperands& in) {
  const int64_t batch = in.x.size(0), seq_len = in.x.size(1), heads = in.num_heads();
  const int64_t width = (in.value.defined() && in.config.pool_x ? 2 : 1) * in.config.head_dim;
  const at::Tensor log_weight =
                       at::empty({batch, seq_len, heads}, in.x.options().dtype(at::kFloat)),
                   payload = at::empty({batch, seq_len, heads, width}, in.x.options());
  WithStorage(in.x, [&]<typename T>() {
    const kernels::FocusLeavesShape<T> shape = in.Shape<T>();
    const kernels::FocusLeavesResults<T> results = {
        .log_weight = MutableElements<float>(log_weight), .payload = MutableElements<T>(payload)};
    RunRows(
        in.x, {.count = shape.num_tokens, .per_task = kernels::cpu::kFocusTokensPerBlock},
        [&](int64_t begin, int64_t end) {
          kernels::cpu::FocusLeavesForward(shape, results, begin, end);
        },
        [&](auto stream) { kernels::cuda::FocusLeavesForward(shape, results, stream); });
  });
  return {.log_weight = log_weight, .payload = payload};
}

template <typename T>
void LeavesBackwardOnCpu(const kernels::FocusLeavesShape<T>& shape,
                         const kernels::FocusLeavesGrads<T>& grads) {
  const int64_t size = shape.vector == nullptr ? 0 : shape.num_heads * shape.dim;
  const PartialSums partial =
      SumBlocks({.count = shape.num_tokens, .per_task = kernels::cpu::kFocusTokensPerBlock}, size,
                [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::FocusLeavesBackward(shape, grads, begin, end, sum);
                });
  if (size == 0) return;
  std::vector<float> sum(size);
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, size, sum.data());
  kernels::cpu::FocusVectorBackward(shape, grads, sum.data());
}

// Buffers for the gradients.
struct LeafGradientSlices {
  ColumnSlice x, times, direction, value;
};

FocusLeavesOp::Inputs LeavesBackward(const BackwardOf<FocusLeavesOp>& call,
                                     const FocusLeavesConfig& config,
                                     const LeafGradientSlices& places) {
  const LeafOperands in = OperandsOf(call.saved, config);
  const at::Tensor dlog_weight = call.grads.log_weight.contiguous(),
                   dpayload = call.grads.payload.contiguous();
  const auto empty = [](const at::Tensor& x, const ColumnSlice& place) {
    return x.defined() ? place.EmptyLike(x) : at::Tensor();
  };
  const at::Tensor dx = empty(in.x, places.x), dtimes = empty(in.times, places.times),
                   dvalue = empty(in.value, places.value);
  at::Tensor ddirection;
  std::optional<GradientBuffer> vector;
  if (in.of_tokens()) {
    ddirection = places.direction.EmptyLike(in.direction);
  } else {
    vector.emplace(call.saved.direction, call.Wants(&FocusLeavesOp::Inputs::direction));
  }
  WithStorage(in.x, [&]<typename T>() {
    const kernels::FocusLeavesShape<T> shape = in.Shape<T>();
    kernels::FocusLeavesGrads<T> grads = {.dlog_weight = Elements<float>(dlog_weight),
                                          .dpayload = Elements<T>(dpayload),
                                          .dx = WriteRows<T>(dx),
                                          .dtimes = WriteRows<T>(dtimes),
                                          .ddirection = WriteRows<T>(ddirection),
                                          .dvalue = WriteRows<T>(dvalue)};
    if (vector)
      grads.dvector = MutableElements<float>(vector->sum()), grads.vector_added = vector->added();
    RunOn(
        in.x, [&] { LeavesBackwardOnCpu(shape, grads); },
        [&](auto stream) {
          const int64_t partials = vector ? kernels::cuda::FocusVectorPartials(shape.num_tokens) *
                                                shape.num_heads * shape.dim
                                          : 0;
          const at::Tensor workspace = at::empty({partials}, dlog_weight.options());
          kernels::cuda::FocusLeavesBackward(shape, grads, MutableElements<float>(workspace),
                                             stream);
        });
  });
  return {.x = dx,
          .times = dtimes,
          .direction = vector ? vector->Finish() : ddirection,
          .value = dvalue};
}

FocusLeaves FusedLeaves(const FocusLeavesInputs& inputs, const FocusLeavesConfig& config) {
  const FocusLeavesOp::Inputs given = {
      .x = inputs.x, .times = inputs.times, .direction = inputs.direction, .value = inputs.value};
  const LeafGradientSlices places = {.x = inputs.x_gradient,
                                     .times = inputs.times_gradient,
                                     .direction = inputs.direction_gradient,
                                     .value = inputs.value_gradient};
  const auto forward = [&]() -> ForwardOf<FocusLeavesOp> {
    return {.outputs = LeavesForward(OperandsOf(given, config)),
            .saved = given,
            .backward = [config, places](const auto& call) {
              return LeavesBackward(call, config, places);
            }};
  };
  const auto [log_weight, payload] =
      Apply<FocusLeavesOp>({.name = "FocusLeaves", .inputs = given, .forward = forward});
  return {.log_weight = log_weight, .payload = payload};
}

at::Tensor InHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}

// Returns the heads of x, standardized if `norm`, in the compute type of `x`.
at::Tensor WideHeads(const at::Tensor& x, int64_t head_dim, bool norm, double eps) {
  const at::Tensor heads = InHeads(x, head_dim);
  return norm ? RealNorm(heads, eps) : heads.to(ComputeType(x));
}

// In LibTorch calls and those of real_norm: for fp64, wide heads and no tokens.
FocusLeaves ComposedLeaves(const FocusLeavesInputs& in, const FocusLeavesConfig& config) {
  const auto wide = [&](const at::Tensor& x, bool norm) {
    return WideHeads(x, config.head_dim, norm, config.eps);
  };
  const at::ScalarType dtype = in.x.scalar_type();
  const at::Tensor k = wide(in.times.defined() ? in.x * in.times : in.x, config.norm);
  const at::Tensor f =
      wide(IsOfTokens(in) ? in.direction : in.direction.flatten(), config.norm).to(k.scalar_type());
  const at::Tensor logit = (f * k).sum(-1) * config.scale;
  Tensors payload;
  if (config.pool_x) payload.push_back(k.to(dtype));
  if (in.value.defined()) payload.push_back(wide(in.value, config.norm_value).to(dtype));
  return {.log_weight = config.elu ? LogOfEluPlusOne(logit) : logit,
          .payload = payload.size() > 1 ? at::cat(payload, -1) : payload[0]};
}

bool FitsHeads(const at::Tensor& x, int64_t head_dim) {
  return IsFused(x) && x.numel() > 0 && head_dim <= kernels::kFocusHeadDim;
}

// query and pooled in the form that the kernels read.
template <typename T>
kernels::FocusGateShape<T> GateShape(const at::Tensor& query, const at::Tensor& pooled,
                                     const FocusGateConfig& config) {
  const int64_t heads = pooled.size(2);
  return {.query = ReadRows<T>(query),
          .pooled = Elements<T>(pooled),
          .num_tokens = query.size(0) * query.size(1),
          .num_heads = heads,
          .dim = query.size(2) / heads,
          .width = pooled.size(3),
          .norm = config.norm,
          .eps = static_cast<float>(config.eps),
          .scale = static_cast<float>(config.scale)};
}

at::Tensor GateForward(const at::Tensor& query, const at::Tensor& pooled,
                       const FocusGateConfig& config) {
  const at::Tensor out = at::empty(query.sizes(), query.options());
  WithStorage(query, [&]<typename T>() {
    const kernels::FocusGateShape<T> shape = GateShape<T>(query, pooled, config);
    T* const to = MutableElements<T>(out);
    RunRows(
        query, {.count = shape.num_tokens, .per_task = kernels::cpu::kFocusTokensPerBlock},
        [&](int64_t begin, int64_t end) { kernels::cpu::FocusGateForward(shape, to, begin, end); },
        [&](auto stream) { kernels::cuda::FocusGateForward(shape, to, stream); });
  });
  return out;
}

FocusGateOp::Inputs GateBackward(const BackwardOf<FocusGateOp>& call, const FocusGateConfig& config,
                                 const ColumnSlice& place) {
  const at::Tensor query = TokenRows(call.saved.query), pooled = call.saved.pooled.contiguous(),
                   dout = call.grads.out.contiguous();
  const at::Tensor dquery = place.EmptyLike(query),
                   dpooled = at::empty(pooled.sizes(), pooled.options());
  WithStorage(query, [&]<typename T>() {
    const kernels::FocusGateShape<T> shape = GateShape<T>(query, pooled, config);
    const kernels::FocusGateGrads<T> grads = {.dout = Elements<T>(dout),
                                              .dquery = WriteRows<T>(dquery),
                                              .dpooled = MutableElements<T>(dpooled)};
    RunRows(
        query, {.count = shape.num_tokens, .per_task = kernels::cpu::kFocusTokensPerBlock},
        [&](int64_t begin, int64_t end) {
          kernels::cpu::FocusGateBackward(shape, grads, begin, end);
        },
        [&](auto stream) { kernels::cuda::FocusGateBackward(shape, grads, stream); });
  });
  return {.query = dquery, .pooled = dpooled};
}

at::Tensor FusedGate(const FocusGateInputs& inputs, const FocusGateConfig& config) {
  const FocusGateOp::Inputs given = {.query = inputs.query, .pooled = inputs.pooled};
  const auto forward = [&]() -> ForwardOf<FocusGateOp> {
    return {
        .outputs = {.out = GateForward(TokenRows(given.query), given.pooled.contiguous(), config)},
        .saved = given,
        .backward = [config, place = inputs.query_gradient](const auto& call) {
          return GateBackward(call, config, place);
        }};
  };
  return Apply<FocusGateOp>({.name = "FocusGate", .inputs = given, .forward = forward}).out;
}

at::Tensor ComposedGate(const FocusGateInputs& in, const FocusGateConfig& config) {
  const int64_t dim = in.query.size(2) / in.pooled.size(2), width = in.pooled.size(3);
  const at::Tensor q = WideHeads(in.query, dim, config.norm, config.eps);
  const at::Tensor pooled = in.pooled.to(q.scalar_type());
  const at::Tensor dot = (q * pooled.narrow(-1, 0, dim)).sum(-1, /*keepdim=*/true);
  const at::Tensor gate = at::sigmoid(dot * config.scale);
  return (gate * pooled.narrow(-1, width - dim, dim)).flatten(2).to(in.query.scalar_type());
}

void CheckLeaves(const FocusLeavesInputs& in, const FocusLeavesConfig& config) {
  const at::Tensor& x = in.x;
  CheckDTypes("FocusLeaves", {x, in.times, in.direction, in.value});
  const int64_t dim = config.head_dim;
  const auto fits = [&](const at::Tensor& y) { return !y.defined() || IsLike(x, y); };
  HL_CHECK(x.defined() && x.dim() == 3 && dim >= (config.norm || config.norm_value ? 2 : 1) &&
               x.size(2) % dim == 0 && fits(in.times) && fits(in.value) &&
               (config.pool_x || in.value.defined()),
           "FocusLeaves got x ", Describe(x), ", times ", Describe(in.times), " and value ",
           Describe(in.value), " with heads of ", dim,
           ". Use [B, T, H n] with heads of n channels, at least 2 if they are standardized.");
  HL_CHECK(
      IsLike(x, in.direction) ||
          (in.direction.defined() && in.direction.numel() == x.size(2) &&
           in.direction.device() == x.device() && in.direction.scalar_type() == ComputeType(x)),
      "FocusLeaves got x ", Describe(x), " with direction ", Describe(in.direction),
      ". Use the shape and dtype of x, or H n elements in ", DTypeName(ComputeType(x)), ".");
}

}  // namespace

at::Tensor LogOfEluPlusOne(const at::Tensor& l) {
  return at::where(l > 0, at::log1p(l.clamp_min(0)), l);
}

FocusLeaves MakeFocusLeaves(const FocusLeavesInputs& inputs, const FocusLeavesConfig& config) {
  CheckLeaves(inputs, config);
  if (FitsHeads(inputs.x, config.head_dim)) return FusedLeaves(inputs, config);
  return ComposedLeaves(inputs, config);
}

at::Tensor FocusGate(const FocusGateInputs& inputs, const FocusGateConfig& config) {
  const at::Tensor &query = inputs.query, &pooled = inputs.pooled;
  CheckDTypes("FocusGate", {query, pooled});
  HL_CHECK(query.defined() && query.dim() == 3 && pooled.defined() && pooled.dim() == 4 &&
               pooled.size(0) == query.size(0) && pooled.size(1) == query.size(1) &&
               pooled.size(2) >= 1 && query.size(2) % pooled.size(2) == 0 &&
               query.size(2) <= pooled.size(2) * pooled.size(3) &&
               pooled.scalar_type() == query.scalar_type() && pooled.device() == query.device(),
           "FocusGate got query ", Describe(query), " and pooled ", Describe(pooled),
           ". Use [B, T, H n] and [B, T, H, P] with P of n or 2 n, of one dtype and device.");
  const int64_t dim = query.size(2) / pooled.size(2);
  HL_CHECK(pooled.size(3) == dim || pooled.size(3) == 2 * dim, "FocusGate of heads of ", dim,
           " with pooled rows of ", pooled.size(3), " channels. Use n or 2 n.");
  if (FitsHeads(query, dim)) return FusedGate(inputs, config);
  return ComposedGate(inputs, config);
}

}  // namespace halflife::ops
