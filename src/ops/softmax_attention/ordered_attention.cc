#include "ops/softmax_attention/ordered_attention.h"

#include <ATen/Context.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/GradMode.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ops/torch/autograd.h"

namespace halflife::ops {
namespace {

// While an instance exists, an operation without a deterministic form is an error.
class WithoutException {
 public:
  WithoutException() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~WithoutException() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  WithoutException(const WithoutException&) = delete;
  WithoutException& operator=(const WithoutException&) = delete;
};

at::Tensor Attend(const OrderedAttentionInputs& in) {
  const std::optional<at::Tensor> mask = in.mask.defined() ? std::optional(in.mask) : std::nullopt;
  return at::scaled_dot_product_attention(in.q, in.k, in.v, mask, /*dropout_p=*/0.0, in.causal,
                                          in.scale, /*enable_gqa=*/in.q.size(1) != in.k.size(1));
}

// Copies a gradient [B, H, T, d] to its columns. LibTorch's attention allocates it elsewhere.
at::Tensor InColumns(const at::Tensor& gradient, const ColumnSlice& place) {
  if (place.columns == nullptr) return gradient;
  const at::Tensor by_token = gradient.transpose(1, 2);
  return place.EmptyLike(by_token).copy_(by_token).transpose(1, 2);
}

// Tensors that the backward needs.
struct KeptTensors {
  Tensors leaves;  // inputs that require a gradient
  at::Tensor out;
};

}  // namespace

at::Tensor OrderedAttention(const OrderedAttentionInputs& inputs) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicAlgorithmsWarnOnly())
    return Attend(inputs);
  const Tensors given = {inputs.q, inputs.k, inputs.v, inputs.mask};
  const bool differentiates = c10::GradMode::is_enabled();
  const auto forward = [&]() -> Forwarded {
    const auto kept = std::make_shared<KeptTensors>();
    OrderedAttentionInputs own = inputs;
    for (at::Tensor* const x : {&own.q, &own.k, &own.v, &own.mask}) {
      if (!x->defined()) continue;
      const bool wanted = differentiates && x->requires_grad();
      *x = x->detach();
      if (wanted) kept->leaves.push_back(x->requires_grad_());
    }
    const WithoutException strict;
    const c10::AutoGradMode with_graph(!kept->leaves.empty());
    kept->out = Attend(own);
    const std::vector<ColumnSlice> places = {inputs.q_gradient, inputs.k_gradient,
                                             inputs.v_gradient, ColumnSlice()};
    const auto backward = [kept, places](const BackwardCall& call) -> Tensors {
      HL_CHECK(kept->out.defined(),
               "backward ran a second time through attention. Run it once per forward.");
      const WithoutException strict_too;
      const Tensors found = Differentiate({std::exchange(kept->out, {})}, call.grads, kept->leaves,
                                          /*keep_graph=*/false);
      Tensors gradients(call.wanted.size());
      size_t next = 0;
      for (size_t i = 0; i < gradients.size(); ++i)
        if (call.wanted[i]) gradients[i] = InColumns(found[next++], places[i]);
      return gradients;
    };
    return {.outputs = {kept->out.detach()}, .saved = {}, .backward = backward};
  };
  return Apply({.name = "OrderedAttention", .inputs = given, .forward = forward})[0];
}

}  // namespace halflife::ops
