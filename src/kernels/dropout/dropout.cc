#include "kernels/dropout/dropout.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "kernels/cpu/vectorised.h"
#include "kernels/dropout/args.h"
#include "kernels/torch/autograd.h"
#include "kernels/torch/dispatch.h"
#include "kernels/torch/host_transfer.h"
#include "kernels/torch/tensor_checks.h"

namespace halflife::kernels {
namespace {

struct Mask {
  RandomKey key;
  std::vector<uint64_t> samples;
  int64_t first_position;
  double rate;
  at::Tensor on_device;  // the samples' bytes where x is on a GPU
};

double ScaleOf(const Mask& mask) { return 1.0 / (1.0 - mask.rate); }

template <typename T>
struct DropoutRows {
  const T* x;
  T* out;
  const Mask* mask;
  int64_t seq_len, dim;
};

// Draws of kLanes counters at a time, the words of one kind side by side: a loop over them
// vectorises.
constexpr int64_t kLanes = 64;
struct Words {
  uint32_t x[4][kLanes];
};

// Philox4x32-10 of the counters (sample, position, first block + lane), as Draw of core/philox.h.
HL_INLINE void DrawLanes(RandomKey key, uint64_t sample, uint32_t position, uint32_t first_block,
                         Words& words) {
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    words.x[0][lane] = static_cast<uint32_t>(sample);
    words.x[1][lane] = static_cast<uint32_t>(sample >> 32);
    words.x[2][lane] = position;
    words.x[3][lane] = first_block + static_cast<uint32_t>(lane);
  }
  for (int round = 0; round < 10; ++round) {
#pragma omp simd
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const uint64_t p0 = 0xD2511F53ull * words.x[0][lane];
      const uint64_t p1 = 0xCD9E8D57ull * words.x[2][lane];
      words.x[0][lane] = static_cast<uint32_t>(p1 >> 32) ^ words.x[1][lane] ^ key.k0;
      words.x[1][lane] = static_cast<uint32_t>(p1);
      words.x[2][lane] = static_cast<uint32_t>(p0 >> 32) ^ words.x[3][lane] ^ key.k1;
      words.x[3][lane] = static_cast<uint32_t>(p0);
    }
    key.k0 += 0x9E3779B9u;
    key.k1 += 0xBB67AE85u;
  }
}

template <typename T>
HL_INLINE void DropLoop(const DropoutRows<T>& rows, int64_t begin, int64_t end) {
  const Mask& mask = *rows.mask;
  const uint32_t threshold = DropoutThreshold(mask.rate);
  const auto scale = static_cast<float>(ScaleOf(mask));
  Words words;
  float factor[4 * kLanes];
  for (int64_t token = begin; token < end; ++token) {
    const uint64_t sample = mask.samples[token / rows.seq_len];
    const auto position = static_cast<uint32_t>(mask.first_position + token % rows.seq_len);
    for (int64_t channel = 0; channel < rows.dim; channel += 4 * kLanes) {
      DrawLanes(mask.key, sample, position, static_cast<uint32_t>(channel / 4), words);
      for (int64_t lane = 0; lane < kLanes; ++lane)
        for (int64_t i = 0; i < 4; ++i)
          factor[4 * lane + i] = (words.x[i][lane] >> 8) < threshold ? 0.0f : scale;
      const T* x = rows.x + token * rows.dim + channel;
      T* out = rows.out + token * rows.dim + channel;
      const int64_t count = std::min(4 * kLanes, rows.dim - channel);
      // a choice, not a product: a dropped infinity is zero too
#pragma omp simd
      for (int64_t i = 0; i < count; ++i)
        out[i] = Narrow<T>(factor[i] == 0.0f ? 0.0f : Widen(x[i]) * factor[i]);
    }
  }
}

template <typename T>
void DropOnCpu(const at::Tensor& x, const at::Tensor& out, const Mask& mask) {
  const DropoutRows<T> rows = {.x = Elements<T>(x),
                               .out = MutableElements<T>(out),
                               .mask = &mask,
                               .seq_len = x.size(1),
                               .dim = x.size(2)};
  at::parallel_for(0, x.size(0) * x.size(1), 16, [&](int64_t begin, int64_t end) {
    cpu::RunVectorised([&]() HL_LAMBDA_INLINE { DropLoop(rows, begin, end); });
  });
}

at::Tensor ApplyFused(const at::Tensor& x_in, const Mask& mask) {
  const at::Tensor x = x_in.contiguous();
  const at::Tensor out = at::empty_like(x);
  WithStorage(x, [&]<typename T>() {
    const DropoutArgs<T> args = {.x = Elements<T>(x),
                                 .out = MutableElements<T>(out),
                                 .samples = Elements<uint64_t>(mask.on_device),
                                 .num_tokens = x.size(0) * x.size(1),
                                 .seq_len = x.size(1),
                                 .dim = x.size(2),
                                 .first_position = mask.first_position,
                                 .key = mask.key,
                                 .threshold = DropoutThreshold(mask.rate),
                                 .scale = static_cast<float>(ScaleOf(mask))};
    RunOn(
        x, [&] { DropOnCpu<T>(x, out, mask); }, [&](auto stream) { cuda::Dropout(args, stream); });
  });
  return out;
}

// Philox4x32 on int64 tensors that hold 32-bit words: products wrap modulo 2^64 as they do in
// uint64.
std::vector<at::Tensor> PhiloxOnTensors(std::vector<at::Tensor> x, RandomKey key) {
  constexpr int64_t kWord = 0xffffffff;
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
  std::vector<int64_t> low(batch), high(batch);
  for (int64_t row = 0; row < batch; ++row) {
    low[row] = static_cast<int64_t>(mask.samples[row] & 0xffffffff);
    high[row] = static_cast<int64_t>(mask.samples[row] >> 32);
  }
  const auto options = x.options().dtype(at::kLong);
  const std::vector<int64_t> shape = {batch, seq_len, num_blocks};
  const at::Tensor position = at::arange(seq_len, options) + mask.first_position;
  const std::vector<at::Tensor> words =
      PhiloxOnTensors({UploadValues(low, x.device()).view({batch, 1, 1}).expand(shape),
                       UploadValues(high, x.device()).view({batch, 1, 1}).expand(shape),
                       position.view({1, seq_len, 1}).expand(shape),
                       at::arange(num_blocks, options).view({1, 1, num_blocks}).expand(shape)},
                      mask.key);
  const at::Tensor bits =
      at::stack(words, 3).flatten(2).narrow(2, 0, dim).__rshift__(8);  // [B, T, D]
  const at::Tensor dropped = bits < int64_t{DropoutThreshold(mask.rate)};
  return (x * ScaleOf(mask)).masked_fill(dropped, 0);
}

at::Tensor Drop(const at::Tensor& x, const Mask& mask) {
  return IsFused(x) ? ApplyFused(x, mask) : ApplyOnTensors(x, mask);
}

}  // namespace

at::Tensor Dropout(const at::Tensor& x, const DropoutConfig& config) {
  CheckDTypes("Dropout", {x});
  if (config.rate == 0) return x;
  HL_CHECK(static_cast<int64_t>(config.samples.size()) == x.size(0), "dropout over ", x.size(0),
           " rows needs as many sample numbers, got ", config.samples.size());
  const Mask mask = {
      .key = config.key,
      .samples = {config.samples.begin(), config.samples.end()},
      .first_position = config.first_position,
      .rate = config.rate,
      .on_device = x.is_cuda() ? UploadTable(config.samples, x.device()) : at::Tensor()};
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {Drop(x, mask)}, .saved = {}, .backward = [mask](const BackwardCall& call) {
              return Tensors{Drop(call.grads[0], mask)};
            }};
  };
  return Apply({.name = "Dropout", .inputs = {x}, .forward = forward})[0];
}

}  // namespace halflife::kernels
