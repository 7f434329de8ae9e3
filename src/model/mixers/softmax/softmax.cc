// Softmax attention with rotary positions (or none), grouped key-value heads, and optionally
// RMSNorm of q and k and a sliding window: the baseline that linear mixers are measured against.
// Parameters are named as in fla's Transformer. Its state, the keys and values of all tokens so
// far, grows.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/variants.h"

namespace halflife::model {
namespace {

constexpr double kQkNormEps = 1e-5;  // whatever the model's norm_eps: the public layers' constant

struct SoftmaxOptions : OptionsOf<SoftmaxOptions> {
  int64_t num_heads = 8, num_kv_heads = 0;  // 0: num_heads
  int64_t head_dim = 0;                     // 0: model_dim / num_heads
  int64_t window = 0;  // key j is visible to query i while i - j < window; 0: all
  bool qk_norm = false, qkv_bias = false, out_bias = false;
  double rope_theta = 10000;  // 0: q and k are not rotated
  double dropout = 0;         // of the probabilities, in training

  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads},
            {"num_kv_heads", &num_kv_heads, {.min = 0}},
            {"head_dim", &head_dim, {.min = 0}},
            {"window", &window, {.min = 0}},
            {"qk_norm", &qk_norm},
            {"qkv_bias", &qkv_bias},
            {"out_bias", &out_bias},
            {"rope_theta", &rope_theta},
            {"dropout", &dropout}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (num_kv_heads == 0) num_kv_heads = num_heads;
    problems.Require(rope_theta == 0 || rope_theta > 1, "option rope_theta is ", rope_theta,
                     "; a number above 1 would work, or 0 for no rotation");
    problems.Require(dropout >= 0 && dropout < 1, "option dropout is ", dropout,
                     "; a number in [0, 1) would work");
    problems.Require(head_dim > 0 || sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim, ", or head_dim must be given");
    if (head_dim == 0) head_dim = std::max<int64_t>(1, sizes.model_dim / num_heads);
    problems.Require(rope_theta == 0 || head_dim % 2 == 0, "width per head ", head_dim,
                     " must be even: rotation pairs channels");
    problems.Require(num_heads * head_dim <= kMaxWidth, "num_heads ", num_heads, " of head_dim ",
                     head_dim, " are ", num_heads * head_dim, " wide; at most ", kMaxWidth,
                     " would work");
    problems.Require(num_heads % num_kv_heads == 0, "num_kv_heads ", num_kv_heads,
                     " must divide num_heads ", num_heads);
  }
};

class Softmax : public Mixer {
 public:
  Softmax(const SoftmaxOptions& sizes, const PartContext& context)
      : sizes_(sizes), model_dim_(context.model_dim()) {
    const int64_t query_dim = sizes.num_heads * sizes.head_dim,
                  kv_dim = sizes.num_kv_heads * sizes.head_dim;
    q_ = DeclareMatrix(context, "q_proj.weight", {.out = query_dim, .in = model_dim_});
    k_ = DeclareMatrix(context, "k_proj.weight", {.out = kv_dim, .in = model_dim_});
    v_ = DeclareMatrix(context, "v_proj.weight",
                       {.out = kv_dim, .in = model_dim_, .init_scale = context.value_init_scale});
    if (sizes.qkv_bias) {
      q_bias_ = DeclareBias(context, "q_proj.bias", query_dim);
      k_bias_ = DeclareBias(context, "k_proj.bias", kv_dim);
      v_bias_ = DeclareBias(context, "v_proj.bias", kv_dim);
    }
    if (sizes.qk_norm) {
      q_norm_ = DeclareNorm(context, "q_norm.weight", sizes.head_dim);
      k_norm_ = DeclareNorm(context, "k_norm.weight", sizes.head_dim);
    }
    out_ = OutputProjection(context, query_dim, sizes.out_bias);
  }

  // Keys and values [B, capacity, Hk, d], of which num_past are in use; Step doubles the capacity
  // when it is full.
  MixerTraits traits() const override {
    const auto cache = [&](const char* name) {
      return StateTensor{.name = name,
                         .shape = {StateTensor::kGrows, sizes_.num_kv_heads, sizes_.head_dim},
                         .compute_dtype = true,
                         .exchange = StateExchange::kGather};
    };
    return {.state = {cache("keys"), cache("values")}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const SequenceSlice& slice = call.slice;
    const Heads heads = Project(call.x, slice.positions);
    const int64_t num_past = call.num_past;
    at::Tensor k = heads.k, v = heads.v;
    if (num_past > 0) {
      k = at::cat({call.initial->tensors[0].narrow(1, 0, num_past), k}, 1);
      v = at::cat({call.initial->tensors[1].narrow(1, 0, num_past), v}, 1);
    }
    const bool plain = num_past == 0 && !slice.has_boundaries() &&
                       (sizes_.window == 0 || slice.seq_len <= sizes_.window);
    const bool drops = call.drop != nullptr && sizes_.dropout > 0;
    const at::Tensor mask =
        plain && !drops ? at::Tensor() : VisiblePairs(slice, num_past, call.x.device());
    MixerOutput result = {.y = drops ? AttendWithDropout(heads.q, k, v, mask, call.drop)
                                     : Attend(heads.q, k, v, mask, plain),
                          .state = {}};
    if (call.want_state) result.state.tensors = {k, v};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, int64_t num_past, MixerState& state) const override {
    const auto slice = SequenceSlice::Contiguous(x.size(0), 1, num_past, x.device());
    const Heads heads = Project(x.unsqueeze(1), slice.positions);
    AppendToken(heads.k, num_past, state.tensors[0]);
    AppendToken(heads.v, num_past, state.tensors[1]);
    const int64_t num_keys = num_past + 1;
    const int64_t visible = sizes_.window == 0 ? num_keys : std::min(sizes_.window, num_keys);
    const int64_t first = num_keys - visible;
    return Attend(heads.q, state.tensors[0].narrow(1, first, visible),
                  state.tensors[1].narrow(1, first, visible), at::Tensor(), /*causal=*/false)
        .squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t seq_len) const override {
    const auto dim = static_cast<double>(model_dim_), queries = query_dim(),
               kv_share =
                   static_cast<double>(sizes_.num_kv_heads) / static_cast<double>(sizes_.num_heads);
    const int64_t span = sizes_.window == 0 ? seq_len : std::min(sizes_.window, seq_len);
    // each query meets (span + 1) / 2 keys on average, twice: scores and their sum of values
    return {.matmul = 2 * dim * queries * (2 + 2 * kv_share),
            .mixing = 2 * queries * static_cast<double>(span + 1)};
  }

  double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const override {
    // x, rotated q, k, v and the output; with q and k norm also what is normed. The attention keeps
    // one fp32 per head, with dropout two of each probability.
    const auto kv = static_cast<double>(sizes_.num_kv_heads * sizes_.head_dim);
    const double elements = static_cast<double>(model_dim_) + 2 * query_dim() + 2 * kv +
                            (sizes_.qk_norm ? 2 * (query_dim() + kv) : 0);
    return elements * static_cast<double>(bytes_per_element) +
           4 * static_cast<double>(sizes_.num_heads) *
               (sizes_.dropout > 0 ? 1 + 2 * static_cast<double>(seq_len) : 1);
  }

 private:
  double query_dim() const { return static_cast<double>(sizes_.num_heads * sizes_.head_dim); }

  struct Heads {
    at::Tensor q, k, v;  // [B, T, H or Hk, d]
  };
  Heads Project(const at::Tensor& x, const at::Tensor& positions) const {
    const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, {*q_, *k_, *v_});
    at::Tensor q = SplitHeads(AddBias(y[0], q_bias_), sizes_.head_dim),
               k = SplitHeads(AddBias(y[1], k_bias_), sizes_.head_dim);
    if (sizes_.qk_norm) {
      q = kernels::RmsNorm(q, *q_norm_, kQkNormEps);
      k = kernels::RmsNorm(k, *k_norm_, kQkNormEps);
    }
    if (sizes_.rope_theta > 0) {
      const auto table = kernels::MakeRotaryTable(positions, sizes_.head_dim, sizes_.rope_theta);
      q = kernels::ApplyRotary(q, table);
      k = kernels::ApplyRotary(k, table);
    }
    return {.q = q, .k = k, .v = SplitHeads(AddBias(y[2], v_bias_), sizes_.head_dim)};
  }

  // q [B, T, H, d], k and v [B, S, Hk, d], mask [B or 1, 1, T, S] or undefined -> [B, T, D].
  at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& mask, bool causal) const {
    const at::Tensor out = at::scaled_dot_product_attention(
        q.transpose(1, 2), RepeatHeads(k, sizes_.num_heads).transpose(1, 2),
        RepeatHeads(v, sizes_.num_heads).transpose(1, 2),
        mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt, /*dropout_p=*/0.0, causal);
    return out_(out.transpose(1, 2).flatten(2));
  }

  // The same with some of the probabilities dropped, which are all kept then: [B, H, T, S] in fp32.
  at::Tensor AttendWithDropout(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const at::Tensor& mask, const MixerCall::Drop& drop) const {
    const at::ScalarType compute = kernels::ComputeType(q);
    const auto by_head = [&](const at::Tensor& x) { return x.to(compute).transpose(1, 2); };
    const at::Tensor scores =
        by_head(q).matmul(by_head(RepeatHeads(k, sizes_.num_heads)).transpose(2, 3)) /
        std::sqrt(static_cast<double>(sizes_.head_dim));
    const at::Tensor probabilities =
        scores.masked_fill(mask.logical_not(), -std::numeric_limits<double>::infinity())
            .softmax(-1);
    const at::Tensor of_tokens = probabilities.transpose(1, 2);  // [B, T, H, S]
    const at::Tensor kept = drop(/*site=*/0, of_tokens.flatten(2), sizes_.dropout)
                                .unflatten(2, {sizes_.num_heads, -1})
                                .transpose(1, 2);
    const at::Tensor out = kept.matmul(by_head(RepeatHeads(v, sizes_.num_heads)));
    return out_(out.transpose(1, 2).flatten(2).to(q.scalar_type()));
  }

  // True where query i of the slice sees key j: earlier or itself, within the window, in the same
  // document. Of the state's keys, a row's first token at position p of its document continues with
  // the last p. [B or 1, 1, T, S].
  at::Tensor VisiblePairs(const SequenceSlice& slice, int64_t num_past, at::Device device) const {
    const auto options = at::TensorOptions(device).dtype(at::kLong);
    const int64_t num_keys = num_past + slice.seq_len;
    const at::Tensor query = at::arange(num_past, num_keys, options).unsqueeze(1);
    const at::Tensor key = at::arange(num_keys, options).unsqueeze(0);
    at::Tensor visible = key <= query;
    if (sizes_.window > 0) visible = visible.logical_and(query - key < sizes_.window);
    visible = visible.unsqueeze(0);
    const at::Tensor first_position = slice.positions.narrow(1, 0, 1);  // [B, 1]
    if (!slice.has_boundaries()) {
      if (num_past > 0)
        visible = visible.logical_and((key >= num_past - first_position).unsqueeze(1));
      return visible.unsqueeze(1);
    }
    const at::Tensor first = slice.documents.narrow(1, 0, 1);
    const at::Tensor past_key = at::arange(num_past, options).unsqueeze(0);
    const at::Tensor past =  // documents ascend: one less is another one
        first - (past_key < num_past - first_position).to(at::kLong);
    const at::Tensor documents = at::cat({past, slice.documents}, 1);  // [B, S]
    const at::Tensor same = slice.documents.unsqueeze(2) == documents.unsqueeze(1);
    return visible.logical_and(same).unsqueeze(1);
  }

  SoftmaxOptions sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, q_bias_, k_bias_, v_bias_, q_norm_, k_norm_;
  OutputProjection out_;
};

}  // namespace

MixerVariant SoftmaxVariant() {
  return MixerVariantOf<SoftmaxOptions, Softmax>(
      "softmax", {{{"num_heads", 2}},
                  {{"num_heads", 2}, {"head_dim", 12}, {"qkv_bias", true}, {"out_bias", true}},
                  {{"num_heads", 4}, {"num_kv_heads", 2}, {"qk_norm", true}, {"window", 20}},
                  {{"num_heads", 2}, {"rope_theta", 0}, {"dropout", 0.1}}});
}

}  // namespace halflife::model
