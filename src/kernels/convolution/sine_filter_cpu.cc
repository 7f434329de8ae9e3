#include <algorithm>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/convolution/sine_filter_args.h"

namespace halflife::kernels::cpu {
namespace {

// One channel of all tokens of a block, in adjacent elements.
constexpr int kLanes = kSineTokens;
struct Lanes {
  float at[kLanes];
};

// Scratch memory of a block: the inputs of each layer, the sums that it maps, and gradients.
struct Scratch {
  Lanes* inputs;    // [layers + 1, widest]: a_0 to a_L
  Lanes* sums;      // [layers, width]: p_i
  Lanes* gradient;  // [widest]
  Lanes* dp;        // [width]
  float* rows;      // [kLanes, widest]: a_{i-1} token by token
  int64_t widest;

  HL_INLINE Scratch(const SineFilterArgs& args, float* memory)
      : inputs(reinterpret_cast<Lanes*>(memory)), widest(std::max(args.inputs, args.width)) {
    sums = inputs + (args.num_layers + 1) * widest;
    gradient = sums + args.num_layers * args.width;
    dp = gradient + widest;
    rows = reinterpret_cast<float*>(dp + args.width);
  }
  HL_INLINE Lanes* InputsOf(int layer) const { return inputs + layer * widest; }
};

// The tokens of a block.
struct Block {
  int begin, count;
  Block(const SineFilterArgs& args, int number)
      : begin(number * kSineTokens), count(std::min(kSineTokens, args.num_tokens - begin)) {}
};

// Transposes rows of `width` channels to lanes, with zeros past the last token, and back.
HL_INLINE void LoadRows(const float* from, const Block& block, int width, Lanes* to) {
  for (int c = 0; c < width; ++c)
    for (int t = 0; t < kLanes; ++t)
      to[c].at[t] = t < block.count ? from[int64_t{1} * (block.begin + t) * width + c] : 0.0f;
}
HL_INLINE void StoreRows(const Lanes* from, const Block& block, int width, float* to) {
  for (int t = 0; t < block.count; ++t)
    for (int c = 0; c < width; ++c) to[int64_t{1} * (block.begin + t) * width + c] = from[c].at[t];
}

HL_INLINE void ForwardLayer(const SineFilterArgs& args, int layer, const Scratch& scratch) {
  const int num_inputs = args.inputs_of(layer);
  const Lanes* const inputs = scratch.InputsOf(layer);
  Lanes *const outputs = scratch.InputsOf(layer + 1), *const sums =
                                                          scratch.sums + layer * args.width;
  for (int o = 0; o < args.width; ++o) {
    const float* const weight = args.weights[layer] + int64_t{1} * o * num_inputs;
    Lanes sum;
    for (int t = 0; t < kLanes; ++t) sum.at[t] = args.biases[layer][o];
    for (int k = 0; k < num_inputs; ++k) {
      const float w = weight[k];
#pragma omp simd
      for (int t = 0; t < kLanes; ++t) sum.at[t] += w * inputs[k].at[t];
    }
    sums[o] = sum;
    const float frequency = args.frequency[o];
#pragma omp simd
    for (int t = 0; t < kLanes; ++t) outputs[o].at[t] = SinCosOf(frequency * sum.at[t]).sin;
  }
}

// Computes out = W_out a_L.
HL_INLINE void OutputLayer(const SineFilterArgs& args, const Block& block, const Scratch& scratch,
                           float* out) {
  const Lanes* const hidden = scratch.InputsOf(args.num_layers);
  for (int c = 0; c < args.channels; ++c) {
    const float* const weight = args.output + int64_t{1} * c * args.width;
    Lanes sum = {};
    for (int k = 0; k < args.width; ++k) {
      const float w = weight[k];
#pragma omp simd
      for (int t = 0; t < kLanes; ++t) sum.at[t] += w * hidden[k].at[t];
    }
    for (int t = 0; t < block.count; ++t)
      out[int64_t{1} * (block.begin + t) * args.channels + c] = sum.at[t];
  }
}

HL_INLINE void ForwardLoop(const SineFilterArgs& args, const SineFilterOutputs& outputs, int number,
                           float* memory) {
  const Scratch scratch(args, memory);
  const Block block(args, number);
  LoadRows(args.x, block, args.inputs, scratch.InputsOf(0));
  for (int layer = 0; layer < args.num_layers; ++layer) ForwardLayer(args, layer, scratch);
  StoreRows(scratch.InputsOf(args.num_layers), block, args.width, outputs.hidden);
  OutputLayer(args, block, scratch, outputs.out);
}

HL_INLINE float Total(const Lanes& values) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int t = 0; t < kLanes; ++t) total += values.at[t];
  return total;
}

// Computes dp of a layer from da, and the gradients of its bias and of the frequency.
HL_INLINE void SineGradients(const SineFilterArgs& args, int layer, const Scratch& scratch,
                             float* dbias, float* dfrequency) {
  const Lanes* const sums = scratch.sums + layer * args.width;
  for (int o = 0; o < args.width; ++o) {
    const float frequency = args.frequency[o];
    Lanes of_frequency;
#pragma omp simd
    for (int t = 0; t < kLanes; ++t) {
      const float p = sums[o].at[t];
      const float g = scratch.gradient[o].at[t] * SinCosOf(frequency * p).cos;
      of_frequency.at[t] = g * p;
      scratch.dp[o].at[t] = g * frequency;
    }
    dfrequency[o] += Total(of_frequency);
    dbias[o] = Total(scratch.dp[o]);
  }
}

HL_INLINE void BackwardLayer(const SineFilterArgs& args, int layer, const Scratch& scratch,
                             float* dweight) {
  const int num_inputs = args.inputs_of(layer);
  const Lanes* const inputs = scratch.InputsOf(layer);
  for (int t = 0; t < kLanes; ++t)
    for (int k = 0; k < num_inputs; ++k) scratch.rows[t * num_inputs + k] = inputs[k].at[t];
  std::fill(scratch.gradient, scratch.gradient + num_inputs, Lanes{});
  for (int o = 0; o < args.width; ++o) {
    const float* const weight = args.weights[layer] + int64_t{1} * o * num_inputs;
    float* const sum = dweight + int64_t{1} * o * num_inputs;
    std::fill(sum, sum + num_inputs, 0.0f);
    for (int t = 0; t < kLanes; ++t) {
      const float dp = scratch.dp[o].at[t];
      const float* const row = scratch.rows + t * num_inputs;
#pragma omp simd
      for (int k = 0; k < num_inputs; ++k) sum[k] += dp * row[k];
    }
    for (int k = 0; k < num_inputs; ++k) {
      const float w = weight[k];
#pragma omp simd
      for (int t = 0; t < kLanes; ++t) scratch.gradient[k].at[t] += w * scratch.dp[o].at[t];
    }
  }
}

// Stores the gradients of the inputs of a block's rows; zeros for rows that were not read.
HL_INLINE void StoreInputGradients(const SineFilterArgs& args, const SineInputGradient& input,
                                   int number, const Lanes* gradient) {
  const int begin = number * kSineTokens, end = std::min(begin + kSineTokens, input.num_rows);
  for (int t = begin; t < end; ++t) {
    float* const dx = input.dx + int64_t{1} * t * args.inputs;
    for (int c = 0; c < args.inputs; ++c) {
      const float value = t < args.num_tokens ? gradient[c].at[t - begin] : 0.0f;
      dx[c] = input.added ? dx[c] + value : value;
    }
  }
}

HL_INLINE void BackwardLoop(const SineFilterArgs& args, const float* dhidden,
                            const SineInputGradient& input, int number, float* sums,
                            float* memory) {
  const Scratch scratch(args, memory);
  const Block block(args, number);
  if (block.count > 0) {
    LoadRows(args.x, block, args.inputs, scratch.InputsOf(0));
    for (int layer = 0; layer < args.num_layers; ++layer) ForwardLayer(args, layer, scratch);
    LoadRows(dhidden, block, args.width, scratch.gradient);
    float* const dfrequency = sums + args.frequency_column();
    std::fill(dfrequency, dfrequency + args.width, 0.0f);
    for (int layer = args.num_layers - 1; layer >= 0; --layer) {
      float* const dweight = sums + args.column_of(layer);
      SineGradients(args, layer, scratch, dweight + int64_t{1} * args.width * args.inputs_of(layer),
                    dfrequency);
      BackwardLayer(args, layer, scratch, dweight);
    }
  }
  if (input.dx != nullptr) StoreInputGradients(args, input, number, scratch.gradient);
}

}  // namespace

int64_t SineScratchFloats(const SineFilterArgs& args) {
  const int64_t widest = std::max(args.inputs, args.width);
  return kLanes *
         ((args.num_layers + 3) * widest + int64_t{1} * (args.num_layers + 1) * args.width);
}

void SineFilterForward(const SineFilterArgs& args, const SineFilterOutputs& outputs, int block,
                       float* scratch) {
  RunVectorised([&]() HL_LAMBDA_INLINE { ForwardLoop(args, outputs, block, scratch); });
}
void SineFilterBackward(const SineFilterArgs& args, const float* dhidden,
                        const SineInputGradient& input, int block, float* sums, float* scratch) {
  RunVectorised([&]()
                    HL_LAMBDA_INLINE { BackwardLoop(args, dhidden, input, block, sums, scratch); });
}

}  // namespace halflife::kernels::cpu
