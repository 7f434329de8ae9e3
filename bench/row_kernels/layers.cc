#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv1d.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rms_norm.h>
#include <ATen/ops/silu.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <utility>

#include "cases.h"
#include "core/concat.h"
#include "ops/convolution/short_conv.h"
#include "ops/linear/linear.h"
#include "ops/linear/linear_internal.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/rotary.h"
#include "ops/rows/swiglu.h"

namespace halflife::bench {
namespace {

constexpr double kEps = 1e-6;

// Elements that a pass moves per element of an activation: operands read and results written.
struct Traffic {
  int forward = 0, backward = 0;
};

struct Layer {
  std::string family;
  std::vector<int64_t> shape;        // Shape of each activation.
  int num_inputs = 1;                // Number of activations.
  std::vector<int64_t> weight = {};  // fp32. Empty: none.
  int num_outputs = 1;
  Traffic traffic;
  Form ours, eager;              // [inputs..., weight] -> outputs
  double max_error_bf16 = 5e-6;  // For the weight's gradient, which is fp32.
};

Tensors NoGradients(const Form& form, const Tensors& operands) {
  const c10::AutoGradMode no_grad(false);
  return form(operands);
}

// Returns outputs and the gradients of the leaves. The last operands are the gradients of the
// outputs.
Tensors WithGradients(const Form& form, const Tensors& operands, int num_outputs) {
  const Tensors leaves(operands.begin(), operands.end() - num_outputs);
  const Tensors douts(operands.end() - num_outputs, operands.end());
  Tensors results = form(leaves);
  const Tensors grads = torch::autograd::grad(results, leaves, douts);
  results.insert(results.end(), grads.begin(), grads.end());
  return results;
}

Case MakeCase(const Layer& layer, const CaseOptions& options) {
  const auto activations = at::TensorOptions(options.device).dtype(options.dtype);
  int64_t elements = 1;
  for (const int64_t size : layer.shape) elements *= size;
  const double bytes =
      static_cast<double>(elements) * static_cast<double>(activations.dtype().itemsize());
  const int num_outputs = layer.num_outputs;
  Case result = {
      .family = layer.family,
      .shape = Concat(at::IntArrayRef(layer.shape)),
      .make =
          [=] {
            Tensors operands;
            for (int i = 0; i < layer.num_inputs; ++i)
              operands.push_back(at::randn(layer.shape, activations).requires_grad_());
            if (!layer.weight.empty())
              operands.push_back(
                  at::randn(layer.weight, activations.dtype(at::kFloat)).requires_grad_());
            for (int i = 0; i < num_outputs; ++i)
              operands.push_back(at::randn(layer.shape, activations));
            return operands;
          },
      .passes = {}};
  const auto forward = [=](const Form& form) -> Form {
    return [=](const Tensors& operands) {
      return NoGradients(form, {operands.begin(), operands.end() - num_outputs});
    };
  };
  const auto both = [=](const Form& form) -> Form {
    return [=](const Tensors& operands) { return WithGradients(form, operands, num_outputs); };
  };
  result.passes = {
      {"forward", forward(layer.ours), forward(layer.eager), layer.traffic.forward * bytes},
      {"forward_backward", both(layer.ours), both(layer.eager),
       (layer.traffic.forward + layer.traffic.backward) * bytes}};
  if (options.dtype == at::kBFloat16) result.max_error = layer.max_error_bf16;
  return result;
}

at::Tensor EagerNorm(const at::Tensor& x, const at::Tensor& weight) {
  return at::rms_norm(x, weight.sizes(), weight.to(x.scalar_type()), kEps);
}

Layer Rotary(const std::vector<int64_t>& shape, const CaseOptions& options) {
  const int64_t seq_len = shape[1], dim = shape[3], half = dim / 2;
  // Made on the CPU, one row per position, as in a training step.
  const ops::RotaryTable host = ops::MakeRotaryTable(
      at::arange(seq_len, at::kLong).unsqueeze(0).expand({shape[0], seq_len}), dim, 10000);
  const ops::RotaryTable table = {.cos = host.cos.to(options.device),
                                  .sin = host.sin.to(options.device),
                                  .rows = host.rows.contiguous().to(options.device)};
  const auto twice = [&](const at::Tensor& x, at::ScalarType dtype) {  // [1, T, 1, d]
    return at::cat({x, x}, 1).view({1, seq_len, 1, dim}).to(dtype);
  };
  const at::Tensor cos = twice(table.cos, options.dtype), sin = twice(table.sin, options.dtype);
  const at::Tensor wide_cos = twice(table.cos, at::kDouble),
                   wide_sin = twice(table.sin, at::kDouble);
  return {
      .family = "rotary",
      .shape = shape,
      .traffic = {.forward = 2, .backward = 2},
      .ours = [=](const Tensors& in) -> Tensors { return {ops::ApplyRotary(in[0], table)}; },
      .eager = [=](const Tensors& in) -> Tensors {
        const at::Tensor& x = in[0];
        const bool wide = x.scalar_type() == at::kDouble;
        const at::Tensor turned = at::cat({x.narrow(3, half, half).neg(), x.narrow(3, 0, half)}, 3);
        return {x * (wide ? wide_cos : cos) + turned * (wide ? wide_sin : sin)};
      }};
}

std::vector<Layer> NormLayers(const std::vector<int64_t>& model,
                              const std::vector<int64_t>& heads) {
  return {{.family = "rms_norm",
           .shape = model,
           .weight = {model.back()},
           .traffic = {.forward = 2, .backward = 3},
           .ours = [](const Tensors& in) -> Tensors { return {ops::RmsNorm(in[0], in[1], kEps)}; },
           .eager = [](const Tensors& in) -> Tensors { return {EagerNorm(in[0], in[1])}; }},
          // Both summands share one gradient.
          {.family = "rms_norm_of_sum",
           .shape = model,
           .num_inputs = 2,
           .weight = {model.back()},
           .num_outputs = 2,
           .traffic = {.forward = 4, .backward = 4},
           .ours = [](const Tensors& in) -> Tensors {
             const auto [sum, normed] = ops::AddRmsNorm(in[0], in[1], in[2], kEps);
             return {sum, normed};
           },
           .eager = [](const Tensors& in) -> Tensors {
             const at::Tensor sum = in[0] + in[1];
             return {sum, EagerNorm(sum, in[2])};
           },
           .max_error_bf16 = 4e-3},
          {.family = "rms_norm_gated",
           .shape = heads,
           .num_inputs = 2,
           .weight = {heads.back()},
           .traffic = {.forward = 3, .backward = 5},
           .ours = [](const Tensors& in) -> Tensors {
             return {ops::GatedRmsNorm(in[0], in[1], in[2], kEps)};
           },
           .eager = [](const Tensors& in) -> Tensors {
             return {EagerNorm(in[0], in[2]) * at::silu(in[1])};
           }}};
}

Layer SwiGlu(const std::vector<int64_t>& shape) {
  return {.family = "swiglu",
          .shape = shape,
          .num_inputs = 2,
          .traffic = {.forward = 3, .backward = 5},
          .ours = [](const Tensors& in) -> Tensors { return {ops::SwiGlu(in[0], in[1])}; },
          .eager = [](const Tensors& in) -> Tensors { return {at::silu(in[0]) * in[1]}; }};
}

Layer ShortConv(const std::vector<int64_t>& shape) {
  constexpr int64_t kTaps = 4;
  const int64_t seq_len = shape[1], dim = shape[2];
  return {.family = "short_conv",
          .shape = shape,
          .weight = {dim, 1, kTaps},
          .traffic = {.forward = 2, .backward = 3},
          .ours = [](const Tensors& in) -> Tensors {
            return {ops::ShortConv(
                {.x = in[0], .weight = in[1], .tail = {}, .documents = {}, .starts = {}})};
          },
          .eager = [=](const Tensors& in) -> Tensors {
            const at::Tensor weight = in[1].to(in[0].scalar_type());
            const at::Tensor sums =
                at::conv1d(in[0].transpose(1, 2), weight, {}, 1, kTaps - 1, 1, dim);
            return {at::silu(sums.narrow(2, 0, seq_len)).transpose(1, 2)};
          }};
}

// This case and the next are limited by the matmul rather than by memory.
Case Linear(int64_t tokens, int64_t outs, int64_t ins) {
  return {.family = "linear",
          .shape = Concat(tokens, " tokens, [", outs, ", ", ins, "]"),
          .make = [=]() -> Tensors {
            return {at::randn({tokens, ins}), at::randn({outs, ins})};
          },
          .passes = {
              {"forward", [](const Tensors& in) -> Tensors { return {ops::Linear(in[0], in[1])}; },
               [](const Tensors& in) -> Tensors { return {at::linear(in[0], in[1])}; },
               4.0 * static_cast<double>(tokens * (outs + ins) + outs * ins), std::nullopt}}};
}

Case WeightGradient(int64_t tokens, int64_t outs, int64_t ins) {
  return {
      .family = "weight_gradient",
      .shape = Concat(tokens, " tokens, [", outs, ", ", ins, "]"),
      .make = [=]() -> Tensors {
        return {at::randn({tokens, outs}), at::randn({tokens, ins})};
      },
      .passes = {{"backward",
                  [](const Tensors& in) -> Tensors { return {ops::WeightGradient(in[0], in[1])}; },
                  [](const Tensors& in) -> Tensors { return {at::mm(in[0].t(), in[1])}; },
                  4.0 * static_cast<double>(tokens * (outs + ins) + outs * ins), std::nullopt}}};
}

}  // namespace

std::vector<Case> MakeLayerCases(const CaseOptions& options) {
  const bool large = options.large;
  const std::vector<int64_t> model =
      large ? std::vector<int64_t>{8, 4096, 1024} : std::vector<int64_t>{8, 512, 256};
  const std::vector<int64_t> heads =
      large ? std::vector<int64_t>{8, 4096, 8, 128} : std::vector<int64_t>{8, 512, 4, 64};
  const std::vector<int64_t> mlp =
      large ? std::vector<int64_t>{8, 4096, 1024} : std::vector<int64_t>{8, 512, 768};
  std::vector<Layer> layers = NormLayers(model, heads);
  layers.push_back(Rotary(heads, options));
  layers.push_back(SwiGlu(mlp));
  layers.push_back(ShortConv(model));
  std::vector<Case> cases;
  for (const Layer& layer : layers) cases.push_back(MakeCase(layer, options));
  if (options.device.is_cpu() && options.dtype == at::kFloat) {  // Other cases use LibTorch's.
    const std::vector<std::pair<int64_t, int64_t>> sizes =
        large ? std::vector<std::pair<int64_t, int64_t>>{{256, 256}, {1024, 1024}}
              : std::vector<std::pair<int64_t, int64_t>>{{256, 256}, {768, 256}, {256, 768}};
    for (const auto& [outs, ins] : sizes) {
      cases.push_back(Linear(large ? 8 * 4096 : 8 * 512, outs, ins));
      cases.push_back(WeightGradient(large ? 8 * 4096 : 8 * 512, outs, ins));
    }
  }
  return cases;
}

}  // namespace halflife::bench
