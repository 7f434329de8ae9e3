// Softmax attention from queries, keys and values on, for all mixers that use it: positions,
// patterns of visible keys, cosine scores, query scales, the cache of keys and values, and dropout.
//
// Shapes: B batch, T seq_len, H query heads, Hk heads of k and v, V channels of a value head.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "model/mixer.h"
#include "model/positions/positions.h"
#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::model {

// Scales the scores of a query by a function of the number of keys that it sees, so that attention
// over long texts is not flatter than in training. The factors are multiplied into the query, which
// works with every attention kernel, but does not scale the biases of positions.
struct QueryScale {
  // none: no scale.
  // info: sqrt(1 - n^(-2/d)) divided by its value at the training length (InfoScale, "Information
  //       entropy invariance", 2025).
  // log:  ln n divided by its value at the training length (Su, 2021; Chiang and Cholak, 2022).
  std::string form = "none";
  // eval_only: the factor is at least 1, for models that were trained without a scale.
  // train:     the factor as computed, also in training.
  // fixed_len: all queries of a row have the factor for the number of keys in the row. Decoding and
  //            a forward over the whole row then differ.
  std::string mode = "eval_only";
  int64_t length = 0;  // the training length in tokens, at least 2
  int64_t dim = 0;     // d
  // True: the factor also scales the biases that positions add to scores, as in InfoScale's code.
  bool bias = false;
};

// Maps num_keys int64 to factors fp64 of the same shape. They are exactly 1 at the training length.
at::Tensor QueryScales(const at::Tensor& num_keys, const QueryScale& scale);

struct AttentionOptions : OptionsOf<AttentionOptions> {
  bool causal = true;  // false: a query also sees the later keys of its document
  int64_t window = 0;  // query i sees key j if i - j < window; 0: unlimited
  int64_t block = 0;   // block size: a query sees its own block and the previous one; 0: no blocks
  int64_t sinks = 0;   // first keys of a document that are visible in addition to a window or block
  double rope_theta = 10000;  // base of the rotary frequencies; 0: no rotation
  double dropout = 0;         // dropout rate of the probabilities in training
  // Scores are cos_scale times the cosine of q and k (CosScale); 0: q k / sqrt(head_dim).
  double cos_scale = 0;
  bool cos_scale_learned = false;  // the logarithm of cos_scale is a parameter per head
  QueryScale query_scale;          // dim 0 means head_dim

  std::vector<Option> Fields() override;
  // Returns true if scores are scaled by a function of the number of keys.
  virtual bool scales_queries() const { return query_scale.form != "none"; }
  // Resolves the options for heads of width `head_dim`.
  void ResolveFor(int64_t head_dim, ProblemList& problems);
};

class Attention {
 public:
  struct Shape {
    int64_t num_heads = 0, num_kv_heads = 0;
    int64_t head_dim = 0, head_dim_v = 0;
    bool squared_relu = false;  // replaces the softmax
    int64_t rotary_dim = 0;     // rotated channels of a head (AttentionLayer); 0: head_dim
    double score_scale = 0;     // factor on scores without cosines; 0: 1 / sqrt(head_dim)
  };
  struct Heads : AttentionHeads {
    at::Tensor v;                      // [B, T, Hk, V]
    ops::ColumnSlice v_gradient = {};  // buffer of the gradient of v
    // [B, T] in the compute type: factors on the biases that positions add to scores; undefined: 1.
    at::Tensor bias_scale = {};
  };
  struct Output {
    at::Tensor y;                   // [B, T, H V]
    std::vector<at::Tensor> state;  // after the slice, if call.want_state
  };

  Attention() = default;
  // Declares log_cos_scale and the parameters of the positions. Throws kUsage if the model's
  // positions do not fit the options or the shape.
  Attention(const AttentionOptions& options, const Shape& shape, const PartContext& context);

  MixerTraits traits() const;

  // Computes attention for projected heads. A layer that is not causal throws kUsage if the call
  // has a past or if its rows are split over ranks.
  Output Forward(const MixerCall& call, Heads heads) const;
  // Computes attention for heads that are already encoded, and whose k and v begin with those of
  // the tokens before the slice. Returns [B, T, H V].
  at::Tensor Attend(const MixerCall& call, const Heads& heads) const;
  // Decodes one token (T = 1), like Mixer::Step. A layer that is not causal throws kUsage.
  at::Tensor Step(Heads heads, const SequenceSlice& token, MixerState& state) const;

  // Returns the number of keys that a query sees, averaged over a row of one document.
  double NumKeys(int64_t seq_len) const;
  double MixingFlops(int64_t seq_len) const;
  // Returns the bytes per token that backward keeps in addition to the projected heads: encoded q
  // and k, v, the output, the tensors of cosines and far pairs, and one fp32 per head.
  double ActivationBytes(int64_t bytes_per_element) const;
  // Two fp32 per query and key if LibTorch operators replace the GPU kernels, which may happen with
  // dropout or squared ReLU (kernels::cuda::WhyNot); else 0. Shared memory is assumed to suffice.
  double GpuActivationBytes(int64_t seq_len, int64_t bytes_per_element) const;

 private:
  double ScoreScale() const;
  bool scales_queries() const { return options_.query_scale.form != "none"; }
  void RequireCausal(const char* what) const;
  void Encode(Heads& heads, const at::Tensor& positions, ops::RotaryTables& tables) const;
  Heads WithPast(const MixerCall& call, const Heads& own) const;
  int64_t Reach(const MixerCall& call) const;
  at::Tensor QueryFactors(const SequenceSlice& slice, int64_t num_keys,
                          at::ScalarType compute) const;
  void ScaleQueries(const SequenceSlice& slice, Heads& heads) const;
  ops::VisibleKeys SeenIn(const SequenceSlice& slice, int64_t num_past) const;
  at::Tensor Attend(const Heads& heads, const at::Tensor& positions, bool one_document,
                    const MixerCall* call) const;

  AttentionOptions options_;
  Shape shape_;
  Parameter log_cos_scale_;
  std::unique_ptr<AttentionPositions> positions_;
  ops::SoftmaxAttentionConfig config_;
};

}  // namespace halflife::model
