#include "ops/rows/dropout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/rows/dropout_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

constexpr int64_t kWord = 0xffffffff;  // mask of the low 32 bits

struct Mask {
  RandomKey key;
  at::Tensor samples;
  int64_t first_position;
  double rate;
};

double ScaleOf(const Mask& mask) { return 1.0 / (1.0 - mask.rate); }

at::Tensor ApplyFused(const at::Tensor& x_in, const Mask& mask) {
  const at::Tensor x = x_in.contiguous();
  const at::Tensor out = at::empty_like(x);
  WithStorage(x, [&]<typename T>() {
    const kernels::DropoutArgs<T> args = {
        .x = Elements<T>(x),
        .out = MutableElements<T>(out),
        .samples = reinterpret_cast<const uint64_t*>(mask.samples.const_data_ptr<int64_t>()),
        .num_tokens = x.size(0) * x.size(1),
        .seq_len = x.size(1),
        .dim = x.size(2),
        .first_position = mask.first_position,
        .key = mask.key,
        .threshold = kernels::DropoutThreshold(mask.rate),
        .scale = static_cast<float>(ScaleOf(mask))};
    RunRows(
        x, {.count = args.num_tokens, .per_task = 16},
        [&](int64_t begin, int64_t end) { kernels::cpu::Dropout(args, begin, end); },
        [&](auto stream) { kernels::cuda::Dropout(args, stream); });
  });
  return out;
}

// Philox4x32 on int64 tensors that hold 32-bit words. int64 products wrap modulo 2^64, like those
// of uint64.
std::vector<at::Tensor> PhiloxOnTensors(std::vector<at::Tensor> x, RandomKey key) {
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < 10; ++round) {
    const at::Tensor p0 = x[0] * int64_t{0xD2511F53}, p1 = x[2] * int64_t{0xCD9E8D57};
    const auto high = [](const at::Tensor& p) { return p.__rshift__(32).bitwise_and(kWord); };
    x = {high(p1).bitwise_xor(x[1]).bitwise_xor(int64_t{k0}), p1.bitwise_and(kWord),
         high(p0).bitwise_xor(x[3]).bitwise_xor(int64_t{k1}), p0.bitwise_and(kWord)};
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return x;
}

at::Tensor ApplyOnTensors(const at::Tensor& x, const Mask& mask) {
  const int64_t batch = x.size(0), seq_len = x.size(1), dim = x.size(2);
  const int64_t num_blocks = (dim + 3) / 4;
  const at::Tensor low = mask.samples.bitwise_and(kWord),
                   high = mask.samples.__rshift__(32).bitwise_and(kWord);
  const auto options = x.options().dtype(at::kLong);
  const std::vector<int64_t> shape = {batch, seq_len, num_blocks};
  const at::Tensor position = at::arange(seq_len, options) + mask.first_position;
  const std::vector<at::Tensor> words = PhiloxOnTensors(
      {low.view({batch, 1, 1}).expand(shape), high.view({batch, 1, 1}).expand(shape),
       position.view({1, seq_len, 1}).expand(shape),
       at::arange(num_blocks, options).view({1, 1, num_blocks}).expand(shape)},
      mask.key);
  const at::Tensor bits =
      at::stack(words, 3).flatten(2).narrow(2, 0, dim).__rshift__(8);  // [B, T, D]
  const at::Tensor dropped = bits < int64_t{kernels::DropoutThreshold(mask.rate)};
  return (x * ScaleOf(mask)).masked_fill(dropped, 0);
}

struct DropoutOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor out;
  };
  struct Saved {};
};

at::Tensor Drop(const at::Tensor& x, const Mask& mask) {
  return IsFused(x) ? ApplyFused(x, mask) : ApplyOnTensors(x, mask);
}

}  // namespace

at::Tensor SampleNumbers(std::span<const uint64_t> samples, at::Device device) {
  return UploadValues(std::vector<int64_t>(samples.begin(), samples.end()), device);
}

void CheckSamples(const at::Tensor& x, const DropoutConfig& config) {
  if (config.rate == 0) return;
  HL_CHECK(config.samples.defined() && FitsWith(x, config.samples, {x.size(0)}) &&
               config.samples.scalar_type() == at::kLong && config.samples.is_contiguous(),
           "dropout over ", x.size(0), " rows needs as many sample numbers, got ",
           Describe(config.samples), ". Use int64 on x's device.");
}

at::Tensor Dropout(const at::Tensor& x, const DropoutConfig& config) {
  CheckDTypes("Dropout", {x});
  if (config.rate == 0) return x;
  CheckSamples(x, config);
  const Mask mask = {.key = config.key,
                     .samples = config.samples,
                     .first_position = config.first_position,
                     .rate = config.rate};
  const auto backward = [mask](const BackwardOf<DropoutOp>& call) -> DropoutOp::Inputs {
    return {.x = Drop(call.grads.out, mask)};
  };
  const auto forward = [&]() -> ForwardOf<DropoutOp> {
    return {.outputs = {.out = Drop(x, mask)}, .saved = {}, .backward = backward};
  };
  return Apply<DropoutOp>({.name = "Dropout", .inputs = {.x = x}, .forward = forward}).out;
}

}  // namespace halflife::ops
