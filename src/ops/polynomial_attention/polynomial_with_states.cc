#include "ops/polynomial_attention/polynomial_with_states.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/concat.h"
#include "kernels/polynomial_attention/features.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::ops {
namespace {

// Limit of d^2, because all products of two channels are stored.
constexpr int64_t kMaxProducts = 1024;
constexpr int64_t kColumnStep = 8;  // values are padded to rows of 16 bytes

int64_t NumColumns(int64_t dim_v, bool normalise) {
  return normalise ? (dim_v / kColumnStep + 1) * kColumnStep : dim_v;
}

// The features and states for the shape of one call. In this class a "full" state is [B, H, F', C]:
// it has all d x d products of the second order, of which a packed state only has the upper half,
// and its columns are those of the values followed, for the normalizer, by a one and zero padding.
class Formula {
 public:
  Formula(const PolynomialAttentionInputs& in, const PolynomialAttentionConfig& config)
      : chunks_(in.chunks),
        normalise_(config.normalise),
        layout_(static_cast<int>(in.q.size(3)), config.weights),
        query_weights_(kernels::QueryWeights(config.weights, config.scale)),
        compute_(ComputeType(in.q)),
        device_(in.q.device()),
        dim_v_(in.v.size(3)) {}

  // v [B, T, H, V] -> [B, T, H, C].
  at::Tensor Columns(const at::Tensor& v) const { return WithOnes(v, Ones(v)); }

  // Returns the contribution of the tokens before the row, given as a full state, to each token
  // from `begin` on: [B, H, T', C].
  at::Tensor OfEarlier(const at::Tensor& q, int64_t begin, const at::Tensor& before) const {
    const at::Tensor started = Started(begin, q.size(1));
    // Both factors are masked: in backward, zero times a NaN of another document would be NaN.
    return Features(q, query_weights_)
        .masked_fill(started, 0)
        .matmul(before)
        .masked_fill(started, 0);
  }
  // Returns the contribution of these tokens to the full state after the row.
  at::Tensor OwnState(const at::Tensor& k, const at::Tensor& v, int64_t begin) const {
    const at::Tensor ended = Ended(begin, k.size(1));
    const at::Tensor values = Columns(v).to(compute_).transpose(1, 2);
    return Features(k, {}).masked_fill(ended, 0).transpose(2, 3).matmul(
        values.masked_fill(ended, 0));
  }
  // Returns what remains after the row of a full state before it.
  at::Tensor Passed(const at::Tensor& before) const {
    return before.masked_fill(Started(chunks_->seq_len - 1, 1), 0);
  }
  // Returns these tokens' contribution to the gradient of a full state, from dL/d[N | z] [B, T', H,
  // V or, if normalized, V + 1].
  at::Tensor GradientBefore(const at::Tensor& q, int64_t begin, const at::Tensor& dsums) const {
    const at::Tensor started = Started(begin, q.size(1));
    return Features(q, query_weights_)
        .masked_fill(started, 0)
        .transpose(2, 3)
        .matmul(dsums.transpose(1, 2).masked_fill(started, 0));
  }

  // Returns the full state, with zeros for fields that `state` lacks.
  at::Tensor Unpack(const PolynomialState& state) const {
    const at::Tensor& some = state.kv.defined() ? state.kv : state.norm;
    const std::vector<int64_t> sizes = {some.size(0), some.size(1), layout_.count, dim_v_};
    const auto whole = [&](const at::Tensor& x, at::IntArrayRef of) {
      return x.defined() ? x.to(compute_)
                         : at::zeros(of, at::TensorOptions(device_).dtype(compute_));
    };
    const at::Tensor kv = whole(state.kv, sizes);
    if (!normalise_) return Places(kv, /*unpack=*/true);
    const at::Tensor norm = whole(state.norm, at::IntArrayRef(sizes).slice(0, 3));
    return Places(WithOnes(kv, norm.unsqueeze(3)), /*unpack=*/true);
  }
  PolynomialState Pack(const at::Tensor& full) const {
    const at::Tensor packed = Places(full, /*unpack=*/false);
    if (!normalise_) return {.kv = packed};
    return {.kv = packed.narrow(3, 0, dim_v_).contiguous(),
            .norm = packed.select(3, dim_v_).contiguous()};
  }
  // Packs a gradient. A product of two different channels occurs twice in the full state.
  PolynomialState PackGradient(const at::Tensor& full) const {
    std::vector<double> counts(layout_.order2, 1);
    for (int a = 0; layout_.has2 && a < layout_.dim; ++a)
      for (int b = a; b < layout_.dim; ++b) counts.push_back(a == b ? 1 : 2);
    const at::Tensor factors = ConstantsOn(device_, counts, compute_);
    PolynomialState gradient = Pack(full);
    gradient.kv = gradient.kv * factors.unsqueeze(1);
    if (normalise_) gradient.norm = gradient.norm * factors;
    return gradient;
  }

 private:
  at::Tensor Ones(const at::Tensor& v) const {
    return at::ones({v.size(0), v.size(1), v.size(2), 1}, v.options().requires_grad(false));
  }
  // Joins [..., V] and [..., 1] to [..., C].
  at::Tensor WithOnes(const at::Tensor& values, const at::Tensor& ones) const {
    if (!normalise_) return values;
    std::vector<int64_t> sizes = values.sizes().vec();
    sizes[3] = NumColumns(dim_v_, true) - dim_v_ - 1;
    return at::cat({values, ones, at::zeros(sizes, values.options().requires_grad(false))}, 3);
  }
  // Returns the features [B, H, T, F'] of x [B, T, H, d].
  at::Tensor Features(const at::Tensor& x, const kernels::FeatureWeights& weights) const {
    const at::Tensor heads = x.to(compute_).transpose(1, 2);
    std::vector<at::Tensor> parts;
    if (layout_.has0)
      parts.push_back(at::full({heads.size(0), heads.size(1), heads.size(2), 1}, weights.order0,
                               heads.options().requires_grad(false)));
    if (layout_.has1) parts.push_back(heads * weights.order1);
    if (layout_.has2)
      parts.push_back(((heads * weights.square).unsqueeze(4) * heads.unsqueeze(3)).flatten(3));
    return at::cat(parts, 3);
  }
  // Returns [B, 1, T', 1] bool for tokens from `begin` on: true if a document starts at or before
  // the token in the row.
  at::Tensor Started(int64_t begin, int64_t count) const {
    const at::Tensor sequence = chunks_->runs().sequence.narrow(1, begin, count);
    return (sequence == chunks_->num_sequences()).unsqueeze(1).unsqueeze(3);
  }
  // Returns the same, but true if a document starts after the token in the row.
  at::Tensor Ended(int64_t begin, int64_t count) const {
    const at::Tensor& starts = chunks_->runs().begin;
    const at::Tensor last = starts.narrow(1, chunks_->seq_len - 1, 1);
    return (starts.narrow(1, begin, count) < last).unsqueeze(1).unsqueeze(3);
  }
  // Expands packed features to full ones, or selects the packed ones from full features.
  at::Tensor Places(const at::Tensor& x, bool unpack) const {
    std::vector<double> places;
    for (int f = 0; f < layout_.order2; ++f) places.push_back(f);
    const int dim = layout_.dim;
    for (int a = 0; layout_.has2 && a < dim; ++a)
      for (int b = unpack ? 0 : a; b < dim; ++b)
        places.push_back(unpack ? layout_.Pair(std::min(a, b), std::max(a, b))
                                : layout_.order2 + a * dim + b);
    return AtPlaces(x, places);
  }
  // Selects `places` along F of x [B, H, F, V]. A place may occur at most twice (the two orders of
  // a pair). The custom backward avoids LibTorch's backward of index_select, which makes the host
  // wait for the GPU.
  static at::Tensor AtPlaces(const at::Tensor& x, const std::vector<double>& places) {
    // For each index of F, the up to two output indices that it was copied to; -1: none.
    std::array<std::vector<double>, 2> went;
    for (auto& to : went) to.assign(static_cast<size_t>(x.size(2)), -1);
    for (size_t i = 0; i < places.size(); ++i) {
      const auto from = static_cast<size_t>(places[i]);
      went[went[0][from] < 0 ? 0 : 1][from] = static_cast<double>(i);
    }
    const auto backward = [went](const BackwardCall& call) -> Tensors {
      const at::Tensor& dout = call.grads[0];
      at::Tensor sum;
      for (const std::vector<double>& to : went) {
        const at::Tensor place = ConstantsOn(dout.device(), to, at::kLong);
        const at::Tensor there = dout.index_select(2, place.clamp_min(0))
                                     .masked_fill(place.lt(0).view({1, 1, -1, 1}), 0);
        sum = sum.defined() ? sum + there : there;
      }
      return {sum};
    };
    const auto forward = [&]() -> Forwarded {
      return {.outputs = {x.index_select(2, ConstantsOn(x.device(), places, at::kLong))},
              .saved = {},
              .backward = backward};
    };
    return Apply({.name = "AtPlaces", .inputs = {x}, .forward = forward})[0];
  }

  std::shared_ptr<const SequenceChunks> chunks_;
  bool normalise_;
  kernels::FeatureLayout layout_;
  kernels::FeatureWeights query_weights_;
  at::ScalarType compute_;
  at::Device device_;
  int64_t dim_v_;
};

// Calls function(begin, count) for blocks of tokens. It limits the memory for features, which are
// about d times as large as q and k; the backward recomputes them.
template <typename Function>
void ForBlocks(int64_t num_tokens, Function function) {
  constexpr int64_t kBlock = 2048;
  for (int64_t begin = 0; begin < num_tokens; begin += kBlock)
    function(begin, std::min(kBlock, num_tokens - begin));
}

// Returns the sum of share(begin, count) over the blocks, in order.
template <typename Share>
at::Tensor SumOverBlocks(int64_t num_tokens, Share share) {
  at::Tensor sum;
  ForBlocks(num_tokens, [&](int64_t begin, int64_t count) {
    const at::Tensor x = share(begin, count);
    sum = sum.defined() ? sum + x : x;
  });
  return sum;
}

// Returns [B, H, T, C]: the contribution of the tokens before a row, given as a full state.
at::Tensor SumsOfEarlier(const at::Tensor& q, const at::Tensor& before, const Formula& formula) {
  Tensors parts;
  ForBlocks(q.size(1), [&](int64_t begin, int64_t count) {
    const auto run = [formula, begin](const Tensors& x) -> Tensors {
      return {formula.OfEarlier(x[0], begin, x[1])};
    };
    parts.push_back(
        Recomputed("PolynomialAttentionOfEarlier", {q.narrow(1, begin, count), before}, run)[0]);
  });
  return at::cat(parts, 2);
}
// Returns the full state of a row's own tokens.
at::Tensor OwnState(const PolynomialAttentionInputs& in, const Formula& formula) {
  return SumOverBlocks(in.q.size(1), [&](int64_t begin, int64_t count) {
    const auto run = [formula, begin](const Tensors& x) -> Tensors {
      return {formula.OwnState(x[0], x[1], begin)};
    };
    return Recomputed("PolynomialAttentionState",
                      {in.k.narrow(1, begin, count), in.v.narrow(1, begin, count)}, run)[0];
  });
}

// Returns [B, H, T, C]: the contribution of the row's own tokens, by the quadratic kernel.
at::Tensor OwnSums(const PolynomialAttentionInputs& in, const PolynomialAttentionConfig& config,
                   const Formula& formula) {
  return PolynomialAttention(
             {.q = in.q, .k = in.k, .v = formula.Columns(in.v), .chunks = in.chunks},
             {.scale = config.scale,
              .weights = config.weights,
              .normalise = false,
              .want_final_state = false,
              .form = kernels::PolynomialForm::kQuadratic})
      .out.to(ComputeType(in.q))
      .transpose(1, 2);
}

}  // namespace

std::string WhyNotWithStates(const PolynomialAttentionInputs& inputs, bool normalise) {
  const int64_t dim = inputs.q.size(3), batch = inputs.q.size(0);
  if (dim * dim > kMaxProducts) return Concat("heads of ", dim, " channels");
  if (NumColumns(inputs.v.size(3), normalise) > kernels::kMaxPolynomialValues)
    return Concat("values of ", inputs.v.size(3), " channels");
  if (batch == 0 || inputs.q.size(1) == 0) return "no tokens";
  if (inputs.chunks->num_sequences() != batch) return "sequences that are no rows";
  return "";
}

PolynomialAttentionOutput AttendWithStates(const PolynomialAttentionInputs& in,
                                           const PolynomialAttentionConfig& config) {
  const Formula formula(in, config);
  at::Tensor sums = OwnSums(in, config, formula);
  at::Tensor before;
  if (in.initial_state.kv.defined() || in.initial_state.norm.defined()) {
    before = formula.Unpack(in.initial_state);
    sums = sums + SumsOfEarlier(in.q, before, formula);
  }
  PolynomialAttentionOutput output;
  at::Tensor out = sums.narrow(3, 0, in.v.size(3));
  if (config.normalise) {
    const at::Tensor divisors = sums.narrow(3, in.v.size(3), 1) + config.norm_eps;
    out = out / divisors;
    if (divisors.requires_grad())
      output.norm_denom = divisors.detach().squeeze(3).transpose(1, 2).contiguous();
  }
  output.out = out.transpose(1, 2).to(in.v.scalar_type()).contiguous();
  if (!config.want_final_state) return output;
  at::Tensor after = OwnState(in, formula);
  if (before.defined()) after = after + formula.Passed(before);
  output.final_state = formula.Pack(after);
  return output;
}

PolynomialState SummariseByFeatures(const PolynomialAttentionInputs& in,
                                    const PolynomialAttentionConfig& config) {
  const Formula formula(in, config);
  return formula.Pack(OwnState(in, formula));
}

PolynomialState BackwardSummariseByFeatures(const PolynomialAttentionInputs& in,
                                            const PolynomialAttentionConfig& config,
                                            const PolynomialAttentionOutput& output,
                                            const at::Tensor& dout) {
  const at::ScalarType compute = ComputeType(in.q);
  const Formula formula(in, config);
  at::Tensor dsums = dout.defined() ? dout.to(compute) : at::zeros_like(in.v, compute);
  if (config.normalise) {
    const at::Tensor dvalues = dsums / output.norm_denom.unsqueeze(3);
    dsums = at::cat({dvalues, -(dvalues * output.out.to(compute)).sum(3, true)}, 3);
  }
  return formula.PackGradient(SumOverBlocks(in.q.size(1), [&](int64_t begin, int64_t count) {
    return formula.GradientBefore(in.q.narrow(1, begin, count), begin,
                                  dsums.narrow(1, begin, count));
  }));
}

}  // namespace halflife::ops
