#include "model/mixers/linear/legacy_view.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/remainder.h>

#include "ops/linear/linear_internal.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// The entries of the view that each head reads at each token, [R, T, H] int64 both. R is 1 if all
// rows of the batch have the same positions, else B.
struct ViewPlaces {
  at::Tensor head;   // index of the head whose decays are read
  at::Tensor power;  // exponent of these decays
};

ViewPlaces PlacesOf(const at::Tensor& positions, const LegacyView& view) {
  const bool alike = positions.size(0) > 0 && positions.stride(0) == 0;
  const at::Tensor of_rows = alike ? positions.narrow(0, 0, 1) : positions;
  const at::Tensor head = at::arange(view.num_heads, positions.options());
  const at::Tensor row = of_rows.unsqueeze(2) + head * view.row_len;
  return {.head = at::remainder(row, view.num_heads),
          .power = at::floor_divide(row, view.num_heads)};
}

// Returns P [R, T, H, K].
at::Tensor LogOf(const at::Tensor& ps, const ViewPlaces& places, const LegacyView& view,
                 at::ScalarType compute) {
  const int64_t width = ps.numel() / view.num_heads;
  const at::Tensor decays = ps.reshape({view.num_heads, width})
                                .to(compute)
                                .index_select(0, places.head.flatten())
                                .unflatten(0, places.head.sizes());
  return decays * (places.power.to(compute) * view.scale).unsqueeze(3);
}

// Returns the gradient of Ps from that of P, [R, T, H, K]. It is a matrix product with a one-hot
// matrix of powers, because an index_add has no fixed order of sums on a GPU.
at::Tensor SumToPs(const at::Tensor& dlog, const ViewPlaces& places, const LegacyView& view,
                   const at::Tensor& ps) {
  const at::Tensor heads = at::arange(view.num_heads, places.head.options());
  const at::Tensor powers = (places.power.to(dlog.scalar_type()) * view.scale).unsqueeze(3);
  const at::Tensor weights = places.head.unsqueeze(3).eq(heads) * powers;  // [R, T, H, H]
  return ops::WeightGradient(weights.flatten(0, 2), dlog.flatten(0, 2))
      .view_as(ps)
      .to(ps.scalar_type());
}

struct LegacyViewOp {
  struct Inputs {
    at::Tensor q, k, ps;
  };
  struct Outputs {
    at::Tensor q, k;
  };
  struct Saved {
    at::Tensor q, k;  // the outputs
    at::Tensor ps, positions;
  };
};

LegacyViewOp::Inputs Backward(const ops::BackwardOf<LegacyViewOp>& call, const LegacyView& view) {
  using Inputs = LegacyViewOp::Inputs;
  const auto& [q, k, ps, positions] = call.saved;
  const ViewPlaces places = PlacesOf(positions, view);
  const at::ScalarType compute = ops::ComputeType(q);
  const at::Tensor dq = call.grads.q.to(compute), dk = call.grads.k.to(compute);
  const at::Tensor log = LogOf(ps, places, view, compute);
  Inputs grads;
  if (call.Wants(&Inputs::q)) grads.q = (dq * at::exp(-log)).to(q.scalar_type());
  if (call.Wants(&Inputs::k)) grads.k = (dk * at::exp(log)).to(k.scalar_type());
  if (call.Wants(&Inputs::ps)) {
    at::Tensor dlog = k.to(compute) * dk - q.to(compute) * dq;
    if (dlog.size(0) > places.head.size(0)) dlog = dlog.sum(0, /*keepdim=*/true);
    grads.ps = SumToPs(dlog, places, view, ps);
  }
  return grads;
}

}  // namespace

QueriesAndKeys ApplyLegacyView(const QueriesAndKeys& features, const at::Tensor& ps,
                               const at::Tensor& positions, const LegacyView& view) {
  const auto forward = [&]() -> ops::ForwardOf<LegacyViewOp> {
    const at::ScalarType compute = ops::ComputeType(features.q);
    const at::Tensor log = LogOf(ps, PlacesOf(positions, view), view, compute);
    const at::Tensor q = (features.q * at::exp(-log)).to(features.q.scalar_type());
    const at::Tensor k = (features.k * at::exp(log)).to(features.k.scalar_type());
    return {.outputs = {.q = q, .k = k},
            .saved = {.q = q, .k = k, .ps = ps, .positions = positions},
            .backward = [view](const auto& call) { return Backward(call, view); }};
  };
  const auto [q, k] =
      ops::Apply<LegacyViewOp>({.name = "LegacyView",
                                .inputs = {.q = features.q, .k = features.k, .ps = ps},
                                .forward = forward});
  return {.q = q, .k = k};
}

}  // namespace halflife::model
