#include <algorithm>

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/sum_partials.h"
#include "kernels/convolution/sine_filter_args.h"

namespace halflife::kernels {
namespace {

constexpr int kThreads = 256;

// Floats of each array in the shared memory of a block, which processes kSineTokens tokens.
struct Sizes {
  int weight, rows, sums;
};
HL_EVERYWHERE constexpr Sizes SizesOf(const SineFilterArgs& args) {
  const int widest = args.inputs > args.width ? args.inputs : args.width;
  return {args.width * (widest + 1), kSineTokens * widest,
          kSineTokens * args.width * args.num_layers};
}

struct Block {
  // [width, inputs + 1]: a layer's weight, with rows padded so that neither the elements of a
  // column nor those of a row share a bank.
  float* weight;
  float* inputs;     // [tokens, inputs]: a_{i-1}
  float* gradient;   // [tokens, width]: da_i, then dp_i
  float* sums;       // [layers, tokens, width]: p_i
  int first, count;  // the block's tokens

  HL_DEVICE Block(const SineFilterArgs& args, unsigned char* smem, bool backward)
      : first(static_cast<int>(blockIdx.x) * kSineTokens),
        count(min(kSineTokens, args.num_tokens - first)) {
    const Sizes sizes = SizesOf(args);
    SmemCarver carver(smem);
    weight = carver.Take<float>(sizes.weight);
    inputs = carver.Take<float>(sizes.rows);
    sums = carver.Take<float>(sizes.sums);
    gradient = backward ? carver.Take<float>(sizes.rows) : nullptr;
  }
  HL_DEVICE float* SumsOf(const SineFilterArgs& args, int layer) const {
    return sums + layer * kSineTokens * args.width;
  }
};

// Calls visit(i) for i < count. All threads take part.
template <typename Visit>
HL_DEVICE void ForEach(int count, const Visit& visit) {
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) visit(i);
}

// Loads the block's rows of [T, width]; zeros past the last token.
HL_DEVICE void LoadRows(const Block& block, const float* from, int width, float* to) {
  ForEach(kSineTokens * width, [&](int i) {
    to[i] = i < block.count * width ? from[int64_t{1} * block.first * width + i] : 0.0f;
  });
}

// Loads weight [rows, num_inputs].
HL_DEVICE void LoadWeight(const float* weight, int rows, int num_inputs, float* to) {
  ForEach(rows * num_inputs, [&](int i) {
    const int o = i / num_inputs;
    to[o * (num_inputs + 1) + i - o * num_inputs] = weight[i];
  });
}
// Returns a layer's pointer. A loop over constants, because an array with a variable index would be
// placed in local memory.
HL_DEVICE const float* OfLayer(const float* const (&pointers)[kSineMaxLayers], int layer) {
  const float* found = pointers[0];
#pragma unroll
  for (int i = 1; i < kSineMaxLayers; ++i)
    if (i == layer) found = pointers[i];
  return found;
}
HL_DEVICE void LoadLayer(const SineFilterArgs& args, int layer, float* to) {
  LoadWeight(OfLayer(args.weights, layer), args.width, args.inputs_of(layer), to);
}

// Computes a_i from p_i.
HL_DEVICE void MapSums(const SineFilterArgs& args, const float* sums, float* to) {
  ForEach(kSineTokens * args.width,
          [&](int i) { to[i] = SinCosOf(args.frequency[i % args.width] * sums[i]).sin; });
}

// Computes p of all layers. `inputs` holds a_{L-1} at the end.
HL_DEVICE void Forward(const SineFilterArgs& args, const Block& block) {
  LoadRows(block, args.x, args.inputs, block.inputs);
  for (int layer = 0; layer < args.num_layers; ++layer) {
    const int num_inputs = args.inputs_of(layer);
    if (layer > 0) MapSums(args, block.SumsOf(args, layer - 1), block.inputs);
    LoadLayer(args, layer, block.weight);
    __syncthreads();
    const float* const bias = OfLayer(args.biases, layer);
    ForEach(kSineTokens * args.width, [&](int i) {
      const int token = i / args.width, o = i - token * args.width;
      const float* const weight = block.weight + o * (num_inputs + 1);
      const float* const inputs = block.inputs + token * num_inputs;
      float sum = bias[o];
      for (int k = 0; k < num_inputs; ++k) sum += weight[k] * inputs[k];
      block.SumsOf(args, layer)[i] = sum;
    });
    __syncthreads();
  }
}

// Number of tokens for which a thread computes a channel of the output: it reads each weight once
// for all of them.
constexpr int kTokensOfThread = 4;

// Computes out = W_out a_L, `width` channels at a time. Their weights replace those of a layer in
// shared memory.
HL_DEVICE void OutputLayer(const SineFilterArgs& args, const Block& block, float* out) {
  for (int first = 0; first < args.channels; first += args.width) {
    const int channels = min(args.width, args.channels - first);
    __syncthreads();  // all threads have finished with the previous weights
    LoadWeight(args.output + int64_t{1} * first * args.width, channels, args.width, block.weight);
    __syncthreads();
    ForEach(kSineTokens / kTokensOfThread * channels, [&](int i) {
      const int token = i / channels * kTokensOfThread, c = i % channels;
      const float* const weight = block.weight + c * (args.width + 1);
      const float* const hidden = block.inputs + token * args.width;
      float sum[kTokensOfThread] = {};
      for (int k = 0; k < args.width; ++k) {
#pragma unroll
        for (int t = 0; t < kTokensOfThread; ++t) sum[t] += weight[k] * hidden[t * args.width + k];
      }
      float* const to = out + int64_t{1} * (block.first + token) * args.channels + first + c;
#pragma unroll
      for (int t = 0; t < kTokensOfThread; ++t)
        if (token + t < block.count) to[int64_t{1} * t * args.channels] = sum[t];
    });
  }
}

__global__ void __launch_bounds__(kThreads)
    SineForwardKernel(SineFilterArgs args, SineFilterOutputs outputs) {
  HL_DYNAMIC_SMEM(smem);
  const Block block(args, smem, /*backward=*/false);
  Forward(args, block);
  MapSums(args, block.SumsOf(args, args.num_layers - 1), block.inputs);
  __syncthreads();
  ForEach(block.count * args.width, [&](int i) {
    outputs.hidden[int64_t{1} * block.first * args.width + i] = block.inputs[i];
  });
  OutputLayer(args, block, outputs.out);
}

// Replaces da_i by dp_i. Also computes the gradient of the layer's bias, and adds to that of the
// frequency, which is a sum over layers.
HL_DEVICE void SineGradients(const SineFilterArgs& args, const Block& block, int layer,
                             float* dbias, float* dfrequency) {
  ForEach(args.width, [&](int o) {
    const float frequency = args.frequency[o];
    float of_bias = 0, of_frequency = 0;
    for (int token = 0; token < kSineTokens; ++token) {
      const int at = token * args.width + o;
      const float p = block.SumsOf(args, layer)[at];
      const float g = block.gradient[at] * SinCosOf(frequency * p).cos;
      of_frequency += g * p;
      of_bias += g * frequency;
      block.gradient[at] = g * frequency;
    }
    dbias[o] = of_bias;
    dfrequency[o] = layer == args.num_layers - 1 ? of_frequency : dfrequency[o] + of_frequency;
  });
}

HL_DEVICE void WeightGradient(const SineFilterArgs& args, const Block& block, int layer,
                              float* dweight) {
  const int num_inputs = args.inputs_of(layer);
  ForEach(args.width * num_inputs, [&](int i) {
    const int o = i / num_inputs, k = i - o * num_inputs;
    float sum = 0;
    for (int token = 0; token < kSineTokens; ++token)
      sum += block.gradient[token * args.width + o] * block.inputs[token * num_inputs + k];
    dweight[i] = sum;
  });
}

// Replaces a_{i-1}, which no thread reads any more, by da_{i-1}.
HL_DEVICE void InputGradient(const SineFilterArgs& args, const Block& block, int layer) {
  const int num_inputs = args.inputs_of(layer);
  ForEach(kSineTokens * num_inputs, [&](int i) {
    const int token = i / num_inputs, k = i - token * num_inputs;
    float sum = 0;
    for (int o = 0; o < args.width; ++o)
      sum += block.gradient[token * args.width + o] * block.weight[o * (num_inputs + 1) + k];
    block.inputs[i] = sum;
  });
}

HL_DEVICE void StoreInputGradient(const SineFilterArgs& args, const Block& block,
                                  const SineInputGradient& input) {
  const int rows = min(kSineTokens, input.num_rows - block.first);
  float* const dx = input.dx + int64_t{1} * block.first * args.inputs;
  ForEach(rows * args.inputs, [&](int i) {
    const float value = i < block.count * args.inputs ? block.inputs[i] : 0.0f;
    dx[i] = input.added ? dx[i] + value : value;
  });
}

// Blocks past the last token set the gradients of input rows that were not read.
__global__ void __launch_bounds__(kThreads)
    SineBackwardKernel(SineFilterArgs args, const float* dhidden, SineInputGradient input,
                       int64_t num_columns, float* partials) {
  HL_DYNAMIC_SMEM(smem);
  const Block block(args, smem, /*backward=*/true);
  if (block.count > 0) {
    float* const sums = partials + blockIdx.x * num_columns;
    Forward(args, block);
    LoadRows(block, dhidden, args.width, block.gradient);
    __syncthreads();
    for (int layer = args.num_layers - 1; layer >= 0; --layer) {
      float* const dweight = sums + args.column_of(layer);
      // Its weight and inputs are already in shared memory.
      const bool is_last = layer == args.num_layers - 1;
      SineGradients(args, block, layer, dweight + int64_t{1} * args.width * args.inputs_of(layer),
                    sums + args.frequency_column());
      if (!is_last) {
        LoadLayer(args, layer, block.weight);
        if (layer > 0) MapSums(args, block.SumsOf(args, layer - 1), block.inputs);
        if (layer == 0) LoadRows(block, args.x, args.inputs, block.inputs);
      }
      __syncthreads();
      WeightGradient(args, block, layer, dweight);
      __syncthreads();
      InputGradient(args, block, layer);
      __syncthreads();
      if (layer == 0) break;
      ForEach(kSineTokens * args.width, [&](int i) { block.gradient[i] = block.inputs[i]; });
      __syncthreads();
    }
  }
  if (input.dx != nullptr) StoreInputGradient(args, block, input);
}

int SharedBytes(const SineFilterArgs& args, bool backward) {
  const Sizes sizes = SizesOf(args);
  const int64_t floats = sizes.weight + sizes.sums + (backward ? 2 : 1) * sizes.rows;
  return static_cast<int>(floats * sizeof(float)) + 64;  // each array is aligned to 16 bytes
}

}  // namespace

namespace cuda {

bool SineFilterFit(const SineFilterArgs& args, int64_t shared_memory_bytes) {
  constexpr int kMaxWidth = 256;  // an int holds its square; nothing larger fits shared memory
  return std::max(args.inputs, args.width) <= kMaxWidth &&
         SharedBytes(args, /*backward=*/true) <= shared_memory_bytes;
}

void SineFilterForward(const SineFilterArgs& args, const SineFilterOutputs& outputs,
                       cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(SineBlocks(args.num_tokens));
  Launch({dim3(blocks), dim3(kThreads), SharedBytes(args, /*backward=*/false), "filter of sines"},
         stream, SineForwardKernel, args, outputs);
}

void SineFilterBackward(const SineFilterArgs& args, const float* dhidden,
                        const SineInputGradient& input, const SineWeightGradients& weights,
                        float* partials, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>(SineBlocks(input.num_rows));
  Launch({dim3(blocks), dim3(kThreads), SharedBytes(args, /*backward=*/true),
          "filter of sines' gradients"},
         stream, SineBackwardKernel, args, dhidden, input, args.num_columns(), partials);
  SumPlaces sums;
  static_assert(2 * kSineMaxLayers + 1 <= kSumPlaces);
  const auto place = [](const SineWeightGradients::Place& of, int64_t size) {
    return SumPlace{of.sum, size, of.added};
  };
  for (int i = 0; i < args.num_layers; ++i) {
    sums.places[2 * i] = place(weights.weights[i], int64_t{1} * args.width * args.inputs_of(i));
    sums.places[2 * i + 1] = place(weights.biases[i], args.width);
  }
  sums.places[2 * args.num_layers] = place(weights.frequency, args.width);
  SumPartials(partials, SineBlocks(args.num_tokens), sums, stream);
}

}  // namespace cuda
}  // namespace halflife::kernels
