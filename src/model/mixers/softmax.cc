// Softmax attention with rotary positions, grouped key-value heads, and optionally RMSNorm of q and k and a sliding
// window: the baseline that linear mixers are measured against. Parameters as in fla's Transformer. Its state, the keys
// and values of all tokens so far, grows.
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/linear/linear.h"
#include "kernels/rms_norm/rms_norm.h"
#include "kernels/rotary/rotary.h"
#include "kernels/torch/dispatch.h"
#include "model/mixers/mixers.h"

namespace halflife::model {
namespace {

constexpr double kQkNormEps = 1e-5;  // whatever the model's norm_eps: the public layers' constant
constexpr int64_t kFirstCapacity = 64;

struct Sizes {
  int64_t num_heads, num_kv_heads, head_dim;
  int64_t window;  // key j is visible to query i while i - j < window; 0: all
  bool qk_norm, qkv_bias, out_bias;
  double rope_theta;
};

Sizes ReadSizes(const MixerConfig& config, const MixerContext& context) {
  const int64_t model_dim = context.model_dim;
  MixerOptions options(config, context);
  Sizes sizes = {};
  sizes.num_heads = options.Int("num_heads", 8);
  sizes.num_kv_heads = options.Int("num_kv_heads", sizes.num_heads);
  sizes.window = options.Int("window", 0, 0);
  sizes.qk_norm = options.Bool("qk_norm", false);
  sizes.qkv_bias = options.Bool("qkv_bias", false);
  sizes.out_bias = options.Bool("out_bias", false);
  sizes.rope_theta = options.Double("rope_theta", 10000);
  options.Require(sizes.rope_theta > 1, "option rope_theta is ", sizes.rope_theta,
                  "; a number above 1 would work");
  const bool own_width = options.Has("head_dim");
  options.Require(own_width || model_dim % sizes.num_heads == 0, "num_heads ", sizes.num_heads,
                  " must divide model_dim ", model_dim, ", or head_dim must be given");
  sizes.head_dim = options.Int("head_dim", std::max<int64_t>(1, model_dim / sizes.num_heads));
  options.Require(sizes.head_dim % 2 == 0, "width per head ", sizes.head_dim,
                  " must be even: rotation pairs channels");
  options.Require(sizes.num_heads * sizes.head_dim <= kMaxWidth, "num_heads ", sizes.num_heads,
                  " of head_dim ", sizes.head_dim, " are ", sizes.num_heads * sizes.head_dim,
                  " wide; at most ", kMaxWidth, " would work");
  options.Require(sizes.num_heads % sizes.num_kv_heads == 0, "num_kv_heads ", sizes.num_kv_heads,
                  " must divide num_heads ", sizes.num_heads);
  options.Check();
  return sizes;
}

class Softmax : public Mixer {
 public:
  Softmax(const Sizes& sizes, const MixerContext& context)
      : sizes_(sizes), model_dim_(context.model_dim) {
    const int64_t query_dim = sizes.num_heads * sizes.head_dim,
                  kv_dim = sizes.num_kv_heads * sizes.head_dim;
    q_ = DeclareMatrix(context, "q_proj.weight", query_dim, model_dim_);
    k_ = DeclareMatrix(context, "k_proj.weight", kv_dim, model_dim_);
    v_ = DeclareMatrix(context, "v_proj.weight", kv_dim, model_dim_);
    if (sizes.qkv_bias) {
      q_bias_ = DeclareBias(context, "q_proj.bias", query_dim);
      k_bias_ = DeclareBias(context, "k_proj.bias", kv_dim);
      v_bias_ = DeclareBias(context, "v_proj.bias", kv_dim);
    }
    if (sizes.qk_norm) {
      q_norm_ = DeclareNorm(context, "q_norm.weight", sizes.head_dim);
      k_norm_ = DeclareNorm(context, "k_norm.weight", sizes.head_dim);
    }
    out_ = DeclareMatrix(context, "o_proj.weight", model_dim_, query_dim);
    if (sizes.out_bias) out_bias_ = DeclareBias(context, "o_proj.bias", model_dim_);
  }

  MixerOutput Forward(const at::Tensor& x, const SequenceSlice& slice, const MixerState* initial,
                      bool want_state) const override {
    const Heads heads = Project(x, slice.positions);
    const int64_t num_past = initial == nullptr ? 0 : initial->num_tokens;
    at::Tensor k = heads.k, v = heads.v;
    if (num_past > 0) {
      k = at::cat({initial->tensors[0].narrow(1, 0, num_past), k}, 1);
      v = at::cat({initial->tensors[1].narrow(1, 0, num_past), v}, 1);
    }
    const bool plain = num_past == 0 && !slice.has_boundaries() &&
                       (sizes_.window == 0 || slice.seq_len <= sizes_.window);
    const at::Tensor mask = plain ? at::Tensor() : VisiblePairs(slice, num_past, x.device());
    MixerOutput result = {.y = Attend(heads.q, k, v, mask, plain), .state = {}};
    if (want_state) {
      result.state.tensors = {k, v};
      result.state.num_tokens = num_past + slice.seq_len;
    }
    return result;
  }

  // Keys and values [B, capacity, Hk, d], of which num_tokens are in use; Step doubles the capacity when it is full.
  MixerState EmptyState(int64_t batch, at::Device device) const override {
    const auto options =
        at::TensorOptions(device).dtype(q_->defined() ? q_->scalar_type() : at::kFloat);
    const auto make = [&] {
      return at::empty({batch, kFirstCapacity, sizes_.num_kv_heads, sizes_.head_dim}, options);
    };
    return {.tensors = {make(), make()}, .num_tokens = 0};
  }

  at::Tensor Step(const at::Tensor& x, MixerState& state) const override {
    const auto slice = SequenceSlice::Contiguous(x.size(0), 1, state.num_tokens, x.device());
    const Heads heads = Project(x.unsqueeze(1), slice.positions);
    Append(heads.k, state.num_tokens, state.tensors[0]);
    Append(heads.v, state.num_tokens, state.tensors[1]);
    ++state.num_tokens;
    const int64_t visible =
        sizes_.window == 0 ? state.num_tokens : std::min(sizes_.window, state.num_tokens);
    const int64_t first = state.num_tokens - visible;
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

  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, rotated q, k, v and the output; with q and k norm also what is normed. The attention keeps one fp32 per head.
    const auto kv = static_cast<double>(sizes_.num_kv_heads * sizes_.head_dim);
    const double elements = static_cast<double>(model_dim_) + 2 * query_dim() + 2 * kv +
                            (sizes_.qk_norm ? 2 * (query_dim() + kv) : 0);
    return elements * static_cast<double>(bytes_per_element) +
           4 * static_cast<double>(sizes_.num_heads);
  }

  bool constant_state() const override { return false; }

 private:
  double query_dim() const { return static_cast<double>(sizes_.num_heads * sizes_.head_dim); }

  struct Heads {
    at::Tensor q, k, v;  // [B, T, H or Hk, d]
  };
  Heads Project(const at::Tensor& x, const at::Tensor& positions) const {
    const std::vector<at::Tensor> y = kernels::SharedInputLinear(x, {*q_, *k_, *v_});
    const auto table = kernels::MakeRotaryTable(positions, sizes_.head_dim, sizes_.rope_theta);
    at::Tensor q = SplitHeads(AddBias(y[0], q_bias_), sizes_.head_dim),
               k = SplitHeads(AddBias(y[1], k_bias_), sizes_.head_dim);
    if (sizes_.qk_norm) {
      q = kernels::RmsNorm(q, *q_norm_, kQkNormEps);
      k = kernels::RmsNorm(k, *k_norm_, kQkNormEps);
    }
    return {.q = kernels::ApplyRotary(q, table),
            .k = kernels::ApplyRotary(k, table),
            .v = SplitHeads(AddBias(y[2], v_bias_), sizes_.head_dim)};
  }

  // q [B, T, H, d], k and v [B, S, Hk, d], mask [B or 1, 1, T, S] or undefined -> [B, T, D].
  at::Tensor Attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                    const at::Tensor& mask, bool causal) const {
    const at::Tensor out = at::scaled_dot_product_attention(
        q.transpose(1, 2), RepeatHeads(k, sizes_.num_heads).transpose(1, 2),
        RepeatHeads(v, sizes_.num_heads).transpose(1, 2),
        mask.defined() ? std::optional<at::Tensor>(mask) : std::nullopt, /*dropout_p=*/0.0, causal);
    return AddBias(kernels::Linear(out.transpose(1, 2).flatten(2), *out_), out_bias_);
  }

  // True where query i of the slice sees key j: earlier or itself, within the window, in the same document. Of the state's
  // keys, a row's first token at position p of its document continues with the last p. [B or 1, 1, T, S].
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

  static void Append(const at::Tensor& token, int64_t place, at::Tensor& cache) {
    if (place == cache.size(1)) {
      std::vector<int64_t> shape(cache.sizes().begin(), cache.sizes().end());
      shape[1] = std::max(kFirstCapacity, 2 * place);
      at::Tensor grown = at::empty(shape, cache.options());
      grown.narrow(1, 0, place).copy_(cache);
      cache = grown;
    }
    cache.narrow(1, place, 1).copy_(token);
  }

  Sizes sizes_;
  int64_t model_dim_;
  Parameter q_, k_, v_, q_bias_, k_bias_, v_bias_, q_norm_, k_norm_, out_, out_bias_;
};

}  // namespace

std::unique_ptr<Mixer> MakeSoftmax(const MixerConfig& config, const MixerContext& context) {
  return std::make_unique<Softmax>(ReadSizes(config, context), context);
}

}  // namespace halflife::model
