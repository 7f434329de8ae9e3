// The steps of the normaliser outside the tensor-core scans. A forward scan divides by the sums of
// keys itself (key_sums.cuh), unless each slice of K has only a part of them. A backward treats
// them as the output of a scan in which v is a column of ones. Internal header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/common/cuda/device.h"
#include "kernels/decay_attention/cuda/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::decay {

// Stores the value 1, of the operands' type, which is read with stride 0 as the column of ones.
void LaunchStoreOne(void* one, DType dtype, cudaStream_t stream);

// args.out = sum of numerators / (sum of sums + eps), summed over slices of K. Also stores the
// divisor in args.norm_denom, if it is not null.
struct NormaliseParams {
  DecayAttentionArgs args;
  int num_slices;           // slices of K
  const float* numerators;  // [slices, B, T, H, V]
  const float* sums;        // [slices, B, T, H]
};
void LaunchNormalise(const NormaliseParams& params, cudaStream_t stream);

// Computes the factor [B, T, H] for which factor / norm_denom is dL/d(sum of keys). It is -delta'
// of mean_subtraction.h, computed from the part of dq that the scan over centred values leaves.
struct NormaliserFactorParams {
  DecayAttentionArgs args;
  TensorView dout;    // [B, T, H, V]
  const float* mean;  // [B, Hv, V]
  int num_slices;     // slices of V
  const float* dq;    // [slices, B, T, H, K]
  float* factor;
};
void LaunchNormaliserFactor(const NormaliserFactorParams& params, cudaStream_t stream);
// The same for values without subtracted mean. It uses args.out as rounded by the forward: these
// errors have either sign and do not accumulate.
struct OutputFactorParams {
  DecayAttentionArgs args;
  TensorView dout;
  float* factor;
};
void LaunchOutputFactor(const OutputFactorParams& params, cudaStream_t stream);

}  // namespace halflife::kernels::decay

namespace halflife::kernels::cuda {

// The backward of a normalised output, for one batch tile: first a scan over values minus their
// mean, then a scan for the normaliser. mean_subtraction.h derives the formulas.
// All references are borrowed until Run returns.
class NormalisedBackward {
 public:
  NormalisedBackward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan,
                     const BackwardLayout& layout, const BatchTile& batch_tile, cudaStream_t stream)
      : grads_(grads),
        plan_(plan),
        layout_(layout),
        batch_tile_(batch_tile),
        stream_(stream),
        mean_(Region<float>(layout.normaliser.value_mean.mean)) {}

  // Launches both scans. Their parts of the gradients are written to the regions that `layout`
  // names.
  void Run() const;

 private:
  // without tokens there is no mean
  bool has_tokens() const { return grads_.forward.num_chunks > 0; }
  const ValueMeanLayout& value_mean() const { return layout_.normaliser.value_mean; }
  template <typename T>
  T* Region(size_t offset) const {
    return At<T>(grads_.forward.workspace, offset);
  }

  // Returns the number of elements before the batch tile in [batch, T, heads, width], [batch,
  // heads, width] and [num_sequences, H, width].
  int64_t TokensBefore(int heads, int width) const;
  int64_t RowsBefore(int heads, int width) const;
  int64_t StatesBefore(int64_t width) const;

  void SubtractMean() const;
  void RunOverValues() const;
  void RunOverNormaliser() const;

  // Returns the gradient of the initial state. The normaliser's gradient needs it even if the
  // caller does not.
  void* dinitial_state() const;
  // Computes `shifted` for the sequences of the batch tile. The pointers refer to the batch's first
  // sequence.
  void Shift(const void* states, const void* norms, float sign, float* shifted) const;

  const DecayAttentionGradArgs& grads_;
  const DecayAttentionPlan& plan_;
  const BackwardLayout& layout_;
  const BatchTile batch_tile_;
  const cudaStream_t stream_;
  float* const mean_;  // for the rows of the batch tile
};

}  // namespace halflife::kernels::cuda
