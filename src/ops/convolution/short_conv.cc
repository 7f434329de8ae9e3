#include "ops/convolution/short_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/convolution/short_conv_args.h"
#include "ops/sequence/tokens_before.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// Returns x preceded by the W-1 tokens before it: [B, W-1+T, D].
at::Tensor WithTail(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2);
  const at::Tensor tail =
      inputs.tail.defined()
          ? inputs.tail.to(inputs.x.scalar_type())
          : at::zeros({inputs.x.size(0), taps - 1, inputs.x.size(2)}, inputs.x.options());
  return at::cat({tail, inputs.x}, 1);
}

// Returns the document of each token of WithTail(). The tail belongs to the slice's first document
// unless a document starts at the first token.
at::Tensor DocumentsWithTail(const ShortConvInputs& inputs) {
  const at::Tensor first = inputs.documents.narrow(1, 0, 1);
  const at::Tensor before = at::where(inputs.starts.narrow(1, 0, 1), first - 1, first);
  return at::cat({before.expand({first.size(0), inputs.weight.size(2) - 1}), inputs.documents}, 1);
}

// Convolutions of the same tokens.
struct ShortConvOp {
  struct Part {
    at::Tensor x, weight, bias, tail;
  };
  struct Inputs {
    std::vector<Part> parts;
  };
  struct Outputs {
    Tensors ys;  // one per part
  };
  // The parts are saved as they were given, because sinks are found by tensor identity.
  struct Saved {
    at::Tensor documents, starts;
    std::vector<Part> parts;
  };
};

// Operands of forward and backward. The rows of x have one stride; all other tensors are
// contiguous. Absent tensors are undefined.
struct ConvOperands {
  at::Tensor x, tail, documents, starts;
  at::Tensor weight;  // [D, 1, W] fp32
  at::Tensor bias;    // [D] fp32
  bool silu;

  template <typename T>
  kernels::ConvShape<T> Shape() const {
    return {.x = Elements<T>(x),
            .tail = Elements<T>(tail),
            .weight = Elements<float>(weight),
            .bias = Elements<float>(bias),
            .documents = Elements<int64_t>(documents),
            .starts = Elements<bool>(starts),
            .batch = x.size(0),
            .seq_len = x.size(1),
            .dim = x.size(2),
            .x_stride = RowStride(x).value(),
            .taps = weight.size(2),
            .silu = silu};
  }
};

ConvOperands Prepare(const ShortConvInputs& given) {
  const auto contiguous = [](const at::Tensor& y) { return y.defined() ? y.contiguous() : y; };
  const auto wide = [](const at::Tensor& y) {
    return y.defined() ? y.to(at::kFloat).contiguous() : y;
  };
  return {.x = RowStride(given.x).has_value() ? given.x : given.x.contiguous(),
          .tail = contiguous(given.tail),
          .documents = contiguous(given.documents),
          .starts = contiguous(given.starts),
          .weight = wide(given.weight),
          .bias = wide(given.bias),
          .silu = given.silu};
}

// The shape as the CPU loops read it: taps with adjacent channels, and how far back each token may
// read.
template <typename T>
class OnCpu {
 public:
  explicit OnCpu(const kernels::ConvShape<T>& given)
      : shape_(given), weight_(given.taps * given.dim), reach_(given.batch * given.seq_len) {
    for (int64_t c = 0; c < given.dim; ++c)
      for (int64_t tap = 0; tap < given.taps; ++tap)
        weight_[tap * given.dim + c] = given.weight[c * given.taps + tap];
    kernels::cpu::FillReach({.documents = given.documents,
                             .starts = given.starts,
                             .reach = reach_.data(),
                             .batch = given.batch,
                             .seq_len = given.seq_len,
                             .taps = given.taps,
                             .has_tail = given.tail != nullptr});
    shape_.weight = weight_.data();
    shape_.reach = reach_.data();
  }
  const kernels::ConvShape<T>& shape() const { return shape_; }
  int64_t num_blocks() const {
    return shape_.batch * kernels::cpu::ConvBlocksPerRow(shape_.seq_len);
  }

 private:
  kernels::ConvShape<T> shape_;
  std::vector<float> weight_;
  std::vector<uint8_t> reach_;
};

template <typename T>
void ForwardOnCpu(const kernels::ConvShape<T>& given, T* out) {
  const OnCpu<T> on_cpu(given);
  at::parallel_for(0, on_cpu.num_blocks(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::ConvForward(on_cpu.shape(), block, out);
  });
}

template <typename T>
void BackwardOnCpu(const kernels::ConvShape<T>& given, const kernels::ConvGrads<T>& grads,
                   const kernels::ConvWeightGrads& weights) {
  const OnCpu<T> on_cpu(given);
  const int64_t num_blocks = on_cpu.num_blocks(), dim = given.dim, taps = given.taps;
  const int64_t size = given.gradient_rows() * dim;
  std::vector<float> partial(num_blocks * size), sum(size);
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<float> scratch(kernels::cpu::kConvScratchRows * dim);
    for (int64_t block = begin; block < end; ++block)
      kernels::cpu::ConvBackward(on_cpu.shape(), grads, block, partial.data() + block * size,
                                 scratch.data());
  });
  kernels::cpu::SumPartials(partial.data(), num_blocks, size, sum.data());
  // The partial sums are added up before they reach the gradient. Adding block by block would round
  // each block to the magnitude of a gradient that was accumulated over many micro-batches.
  kernels::cpu::SumPlaces<float> places = {
      {.out = weights.dweight, .size = taps * dim, .added = weights.weight_added, .rows = taps}};
  if (given.bias != nullptr)
    places.push_back({.out = weights.dbias, .size = dim, .added = weights.bias_added});
  kernels::cpu::SumPartials(sum.data(), 1, places);
}

Tensors ForwardFused(const std::vector<ConvOperands>& operands) {
  Tensors outs;
  const at::Tensor& x = operands[0].x;
  WithStorage(x, [&]<typename T>() {
    kernels::ConvParts<T> args;
    for (const ConvOperands& in : operands) {
      outs.push_back(at::empty(in.x.sizes(), in.x.options()));
      args.parts[args.num_parts++] = {in.Shape<T>(), MutableElements<T>(outs.back())};
    }
    RunOn(
        x,
        [&] {
          for (int i = 0; i < args.num_parts; ++i)
            ForwardOnCpu(args.parts[i].shape, args.parts[i].out);
        },
        [&](auto stream) { kernels::cuda::ConvForward(args, stream); });
  });
  return outs;
}

// Data that the backward of a part needs in addition to the saved tensors.
struct ConvPlan {
  bool silu;
  ColumnSlice x_gradient;
};

// The gradients of one part, and the tensors that its kernel reads.
struct ConvBackwardPart {
  ConvOperands in;
  at::Tensor dout, dx, dtail;
  GradientBuffer weight;
  std::optional<GradientBuffer> bias;

  ConvBackwardPart(const BackwardOf<ShortConvOp>& call, size_t number, const ConvPlan& plan)
      : in(Operands(call.saved, number, plan)),
        dout(call.grads.ys[number].contiguous()),
        dx(plan.x_gradient.EmptyLike(in.x)),
        dtail(in.tail.defined() ? at::empty_like(in.tail) : at::Tensor()),
        weight(call.saved.parts[number].weight,
               call.Wants(&ShortConvOp::Inputs::parts, number, &ShortConvOp::Part::weight)) {
    if (in.bias.defined())
      bias.emplace(call.saved.parts[number].bias,
                   call.Wants(&ShortConvOp::Inputs::parts, number, &ShortConvOp::Part::bias));
  }
  static ConvOperands Operands(const ShortConvOp::Saved& saved, size_t number,
                               const ConvPlan& plan) {
    const ShortConvOp::Part& part = saved.parts[number];
    return Prepare({.x = part.x,
                    .weight = part.weight,
                    .bias = part.bias,
                    .tail = part.tail,
                    .documents = saved.documents,
                    .starts = saved.starts,
                    .silu = plan.silu});
  }

  template <typename T>
  kernels::ConvGradPart<T> Args() const {
    kernels::ConvGradPart<T> part = {.shape = in.Shape<T>(),
                                     .grads = {.dout = Elements<T>(dout),
                                               .dx = MutableElements<T>(dx),
                                               .dx_stride = RowStride(dx).value(),
                                               .dtail = MutableElements<T>(dtail)},
                                     .weights = {.dweight = MutableElements<float>(weight.sum()),
                                                 .weight_added = weight.added()}};
    if (bias.has_value()) {
      part.weights.dbias = MutableElements<float>(bias->sum());
      part.weights.bias_added = bias->added();
    }
    return part;
  }
  ShortConvOp::Part Finish() {
    return {.x = dx,
            .weight = weight.Finish(),
            .bias = bias.has_value() ? bias->Finish() : at::Tensor(),
            .tail = dtail};
  }
};

ShortConvOp::Inputs BackwardFused(const BackwardOf<ShortConvOp>& call,
                                  const std::vector<ConvPlan>& plans) {
  std::vector<ConvBackwardPart> parts;
  for (size_t i = 0; i < plans.size(); ++i) parts.emplace_back(call, i, plans[i]);
  const at::Tensor& x = parts[0].in.x;
  WithStorage(x, [&]<typename T>() {
    kernels::ConvGradParts<T> args;
    for (const ConvBackwardPart& part : parts) args.parts[args.num_parts++] = part.Args<T>();
    RunOn(
        x,
        [&] {
          for (int i = 0; i < args.num_parts; ++i)
            BackwardOnCpu(args.parts[i].shape, args.parts[i].grads, args.parts[i].weights);
        },
        [&](auto stream) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::ConvWorkspaceFloats(args)}, parts[0].in.weight.options());
          kernels::cuda::ConvBackward(args, MutableElements<float>(workspace), stream);
        });
  });
  ShortConvOp::Inputs grads;
  for (ConvBackwardPart& part : parts) grads.parts.push_back(part.Finish());
  return grads;
}

Tensors FusedShortConvs(const std::vector<ShortConvInputs>& given) {
  ShortConvOp::Inputs inputs;
  std::vector<ConvPlan> plans;
  for (const ShortConvInputs& in : given) {
    inputs.parts.push_back(
        {.x = in.x,
         .weight = in.weight,
         .bias = in.bias,
         .tail = in.tail.defined() ? in.tail.to(in.x.scalar_type()) : at::Tensor()});
    plans.push_back({.silu = in.silu, .x_gradient = in.x_gradient});
  }
  const auto forward = [&]() -> ForwardOf<ShortConvOp> {
    std::vector<ConvOperands> operands;
    for (size_t i = 0; i < given.size(); ++i) {
      ShortConvInputs in = given[i];
      in.tail = inputs.parts[i].tail;
      operands.push_back(Prepare(in));
    }
    return {.outputs = {.ys = ForwardFused(operands)},
            .saved = {.documents = operands[0].documents,
                      .starts = operands[0].starts,
                      .parts = inputs.parts},
            .backward = [plans](const auto& call) { return BackwardFused(call, plans); }};
  };
  return Apply<ShortConvOp>({.name = "ShortConv", .inputs = inputs, .forward = forward}).ys;
}

// In LibTorch calls: for fp64, for more taps than the kernels support and for no tokens.
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
      const at::Tensor other = documents.narrow(1, tap, seq_len) != inputs.documents;
      term = term.masked_fill(other.unsqueeze(2), 0);  // masked, because NaN times 0 is NaN
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
                     weight.size(2) >= 1 && FitsWith(x, weight, {x.size(2), 1, weight.size(2)});
  HL_CHECK(
      sizes && (!tail.defined() || FitsWith(x, tail, {x.size(0), weight.size(2) - 1, x.size(2)})),
      "ShortConv got x ", Describe(x), " with weight ", Describe(weight), " and tail ",
      Describe(tail),
      ". Use x [B, T, D], weight [D, 1, W] and tail [B, W-1, D] or none, on one device.");
  HL_CHECK(!inputs.bias.defined() || FitsWith(x, inputs.bias, {x.size(2)}), "ShortConv got x ",
           Describe(x), " with bias ", Describe(inputs.bias),
           ". Use [D] on the same device, or none.");
  const auto tokens = [&](const at::Tensor& y, at::ScalarType dtype) {
    return FitsWith(x, y, {x.size(0), x.size(1)}) && y.scalar_type() == dtype;
  };
  HL_CHECK((!documents.defined() && !starts.defined()) ||
               (tokens(documents, at::kLong) && tokens(starts, at::kBool)),
           "ShortConv got x ", Describe(x), " with documents ", Describe(documents), " and starts ",
           Describe(starts), ". Use [B, T] int64 and [B, T] bool on the device of x, or neither.");
}

// Returns true if the kernels support the convolution.
bool HasConvKernel(const ShortConvInputs& inputs) {
  const bool fits = inputs.weight.size(2) <= kernels::kConvMaxTaps && inputs.x.numel() > 0 &&
                    (!inputs.bias.defined() || IsFused(inputs.bias));
  return IsFused(inputs.x) && IsFused(inputs.weight) && fits;
}

// Returns true if one launch can compute both.
bool CanShareLaunch(const ShortConvInputs& one, const ShortConvInputs& other) {
  const auto same = [](const at::Tensor& x, const at::Tensor& y) {
    return x.defined() == y.defined() && (!x.defined() || x.is_same(y));
  };
  return one.x.size(0) == other.x.size(0) && one.x.size(1) == other.x.size(1) &&
         one.x.scalar_type() == other.x.scalar_type() && one.x.device() == other.x.device() &&
         one.weight.size(2) == other.weight.size(2) && !one.bias.defined() &&
         !other.bias.defined() && same(one.documents, other.documents) &&
         same(one.starts, other.starts);
}

// Returns the inputs with the tail that a segment gets from the previous rank.
ShortConvInputs WithSegmentTail(const ShortConvInputs& inputs) {
  if (inputs.segment == nullptr) return inputs;
  HL_CHECK(!inputs.tail.defined(),
           "ShortConv: a segment with a tail. Pass no tail: it comes from the previous rank.");
  ShortConvInputs alone = inputs;
  alone.segment.reset();
  inputs.segment->group->RecordRead();
  const int64_t length = inputs.weight.size(2) - 1;
  if (length > 0) alone.tail = DocumentBefore(inputs.x, length, *inputs.segment);
  return alone;
}

}  // namespace

std::vector<at::Tensor> ShortConvs(const std::vector<ShortConvInputs>& given) {
  std::vector<ShortConvInputs> inputs;
  for (const ShortConvInputs& in : given) {
    Check(in);
    inputs.push_back(WithSegmentTail(in));
  }
  const bool together = !inputs.empty() && inputs.size() <= kernels::kConvParts &&
                        std::ranges::all_of(inputs, [&](const ShortConvInputs& in) {
                          return HasConvKernel(in) && CanShareLaunch(inputs[0], in);
                        });
  if (together) return FusedShortConvs(inputs);
  Tensors outs;
  for (const ShortConvInputs& in : inputs)
    outs.push_back(HasConvKernel(in) ? FusedShortConvs({in})[0] : Composed(in));
  return outs;
}

at::Tensor ShortConv(const ShortConvInputs& inputs) { return ShortConvs({inputs})[0]; }

at::Tensor ShortConvTail(const ShortConvInputs& inputs) {
  Check(inputs);
  const int64_t length = inputs.weight.size(2) - 1, seq_len = inputs.x.size(1);
  const at::Tensor tail = WithTail(inputs).narrow(1, seq_len, length);
  if (!inputs.documents.defined() || seq_len == 0) return tail;
  const at::Tensor documents = DocumentsWithTail(inputs).narrow(1, seq_len, length);
  const at::Tensor other = documents != inputs.documents.narrow(1, seq_len - 1, 1);
  return tail.masked_fill(other.unsqueeze(2), 0);
}

at::Tensor ShortConvStep(const ShortConvToken& token, at::Tensor& tail) {
  const at::Tensor& x = token.x;
  HL_CHECK(x.dim() == 2 && tail.defined(), "ShortConvStep got x ", Describe(x), " with tail ",
           Describe(tail), ". Use x [B, D] and a tail.");
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
  // Moves one token at a time: a single copy would read elements that it has already overwritten.
  for (int64_t i = 0; i + 1 < length; ++i) tail.select(1, i).copy_(tail.select(1, i + 1));
  if (length > 0) tail.select(1, length - 1).copy_(x);
  return y;
}

}  // namespace halflife::ops
