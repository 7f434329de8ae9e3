#include "ops/convolution/sine_filter.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "kernels/common/cpu/sum_partials.h"
#include "kernels/convolution/sine_filter_args.h"
#include "ops/linear/weight_product.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gpu_route.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

constexpr const char* kSineFilter = "filter of sines";

struct SineFilterOp {
  struct Layer {
    at::Tensor weight, bias;
  };
  struct Inputs {
    at::Tensor x, frequency, output;
    std::vector<Layer> layers;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {
    at::Tensor hidden;  // the last hidden layer
    Inputs inputs;
  };
};

SineFilterOp::Inputs DenseInputs(const SineFilterInputs& inputs) {
  SineFilterOp::Inputs dense = {.x = inputs.x.contiguous(),
                                .frequency = inputs.frequency.contiguous(),
                                .output = inputs.output.contiguous(),
                                .layers = {}};
  for (size_t i = 0; i < inputs.weights.size(); ++i)
    dense.layers.push_back(
        {.weight = inputs.weights[i].contiguous(), .bias = inputs.biases[i].contiguous()});
  return dense;
}

kernels::SineFilterArgs MakeArgs(const SineFilterOp::Inputs& in, int64_t num_tokens) {
  kernels::SineFilterArgs args;
  args.x = Elements<float>(in.x);
  args.frequency = Elements<float>(in.frequency);
  args.output = Elements<float>(in.output);
  args.num_layers = static_cast<int>(in.layers.size());
  for (size_t i = 0; i < in.layers.size(); ++i) {
    args.weights[i] = Elements<float>(in.layers[i].weight);
    args.biases[i] = Elements<float>(in.layers[i].bias);
  }
  args.num_tokens = static_cast<int>(num_tokens);
  args.inputs = static_cast<int>(in.x.size(-1));
  args.width = static_cast<int>(in.frequency.size(0));
  args.channels = static_cast<int>(in.output.size(0));
  return args;
}

// Calls run(block, scratch) for each block of tokens.
template <typename Run>
void ForEachBlock(const kernels::SineFilterArgs& args, int num_blocks, const Run& run) {
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(kernels::cpu::SineScratchFloats(args));
    for (int64_t block = begin; block < end; ++block) run(static_cast<int>(block), scratch.data());
  });
}

struct SineForward {
  at::Tensor hidden, out;
};
SineForward ForwardFused(const kernels::SineFilterArgs& args, const at::Tensor& like) {
  const SineForward result = {.hidden = at::empty({args.num_tokens, args.width}, like.options()),
                              .out = at::empty({args.num_tokens, args.channels}, like.options())};
  const kernels::SineFilterOutputs to = {.hidden = MutableElements<float>(result.hidden),
                                         .out = MutableElements<float>(result.out)};
  RunOn(
      like,
      [&] {
        ForEachBlock(args, kernels::SineBlocks(args.num_tokens), [&](int block, float* scratch) {
          kernels::cpu::SineFilterForward(args, to, block, scratch);
        });
      },
      [&](auto stream) { kernels::cuda::SineFilterForward(args, to, stream); });
  return result;
}

void BackwardOnCpu(const kernels::SineFilterArgs& args, const float* dhidden,
                   const kernels::SineInputGradient& input,
                   const kernels::SineWeightGradients& weights) {
  const int num_blocks = kernels::SineBlocks(args.num_tokens);
  std::vector<float> partials(num_blocks * args.num_columns());
  ForEachBlock(args, kernels::SineBlocks(input.num_rows), [&](int block, float* scratch) {
    float* const sums = block < num_blocks ? partials.data() + block * args.num_columns() : nullptr;
    kernels::cpu::SineFilterBackward(args, dhidden, input, block, sums, scratch);
  });
  kernels::cpu::SumPlaces<float> places;
  const auto add = [&](const kernels::SineWeightGradients::Place& place, int64_t size) {
    places.push_back({.out = place.sum, .size = size, .added = place.added});
  };
  for (int i = 0; i < args.num_layers; ++i) {
    add(weights.weights[i], int64_t{1} * args.width * args.inputs_of(i));
    add(weights.biases[i], args.width);
  }
  add(weights.frequency, args.width);
  kernels::cpu::SumPartials(partials.data(), num_blocks, places);
}

SineFilterOp::Inputs BackwardFused(const BackwardOf<SineFilterOp>& call, int64_t num_tokens) {
  using Inputs = SineFilterOp::Inputs;
  using Layer = SineFilterOp::Layer;
  const Inputs& in = call.saved.inputs;
  const kernels::SineFilterArgs args = MakeArgs(in, num_tokens);
  GradientBuffer x(in.x, call.Wants(&Inputs::x)),
      frequency(in.frequency, call.Wants(&Inputs::frequency)),
      output(in.output, call.Wants(&Inputs::output));
  std::vector<GradientBuffer> layer_weights, layer_biases;
  for (size_t i = 0; i < in.layers.size(); ++i)
    layer_weights.emplace_back(in.layers[i].weight, call.Wants(&Inputs::layers, i, &Layer::weight));
  for (size_t i = 0; i < in.layers.size(); ++i)
    layer_biases.emplace_back(in.layers[i].bias, call.Wants(&Inputs::layers, i, &Layer::bias));
  const auto to_args = [](const GradientBuffer& place) -> kernels::SineWeightGradients::Place {
    return {MutableElements<float>(place.sum()), place.added()};
  };
  kernels::SineWeightGradients weights;
  weights.frequency = to_args(frequency);
  for (size_t i = 0; i < in.layers.size(); ++i) {
    weights.weights[i] = to_args(layer_weights[i]);
    weights.biases[i] = to_args(layer_biases[i]);
  }
  const kernels::SineInputGradient input = {.dx = MutableElements<float>(x.sum()),
                                            .num_rows = static_cast<int>(NumRows(in.x)),
                                            .added = x.added()};
  const at::Tensor& dout = call.grads.out;
  at::Tensor doutput = output.sum();
  SumWeightGradient(doutput, output.added(), dout, call.saved.hidden);
  const at::Tensor dhidden = at::mm(dout, in.output);
  RunOn(
      dhidden, [&] { BackwardOnCpu(args, Elements<float>(dhidden), input, weights); },
      [&](auto stream) {
        const at::Tensor partials = at::empty(
            {kernels::SineBlocks(args.num_tokens) * args.num_columns()}, dhidden.options());
        kernels::cuda::SineFilterBackward(args, Elements<float>(dhidden), input, weights,
                                          MutableElements<float>(partials), stream);
      });
  Inputs grads = {.x = x.Finish(),
                  .frequency = frequency.Finish(),
                  .output = output.Finish(),
                  .layers = std::vector<Layer>(in.layers.size())};
  for (size_t i = 0; i < in.layers.size(); ++i) grads.layers[i].weight = layer_weights[i].Finish();
  for (size_t i = 0; i < in.layers.size(); ++i) grads.layers[i].bias = layer_biases[i].Finish();
  return grads;
}

at::Tensor Fused(const SineFilterOp::Inputs& in, int64_t num_tokens) {
  const auto backward = [num_tokens](const BackwardOf<SineFilterOp>& call) {
    return BackwardFused(call, num_tokens);
  };
  const auto forward = [&]() -> ForwardOf<SineFilterOp> {
    const SineForward result = ForwardFused(MakeArgs(in, num_tokens), in.x);
    return {.outputs = {.out = result.out},
            .saved = {.hidden = result.hidden, .inputs = in},
            .backward = backward};
  };
  return Apply<SineFilterOp>({.name = "SineFilter", .inputs = in, .forward = forward}).out;
}

// The same in LibTorch calls, differentiated by autograd.
at::Tensor Composed(const SineFilterInputs& inputs) {
  at::Tensor a = inputs.x.reshape({-1, inputs.x.size(-1)}).narrow(0, 0, inputs.num_tokens);
  for (size_t i = 0; i < inputs.weights.size(); ++i)
    a = at::sin(inputs.frequency * at::linear(a, inputs.weights[i], inputs.biases[i]));
  return at::linear(a, inputs.output);
}

bool DeviceTakes([[maybe_unused]] const SineFilterOp::Inputs& in,
                 [[maybe_unused]] int64_t num_tokens) {
#ifdef HALFLIFE_WITH_CUDA
  if (!in.x.is_cuda()) return true;
  const int64_t shared_memory_bytes = SharedMemoryPerBlock(in.x);
  const bool fits = kernels::cuda::SineFilterFit(MakeArgs(in, num_tokens), shared_memory_bytes);
  LogRoute(kSineFilter,
           fits ? "a block of tokens at a time"
                : Concat("LibTorch's calls: ", in.frequency.size(0), " channels outgrow a block's ",
                         shared_memory_bytes, " bytes"));
  return fits;
#else
  return true;
#endif
}

void CheckShapes(const SineFilterInputs& inputs) {
  const at::Tensor &x = inputs.x, &frequency = inputs.frequency;
  CheckDTypes("SineFilter", {x, frequency});
  HL_CHECK(x.defined() && x.dim() >= 1 && frequency.defined() && frequency.dim() == 1 &&
               FitsWith(x, frequency, frequency.sizes()) && x.scalar_type() == ComputeType(x) &&
               frequency.scalar_type() == x.scalar_type(),
           "SineFilter got x ", Describe(x), " with frequency ", Describe(frequency),
           ". Use x [..., P] and frequency [W] on one device, both fp32 or both fp64.");
  HL_CHECK(inputs.num_tokens >= 1 && inputs.num_tokens <= NumRows(x), "SineFilter of ",
           inputs.num_tokens, " tokens of x ", Describe(x), ". Use 1 to ", NumRows(x), ".");
  HL_CHECK(!inputs.weights.empty() && inputs.weights.size() == inputs.biases.size(),
           "SineFilter of ", inputs.weights.size(), " weights and ", inputs.biases.size(),
           " biases. Use the same number of each, at least one.");
  const int64_t width = frequency.size(0);
  HL_CHECK(inputs.output.defined() && inputs.output.dim() == 2 &&
               FitsWith(x, inputs.output, {inputs.output.size(0), width}) &&
               inputs.output.scalar_type() == x.scalar_type(),
           "SineFilter with output ", Describe(inputs.output), ". Use [D, ", width,
           "] with the dtype and device of x.");
  for (size_t i = 0; i < inputs.weights.size(); ++i) {
    const at::Tensor &weight = inputs.weights[i], &bias = inputs.biases[i];
    const int64_t num_inputs = i == 0 ? x.size(-1) : width;
    HL_CHECK(FitsWith(x, weight, {width, num_inputs}) && FitsWith(x, bias, {width}) &&
                 weight.scalar_type() == x.scalar_type() && bias.scalar_type() == x.scalar_type(),
             "SineFilter, layer ", i, ": weight ", Describe(weight), " and bias ", Describe(bias),
             ". Use [", width, ", ", num_inputs, "] and [", width,
             "] with the dtype and device of x.");
  }
}

}  // namespace

at::Tensor SineFilter(const SineFilterInputs& inputs) {
  CheckShapes(inputs);
  if (inputs.x.scalar_type() != at::kFloat || !IsFused(inputs.x) ||
      inputs.weights.size() > kernels::kSineMaxLayers)
    return Composed(inputs);
  const SineFilterOp::Inputs in = DenseInputs(inputs);
  return DeviceTakes(in, inputs.num_tokens) ? Fused(in, inputs.num_tokens) : Composed(inputs);
}

}  // namespace halflife::ops
