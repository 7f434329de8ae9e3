#include "ops/convolution/fft_conv.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/conj_physical.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/fft_irfft.h>
#include <ATen/ops/fft_rfft.h>
#include <ATen/ops/outer.h>

#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "core/concat.h"
#include "core/error.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/convolution/fft_conv_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gpu_route.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

constexpr const char* kLongConvolution = "long convolution";

// `inputs` is x or, if gated, the branches. `skip` may be undefined.
struct FftConvOp {
  struct Inputs {
    at::Tensor inputs, filter, skip;
  };
  struct Outputs {
    at::Tensor y;
  };
  using Saved = Inputs;  // contiguous
};

// One call of either function. `inputs` is x or, if gated, the branches.
struct FftConvCall {
  at::Tensor inputs, filter, skip;
  FilterWindow window;
  bool gated = false;

  int64_t batch() const { return inputs.size(0); }
  int64_t seq_len() const { return inputs.size(1); }
  int64_t dim() const { return filter.size(1); }
  int64_t length() const { return kernels::FftConvLength(seq_len()); }
  // Returns the columns of one branch.
  at::Tensor branch(int64_t number) const { return inputs.narrow(2, number * dim(), dim()); }
};

at::Tensor TablesOn(at::Device device, int64_t length) {
  return NamedConstantOn(device, Concat("fft_conv ", length), [&] {
    const std::vector<kernels::fft::Complex> tables = kernels::FftConvTables(length);
    return std::string(reinterpret_cast<const char*>(tables.data()),
                       tables.size() * sizeof(kernels::fft::Complex));
  });
}

template <typename T>
kernels::FftConvArgs<T> ArgsOf(const FftConvCall& call, const at::Tensor& tables) {
  kernels::FftConvArgs<T> args = {
      .filter = {.filter = Elements<float>(call.filter),
                 .skip = Elements<float>(call.skip),
                 .window_first = static_cast<float>(call.window.first),
                 .window_step = static_cast<float>(call.window.step),
                 .tables = reinterpret_cast<const kernels::fft::Complex*>(tables.const_data_ptr()),
                 .seq_len = call.seq_len(),
                 .dim = call.dim(),
                 .length = call.length()},
      .x = Elements<T>(call.inputs),
      .stride = call.inputs.size(2),
      .batch = call.batch()};
  if (call.gated) {
    args.x_gate = args.x;
    args.y_gate = args.x + call.dim();
    args.x += 2 * call.dim();
  }
  return args;
}

// Calls run(group, scratch) for each group of channels.
template <typename Run>
void ForEachGroup(const FftConvCall& call, bool backward, const Run& run) {
  kernels::cpu::Parallel(
      kLongConvolution, kernels::cpu::FftConvGroups(call.dim()),
      static_cast<size_t>(kernels::cpu::FftConvScratchBytes(call.length(), backward)),
      [&](int64_t group, void* scratch) { run(group, static_cast<float*>(scratch)); });
}

at::Tensor WorkspaceOf(const FftConvCall& call, const kernels::FftConvFilter& filter,
                       bool backward) {
  return at::empty({kernels::cuda::FftConvWorkspaceBytes(filter, call.batch(), backward)},
                   call.inputs.options().dtype(at::kByte));
}

at::Tensor ForwardFused(const FftConvCall& call) {
  const at::Tensor y = at::empty({call.batch(), call.seq_len(), call.dim()}, call.inputs.options());
  const at::Tensor tables = TablesOn(y.device(), call.length());
  WithStorage(y, [&]<typename T>() {
    const kernels::FftConvArgs<T> args = ArgsOf<T>(call, tables);
    T* const to = MutableElements<T>(y);
    RunOn(
        y,
        [&] {
          ForEachGroup(call, /*backward=*/false, [&](int64_t group, float* scratch) {
            kernels::cpu::FftConvForward(args, group, to, scratch);
          });
        },
        [&](auto stream) {
          const at::Tensor workspace = WorkspaceOf(call, args.filter, /*backward=*/false);
          kernels::cuda::FftConvForward(args, to, workspace.mutable_data_ptr(), stream);
        });
  });
  return y;
}

template <typename T>
kernels::FftConvGrads<T> GradsOf(const FftConvCall& call, const at::Tensor& dy,
                                 const at::Tensor& dinputs,
                                 const kernels::FftConvFilterGrads& learned) {
  kernels::FftConvGrads<T> grads = {.dy = Elements<T>(dy),
                                    .dx = MutableElements<T>(dinputs),
                                    .stride = dinputs.size(2),
                                    .learned = learned};
  if (call.gated) {
    grads.dg = grads.dx;
    grads.dz = grads.dx + call.dim();
    grads.dx += 2 * call.dim();
  }
  return grads;
}

FftConvOp::Inputs BackwardFused(const FftConvCall& call, const BackwardOf<FftConvOp>& backward) {
  const at::Tensor dy = backward.grads.y.contiguous();
  const at::Tensor dinputs = at::empty(call.inputs.sizes(), call.inputs.options());
  const at::Tensor tables = TablesOn(dy.device(), call.length());
  GradientBuffer filter(call.filter, backward.Wants(&FftConvOp::Inputs::filter));
  std::optional<GradientBuffer> skip;
  if (call.skip.defined()) skip.emplace(call.skip, backward.Wants(&FftConvOp::Inputs::skip));
  const kernels::FftConvFilterGrads learned = {
      .dfilter = MutableElements<float>(filter.sum()),
      .dskip = skip.has_value() ? MutableElements<float>(skip->sum()) : nullptr,
      .filter_added = filter.added(),
      .skip_added = skip.has_value() && skip->added()};
  WithStorage(dy, [&]<typename T>() {
    const kernels::FftConvArgs<T> args = ArgsOf<T>(call, tables);
    const kernels::FftConvGrads<T> grads = GradsOf<T>(call, dy, dinputs, learned);
    RunOn(
        dy,
        [&] {
          ForEachGroup(call, /*backward=*/true, [&](int64_t group, float* scratch) {
            kernels::cpu::FftConvBackward(args, grads, group, scratch);
          });
        },
        [&](auto stream) {
          const at::Tensor workspace = WorkspaceOf(call, args.filter, /*backward=*/true);
          kernels::cuda::FftConvBackward(args, grads, workspace.mutable_data_ptr(), stream);
        });
  });
  return {.inputs = dinputs,
          .filter = filter.Finish(),
          .skip = skip.has_value() ? skip->Finish() : at::Tensor()};
}

at::Tensor Fused(const FftConvCall& given) {
  FftConvCall call = given;
  call.inputs = given.inputs.contiguous();
  call.filter = given.filter.contiguous();
  if (given.skip.defined()) call.skip = given.skip.contiguous();
  const FftConvOp::Inputs inputs = {
      .inputs = call.inputs, .filter = call.filter, .skip = call.skip};
  const auto backward = [window = call.window,
                         gated = call.gated](const BackwardOf<FftConvOp>& of) {
    const FftConvCall saved = {.inputs = of.saved.inputs,
                               .filter = of.saved.filter,
                               .skip = of.saved.skip,
                               .window = window,
                               .gated = gated};
    return BackwardFused(saved, of);
  };
  const auto forward = [&]() -> ForwardOf<FftConvOp> {
    return {.outputs = {.y = ForwardFused(call)}, .saved = inputs, .backward = backward};
  };
  return Apply<FftConvOp>({.name = "FftConv", .inputs = inputs, .forward = forward}).y;
}

// ---- in LibTorch calls ----

// The convolution by LibTorch's FFT of twice the length, so that nothing wraps around. The backward
// keeps x and the filter's spectrum.
class Transforms {
 public:
  explicit Transforms(const at::Tensor& x)
      : seq_len_(x.size(1)),
        // The smallest power of two that holds the product of two polynomials of T terms.
        length_(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(2 * seq_len_ - 1)))) {}

  at::Tensor Spectrum(const at::Tensor& rows) const {  // [rows, T, D] -> [rows, D, F]
    return at::fft_rfft(rows.transpose(1, 2), length_);
  }
  at::Tensor Inverse(const at::Tensor& spectrum) const {  // [rows, T, D]
    return at::fft_irfft(spectrum, length_).narrow(2, 0, seq_len_).transpose(1, 2).contiguous();
  }

 private:
  int64_t seq_len_, length_;
};

struct ComposedFftConvOp {
  struct Inputs {
    at::Tensor x, filter;
  };
  struct Outputs {
    at::Tensor y;
  };
  struct Saved {
    at::Tensor x;
    at::Tensor spectrum;  // of the filter
  };
};

// With X, H and G the transforms of x, the filter and dy: dx is the inverse transform of G conj(H),
// and dfilter that of G conj(X) summed over the rows. X is recomputed, which is faster than keeping
// it.
ComposedFftConvOp::Inputs ComposedBackward(const BackwardOf<ComposedFftConvOp>& call) {
  using Inputs = ComposedFftConvOp::Inputs;
  const auto& [x, spectrum] = call.saved;
  const Transforms transforms(x);
  const at::Tensor of_dy = transforms.Spectrum(call.grads.y);
  Inputs grads;
  if (call.Wants(&Inputs::x)) grads.x = transforms.Inverse(of_dy * at::conj_physical(spectrum));
  if (call.Wants(&Inputs::filter)) {
    const at::Tensor sum =
        transforms.Spectrum(x).conj_physical_().mul_(of_dy).sum(0, /*keepdim=*/true);
    grads.filter = transforms.Inverse(sum)[0];
  }
  return grads;
}

at::Tensor ComposedFftConv(const at::Tensor& x, const at::Tensor& filter) {
  const auto forward = [&]() -> ForwardOf<ComposedFftConvOp> {
    const Transforms transforms(x);
    const at::Tensor spectrum = transforms.Spectrum(filter.unsqueeze(0));
    const at::Tensor product = transforms.Spectrum(x).mul_(spectrum);
    return {.outputs = {.y = transforms.Inverse(product)},
            .saved = {.x = x, .spectrum = spectrum},
            .backward = ComposedBackward};
  };
  return Apply<ComposedFftConvOp>(
             {.name = "FftConv", .inputs = {.x = x, .filter = filter}, .forward = forward})
      .y;
}

// The same in LibTorch calls, rounded at the same places as the fused kernels.
at::Tensor Composed(const FftConvCall& call) {
  const at::Tensor u = call.gated ? call.branch(0) * call.branch(2) : call.inputs;
  const at::Tensor wide = u.to(ComputeType(u));
  at::Tensor y = ComposedFftConv(wide, Windowed(call.filter, call.window));
  if (call.skip.defined()) y = y + wide * call.skip;
  if (call.gated) y = y * call.branch(1).to(ComputeType(u));
  return y.to(u.scalar_type());
}

bool DeviceTakes([[maybe_unused]] const FftConvCall& call) {
#ifdef HALFLIFE_WITH_CUDA
  if (!call.inputs.is_cuda()) return true;
  const int64_t shared_memory_bytes = SharedMemoryPerBlock(call.inputs);
  const bool fits = kernels::cuda::FftConvFits(call.length(), shared_memory_bytes);
  LogRoute(kLongConvolution,
           fits ? "transforms in shared memory"
                : Concat("LibTorch's transforms: ", call.length(), " points outgrow a block's ",
                         shared_memory_bytes, " bytes"));
  return fits;
#else
  return true;
#endif
}

at::Tensor Run(const char* entry, const char* name, const char* wanted, const FftConvCall& call) {
  const at::Tensor &inputs = call.inputs, &filter = call.filter, &skip = call.skip;
  CheckDTypes(entry, {inputs, filter});
  const int64_t widths = call.gated ? 3 : 1;
  HL_CHECK(inputs.defined() && inputs.dim() == 3 && inputs.size(1) >= 1 && filter.defined() &&
               filter.dim() == 2 && FitsWith(inputs, filter, {inputs.size(1), filter.size(1)}) &&
               inputs.size(2) == widths * filter.size(1) &&
               filter.scalar_type() == ComputeType(inputs) &&
               (!skip.defined() || (FitsWith(inputs, skip, {filter.size(1)}) &&
                                    skip.scalar_type() == filter.scalar_type())),
           entry, " of ", name, " ", Describe(inputs), " with filter ", Describe(filter),
           skip.defined() ? Concat(" and skip ", Describe(skip)) : "", ". Use ", wanted,
           ", filter [T, D] and skip [D] on one device, the last two ",
           DTypeName(ComputeType(inputs)), ".");
  return IsFused(inputs) && inputs.numel() > 0 && DeviceTakes(call) ? Fused(call) : Composed(call);
}

}  // namespace

at::Tensor Windowed(const at::Tensor& filter, const FilterWindow& window) {
  if (window.first == 0 && window.step == 0) return filter;
  const at::Tensor tokens = at::arange(filter.size(0), filter.options()),
                   channels = at::arange(filter.size(1), filter.options());
  return filter * at::exp(at::outer(tokens, channels * window.step + window.first));
}

at::Tensor FftConv(const FftConvInputs& inputs) {
  return Run(
      "FftConv", "x", "x [B, T, D]",
      {.inputs = inputs.x, .filter = inputs.filter, .skip = inputs.skip, .window = inputs.window});
}

at::Tensor GatedFftConv(const GatedFftConvInputs& inputs) {
  return Run("GatedFftConv", "branches", "branches [B, T, 3 D]",
             {.inputs = inputs.branches,
              .filter = inputs.filter,
              .skip = inputs.skip,
              .window = inputs.window,
              .gated = true});
}

}  // namespace halflife::ops
