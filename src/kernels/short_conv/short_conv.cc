#include "kernels/short_conv/short_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/short_conv/args.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// x with the W-1 tokens before it: [B, W-1+T, D].
at::Tensor WithTail(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2);
  const at::Tensor tail =
      inputs.tail.defined()
          ? inputs.tail.to(inputs.x.scalar_type())
          : at::zeros({inputs.x.size(0), taps - 1, inputs.x.size(2)}, inputs.x.options());
  return at::cat({tail, inputs.x}, 1);
}

// Document of each token of WithTail. The tail belongs to the slice's first document unless one starts right there.
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

  template <typename T>
  ConvShape<T> Shape() const {
    return {.x = Elements<T>(x),
            .tail = Elements<T>(tail),
            .weight = Elements<float>(weight),
            .reach = Elements<uint8_t>(reach),
            .batch = x.size(0),
            .seq_len = x.size(1),
            .dim = x.size(2),
            .taps = weight.size(0)};
  }
};

template <typename T>
void ForwardOnCpu(const ConvShape<T>& shape, T* out) {
  const int64_t num_blocks = shape.batch * cpu::ConvBlocksPerRow(shape.seq_len);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) cpu::ConvForward(shape, block, out);
  });
}

// dweight [W, D] is overwritten.
template <typename T>
void BackwardOnCpu(const ConvShape<T>& shape, const ConvGrads<T>& grads, float* dweight) {
  const int64_t num_blocks = shape.batch * cpu::ConvBlocksPerRow(shape.seq_len);
  const int64_t size = shape.taps * shape.dim;
  std::vector<float> partial(num_blocks * size);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch((cpu::kConvTokensPerBlock + kConvMaxTaps) * shape.dim);
    for (int64_t block = begin; block < end; ++block)
      cpu::ConvBackward(shape, grads, block, partial.data() + block * size, scratch.data());
  });
  std::fill(dweight, dweight + size, 0.0f);
  for (size_t i = 0; i < partial.size(); ++i) dweight[i % size] += partial[i];
}

struct ShortConvFunction : torch::autograd::Function<ShortConvFunction> {
  using Optional = std::optional<at::Tensor>;

  // `tail` has the dtype of x.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const Optional& tail, const Optional& documents,
                            const Optional& starts) {
    const int64_t taps = weight.size(2);
    const Inputs in = {.x = x.contiguous(),
                       .tail = tail ? tail->contiguous() : at::Tensor(),
                       .reach = Reach(documents.value_or(at::Tensor()),
                                      starts.value_or(at::Tensor()), tail.has_value(), x, taps),
                       .weight = weight.select(1, 0).t().to(at::kFloat).contiguous()};
    at::Tensor out = at::empty_like(in.x);
    WithStorage(x, [&]<typename T>() {
      const ConvShape<T> shape = in.Shape<T>();
      RunOn(
          x, [&] { ForwardOnCpu(shape, MutableElements<T>(out)); },
          [&](auto stream) { cuda::ConvForward(shape, MutableElements<T>(out), stream); });
    });
    context->saved_data["weight_dtype"] = static_cast<int64_t>(weight.scalar_type());
    context->save_for_backward({in.x, in.tail, in.reach, in.weight});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const Inputs in = {.x = saved[0], .tail = saved[1], .reach = saved[2], .weight = saved[3]};
    const at::Tensor dout = grads[0].contiguous();
    const at::Tensor dx = at::empty_like(in.x), dweight = at::empty_like(in.weight);
    const at::Tensor dtail = in.tail.defined() ? at::empty_like(in.tail) : at::Tensor();
    WithStorage(in.x, [&]<typename T>() {
      const ConvShape<T> shape = in.Shape<T>();
      const ConvGrads<T> results = {.dout = Elements<T>(dout),
                                    .dx = MutableElements<T>(dx),
                                    .dtail = MutableElements<T>(dtail)};
      auto* const sum = MutableElements<float>(dweight);
      RunOn(
          in.x, [&] { BackwardOnCpu(shape, results, sum); },
          [&](auto stream) {
            const at::Tensor workspace = at::empty(
                {cuda::ConvWorkspaceFloats(shape.batch, shape.seq_len, shape.dim, shape.taps)},
                in.weight.options());
            cuda::ConvBackward(shape, results, sum, MutableElements<float>(workspace), stream);
          });
    });
    const auto dtype = static_cast<at::ScalarType>(context->saved_data["weight_dtype"].toInt());
    return {dx, dweight.t().unsqueeze(1).to(dtype), dtail, at::Tensor(), at::Tensor()};
  }
};

// In LibTorch calls: fp64, more taps than the loops take, no tokens.
at::Tensor Composed(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2), seq_len = inputs.x.size(1);
  const at::ScalarType compute = ComputeType(inputs.x);
  const at::Tensor extended = WithTail(inputs).to(compute);
  const at::Tensor weight = inputs.weight.to(compute);
  const at::Tensor documents =
      inputs.documents.defined() ? DocumentsWithTail(inputs) : at::Tensor();
  at::Tensor sum;
  for (int64_t tap = 0; tap < taps; ++tap) {
    at::Tensor term = extended.narrow(1, tap, seq_len);
    if (documents.defined() && tap + 1 < taps) {
      const at::Tensor same = documents.narrow(1, tap, seq_len) == inputs.documents;
      term = term * same.unsqueeze(2).to(compute);
    }
    term = term * weight.select(2, tap).select(1, 0);
    sum = sum.defined() ? sum + term : term;
  }
  return at::silu(sum).to(inputs.x.scalar_type());
}

void Check(const ShortConvInputs& inputs) {
  const at::Tensor &x = inputs.x, &weight = inputs.weight, &tail = inputs.tail;
  const at::Tensor &documents = inputs.documents, &starts = inputs.starts;
  CheckDTypes("ShortConv", {x, weight, tail});
  const bool sizes = x.defined() && x.dim() == 3 && weight.defined() && weight.dim() == 3 &&
                     weight.size(2) >= 1 && FitsBeside(x, weight, {x.size(2), 1, weight.size(2)});
  HL_CHECK(
      sizes && (!tail.defined() || FitsBeside(x, tail, {x.size(0), weight.size(2) - 1, x.size(2)})),
      "ShortConv of x ", Describe(x), " with weight ", Describe(weight), " and tail ",
      Describe(tail),
      "; x [B, T, D], weight [D, 1, W] and tail [B, W-1, D] or none, on one device, would work");
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
  const bool fits = inputs.weight.size(2) <= kConvMaxTaps && inputs.x.numel() > 0;
  if (!IsFused(inputs.x) || !IsFused(inputs.weight) || !fits) return Composed(inputs);
  const auto optional = [](const at::Tensor& x) {
    return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
  };
  return ShortConvFunction::apply(
      inputs.x, inputs.weight,
      optional(inputs.tail.defined() ? inputs.tail.to(inputs.x.scalar_type()) : inputs.tail),
      optional(inputs.documents), optional(inputs.starts));
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

at::Tensor ShortConvStep(const at::Tensor& x, const at::Tensor& weight, at::Tensor& tail) {
  HL_CHECK(x.dim() == 2 && tail.defined(), "ShortConvStep of x ", Describe(x), " with tail ",
           Describe(tail), "; x [B, D] and a tail would work");
  const c10::AutoGradMode no_grad(false);
  const at::Tensor y =
      ShortConv(
          {.x = x.unsqueeze(1), .weight = weight, .tail = tail, .documents = {}, .starts = {}})
          .squeeze(1);
  const int64_t length = tail.size(1);
  tail = tail.to(ComputeType(x));
  // one after the other: a single copy would read what it has written
  for (int64_t i = 0; i + 1 < length; ++i) tail.select(1, i).copy_(tail.select(1, i + 1));
  if (length > 0) tail.select(1, length - 1).copy_(x);
  return y;
}

}  // namespace halflife::kernels
