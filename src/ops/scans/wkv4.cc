#include "ops/scans/wkv4.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/sum_partials.h"
#include "kernels/scans/wkv4/wkv4_args.h"
#include "ops/scans/wkv4_segments.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_views.h"

namespace halflife::ops {
namespace {

template <typename C>
kernels::WkvState<C> MutableElementsOf(const WkvMemory& memory) {
  return {.numerator = MutableElements<C>(memory.numerator),
          .denominator = MutableElements<C>(memory.denominator),
          .log_scale = MutableElements<C>(memory.log_scale)};
}
template <typename C>
kernels::WkvState<const C> ElementsOf(const WkvMemory& memory) {
  return {.numerator = Elements<C>(memory.numerator),
          .denominator = Elements<C>(memory.denominator),
          .log_scale = Elements<C>(memory.log_scale)};
}

// Operands of forward and backward. All are contiguous; starts and the state may be undefined.
struct WkvOperands {
  at::Tensor k, v, log_decay;
  bool negative_exp = false;
  at::Tensor bonus, starts;
  WkvMemory initial;

  template <typename T, typename C>
  kernels::WkvShape<T, C> Shape() const {
    return {.k = Elements<T>(k),
            .v = Elements<T>(v),
            .log_decay = Elements<C>(log_decay),
            .bonus = Elements<C>(bonus),
            .starts = Elements<bool>(starts),
            .initial = ElementsOf<C>(initial),
            .batch = k.size(0),
            .seq_len = k.size(1),
            .dim = k.size(2),
            .negative_exp = negative_exp};
  }
  int64_t num_items() const { return k.size(0) * kernels::cpu::WkvBlocks(k.size(2)); }
};

WkvMemory EmptyLike(const at::Tensor& k) {
  const auto options = k.options().dtype(ComputeType(k));
  const auto state = [&] { return at::empty({k.size(0), k.size(2)}, options); };
  return {.numerator = state(), .denominator = state(), .log_scale = state()};
}

template <typename T, typename C>
void ForwardOn(const WkvOperands& in, const kernels::WkvResults<T, C>& results) {
  const kernels::WkvShape<T, C> shape = in.Shape<T, C>();
  RunOn(
      in.k,
      [&] {
        at::parallel_for(0, in.num_items(), 1, [&](int64_t begin, int64_t end) {
          for (int64_t item = begin; item < end; ++item)
            kernels::cpu::WkvForward(shape, results, item);
        });
      },
      [&](auto stream) {
        if constexpr (std::is_same_v<C, float>) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::WkvWorkspaceFloats(shape.batch, shape.seq_len, shape.dim)},
                        in.log_decay.options());
          kernels::cuda::WkvForward(shape, results, MutableElements<float>(workspace), stream);
        }
      });
}

struct WkvForwardResults {
  at::Tensor out, kept;
  WkvMemory final;
};
WkvForwardResults RunForward(const WkvOperands& in, bool keep) {
  const int64_t batch = in.k.size(0), seq_len = in.k.size(1), dim = in.k.size(2);
  WkvForwardResults results = {.out = at::empty_like(in.k), .kept = {}, .final = EmptyLike(in.k)};
  if (keep)
    results.kept = at::empty({batch, kernels::WkvTiles(seq_len), 3, dim}, in.log_decay.options());
  WithStorageAndArithmetic(in.k, [&]<typename T, typename C>() {
    ForwardOn<T, C>(in, {.out = MutableElements<T>(results.out),
                         .final = MutableElementsOf<C>(results.final),
                         .kept = MutableElements<C>(results.kept)});
  });
  return results;
}

template <typename T, typename C>
void BackwardOn(const WkvOperands& in, const kernels::WkvGrads<T, C>& grads,
                const kernels::WkvChannelGrads<C>& channels) {
  const kernels::WkvShape<T, C> shape = in.Shape<T, C>();
  RunOn(
      in.k,
      [&] {
        std::vector<C> of_decay(shape.batch * shape.dim), of_bonus(shape.batch * shape.dim);
        at::parallel_for(0, in.num_items(), 1, [&](int64_t begin, int64_t end) {
          for (int64_t item = begin; item < end; ++item)
            kernels::cpu::WkvBackward(shape, grads, of_decay.data(), of_bonus.data(), item);
        });
        kernels::cpu::SumPartials(of_decay.data(), shape.batch, shape.dim, channels.dlog_decay,
                                  channels.decay_added);
        kernels::cpu::SumPartials(of_bonus.data(), shape.batch, shape.dim, channels.dbonus,
                                  channels.bonus_added);
      },
      [&](auto stream) {
        if constexpr (std::is_same_v<C, float>) {
          const at::Tensor workspace =
              at::empty({kernels::cuda::WkvWorkspaceFloats(shape.batch, shape.seq_len, shape.dim)},
                        in.log_decay.options());
          kernels::cuda::WkvBackward(shape, grads, channels, MutableElements<float>(workspace),
                                     stream);
        }
      });
}

// The parameters that a backward needs in addition to the saved tensors.
struct Form {
  bool negative_exp = false, round = false;
};

at::Tensor RoundedToBf16(const at::Tensor& x) { return x.to(at::kBFloat16).to(x.scalar_type()); }

// Converts a per-channel weight [D] to the form that the kernels read.
at::Tensor ToChannelWeight(const at::Tensor& x, const at::Tensor& k) {
  return x.to(ComputeType(k)).contiguous();
}

// `saved` holds k, v, log decay and bonus as they were given, starts, the initial state (3
// tensors), what the forward kept, and the final log scale. `grads` holds those of out, numerator
// and denominator; undefined if there is none.
Tensors RunBackward(const BackwardCall& call, const Form& form) {
  const Tensors &saved = call.saved, &grads = call.grads;
  const WkvOperands in = {.k = saved[0],
                          .v = saved[1],
                          .log_decay = ToChannelWeight(saved[2], saved[0]),
                          .negative_exp = form.negative_exp,
                          .bonus = ToChannelWeight(saved[3], saved[0]),
                          .starts = saved[4],
                          .initial = {saved[5], saved[6], saved[7]}};
  const at::Tensor dout = grads[0].defined() ? grads[0].contiguous() : at::zeros_like(in.k);
  WkvMemory dfinal;
  if (grads[1].defined() || grads[2].defined()) {
    const auto dense = [&](const at::Tensor& x) {
      return x.defined() ? x.contiguous() : at::zeros_like(saved[9]);
    };
    dfinal = {.numerator = dense(grads[1]), .denominator = dense(grads[2]), .log_scale = {}};
  }
  const at::Tensor dk = at::empty_like(in.k), dv = at::empty_like(in.v);
  // A gradient that must be rounded cannot be accumulated directly into a sink.
  const auto place_of = [&](size_t i) {
    return GradientPlace(saved[i], call.wanted[i] && !form.round, ComputeType(in.k));
  };
  GradientPlace decay = place_of(2), bonus = place_of(3);
  WkvMemory dinitial;
  if (saved[5].defined()) dinitial = EmptyLike(in.k);
  WithStorageAndArithmetic(in.k, [&]<typename T, typename C>() {
    BackwardOn<T, C>(in,
                     {.kept = Elements<C>(saved[8]),
                      .dout = Elements<T>(dout),
                      .final = {.numerator = nullptr,
                                .denominator = nullptr,
                                .log_scale = Elements<C>(saved[9])},
                      .dfinal = ElementsOf<C>(dfinal),
                      .dk = MutableElements<T>(dk),
                      .dv = MutableElements<T>(dv),
                      .dinitial = MutableElementsOf<C>(dinitial)},
                     {.dlog_decay = MutableElements<C>(decay.sum()),
                      .dbonus = MutableElements<C>(bonus.sum()),
                      .decay_added = decay.added(),
                      .bonus_added = bonus.added()});
  });
  Tensors results = {
      dk, dv, decay.Finish(), bonus.Finish(), dinitial.numerator, dinitial.denominator};
  for (size_t i = 0; form.round && i < 4; ++i) results[i] = RoundedToBf16(results[i]);
  return results;
}

void Check(const WkvInputs& in) {
  const at::Tensor &k = in.k, &v = in.v;
  CheckDTypes("Wkv4", {k, v, in.log_decay, in.bonus});
  HL_CHECK(k.defined() && k.dim() == 3 && IsLike(k, v) && (k.is_cpu() || HasFusedDtype(k)),
           "Wkv4 got k ", Describe(k), " and v ", Describe(v),
           ". Use [B, T, D] of one dtype and device for both, fp64 only on the CPU.");
  const auto per_channel = [&](const at::Tensor& x) { return FitsWith(k, x, {k.size(2)}); };
  HL_CHECK(per_channel(in.log_decay) && per_channel(in.bonus), "Wkv4 got k ", Describe(k),
           " with log_decay ", Describe(in.log_decay), " and bonus ", Describe(in.bonus),
           ". Use [D] for both on the same device.");
  HL_CHECK(!in.starts.defined() || (FitsWith(k, in.starts, {k.size(0), k.size(1)}) &&
                                    in.starts.scalar_type() == at::kBool),
           "Wkv4 got k ", Describe(k), " with starts ", Describe(in.starts),
           ". Use [B, T] bool on the same device, or none.");
}

void CheckMemory(const at::Tensor& k, const WkvMemory& memory) {
  const auto fits = [&](const at::Tensor& x) {
    return FitsWith(k, x, {k.size(0), k.size(-1)}) && x.scalar_type() == ComputeType(k);
  };
  HL_CHECK(fits(memory.numerator) && fits(memory.denominator) && fits(memory.log_scale),
           "Wkv4 got k ", Describe(k), " with a state ", Describe(memory.numerator), ", ",
           Describe(memory.denominator), " and ", Describe(memory.log_scale), ". Use [B, D] ",
           DTypeName(ComputeType(k)), " on the same device.");
}

}  // namespace

WkvOutputs Wkv4(const WkvInputs& inputs) {
  Check(inputs);
  if (inputs.segment != nullptr) return OverSegments(inputs);
  const WkvMemory& initial = inputs.initial;
  if (initial.numerator.defined()) CheckMemory(inputs.k, initial);
  const at::ScalarType compute = ComputeType(inputs.k);
  const bool round = inputs.round_to_bf16 && compute == at::kFloat;
  const Tensors operands = {inputs.k,     inputs.v,          inputs.log_decay,
                            inputs.bonus, initial.numerator, initial.denominator};
  const bool keep = c10::GradMode::is_enabled() && std::ranges::any_of(operands, [](const auto& x) {
                      return x.defined() && x.requires_grad();
                    });
  const auto forward = [&]() -> Forwarded {
    const WkvOperands in = {
        .k = inputs.k.contiguous(),
        .v = inputs.v.contiguous(),
        .log_decay = ToChannelWeight(inputs.log_decay, inputs.k),
        .negative_exp = inputs.negative_exp,
        .bonus = ToChannelWeight(inputs.bonus, inputs.k),
        .starts = Contiguous(inputs.starts),
        .initial = {Contiguous(initial.numerator), Contiguous(initial.denominator),
                    Contiguous(initial.log_scale)}};
    const WkvForwardResults results = RunForward(in, keep);
    const auto backward = [form = Form{inputs.negative_exp, round}](const BackwardCall& call) {
      return RunBackward(call, form);
    };
    const WkvMemory& final = results.final;
    return {.outputs = {round ? RoundedToBf16(results.out) : results.out, final.numerator,
                        final.denominator, final.log_scale},
            .saved = {in.k, in.v, inputs.log_decay, inputs.bonus, in.starts, in.initial.numerator,
                      in.initial.denominator, in.initial.log_scale, results.kept, final.log_scale},
            .backward = backward,
            .num_constant = 1};
  };
  const Tensors out =
      Apply({.name = "Wkv4", .inputs = operands, .undefined_grads = true, .forward = forward});
  return {.out = out[0], .final = {out[1], out[2], out[3]}};
}

at::Tensor Wkv4Step(const WkvStepInputs& inputs, WkvMemory& state) {
  HL_CHECK(inputs.k.defined() && inputs.k.dim() == 2 && inputs.v.defined() && inputs.v.dim() == 2,
           "Wkv4Step got k ", Describe(inputs.k), " and v ", Describe(inputs.v),
           ". Use [B, D] for both.");
  const WkvInputs token = {.k = inputs.k.unsqueeze(1),
                           .v = inputs.v.unsqueeze(1),
                           .log_decay = inputs.log_decay,
                           .negative_exp = inputs.negative_exp,
                           .bonus = inputs.bonus};
  Check(token);
  CheckMemory(inputs.k, state);
  const bool dense = state.numerator.is_contiguous() && state.denominator.is_contiguous() &&
                     state.log_scale.is_contiguous();
  HL_CHECK(dense,
           "Wkv4Step: the state is not contiguous and cannot be updated in place. Use a contiguous "
           "state.");
  const c10::AutoGradMode no_grad(false);
  const WkvOperands in = {.k = token.k.contiguous(),
                          .v = token.v.contiguous(),
                          .log_decay = ToChannelWeight(inputs.log_decay, inputs.k),
                          .negative_exp = inputs.negative_exp,
                          .bonus = ToChannelWeight(inputs.bonus, inputs.k),
                          .starts = {},
                          .initial = state};
  const at::Tensor out = at::empty_like(in.k);
  WithStorageAndArithmetic(in.k, [&]<typename T, typename C>() {
    ForwardOn<T, C>(
        in,
        {.out = MutableElements<T>(out), .final = MutableElementsOf<C>(state), .kept = nullptr});
  });
  return out.squeeze(1);
}

}  // namespace halflife::ops
