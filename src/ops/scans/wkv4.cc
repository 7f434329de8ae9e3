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
#include "kernels/common/sum_partials.h"
#include "kernels/scans/wkv4/wkv4_args.h"
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

struct Wkv4Op {
  struct Inputs {
    at::Tensor k, v, log_decay, bonus, initial_numerator, initial_denominator;
  };
  struct Outputs {
    at::Tensor out, numerator, denominator, log_scale;
  };
  struct Saved {
    at::Tensor k, v;
    at::Tensor log_decay, bonus;  // as they were given
    at::Tensor starts;
    WkvMemory initial;
    at::Tensor kept, final_log_scale;
  };
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

Wkv4Op::Inputs RunBackward(const BackwardOf<Wkv4Op>& call, const Form& form) {
  const Wkv4Op::Saved& saved = call.saved;
  const Wkv4Op::Outputs& grads = call.grads;
  const WkvOperands in = {.k = saved.k,
                          .v = saved.v,
                          .log_decay = ToChannelWeight(saved.log_decay, saved.k),
                          .negative_exp = form.negative_exp,
                          .bonus = ToChannelWeight(saved.bonus, saved.k),
                          .starts = saved.starts,
                          .initial = saved.initial};
  const at::Tensor dout = grads.out.defined() ? grads.out.contiguous() : at::zeros_like(in.k);
  WkvMemory dfinal;
  if (grads.numerator.defined() || grads.denominator.defined()) {
    const auto dense = [&](const at::Tensor& x) {
      return x.defined() ? x.contiguous() : at::zeros_like(saved.final_log_scale);
    };
    dfinal = {.numerator = dense(grads.numerator),
              .denominator = dense(grads.denominator),
              .log_scale = {}};
  }
  const at::Tensor dk = at::empty_like(in.k), dv = at::empty_like(in.v);
  // A gradient that must be rounded cannot be accumulated directly into a sink.
  const auto place_of = [&](const at::Tensor& weight, at::Tensor Wkv4Op::Inputs::*input) {
    return GradientBuffer(weight, call.Wants(input) && !form.round, ComputeType(in.k));
  };
  GradientBuffer decay = place_of(saved.log_decay, &Wkv4Op::Inputs::log_decay),
                 bonus = place_of(saved.bonus, &Wkv4Op::Inputs::bonus);
  WkvMemory dinitial;
  if (saved.initial.numerator.defined()) dinitial = EmptyLike(in.k);
  WithStorageAndArithmetic(in.k, [&]<typename T, typename C>() {
    BackwardOn<T, C>(in,
                     {.kept = Elements<C>(saved.kept),
                      .dout = Elements<T>(dout),
                      .final = {.numerator = nullptr,
                                .denominator = nullptr,
                                .log_scale = Elements<C>(saved.final_log_scale)},
                      .dfinal = ElementsOf<C>(dfinal),
                      .dk = MutableElements<T>(dk),
                      .dv = MutableElements<T>(dv),
                      .dinitial = MutableElementsOf<C>(dinitial)},
                     {.dlog_decay = MutableElements<C>(decay.sum()),
                      .dbonus = MutableElements<C>(bonus.sum()),
                      .decay_added = decay.added(),
                      .bonus_added = bonus.added()});
  });
  Wkv4Op::Inputs results = {.k = dk,
                            .v = dv,
                            .log_decay = decay.Finish(),
                            .bonus = bonus.Finish(),
                            .initial_numerator = dinitial.numerator,
                            .initial_denominator = dinitial.denominator};
  if (form.round)
    for (at::Tensor* x : {&results.k, &results.v, &results.log_decay, &results.bonus})
      *x = RoundedToBf16(*x);
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
  const Wkv4Op::Inputs operands = {.k = inputs.k,
                                   .v = inputs.v,
                                   .log_decay = inputs.log_decay,
                                   .bonus = inputs.bonus,
                                   .initial_numerator = initial.numerator,
                                   .initial_denominator = initial.denominator};
  const bool keep = WillBeDifferentiated(operands);
  const auto forward = [&]() -> ForwardOf<Wkv4Op> {
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
    const auto backward = [form = Form{inputs.negative_exp, round}](const auto& call) {
      return RunBackward(call, form);
    };
    const WkvMemory& final = results.final;
    return {.outputs = {.out = round ? RoundedToBf16(results.out) : results.out,
                        .numerator = final.numerator,
                        .denominator = final.denominator,
                        .log_scale = final.log_scale},
            .saved = {.k = in.k,
                      .v = in.v,
                      .log_decay = inputs.log_decay,
                      .bonus = inputs.bonus,
                      .starts = in.starts,
                      .initial = in.initial,
                      .kept = results.kept,
                      .final_log_scale = final.log_scale},
            .backward = backward,
            .num_constant = 1};
  };
  const auto [out, numerator, denominator, log_scale] = Apply<Wkv4Op>(
      {.name = "Wkv4", .inputs = operands, .undefined_grads = true, .forward = forward});
  return {.out = out,
          .final = {.numerator = numerator, .denominator = denominator, .log_scale = log_scale}};
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
