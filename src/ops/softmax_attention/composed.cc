#include "ops/softmax_attention/composed.h"

#include <ATen/Context.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "kernels/common/dropout_draws.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::ops {
namespace {

// While an instance exists, an operation without a deterministic form is an error.
class WithoutException {
 public:
  WithoutException() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false); }
  ~WithoutException() { at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true); }
  WithoutException(const WithoutException&) = delete;
  WithoutException& operator=(const WithoutException&) = delete;
};

at::Tensor Attend(const OrderedAttentionInputs& in) {
  const std::optional<at::Tensor> mask = in.mask.defined() ? std::optional(in.mask) : std::nullopt;
  return at::scaled_dot_product_attention(in.q, in.k, in.v, mask, /*dropout_p=*/0.0, in.causal,
                                          in.scale, /*enable_gqa=*/in.q.size(1) != in.k.size(1));
}

// Copies a gradient [B, H, T, d] to its columns. LibTorch's attention allocates it elsewhere.
at::Tensor InColumns(const at::Tensor& gradient, const ColumnSlice& place) {
  if (place.columns == nullptr) return gradient;
  const at::Tensor by_token = gradient.transpose(1, 2);
  return place.EmptyLike(by_token).copy_(by_token).transpose(1, 2);
}

// Tensors that the backward needs.
struct KeptTensors {
  Tensors leaves;  // inputs that require a gradient
  at::Tensor out;
};

}  // namespace

at::Tensor OrderedAttention(const OrderedAttentionInputs& inputs) {
  const at::Context& context = at::globalContext();
  if (!context.deterministicAlgorithms() || !context.deterministicAlgorithmsWarnOnly())
    return Attend(inputs);
  const Tensors given = {inputs.q, inputs.k, inputs.v, inputs.mask};
  const bool differentiates = c10::GradMode::is_enabled();
  const auto forward = [&]() -> Forwarded {
    const auto kept = std::make_shared<KeptTensors>();
    OrderedAttentionInputs own = inputs;
    for (at::Tensor* const x : {&own.q, &own.k, &own.v, &own.mask}) {
      if (!x->defined()) continue;
      const bool wanted = differentiates && x->requires_grad();
      *x = x->detach();
      if (wanted) kept->leaves.push_back(x->requires_grad_());
    }
    const WithoutException strict;
    const c10::AutoGradMode with_graph(!kept->leaves.empty());
    kept->out = Attend(own);
    const std::vector<ColumnSlice> places = {inputs.q_gradient, inputs.k_gradient,
                                             inputs.v_gradient, ColumnSlice()};
    const auto backward = [kept, places](const BackwardCall& call) -> Tensors {
      HL_CHECK(kept->out.defined(),
               "backward ran a second time through attention. Run it once per forward.");
      const WithoutException strict_too;
      const Tensors found = Differentiate({std::exchange(kept->out, {})}, call.grads, kept->leaves,
                                          /*keep_graph=*/false);
      Tensors gradients(call.wanted.size());
      size_t next = 0;
      for (size_t i = 0; i < gradients.size(); ++i)
        if (call.wanted[i]) gradients[i] = InColumns(found[next++], places[i]);
      return gradients;
    };
    return {.outputs = {kept->out.detach()}, .saved = {}, .backward = backward};
  };
  return Apply({.name = "OrderedAttention", .inputs = given, .forward = forward})[0];
}

namespace {

constexpr int64_t kBlock = 512;  // queries
constexpr double kNever = -std::numeric_limits<double>::infinity();

// Converts [B, S, Hk, d] to [B, H, S, d], in the compute type if the scores are formed here.
at::Tensor ByHead(const at::Tensor& x, int64_t num_heads) {
  const int64_t shared = num_heads / x.size(2);
  return (shared == 1 ? x : x.repeat_interleave(shared, 2)).transpose(1, 2);
}

// Queries [begin, end) against keys [first_key, end_key).
struct Block {
  const SoftmaxAttentionInputs& inputs;
  const SoftmaxAttentionConfig& config;
  const VisibleKeys& seen;
  int64_t begin, end, first_key, end_key;

  int64_t num_past() const { return inputs.k.size(1) - inputs.q.size(1); }
  at::Tensor Queries(const at::Tensor& q) const { return q.narrow(1, begin, end - begin); }
  at::Tensor Keys(const at::Tensor& k) const { return k.narrow(1, first_key, end_key - first_key); }
  at::TensorOptions Long() const { return inputs.positions.options(); }
  at::Tensor KeyPlaces() const { return at::arange(first_key, end_key, Long()); }
  at::Tensor QueryPlaces() const {
    return at::arange(num_past() + begin, num_past() + end, Long());
  }
  at::Tensor Distances() const { return QueryPlaces().unsqueeze(1) - KeyPlaces(); }

  at::Tensor Visible() const {  // [B, 1, T, S]
    const auto rows = [&](const at::Tensor& x) { return Queries(x).unsqueeze(2); };
    const at::Tensor key = KeyPlaces();
    at::Tensor visible = (key >= rows(seen.first)).logical_and(key < rows(seen.end));
    if (config.pattern.sinks > 0)
      visible = visible.logical_or((key >= rows(seen.sinks))
                                       .logical_and(key < rows(seen.sinks) + config.pattern.sinks)
                                       .logical_and(key < rows(seen.end)));
    return visible.unsqueeze(1);
  }
  at::Tensor Bias() const {  // [1 or B, H, T, S]
    // Keys after a causal query are masked, so their distance is clamped. A bidirectional query
    // uses the absolute distance.
    const at::Tensor distances =
        config.pattern.bidirectional ? Distances().abs() : Distances().clamp_min(0);
    // Not index_select: its backward makes the host wait for the GPU.
    const at::Tensor bias = at::embedding(inputs.bias.t(), distances).permute({2, 0, 1});
    if (!inputs.bias_scale.defined()) return bias.unsqueeze(0);
    return bias * Queries(inputs.bias_scale.detach()).unsqueeze(1).unsqueeze(3);
  }
  // Returns x times e^(+-rate (place - the block's first query)), so that products of q and k decay
  // with the distance. No factor is larger than the length of the block allows.
  at::Tensor Decayed(const at::Tensor& x, const at::Tensor& places, double sign) const {
    if (config.decay_rates.empty()) return x;
    const at::Tensor rates = ConstantsOn(x.device(), config.decay_rates);
    const at::Tensor gaps = (places - (num_past() + begin)).to(at::kDouble).unsqueeze(1);
    const at::Tensor factors = at::exp(sign * gaps * rates).to(ComputeType(x));
    return (x.to(factors.scalar_type()) * factors.unsqueeze(1)).to(x.scalar_type());
  }
};

at::Tensor Scores(const Block& block, const at::Tensor& q, const at::Tensor& k) {
  const at::ScalarType compute = ComputeType(q);
  const int64_t num_heads = q.size(2);
  return ByHead(q.to(compute), num_heads).matmul(ByHead(k.to(compute), num_heads).transpose(2, 3)) *
         block.config.scale;
}

// Returns the scores of all pairs of the block, including far pairs and biases: [B, H, T, S].
at::Tensor AllScores(const Block& block, const at::Tensor& q, const at::Tensor& k) {
  const SoftmaxAttentionInputs& in = block.inputs;
  at::Tensor scores = Scores(block, q, k);
  if (in.far_q.defined()) {
    const at::Tensor far =
        Scores(block, block.Queries(in.far_q), block.Keys(in.far_k.defined() ? in.far_k : in.k));
    scores = at::where(block.Distances() >= block.config.far_from, far, scores);
  }
  return in.bias.defined() ? scores + block.Bias() : scores;
}

// Applies dropout to probabilities [B, H, T, S] of keys counted from the row's beginning.
at::Tensor Dropped(const Block& block, const at::Tensor& probabilities) {
  DropoutConfig dropout = block.config.dropout;
  const int64_t num_heads = probabilities.size(1);
  const at::Tensor heads = at::arange(num_heads, dropout.samples.options());
  dropout.samples =
      (dropout.samples.unsqueeze(1) + heads * (int64_t{1} << kernels::kHeadBit)).flatten();
  dropout.first_position += block.begin;
  return Dropout(probabilities.flatten(0, 1).contiguous(), dropout).unflatten(0, {-1, num_heads});
}

// Computes attention with explicit probabilities, [B, T, H, V].
at::Tensor AttendDense(const Block& block, const at::Tensor& q, const at::Tensor& k) {
  const SoftmaxAttentionInputs& in = block.inputs;
  const at::Tensor scores = AllScores(block, q, k);
  const at::Tensor visible = block.Visible(), none = visible.any(3, true).logical_not();
  at::Tensor probabilities =
      block.config.squared_relu
          ? scores.clamp_min(0).square().masked_fill(visible.logical_not(), 0.0) /
                visible.sum(3, true).clamp_min(1)
          : scores.masked_fill(visible.logical_not(), kNever)
                .masked_fill(none, 0.0)
                .softmax(-1)
                .masked_fill(none, 0.0);
  if (block.config.dropout.rate > 0) probabilities = Dropped(block, probabilities);
  const at::Tensor v = ByHead(block.Keys(in.v).to(scores.scalar_type()), q.size(2));
  return probabilities.matmul(v).transpose(1, 2).to(q.scalar_type());
}

at::Tensor AttendFused(const Block& block, const at::Tensor& q, const at::Tensor& k) {
  const SoftmaxAttentionInputs& in = block.inputs;
  at::Tensor mask = block.Visible();
  if (in.bias.defined())
    mask = block.Bias().masked_fill(mask.logical_not(), kNever).to(q.scalar_type());
  const int64_t num_heads = q.size(2);
  return OrderedAttention({.q = ByHead(q, num_heads),
                           .k = ByHead(k, num_heads),
                           .v = ByHead(block.Keys(in.v), num_heads),
                           .mask = mask,
                           .scale = block.config.scale})
      .transpose(1, 2);
}

// Returns the end of the keys that queries before `end` may see.
int64_t EndOfKeys(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config,
                  int64_t end) {
  const int64_t num_keys = inputs.k.size(1), num_past = num_keys - inputs.q.size(1);
  if (!config.pattern.bidirectional) return num_past + end;
  const int64_t window = config.pattern.window;
  return window > 0 ? std::min(num_keys, end + window - 1) : num_keys;
}

// Calls visit(block, q, k) for each block of queries in order, with q and k as their products need
// them.
template <typename Visit>
void ForBlocks(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config,
               Visit visit) {
  const int64_t num_queries = inputs.q.size(1), num_past = inputs.k.size(1) - num_queries;
  const VisibleKeys seen = SeenBy(inputs, config);
  const bool drops = config.dropout.rate > 0;
  const bool bounded = config.pattern.reach() > 0 && config.pattern.sinks == 0 && !drops;
  for (int64_t begin = 0; begin < num_queries; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, num_queries), place = num_past + begin;
    const Block block = {
        .inputs = inputs,
        .config = config,
        .seen = seen,
        .begin = begin,
        .end = end,
        .first_key = bounded ? std::max<int64_t>(0, place - config.pattern.reach() + 1) : 0,
        .end_key = EndOfKeys(inputs, config, end)};
    visit(block, block.Decayed(block.Queries(inputs.q), block.QueryPlaces(), +1),
          block.Decayed(block.Keys(inputs.k), block.KeyPlaces(), -1));
  }
}

}  // namespace

VisibleKeys SeenBy(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config) {
  if (inputs.seen.first.defined()) return inputs.seen;
  return VisibleKeysOf(inputs.positions, inputs.k.size(1) - inputs.q.size(1), config.pattern);
}

at::Tensor ComposedSoftmaxAttention(const SoftmaxAttentionInputs& inputs,
                                    const SoftmaxAttentionConfig& config) {
  const bool dense = inputs.far_q.defined() || config.dropout.rate > 0 || config.squared_relu;
  Tensors outs;
  ForBlocks(inputs, config, [&](const Block& block, const at::Tensor& q, const at::Tensor& k) {
    outs.push_back(dense ? AttendDense(block, q, k) : AttendFused(block, q, k));
  });
  if (outs.empty()) outs.push_back(inputs.q.narrow(1, 0, 0).narrow(3, 0, 0));
  return at::cat(outs, 1);
}

void ForScoreBlocks(const SoftmaxAttentionInputs& inputs, const SoftmaxAttentionConfig& config,
                    const std::function<void(const ScoreBlock&)>& visit) {
  ForBlocks(inputs, config, [&](const Block& block, const at::Tensor& q, const at::Tensor& k) {
    visit({.first_key = block.first_key,
           .scores = AllScores(block, q, k),
           .visible = block.Visible(),
           .distances = block.Distances()});
  });
}

}  // namespace halflife::ops
