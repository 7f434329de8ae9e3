// Moving average of each channel: S_t = 2^(-1/half_life) S_{t-1} + v_t, y_t = W_o S_t. It is decay
// attention with one key channel that is always 1.
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <cmath>

#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/linear/linear.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

struct ToyOptions : OptionsOf<ToyOptions> {
  int64_t num_heads = 4;
  double half_life = 16;  // in tokens
  std::vector<Option> Fields() override {
    return {{"num_heads", &num_heads}, {"half_life", &half_life}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim);
    problems.Require(half_life > 0, "option half_life is ", half_life,
                     ". Use a number of tokens above 0.");
  }
};

class Toy : public Mixer {
 public:
  Toy(const ToyOptions& options, const PartContext& context)
      : dim_(context.model_dim()),
        num_heads_(options.num_heads),
        log_decay_(-std::log(2.0) / options.half_life),
        v_(DeclareMatrix(context, "v_proj.weight",
                         {.out = dim_, .in = dim_, .init_scale = context.value_init_scale})),
        out_(context, dim_, /*bias=*/false) {}

  MixerTraits traits() const override {
    return {.state = {{.name = "sum", .shape = {num_heads_, 1, dim_ / num_heads_}}}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const at::Tensor v = Values(call.x);  // [B, T, H, V]
    const at::Tensor one = at::ones({v.size(0), v.size(1), num_heads_, 1}, v.options());
    const bool carried = call.carried();
    const auto [sum, last] = ops::DecayAttention(
        {.q = one,
         .k = one,
         .v = v,
         .log_decay = LogDecay(v),
         .chunks = call.slice.chunks,
         .initial_state = {.kv = carried ? call.initial->tensors[0] : at::Tensor()},
         .segment = call.slice.segment},
        {.scale = 1});
    MixerOutput result = {.y = out_(sum.flatten(2)), .state = {}};
    if (call.want_state) result.state.tensors = {last.kv};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    const at::Tensor v = Values(x);  // [B, H, V]
    const at::Tensor one = at::ones({v.size(0), num_heads_, 1}, v.options());
    ops::DecayState memory = {.kv = state.tensors[0]};  // updated in place
    const at::Tensor sum = ops::DecayAttentionStep(
        {.q = one, .k = one, .v = v, .log_decay = LogDecay(v), .constant_decay = true},
        {.scale = 1}, memory);
    return out_(sum.flatten(1));
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_);
    return {.matmul = 4 * dim * dim, .mixing = 4 * dim};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    return 3 * static_cast<double>(dim_ * bytes_per_element);  // x, v and the sum
  }

 private:
  at::Tensor Values(const at::Tensor& x) const {
    return SplitHeads(ops::Linear(x, *v_), dim_ / num_heads_);
  }
  at::Tensor LogDecay(const at::Tensor& v) const {
    return at::full({num_heads_}, log_decay_, v.options().dtype(ops::ComputeType(v)));
  }

  int64_t dim_, num_heads_;
  double log_decay_;
  Parameter v_;
  OutputProjection out_;
};

}  // namespace

MixerVariant ToyVariant() { return MixerVariantOf<ToyOptions, Toy>("toy"); }

}  // namespace halflife::model
