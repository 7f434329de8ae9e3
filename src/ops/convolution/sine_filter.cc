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
#include "ops/torch/block_memory.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/route_log.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

constexpr const char* kSineFilter = "filter of sines";

// The order of the tensors that a forward saves and of a backward's inputs: x, the frequency, the
// output matrix, then the weights and the biases.
constexpr size_t kWeights = 3;
Tensors InOrder(const SineFilterInputs& inputs) {
  Tensors all = {inputs.x.contiguous(), inputs.frequency.contiguous(), inputs.output.contiguous()};
  for (const at::Tensor& weight : inputs.weights) all.push_back(weight.contiguous());
  for (const at::Tensor& bias : inputs.biases) all.push_back(bias.contiguous());
  return all;
}

kernels::SineFilterArgs ArgsOf(const Tensors& in, int num_layers, int64_t num_tokens) {
  kernels::SineFilterArgs args;
  args.x = Elements<float>(in[0]);
  args.frequency = Elements<float>(in[1]);
  args.output = Elements<float>(in[2]);
  args.num_layers = num_layers;
  for (int i = 0; i < num_layers; ++i) {
    args.weights[i] = Elements<float>(in[kWeights + i]);
    args.biases[i] = Elements<float>(in[kWeights + num_layers + i]);
  }
  args.num_tokens = static_cast<int>(num_tokens);
  args.inputs = static_cast<int>(in[0].size(-1));
  args.width = static_cast<int>(in[1].size(0));
  args.channels = static_cast<int>(in[2].size(0));
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

// The last hidden layer a_L and the output.
struct Outputs {
  at::Tensor hidden, out;
};
Outputs ForwardFused(const kernels::SineFilterArgs& args, const at::Tensor& like) {
  const Outputs result = {.hidden = at::empty({args.num_tokens, args.width}, like.options()),
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

// The parameters of a call that are not tensors.
struct Sizes {
  int num_layers;
  int64_t num_tokens;
};

// `saved` holds the inputs and then a_L. Returns the gradients in the order of InOrder().
Tensors BackwardFused(const BackwardCall& call, const Sizes& sizes) {
  const Tensors in(call.saved.begin(), call.saved.end() - 1);
  const at::Tensor& hidden = call.saved.back();
  const kernels::SineFilterArgs args = ArgsOf(in, sizes.num_layers, sizes.num_tokens);
  std::vector<GradientPlace> places;
  for (size_t i = 0; i < in.size(); ++i) places.emplace_back(in[i], call.wanted[i]);
  const auto place = [&](size_t i) -> kernels::SineWeightGradients::Place {
    return {MutableElements<float>(places[i].sum()), places[i].added()};
  };
  kernels::SineWeightGradients weights;
  weights.frequency = place(1);
  for (int i = 0; i < args.num_layers; ++i) {
    weights.weights[i] = place(kWeights + i);
    weights.biases[i] = place(kWeights + args.num_layers + i);
  }
  const kernels::SineInputGradient input = {.dx = MutableElements<float>(places[0].sum()),
                                            .num_rows = static_cast<int>(NumRows(in[0])),
                                            .added = places[0].added()};
  const at::Tensor& dout = call.grads[0];
  at::Tensor of_output = places[2].sum();
  SumWeightGradient(of_output, places[2].added(), dout, hidden);
  const at::Tensor dhidden = at::mm(dout, in[2]);
  RunOn(
      dhidden, [&] { BackwardOnCpu(args, Elements<float>(dhidden), input, weights); },
      [&](auto stream) {
        const at::Tensor partials = at::empty(
            {kernels::SineBlocks(args.num_tokens) * args.num_columns()}, dhidden.options());
        kernels::cuda::SineFilterBackward(args, Elements<float>(dhidden), input, weights,
                                          MutableElements<float>(partials), stream);
      });
  Tensors grads;
  for (GradientPlace& one : places) grads.push_back(one.Finish());
  return grads;
}

at::Tensor Fused(const Tensors& in, const Sizes& sizes) {
  const auto forward = [&]() -> Forwarded {
    const Outputs outputs = ForwardFused(ArgsOf(in, sizes.num_layers, sizes.num_tokens), in[0]);
    Forwarded result = {.outputs = {outputs.out}, .saved = in, .backward = {}};
    result.saved.push_back(outputs.hidden);
    result.backward = [sizes](const BackwardCall& call) { return BackwardFused(call, sizes); };
    return result;
  };
  return Apply({.name = "SineFilter", .inputs = in, .forward = forward})[0];
}

// The same in LibTorch calls, differentiated by autograd.
at::Tensor Composed(const SineFilterInputs& inputs) {
  at::Tensor a = inputs.x.reshape({-1, inputs.x.size(-1)}).narrow(0, 0, inputs.num_tokens);
  for (size_t i = 0; i < inputs.weights.size(); ++i)
    a = at::sin(inputs.frequency * at::linear(a, inputs.weights[i], inputs.biases[i]));
  return at::linear(a, inputs.output);
}

bool DeviceTakes([[maybe_unused]] const Tensors& in, [[maybe_unused]] const Sizes& sizes) {
#ifdef HALFLIFE_WITH_CUDA
  if (!in[0].is_cuda()) return true;
  const int64_t shared_memory_bytes = SharedMemoryPerBlock(in[0]);
  const bool fits = kernels::cuda::SineFilterFit(ArgsOf(in, sizes.num_layers, sizes.num_tokens),
                                                 shared_memory_bytes);
  LogRoute(kSineFilter,
           fits ? "a block of tokens at a time"
                : Concat("LibTorch's calls: ", in[1].size(0), " channels outgrow a block's ",
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
  const Tensors in = InOrder(inputs);
  const Sizes sizes = {static_cast<int>(inputs.weights.size()), inputs.num_tokens};
  return DeviceTakes(in, sizes) ? Fused(in, sizes) : Composed(inputs);
}

}  // namespace halflife::ops
