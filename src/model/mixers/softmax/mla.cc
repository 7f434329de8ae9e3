// Multi-head latent attention (DeepSeek-AI, 2024, "DeepSeek-V2"). Kimi Linear uses it without a
// rotation. All heads compute their keys and values from one latent c. A key also has channels r,
// which are rotated and shared by all heads:
//
//   c_t = RMSNorm(W_a x_t) [R],   r_t = rotated W_r x_t [r]
//   k_th = [W_kh c_t, r_t] [n + r],   v_th = W_vh c_t [V],   q_th [n + r] from x_t
//   o_th = sum_{s <= t} softmax_s(q_th k_sh^T / sqrt(n + r)) v_sh
//
// The state is c and r of all tokens so far: R + r numbers per token. Decoding does not compute the
// keys and values of the past. It moves W_k to the query and W_v to the output, so that all heads
// attend to the latents themselves. Queries may come from a latent of their own. Parameters are
// named as in DeepSeek-V2's models.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "model/mixers/softmax/attention.h"
#include "model/mixers/variants.h"
#include "model/positions/attention_positions.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/rms_norm.h"
#include "ops/sequence/tokens_before.h"

namespace halflife::model {
namespace {

constexpr double kLatentNormEps = 1e-6;  // of DeepSeek-V2 and Kimi Linear, for every model's norms

struct MlaOptions : OptionsOf<MlaOptions> {
  int64_t num_heads = 8;
  int64_t kv_lora_rank = 512, q_lora_rank = 0;  // R; 0: q is one product with x
  int64_t qk_nope_head_dim = 128, qk_rope_head_dim = 64, v_head_dim = 128;  // n, r, V
  double rope_theta = 10000;                                                // 0: no rotation
  bool bias = false;

  int64_t head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  int64_t latent_dim() const { return kv_lora_rank + qk_rope_head_dim; }
  int64_t query_dim() const { return num_heads * head_dim(); }
  int64_t expanded_dim() const { return num_heads * (qk_nope_head_dim + v_head_dim); }
  int64_t output_dim() const { return num_heads * v_head_dim; }

  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads},
            {"kv_lora_rank", &kv_lora_rank},
            {"q_lora_rank", &q_lora_rank, {.min = 0}},
            {"qk_nope_head_dim", &qk_nope_head_dim},
            {"qk_rope_head_dim", &qk_rope_head_dim},
            {"v_head_dim", &v_head_dim},
            {"rope_theta", &rope_theta},
            {"bias", &bias}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(rope_theta == 0 || (rope_theta > 1 && std::isfinite(rope_theta)),
                     "option rope_theta is ", rope_theta,
                     ". Use a number above 1, or 0 for no rotation.");
    problems.Require(rope_theta == 0 || qk_rope_head_dim % 2 == 0, "qk_rope_head_dim is ",
                     qk_rope_head_dim,
                     ", but a rotation pairs channels. Use an even number, or rope_theta 0.");
    const int64_t widest = num_heads * std::max(head_dim(), qk_nope_head_dim + v_head_dim);
    problems.Require(widest <= kMaxWidth, "num_heads ", num_heads, " gives a projection of ",
                     widest, " channels. Use heads of at most ", kMaxWidth, " channels together.");
  }
};

// The share of a token in the keys and values of all heads.
struct Latents {
  at::Tensor c;  // [B, T, R]
  at::Tensor r;  // [B, T, r]
};
at::Tensor Joined(const Latents& latents) { return at::cat({latents.c, latents.r}, -1); }

class Mla : public Mixer {
 public:
  Mla(const MlaOptions& options, const PartContext& context)
      : sizes_(options), model_dim_(context.model_dim()) {
    DeclareQueries(context);
    kv_a_ = DeclareMatrix(
        context, "kv_a_proj_with_mqa.weight",
        {.out = sizes_.latent_dim(),
         .in = model_dim_,
         .parts = {{.rows = sizes_.kv_lora_rank}, {.rows = sizes_.qk_rope_head_dim}}});
    if (sizes_.bias)
      kv_a_bias_ = DeclareBias(context, "kv_a_proj_with_mqa.bias", sizes_.latent_dim());
    kv_a_norm_ = DeclareNorm(context, "kv_a_layernorm.weight", sizes_.kv_lora_rank);
    kv_b_ = DeclareMatrix(
        context, "kv_b_proj.weight",
        {.out = sizes_.expanded_dim(), .in = sizes_.kv_lora_rank, .heads = sizes_.num_heads});
    if (sizes_.rope_theta > 0)
      rotation_ =
          std::make_unique<RotaryPositions>(AttentionLayer{.part = context,
                                                           .num_heads = sizes_.num_heads,
                                                           .head_dim = sizes_.qk_rope_head_dim,
                                                           .rope_theta = sizes_.rope_theta});
    // Only the r channels have positions, and they are rotated here.
    AttentionOptions no_positions;
    no_positions.rope_theta = 0;
    PartContext without_positions = context;
    without_positions.positions = nullptr;
    attention_ = Attention(no_positions,
                           {.num_heads = sizes_.num_heads,
                            .num_kv_heads = sizes_.num_heads,
                            .head_dim = sizes_.head_dim(),
                            .head_dim_v = sizes_.v_head_dim},
                           without_positions);
    out_ = OutputProjection(context, sizes_.output_dim(), sizes_.bias);
  }

  MixerTraits traits() const override {
    return {.reads_position_ids = rotation_ != nullptr,
            .has_attention_probabilities = true,
            .state = {{.name = "latents",
                       .shape = {StateTensor::kGrows, sizes_.latent_dim()},
                       .compute_dtype = true,
                       .exchange = StateExchange::kGather}}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const SequenceSlice& slice = call.slice;
    const Projected own = Project(call.x, slice.position_ids(), *slice.rotary);
    const Latents all = WithPast(call, own.latents);
    MixerOutput result = {.y = out_(attention_.Attend(call, Expand(own.q, all))), .state = {}};
    if (call.want_state) result.state.tensors = {Joined(all)};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    const Projected own = Project(x.unsqueeze(1), token.positions, *token.rotary);
    at::Tensor& cache = state.tensors[0];
    AppendToken(Joined(own.latents), token.begin, cache);
    const at::Tensor latents = cache.narrow(1, 0, token.begin + 1).unsqueeze(2);
    const at::Tensor o =
        ops::SoftmaxAttention({.q = LatentQueries(own.q),
                               .k = latents,
                               .v = latents.narrow(-1, 0, sizes_.kv_lora_rank),
                               .positions = token.positions},
                              {.scale = 1 / std::sqrt(static_cast<double>(sizes_.head_dim()))});
    return out_(FromLatents(o));
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const int64_t queries = sizes_.q_lora_rank == 0
                                ? model_dim_ * sizes_.query_dim()
                                : sizes_.q_lora_rank * (model_dim_ + sizes_.query_dim());
    const int64_t others = model_dim_ * (sizes_.latent_dim() + sizes_.output_dim()) +
                           sizes_.kv_lora_rank * sizes_.expanded_dim();
    return {.matmul = 2 * static_cast<double>(queries + others),
            .mixing = attention_.MixingFlops(seq_len)};
  }

  // x, each latent before and after its norm, and the keys without their r channels, in addition to
  // the heads.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    const int64_t elements = model_dim_ + 2 * (sizes_.q_lora_rank + sizes_.latent_dim()) +
                             sizes_.num_heads * sizes_.qk_nope_head_dim;
    return static_cast<double>(elements * bytes_per_element) +
           attention_.ActivationBytes(bytes_per_element);
  }
  double GpuActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    return attention_.GpuActivationBytes(seq_len, bytes_per_element);
  }

 private:
  struct Projected {
    at::Tensor q;  // [B, T, H, n + r]
    Latents latents;
  };

  void DeclareQueries(const PartContext& context) {
    if (sizes_.q_lora_rank == 0) {
      q_ = DeclareMatrix(
          context, "q_proj.weight",
          {.out = sizes_.query_dim(), .in = model_dim_, .heads = sizes_.num_heads, .float8 = true});
      return;
    }
    q_a_ = DeclareMatrix(context, "q_a_proj.weight", {.out = sizes_.q_lora_rank, .in = model_dim_});
    if (sizes_.bias) q_a_bias_ = DeclareBias(context, "q_a_proj.bias", sizes_.q_lora_rank);
    q_a_norm_ = DeclareNorm(context, "q_a_layernorm.weight", sizes_.q_lora_rank);
    q_ = DeclareMatrix(
        context, "q_b_proj.weight",
        {.out = sizes_.query_dim(), .in = sizes_.q_lora_rank, .heads = sizes_.num_heads});
  }

  Projected Project(const at::Tensor& x, const at::Tensor& position_ids,
                    ops::RotaryTables& tables) const {
    const bool has_q_latent = q_a_.declared();
    const std::vector<at::Tensor> y =
        ops::SharedInputLinear(x, {has_q_latent ? *q_a_ : *q_, *kv_a_});
    Projected own;
    at::Tensor q = y[0];
    if (has_q_latent)
      q = ops::Linear(ops::RmsNorm(AddBias(q, q_a_bias_), *q_a_norm_, kLatentNormEps), *q_);
    own.q = SplitHeads(q, sizes_.head_dim());
    const at::Tensor latents = AddBias(y[1], kv_a_bias_);
    own.latents = Split(latents);
    own.latents.c = ops::RmsNorm(own.latents.c, *kv_a_norm_, kLatentNormEps);
    if (rotation_ != nullptr) RotateShared(own, position_ids, tables);
    return own;
  }

  void RotateShared(Projected& own, const at::Tensor& position_ids,
                    ops::RotaryTables& tables) const {
    const std::vector<at::Tensor> q =
        own.q.split_with_sizes({sizes_.qk_nope_head_dim, sizes_.qk_rope_head_dim}, -1);
    AttentionHeads rotated;
    rotated.q = q[1].contiguous();
    rotated.k = own.latents.r.unsqueeze(2);
    rotation_->Encode(rotated, position_ids, tables);
    own.q = at::cat({q[0], rotated.q}, -1);
    own.latents.r = rotated.k.squeeze(2);
  }

  // Prepends the latents before the slice, from the call's state or from other ranks.
  Latents WithPast(const MixerCall& call, const Latents& own) const {
    at::Tensor past;  // [B, tokens before the slice, R + r]
    if (const ops::RowSegment* row = call.slice.segment.get()) {
      past = ops::TokensBefore(Joined(own), std::numeric_limits<int64_t>::max(), *row);
    } else if (call.num_past > 0) {
      past = call.initial->tensors[0].narrow(1, 0, call.num_past);
    } else {
      return own;
    }
    const Latents before = Split(past);
    return {.c = at::cat({before.c, own.c}, 1), .r = at::cat({before.r, own.r}, 1)};
  }

  // Splits [B, T, R + r] into both parts.
  Latents Split(const at::Tensor& joined) const {
    const std::vector<at::Tensor> parts =
        joined.split_with_sizes({sizes_.kv_lora_rank, sizes_.qk_rope_head_dim}, -1);
    return {.c = parts[0], .r = parts[1]};
  }

  // Returns the heads of queries, and of the keys and values of the latents.
  Attention::Heads Expand(const at::Tensor& q, const Latents& latents) const {
    const int64_t n = sizes_.qk_nope_head_dim, width_v = sizes_.v_head_dim;
    const std::vector<at::Tensor> expanded =
        SplitHeads(ops::Linear(latents.c, *kv_b_), n + width_v).split_with_sizes({n, width_v}, -1);
    const at::Tensor shared =
        latents.r.unsqueeze(2).expand({-1, -1, sizes_.num_heads, sizes_.qk_rope_head_dim});
    Attention::Heads heads;
    heads.q = q;
    heads.k = at::cat({expanded[0], shared}, -1);
    heads.v = expanded[1];
    return heads;
  }

  // W_k [H, n, R] or W_v [H, V, R]: the rows of each head.
  at::Tensor KeyRows() const { return RowsOfHeads().narrow(1, 0, sizes_.qk_nope_head_dim); }
  at::Tensor ValueRows() const {
    return RowsOfHeads().narrow(1, sizes_.qk_nope_head_dim, sizes_.v_head_dim);
  }
  at::Tensor RowsOfHeads() const {
    return kv_b_->view({sizes_.num_heads, -1, sizes_.kv_lora_rank});
  }

  // q [B, 1, H, n + r] as queries for latents: [q_n W_k, q_r], [B, 1, H, R + r].
  at::Tensor LatentQueries(const at::Tensor& q) const {
    const int64_t n = sizes_.qk_nope_head_dim;
    const at::Tensor of_c = at::matmul(q.narrow(-1, 0, n).unsqueeze(3), KeyRows()).squeeze(3);
    return at::cat({of_c, q.narrow(-1, n, sizes_.qk_rope_head_dim)}, -1);
  }
  // Averages of latents [B, 1, H, R] -> heads of values, [B, H V].
  at::Tensor FromLatents(const at::Tensor& averages) const {
    return at::matmul(averages.unsqueeze(3), ValueRows().transpose(1, 2)).flatten(1);
  }

  MlaOptions sizes_;
  int64_t model_dim_;
  Parameter q_a_, q_a_bias_, q_a_norm_;  // declared with q_lora_rank
  Parameter q_, kv_a_, kv_a_bias_, kv_a_norm_, kv_b_;
  std::unique_ptr<const RotaryPositions> rotation_;  // null: no rotation
  Attention attention_;
  OutputProjection out_;
};

}  // namespace

MixerVariant MlaVariant() { return MixerVariantOf<MlaOptions, Mla>("mla"); }

}  // namespace halflife::model
