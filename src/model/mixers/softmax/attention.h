// What layers of softmax attention share, however they make their queries, keys and values: how
// positions and patterns are told, cosines, factors of queries, the keys and values of earlier
// tokens, and dropout.
//
//   Attention attention(options, {.num_heads = 8, .num_kv_heads = 8, .head_dim = 64,
//                                 .head_dim_v = 64}, context);
//   const Attention::Output out = attention.Forward(call, heads);   // out.y [B, T, H V]
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "model/mixer.h"
#include "model/mixers/softmax/query_scale.h"
#include "model/positions/positions.h"
#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::model {

struct AttentionOptions : OptionsOf<AttentionOptions> {
  bool causal = true;  // false: a query sees later keys of its document, too
  int64_t window = 0;  // key j is visible to query i while i - j < window; 0: all
  int64_t block = 0;   // queries see their own block of so many tokens and the one before; 0: all
  int64_t sinks = 0;   // with a window or blocks: the document's first keys are seen besides
  double rope_theta = 10000;  // 0: q and k are not rotated
  double dropout = 0;         // of the probabilities, in training
  // Scores are this times the cosine of q and k (CosScale); 0: q k / sqrt(head_dim).
  double cos_scale = 0;
  bool cos_scale_learned = false;  // its logarithm is a parameter of each head
  QueryScale query_scale;          // with dim 0: head_dim

  std::vector<Option> Fields() override;
  // Whether scores have a factor by the number of keys.
  virtual bool scales_queries() const { return query_scale.form != "none"; }
  // For heads of that width.
  void ResolveFor(int64_t head_dim, ProblemList& problems);
};

class Attention {
 public:
  struct Shape {
    int64_t num_heads = 0, num_kv_heads = 0;
    int64_t head_dim = 0, head_dim_v = 0;
    bool squared_relu = false;  // in place of the softmax
  };
  struct Heads : AttentionHeads {
    at::Tensor v;  // [B, T, Hk, V]
    // [B, T] in the compute type, of what positions add to a query's scores; undefined: 1 each.
    at::Tensor bias_scale = {};
  };
  struct Output {
    at::Tensor y;                   // [B, T, H V]
    std::vector<at::Tensor> state;  // after the slice, where the call wants it
  };

  Attention() = default;
  // Declares log_cos_scale and what the positions have. Errors kUsage where the model's positions
  // do not fit the options or the shape.
  Attention(const AttentionOptions& options, const Shape& shape, const PartContext& context);

  MixerTraits traits() const;

  // Attends with heads as they were projected. Error kUsage for a past, or other ranks' slices, of
  // a layer that sees later tokens.
  Output Forward(const MixerCall& call, Heads heads) const;
  // Attends with the heads of one token, T = 1, as Mixer::Step. Error kUsage for a layer that sees
  // later tokens.
  at::Tensor Step(Heads heads, const SequenceSlice& token, MixerState& state) const;

  // How many keys a query sees, in the mean over a row of one document.
  double NumKeys(int64_t seq_len) const;
  double MixingFlops(int64_t seq_len) const;
  // What backward keeps of a token beside the projected heads: encoded q and k, v, the output, and
  // what cosines and far pairs add; of each head one fp32.
  double ActivationBytes(int64_t bytes_per_element) const;
  // Two fp32 of each weight where LibTorch's operators keep them: of dropout and of a squared ReLU
  // that the kernels of a GPU leave to them (kernels::cuda::WhyNot; shared memory is taken to
  // suffice).
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
