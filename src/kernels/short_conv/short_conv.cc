#include "kernels/short_conv/short_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/sequence/tokens_before.h"
#include "kernels/short_conv/args.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

// x with the W-1 tokens before it: [B, W-1+T, D].
at::Tensor WithTail(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2);
  const at::Tensor tail =
      inputs.tail.defined()
          ? inputs.tail.to(inputs.x.scalar_type())
          : at::zeros({inputs.x.size(0), taps - 1, inputs.x.size(2)}, inputs.x.options());
  return at::cat({tail, inputs.x}, 1);
}

// Document of each token of WithTail. The tail belongs to the slice's first document unless one
// starts right there.
at::Tensor DocumentsWithTail(const ShortConvInputs& inputs) {
  const at::Tensor first = inputs.documents.narrow(1, 0, 1);
  const at::Tensor before = at::where(inputs.starts.narrow(1, 0, 1), first - 1, first);
  return at::cat({before.expand({first.size(0), inputs.weight.size(2) - 1}), inputs.documents}, 1);
}

// [B, T] uint8, see ConvReach; `documents` and `starts` may be undefined.
at::Tensor Reach(const at::Tensor& documents_in, const at::Tensor& starts_in, bool has_tail,
                 const at::Tensor& x, int64_t taps) {
  const auto contiguous = [](const at::Tensor& y) { return y.defined() ? y.contiguous() : y; };
  const at::Tensor documents = contiguous(documents_in), starts = contiguous(starts_in);
  at::Tensor reach = at::empty({x.size(0), x.size(1)}, x.options().dtype(at::kByte));
  const ConvReach args = {.documents = Elements<int64_t>(documents),
                          .starts = Elements<bool>(starts),
                          .reach = MutableElements<uint8_t>(reach),
                          .batch = x.size(0),
                          .seq_len = x.size(1),
                          .taps = taps,
                          .has_tail = has_tail};
  RunOn(
      x, [&] { cpu::FillReach(args); }, [&](auto stream) { cuda::FillReach(args, stream); });
  return reach;
}

// What both directions read. All contiguous; the tail may be undefined.
struct Inputs {
  at::Tensor x, tail, reach;
  at::Tensor weight;  // [W, D] fp32
  at::Tensor bias;    // [D] fp32, may be undefined
  bool silu;

  template <typename T>
  ConvShape<T> Shape() const {
    return {.x = Elements<T>(x),
            .tail = Elements<T>(tail),
            .weight = Elements<float>(weight),
            .bias = Elements<float>(bias),
            .reach = Elements<uint8_t>(reach),
            .batch = x.size(0),
            .seq_len = x.size(1),
            .dim = x.size(2),
            .taps = weight.size(0),
            .silu = silu};
  }
};

template <typename T>
void ForwardOnCpu(const ConvShape<T>& shape, T* out) {
  const int64_t num_blocks = shape.batch * cpu::ConvBlocksPerRow(shape.seq_len);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) cpu::ConvForward(shape, block, out);
  });
}

// dweight [gradient_rows(), D] is overwritten.
template <typename T>
void BackwardOnCpu(const ConvShape<T>& shape, const ConvGrads<T>& grads, float* dweight) {
  const int64_t num_blocks = shape.batch * cpu::ConvBlocksPerRow(shape.seq_len);
  const int64_t size = shape.gradient_rows() * shape.dim;
  std::vector<float> partial(num_blocks * size);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(cpu::kConvScratchRows * shape.dim);
    for (int64_t block = begin; block < end; ++block)
      cpu::ConvBackward(shape, grads, block, partial.data() + block * size, scratch.data());
  });
  std::fill(dweight, dweight + size, 0.0f);
  for (size_t i = 0; i < partial.size(); ++i) dweight[i % size] += partial[i];
}

at::Tensor ForwardFused(const Inputs& in) {
  at::Tensor out = at::empty_like(in.x);
  WithStorage(in.x, [&]<typename T>() {
    const ConvShape<T> shape = in.Shape<T>();
    RunOn(
        in.x, [&] { ForwardOnCpu(shape, MutableElements<T>(out)); },
        [&](auto stream) { cuda::ConvForward(shape, MutableElements<T>(out), stream); });
  });
  return out;
}

struct ConvResults {
  at::Tensor dx, dtail;
  at::Tensor dweight;  // [W, D] fp32, or [W + 1, D]: the last row is dbias
};

ConvResults BackwardFused(const Inputs& in, const at::Tensor& dout_in) {
  const at::Tensor dout = dout_in.contiguous();
  const int64_t gradient_rows = in.weight.size(0) + (in.bias.defined() ? 1 : 0);
  const ConvResults results = {
      .dx = at::empty_like(in.x),
      .dtail = in.tail.defined() ? at::empty_like(in.tail) : at::Tensor(),
      .dweight = at::empty({gradient_rows, in.weight.size(1)}, in.weight.options())};
  WithStorage(in.x, [&]<typename T>() {
    const ConvShape<T> shape = in.Shape<T>();
    const ConvGrads<T> grads = {.dout = Elements<T>(dout),
                                .dx = MutableElements<T>(results.dx),
                                .dtail = MutableElements<T>(results.dtail)};
    auto* const dweight = MutableElements<float>(results.dweight);
    RunOn(
        in.x, [&] { BackwardOnCpu(shape, grads, dweight); },
        [&](auto stream) {
          const at::Tensor workspace =
              at::empty({cuda::ConvWorkspaceFloats(shape)}, in.weight.options());
          cuda::ConvBackward(shape, grads, dweight, MutableElements<float>(workspace), stream);
        });
  });
  return results;
}

at::Tensor FusedShortConv(const ShortConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &weight = inputs.weight, &bias = inputs.bias;
  const at::Tensor tail = inputs.tail.defined() ? inputs.tail.to(x.scalar_type()) : at::Tensor();
  const auto forward = [&]() -> Forwarded {
    const Inputs in = {
        .x = x.contiguous(),
        .tail = tail.defined() ? tail.contiguous() : tail,
        .reach = Reach(inputs.documents, inputs.starts, tail.defined(), x, weight.size(2)),
        .weight = weight.select(1, 0).t().to(at::kFloat).contiguous(),
        .bias = bias.defined() ? bias.to(at::kFloat).contiguous() : bias,
        .silu = inputs.silu};
    const auto backward = [weight_dtype = weight.scalar_type(),
                           bias_dtype = bias.defined() ? bias.scalar_type() : at::kFloat,
                           silu = inputs.silu](const BackwardCall& call) -> Tensors {
      const Tensors& saved = call.saved;
      const ConvResults results = BackwardFused({.x = saved[0],
                                                 .tail = saved[1],
                                                 .reach = saved[2],
                                                 .weight = saved[3],
                                                 .bias = saved[4],
                                                 .silu = silu},
                                                call.grads[0]);
      const int64_t taps = saved[3].size(0);
      const at::Tensor dweight = results.dweight.narrow(0, 0, taps).t().unsqueeze(1),
                       dbias = saved[4].defined() ? results.dweight.select(0, taps).to(bias_dtype)
                                                  : at::Tensor();
      return {results.dx, dweight.to(weight_dtype), dbias, results.dtail};
    };
    return {.outputs = {ForwardFused(in)},
            .saved = {in.x, in.tail, in.reach, in.weight, in.bias},
            .backward = backward};
  };
  return Apply({.name = "ShortConv", .inputs = {x, weight, bias, tail}, .forward = forward})[0];
}

// In LibTorch calls: fp64, more taps than the loops take, no tokens.
at::Tensor Composed(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2), seq_len = inputs.x.size(1);
  const at::ScalarType compute = ComputeType(inputs.x);
  const at::Tensor extended = WithTail(inputs).to(compute);
  const at::Tensor weight = inputs.weight.to(compute);
  const at::Tensor documents =
      inputs.documents.defined() && seq_len > 0 ? DocumentsWithTail(inputs) : at::Tensor();
  at::Tensor sum = inputs.bias.defined() ? inputs.bias.to(compute) : at::Tensor();
  for (int64_t tap = 0; tap < taps; ++tap) {
    at::Tensor term = extended.narrow(1, tap, seq_len);
    if (documents.defined() && tap + 1 < taps) {
      const at::Tensor same = documents.narrow(1, tap, seq_len) == inputs.documents;
      term = term * same.unsqueeze(2).to(compute);
    }
    term = term * weight.select(2, tap).select(1, 0);
    sum = sum.defined() ? sum + term : term;
  }
  return (inputs.silu ? at::silu(sum) : sum).to(inputs.x.scalar_type());
}

void Check(const ShortConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &weight = inputs.weight, &tail = inputs.tail;
  const at::Tensor &documents = inputs.documents, &starts = inputs.starts;
  CheckDTypes("ShortConv", {x, weight, inputs.bias, tail});
  const bool sizes = x.defined() && x.dim() == 3 && weight.defined() && weight.dim() == 3 &&
                     weight.size(2) >= 1 && FitsBeside(x, weight, {x.size(2), 1, weight.size(2)});
  HL_CHECK(
      sizes && (!tail.defined() || FitsBeside(x, tail, {x.size(0), weight.size(2) - 1, x.size(2)})),
      "ShortConv of x ", Describe(x), " with weight ", Describe(weight), " and tail ",
      Describe(tail),
      "; x [B, T, D], weight [D, 1, W] and tail [B, W-1, D] or none, on one device, would work");
  HL_CHECK(!inputs.bias.defined() || FitsBeside(x, inputs.bias, {x.size(2)}), "ShortConv of x ",
           Describe(x), " with bias ", Describe(inputs.bias),
           "; [D] on the device of x, or none, would work");
  const auto tokens = [&](const at::Tensor& y, at::ScalarType dtype) {
    return FitsBeside(x, y, {x.size(0), x.size(1)}) && y.scalar_type() == dtype;
  };
  HL_CHECK((!documents.defined() && !starts.defined()) ||
               (tokens(documents, at::kLong) && tokens(starts, at::kBool)),
           "ShortConv of x ", Describe(x), " with documents ", Describe(documents), " and starts ",
           Describe(starts),
           "; [B, T] int64 and [B, T] bool on the device of x, or neither, would work");
}

}  // namespace

at::Tensor ShortConv(const ShortConvInputs& inputs) {
  Check(inputs);
  if (inputs.segment != nullptr) {
    HL_CHECK(!inputs.tail.defined(), "ShortConv: a tail of the caller's before a segment");
    ShortConvInputs alone = inputs;
    alone.segment.reset();
    inputs.segment->group->NoteAsked();
    const int64_t length = inputs.weight.size(2) - 1;
    if (length > 0) alone.tail = DocumentBefore(inputs.x, length, *inputs.segment);
    return ShortConv(alone);
  }
  const bool fits = inputs.weight.size(2) <= kConvMaxTaps && inputs.x.numel() > 0 &&
                    (!inputs.bias.defined() || IsFused(inputs.bias));
  if (!IsFused(inputs.x) || !IsFused(inputs.weight) || !fits) return Composed(inputs);
  return FusedShortConv(inputs);
}

at::Tensor ShortConvTail(const ShortConvInputs& inputs) {
  Check(inputs);
  const int64_t length = inputs.weight.size(2) - 1, seq_len = inputs.x.size(1);
  const at::Tensor tail = WithTail(inputs).narrow(1, seq_len, length);
  if (!inputs.documents.defined()) return tail;
  const at::Tensor documents = DocumentsWithTail(inputs).narrow(1, seq_len, length);
  const at::Tensor same = documents == inputs.documents.narrow(1, seq_len - 1, 1);
  return tail * same.unsqueeze(2).to(tail.scalar_type());
}

at::Tensor ShortConvStep(const ShortConvToken& token, at::Tensor& tail) {
  const at::Tensor& x = token.x;
  HL_CHECK(x.dim() == 2 && tail.defined(), "ShortConvStep of x ", Describe(x), " with tail ",
           Describe(tail), "; x [B, D] and a tail would work");
  const c10::AutoGradMode no_grad(false);
  const at::Tensor y = ShortConv({.x = x.unsqueeze(1),
                                  .weight = token.weight,
                                  .bias = token.bias,
                                  .tail = tail,
                                  .documents = {},
                                  .starts = {},
                                  .silu = token.silu})
                           .squeeze(1);
  const int64_t length = tail.size(1);
  tail = tail.to(ComputeType(x));
  // one after the other: a single copy would read what it has written
  for (int64_t i = 0; i + 1 < length; ++i) tail.select(1, i).copy_(tail.select(1, i + 1));
  if (length > 0) tail.select(1, length - 1).copy_(x);
  return y;
}

}  // namespace halflife::kernels
