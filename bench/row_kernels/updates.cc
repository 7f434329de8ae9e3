#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <torch/csrc/autograd/autograd.h>

#include "cases.h"
#include "core/concat.h"
#include "kernels/adamw/adamw_args.h"
#include "kernels/sum_of_squares/sum_of_squares_args.h"
#include "ops/cross_entropy/cross_entropy_rows.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/torch/dispatch.h"

namespace halflife::bench {
namespace {

// Returns one value as bytes on the operands' device, because kernels read tables where their
// arrays are.
template <typename T>
at::Tensor OnDevice(T value, at::Device device) {
  return at::from_blob(&value, {static_cast<int64_t>(sizeof(T))}, at::kByte)
      .to(device, at::kByte, /*non_blocking=*/false, /*copy=*/true);
}

constexpr auto kInPlace = MemoryCeiling::Kind::kInPlace;
constexpr kernels::AdamWConfig kAdamW = {};
constexpr double kLr = 1e-3;

// w, gradient, m, v and, with bf16 activations, the rounded copy of w.
Case AdamW(int64_t count, const CaseOptions& options) {
  const auto wide = at::TensorOptions(options.device).dtype(at::kFloat);
  const bool copies = options.dtype == at::kBFloat16;
  const kernels::AdamWSegment segment = {.begin = 0,
                                         .end = count,
                                         .weight_decay = static_cast<float>(kAdamW.weight_decay),
                                         .has_copy = copies ? 1 : 0};
  const at::Tensor table = OnDevice(segment, options.device);
  const auto ours = [=](const Tensors& in) -> Tensors {
    const kernels::AdamWArgs args = {
        .main = in[0].mutable_data_ptr<float>(),
        .grads = in[1].const_data_ptr<float>(),
        .m = in[2].mutable_data_ptr<float>(),
        .v = in[3].mutable_data_ptr<float>(),
        .copy = copies ? static_cast<uint16_t*>(in[4].mutable_data_ptr()) : nullptr,
        .segments = static_cast<const kernels::AdamWSegment*>(table.const_data_ptr()),
        .num_segments = 1,
        .max_segment = count,
        .factors = kernels::MakeAdamWFactors(kAdamW, kLr, 1, 1)};
    ops::RunOn(
        in[0], [&] { kernels::cpu::AdamW(args); },
        [&](auto stream) { kernels::cuda::AdamW(args, stream); });
    Tensors results = in;
    results.erase(results.begin() + 1);
    return results;
  };
  const Tensors first_step = {at::full({}, 1, wide)};
  const auto eager = [=](const Tensors& in) -> Tensors {
    at::_fused_adamw_({in[0]}, {in[1]}, {in[2]}, {in[3]}, {}, first_step, kLr, kAdamW.beta1,
                      kAdamW.beta2, kAdamW.weight_decay, kAdamW.eps, /*amsgrad=*/false,
                      /*maximize=*/false);
    if (copies) in[4].copy_(in[0]);
    Tensors results = in;
    results.erase(results.begin() + 1);
    return results;
  };
  return {.family = "adamw",
          .shape = Concat("[", count, "]"),
          .make =
              [=] {
                Tensors operands;
                for (int i = 0; i < 4; ++i) operands.push_back(at::randn({count}, wide).mul_(0.02));
                operands[3].square_();
                if (copies) operands.push_back(at::empty({count}, wide.dtype(at::kBFloat16)));
                return operands;
              },
          .passes = {{"update", ours, eager, (copies ? 30.0 : 28.0) * static_cast<double>(count),
                      kInPlace}}};
}

Case SumOfSquares(int64_t count, const CaseOptions& options) {
  const kernels::SquaresSegment segment = {.begin = 0, .count = count, .first_block = 0};
  const at::Tensor table = OnDevice(segment, options.device);
  const at::TensorOptions wide = at::TensorOptions(options.device).dtype(at::kFloat);
  const auto ours = [=](const Tensors& in) -> Tensors {
    const at::Tensor partials =
        at::empty({segment.num_blocks()}, in[0].options().dtype(at::kDouble));
    const kernels::SquaresArgs args = {
        .values = in[0].const_data_ptr<float>(),
        .segments = static_cast<const kernels::SquaresSegment*>(table.const_data_ptr()),
        .num_segments = 1,
        .num_blocks = segment.num_blocks(),
        .partials = partials.mutable_data_ptr<double>()};
    ops::RunOn(
        in[0],
        [&] {
          at::parallel_for(0, args.num_blocks, 1, [&](int64_t begin, int64_t end) {
            kernels::cpu::SumOfSquares(args, begin, end);
          });
        },
        [&](auto stream) { kernels::cuda::SumOfSquares(args, stream); });
    return {partials.sum()};
  };
  const auto eager = [](const Tensors& in) -> Tensors {
    return {at::linalg_vector_norm(in[0]).square()};
  };
  return {.family = "sum_of_squares",
          .shape = Concat("[", count, "]"),
          .make = [=]() -> Tensors { return {at::randn({count}, wide)}; },
          .passes = {{"forward", ours, eager, 4.0 * static_cast<double>(count)}}};
}

// Maps logits and targets to the loss of each row. The gradient replaces the logits.
Case CrossEntropyRows(int64_t rows, int64_t vocab, const CaseOptions& options) {
  const auto wide = at::TensorOptions(options.device).dtype(at::kFloat);
  const auto ours = [](bool gradient) -> Form {
    return [=](const Tensors& in) -> Tensors {
      at::Tensor logits = in[0];
      const auto out = ops::internal::EmptyRows(logits.size(0), logits.options());
      using ops::internal::LogitGradient;
      ops::internal::ReduceRows(logits, in[1], 0,
                                gradient ? LogitGradient::kFp32 : LogitGradient::kNone, out);
      return gradient ? Tensors{out.loss, logits} : Tensors{out.loss};
    };
  };
  const auto eager = [](bool gradient) -> Form {
    return [=](const Tensors& in) -> Tensors {
      const at::Tensor logits = in[0].detach().requires_grad_(gradient);
      const at::Tensor loss =
          at::nll_loss(at::log_softmax(logits, 1), in[1], {}, at::Reduction::None);
      if (!gradient) return {loss};
      return {loss, torch::autograd::grad({loss.sum()}, {logits})[0]};
    };
  };
  const double bytes = 4.0 * static_cast<double>(rows * vocab);
  return {
      .family = "cross_entropy_rows",
      .shape = Concat("[", rows, ", ", vocab, "]"),
      .make = [=]() -> Tensors {
        return {at::randn({rows, vocab}, wide), at::randint(vocab, {rows}, wide.dtype(at::kLong))};
      },
      .passes = {{"forward", ours(false), eager(false), bytes},
                 {"forward_backward", ours(true), eager(true), 2 * bytes, kInPlace}}};
}

struct StateShape {
  int64_t batch, heads, dim;
};

// q, k, v [B, H, D], log_decay [B, H, D] and the state [B, H, D, D], which both forms update.
Case DecayStep(const StateShape& shape, const CaseOptions& options) {
  const int64_t batch = shape.batch, heads = shape.heads, dim = shape.dim;
  const auto rows = at::TensorOptions(options.device).dtype(options.dtype);
  const auto wide = rows.dtype(at::kFloat);
  const auto ours = [](const Tensors& in) -> Tensors {
    ops::DecayState state = {.kv = in[4]};
    return {ops::DecayAttentionStep({.q = in[0], .k = in[1], .v = in[2], .log_decay = in[3]},
                                    {.scale = 1}, state),
            state.kv};
  };
  const auto eager = [](const Tensors& in) -> Tensors {
    const at::Tensor& state = in[4];
    const at::Tensor flat = state.flatten(0, 1);
    const auto of_heads = [&](const at::Tensor& x, int64_t at) {
      return x.to(state.scalar_type()).flatten(0, 1).unsqueeze(at);
    };
    flat.mul_(at::exp(of_heads(in[3], 2)));
    flat.baddbmm_(of_heads(in[1], 2), of_heads(in[2], 1));
    return {at::bmm(of_heads(in[0], 1), flat).view_as(in[0]).to(in[0].scalar_type()), state};
  };
  const double state_bytes = 4.0 * static_cast<double>(batch * heads * dim * dim);
  const double row_bytes = static_cast<double>(batch * heads * dim) *
                           (4.0 * static_cast<double>(rows.dtype().itemsize()) + 4);
  return {.family = "decay_attention_step",
          .shape = Concat("B", batch, " H", heads, " K", dim, " V", dim),
          .make = [=]() -> Tensors {
            const auto row = [&] { return at::randn({batch, heads, dim}, rows); };
            return {row(), row(), row(), at::rand({batch, heads, dim}, wide).mul_(-0.2),
                    at::randn({batch, heads, dim, dim}, wide)};
          },
          .passes = {{"step", ours, eager, 2 * state_bytes + row_bytes, kInPlace}}};
}

}  // namespace

std::vector<Case> MakeUpdateCases(const CaseOptions& options) {
  const bool large = options.large;
  const int64_t weights = large ? int64_t{1} << 25 : 5'250'000;
  return {AdamW(weights, options), SumOfSquares(large ? 2 * weights : weights, options),
          large ? CrossEntropyRows(1024, 50280, options) : CrossEntropyRows(4096, 259, options),
          DecayStep(large ? StateShape{128, 32, 128} : StateShape{8, 4, 64}, options)};
}

}  // namespace halflife::bench
