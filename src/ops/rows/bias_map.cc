#include "ops/rows/bias_map.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/silu.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

#include "core/error.h"
#include "kernels/common/sum_partials.h"
#include "kernels/rows/bias_map_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

bool DoesNothing(const BiasedInput& part) {
  return !part.bias.defined() && !part.gain.defined() && part.map == kernels::ElementMap::kIdentity;
}

// Returns true if the inputs of all parts are adjacent columns of one matrix, in order.
bool AreColumns(const std::vector<BiasedInput>& parts) {
  const at::Tensor& first = parts[0].x;
  int64_t width = 0;
  for (const BiasedInput& part : parts) {
    const bool follows = part.x.storage().is_alias_of(first.storage()) &&
                         part.x.storage_offset() - first.storage_offset() == width &&
                         RowStride(part.x) == RowStride(first);
    if (!follows) return false;
    width += part.x.size(-1);
  }
  return parts.size() > 1 && RowStride(first).value_or(0) >= width && NumRows(first) > 1;
}

// Returns the parts in the form that the kernels read: rows with a constant stride.
std::vector<BiasedInput> WithRows(std::vector<BiasedInput> parts) {
  for (BiasedInput& part : parts) {
    if (!RowStride(part.x).has_value()) part.x = part.x.contiguous();
    if (part.bias.defined()) part.bias = part.bias.contiguous();
    if (part.gain.defined()) part.gain = part.gain.contiguous();
  }
  return parts;
}

Tensors ForwardFused(const std::vector<BiasedInput>& parts) {
  const at::Tensor& x = parts[0].x;
  Tensors outs;
  WithStorage(x, [&]<typename T>() {
    kernels::BiasMapArgs<T> args;
    args.num_rows = NumRows(x);
    for (const BiasedInput& part : parts) {
      outs.push_back(at::empty(part.x.sizes(), x.options()));
      args.parts[args.num_parts++] = {.x = Elements<T>(part.x),
                                      .bias = Elements<T>(part.bias),
                                      .gain = Elements<float>(part.gain),
                                      .out = MutableElements<T>(outs.back()),
                                      .width = part.x.size(-1),
                                      .stride = RowStride(part.x).value(),
                                      .map = part.map};
    }
    RunRows(
        x, {.count = args.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
        [&](int64_t begin, int64_t end) { kernels::cpu::BiasMapForward(args, begin, end); },
        [&](auto stream) { kernels::cuda::BiasMapForward(args, stream); });
  });
  return outs;
}

template <typename T>
void BackwardOnCpu(const kernels::BiasMapGradArgs<T>& args) {
  const PartialSums partial =
      SumBlocks({.count = args.num_rows, .per_task = kernels::cpu::kRowsPerPartial},
                args.num_columns(), [&](int64_t begin, int64_t end, float* sum) {
                  kernels::cpu::BiasMapBackward(args, begin, end, sum);
                });
  kernels::cpu::SumPlaces<float> sums;
  for (int i = 0; i < args.num_parts; ++i) {
    const kernels::BiasMapGradColumns<T>& part = args.parts[i];
    sums.push_back({.out = part.dbias, .size = part.width, .added = part.added});
  }
  for (int i = 0; i < args.num_parts; ++i) {
    const kernels::BiasMapGradColumns<T>& part = args.parts[i];
    if (part.dgain != nullptr)
      sums.push_back({.out = part.dgain, .size = part.width, .added = part.gain_added});
  }
  kernels::cpu::SumPartials(partial.values.data(), partial.num_blocks, sums);
}

// The parameters that a backward needs in addition to the saved tensors.
struct Layout {
  std::vector<kernels::ElementMap> maps;
  std::vector<ColumnSlice> columns;  // buffers for the gradients of the inputs
  bool joined = false;  // true: no such buffers, but the inputs were columns of one matrix
};
// The tensors of one part that a forward saves. bias and gain are kept as they were given, because
// their sinks are found by tensor identity. The kernels read dense copies.
struct SavedPart {
  at::Tensor bias, gain;
  at::Tensor read;  // the output for elu + 1; the input for SiLU or with a gain

  SavedPart Dense() const {
    SavedPart dense = *this;
    if (bias.defined()) dense.bias = bias.contiguous();
    if (gain.defined()) dense.gain = gain.contiguous();
    return dense;
  }
};

struct BiasMapOp {
  struct Part {
    at::Tensor x, bias, gain;
  };
  struct Inputs {
    std::vector<Part> parts;
  };
  struct Outputs {
    Tensors outs;  // one per part
  };
  struct Saved {
    std::vector<SavedPart> parts;
  };
};

// Returns the buffers for the gradients of the inputs; undefined if the gradient of the output can
// be returned as it is.
Tensors InputGradientBuffers(const Layout& layout, const std::vector<SavedPart>& saved,
                             const Tensors& douts) {
  Tensors places(douts.size());
  if (!layout.joined) {
    for (size_t i = 0; i < douts.size(); ++i)
      if (layout.maps[i] != kernels::ElementMap::kIdentity ||
          layout.columns[i].columns != nullptr || saved[i].gain.defined())
        places[i] = layout.columns[i].EmptyLike(douts[i]);
    return places;
  }
  std::vector<int64_t> shape = douts[0].sizes().vec();
  shape.back() =
      std::accumulate(douts.begin(), douts.end(), int64_t{0},
                      [](int64_t sum, const at::Tensor& dout) { return sum + dout.size(-1); });
  const at::Tensor all = at::empty(shape, douts[0].options());
  int64_t column = 0;
  for (size_t i = 0; i < douts.size(); column += douts[i].size(-1), ++i)
    places[i] = all.narrow(-1, column, douts[i].size(-1));
  return places;
}

// The buffers in which the gradients of a part's bias and gain are summed.
struct PartBuffers {
  std::optional<GradientBuffer> bias, gain;

  PartBuffers(const BackwardOf<BiasMapOp>& call, size_t number) {
    const SavedPart& part = call.saved.parts[number];
    const auto wants = [&](at::Tensor BiasMapOp::Part::*input) {
      return call.Wants(&BiasMapOp::Inputs::parts, number, input);
    };
    if (part.bias.defined() && wants(&BiasMapOp::Part::bias)) bias.emplace(part.bias, true);
    if (part.gain.defined() && wants(&BiasMapOp::Part::gain)) gain.emplace(part.gain, true);
  }
  static at::Tensor Finish(std::optional<GradientBuffer>& place) {
    return place.has_value() ? place->Finish() : at::Tensor();
  }
};

template <typename T>
kernels::BiasMapGradColumns<T> GradColumnsOf(const SavedPart& saved, kernels::ElementMap map,
                                             const at::Tensor& dout, const at::Tensor& dx,
                                             PartBuffers& places) {
  const int64_t width = dout.size(-1);
  kernels::BiasMapGradColumns<T> part = {.dout = Elements<T>(dout),
                                         .dx = MutableElements<T>(dx),
                                         .width = width,
                                         .stride = dx.defined() ? RowStride(dx).value() : width,
                                         .map = map,
                                         .gain = Elements<float>(saved.gain)};
  if (map == kernels::ElementMap::kEluPlusOne) {
    part.out = Elements<T>(saved.read);
  } else if (saved.read.defined()) {
    part.x = Elements<T>(saved.read);
    part.x_stride = RowStride(saved.read).value();
  }
  if (map == kernels::ElementMap::kSilu) part.bias = Elements<T>(saved.bias);
  if (places.bias.has_value())
    part.dbias = MutableElements<float>(places.bias->sum()), part.added = places.bias->added();
  if (places.gain.has_value())
    part.dgain = MutableElements<float>(places.gain->sum()), part.gain_added = places.gain->added();
  return part;
}

BiasMapOp::Inputs BackwardFused(const BackwardOf<BiasMapOp>& call, const Layout& layout) {
  const size_t num_parts = layout.maps.size();
  Tensors douts;
  for (const at::Tensor& dout : call.grads.outs) douts.push_back(dout.contiguous());
  const Tensors dx = InputGradientBuffers(layout, call.saved.parts, douts);
  std::vector<PartBuffers> places;
  bool runs = false;
  for (size_t i = 0; i < num_parts; ++i) {
    const PartBuffers& own = places.emplace_back(call, i);
    runs = runs || dx[i].defined() || own.bias.has_value() || own.gain.has_value();
  }
  WithStorage(douts[0], [&]<typename T>() {
    kernels::BiasMapGradArgs<T> args;
    args.num_rows = NumRows(douts[0]);
    std::vector<SavedPart> dense;  // keeps the tensors alive until the kernel has read them
    for (size_t i = 0; i < num_parts; ++i) {
      dense.push_back(call.saved.parts[i].Dense());
      args.parts[args.num_parts++] =
          GradColumnsOf<T>(dense.back(), layout.maps[i], douts[i], dx[i], places[i]);
    }
    if (!runs) return;
    RunOn(
        douts[0], [&] { BackwardOnCpu(args); },
        [&](auto stream) {
          const at::Tensor partials =
              at::empty({kernels::cuda::NumRowPartials(args.num_rows) * args.num_columns()},
                        douts[0].options().dtype(at::kFloat));
          kernels::cuda::BiasMapBackward(args, MutableElements<float>(partials), stream);
        });
  });
  BiasMapOp::Inputs grads;
  for (size_t i = 0; i < num_parts; ++i)
    grads.parts.push_back({.x = dx[i].defined() ? dx[i] : call.grads.outs[i],
                           .bias = PartBuffers::Finish(places[i].bias),
                           .gain = PartBuffers::Finish(places[i].gain)});
  return grads;
}

Tensors Fused(const std::vector<BiasedInput>& given) {
  BiasMapOp::Inputs inputs;
  for (const BiasedInput& part : given)
    inputs.parts.push_back({.x = part.x, .bias = part.bias, .gain = part.gain});
  const auto forward = [&]() -> ForwardOf<BiasMapOp> {
    const std::vector<BiasedInput> parts = WithRows(given);
    ForwardOf<BiasMapOp> result = {
        .outputs = {.outs = ForwardFused(parts)}, .saved = {}, .backward = {}};
    Layout layout = {.maps = {}, .columns = {}, .joined = AreColumns(parts)};
    for (size_t i = 0; i < parts.size(); ++i) {
      const BiasedInput& part = parts[i];
      layout.maps.push_back(part.map);
      layout.columns.push_back(part.gradient);
      layout.joined = layout.joined && part.gradient.columns == nullptr;
      at::Tensor read;
      if (part.map == kernels::ElementMap::kEluPlusOne) read = result.outputs.outs[i];
      if (part.map == kernels::ElementMap::kSilu || part.gain.defined()) read = part.x;
      result.saved.parts.push_back({.bias = given[i].bias, .gain = given[i].gain, .read = read});
    }
    result.backward = [layout](const auto& call) { return BackwardFused(call, layout); };
    return result;
  };
  return Apply<BiasMapOp>({.name = "BiasMap", .inputs = inputs, .forward = forward}).outs;
}

struct EluPlusOneOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor feature;
  };
  using Saved = Outputs;
};

// e^min(x, 0) + max(x, 0) in LibTorch calls, at least in fp32. elu(x) + 1 would be rounded before
// the 1 is added, and would lose features below 1e-7 (in bf16 below 0.002).
at::Tensor EluPlusOne(const at::Tensor& x) {
  const auto backward = [](const BackwardOf<EluPlusOneOp>& call) -> EluPlusOneOp::Inputs {
    return {.x = call.grads.feature * call.saved.feature.clamp_max(1)};
  };
  const auto forward = [&]() -> ForwardOf<EluPlusOneOp> {
    const at::Tensor wide = x.to(ComputeType(x));
    const at::Tensor feature = wide.clamp_max(0).exp_().add_(wide.clamp_min(0)).to(x.scalar_type());
    return {.outputs = {.feature = feature}, .saved = {.feature = feature}, .backward = backward};
  };
  return Apply<EluPlusOneOp>({.name = "EluPlusOne", .inputs = {.x = x}, .forward = forward})
      .feature;
}

at::Tensor Composed(const BiasedInput& part) {
  at::Tensor y = part.x;
  if (part.gain.defined()) y = (y.to(ComputeType(y)) * part.gain).to(y.scalar_type());
  if (part.bias.defined()) y = y + part.bias;
  switch (part.map) {
    case kernels::ElementMap::kEluPlusOne:
      return EluPlusOne(y);
    case kernels::ElementMap::kSilu:
      return at::silu(y);
    case kernels::ElementMap::kIdentity:
      break;
  }
  return y;
}

// Returns the number of row sums that the gradients of biases and gains need in one pass.
size_t NumSums(const std::vector<BiasedInput>& parts) {
  size_t count = 0;
  for (const BiasedInput& part : parts) count += part.gain.defined() ? 2 : 1;
  return count;
}

// Returns true if `part` can share a pass with `first`.
bool Fits(const BiasedInput& part, const BiasedInput& first) {
  const at::Tensor& x = part.x;
  return IsFused(x) && x.dim() >= 1 && x.numel() > 0 && x.scalar_type() == first.x.scalar_type() &&
         x.device() == first.x.device() && NumRows(x) == NumRows(first.x) &&
         (!part.bias.defined() ||
          (FitsWith(x, part.bias, {x.size(-1)}) && part.bias.scalar_type() == x.scalar_type())) &&
         (!part.gain.defined() ||
          (FitsWith(x, part.gain, {x.size(-1)}) && part.gain.scalar_type() == at::kFloat));
}

}  // namespace

std::vector<at::Tensor> BiasMap(const std::vector<BiasedInput>& parts) {
  std::vector<BiasedInput> fused;
  std::vector<size_t> numbers;
  Tensors outs(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    const BiasedInput& part = parts[i];
    CheckDTypes("BiasMap", {part.x, part.bias});
    HL_CHECK(part.x.defined(), "BiasMap: part ", i, " has no x. Pass a tensor.");
    HL_CHECK(!part.gain.defined() || part.map == kernels::ElementMap::kIdentity, "BiasMap: part ",
             i, " has a gain and a map. Use one of them.");
    if (DoesNothing(part)) {
      outs[i] = part.x;
    } else if (NumSums(fused) + NumSums({part}) <= kernels::kBiasMapParts &&
               Fits(part, fused.empty() ? part : fused[0])) {
      fused.push_back(part);
      numbers.push_back(i);
    } else {
      outs[i] = Composed(part);
    }
  }
  if (fused.empty()) return outs;
  const Tensors results = Fused(fused);
  for (size_t i = 0; i < numbers.size(); ++i) outs[numbers[i]] = results[i];
  return outs;
}

}  // namespace halflife::ops
