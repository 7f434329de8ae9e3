// Time mixing of RWKV-7 (Peng et al., 2025): a delta rule with a decay per key channel whose
// removal reads the state before the decay and has its own strength per channel. Per head,
//
//   S_t = diag(e^{w_t}) S_{t-1} - (kappa_t * a_t)^T (kappa_t S_{t-1}) + k_t^T v_t,   o_t = r_t S_t
//   y_t = W_o (g_t * (norm(o_t) + (sum r_t k_t r_k) v_t))
//
//   w = -e^{-1/2} sigmoid(lora),  a = sigmoid(lora),  g = lora,  kappa = k * k_k over its length,
//   k = k (1 + (a - 1) k_a)
//
// r, k, v and the inputs of w, a and g read a per-channel mix of a token and the one before it. The
// values of later layers are mixed with those of the first one (value residual). Parameters are
// named as in fla.
#include <ATen/TensorOperators.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <vector>

#include "core/error.h"
#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/token_shift.h"
#include "ops/scans/wkv7.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

const double kFastestLogDecay = -std::exp(-0.5);

struct Rwkv7Options : OptionsOf<Rwkv7Options> {
  int64_t head_dim = 0;  // 0: 64, or the largest power of 2 below it that divides model_dim
  int64_t decay_low_rank_dim = 64, gate_low_rank_dim = 128, a_low_rank_dim = 64,
          v_low_rank_dim = 16;
  bool value_residual = true;
  double key_eps = 1e-6;  // added to the sum of squares of kappa

  std::vector<Option> Fields() override {
    return {{"head_dim", &head_dim, {.min = 0}},
            {"decay_low_rank_dim", &decay_low_rank_dim},
            {"gate_low_rank_dim", &gate_low_rank_dim},
            {"a_low_rank_dim", &a_low_rank_dim},
            {"v_low_rank_dim", &v_low_rank_dim},
            {"value_residual", &value_residual},
            {"key_eps", &key_eps}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    if (head_dim == 0) head_dim = std::min<int64_t>(64, sizes.model_dim & -sizes.model_dim);
    problems.Require(sizes.model_dim % head_dim == 0, "head_dim ", head_dim,
                     " must divide model_dim ", sizes.model_dim, ". Use a divisor of it, or 0.");
    problems.Require(key_eps > 0, "option key_eps is ", key_eps, ". Use a number above 0.");
  }
};

// The initial values of RWKV-7 as functions of the depth and of the place of a channel.
struct Rwkv7Start {
  explicit Rwkv7Start(const PartContext& context, int64_t head_width)
      : dim(static_cast<double>(context.model_dim())), head_dim(head_width) {
    const auto layer = static_cast<double>(context.layer),
               layers = static_cast<double>(context.sizes.num_layers);
    from_first = layers > 1 ? layer / (layers - 1) : 0;
    to_last = 1 - layer / layers;
    through = (layer + 1) / layers;
  }
  // Returns 0 for the first channel to 1 for the last one.
  double Place(int64_t channel) const {
    return dim > 1 ? static_cast<double>(channel) / (dim - 1) : 0;
  }
  // Returns -1 to 1 within a head, squared with its sign.
  double InHead(int64_t channel) const {
    if (head_dim == 1) return 0;
    const double half = static_cast<double>(head_dim - 1) / 2;
    const double place = static_cast<double>(channel % head_dim) / half - 1;
    return place * std::abs(place);
  }
  double dim, from_first, to_last, through;
  int64_t head_dim;
};

class Rwkv7 : public Mixer {
 public:
  Rwkv7(const Rwkv7Options& options, const PartContext& context)
      : options_(options),
        dim_(context.model_dim()),
        num_heads_(dim_ / options.head_dim),
        norm_eps_(static_cast<double>(options.head_dim) * context.norm_eps),
        reads_values_(options.value_residual && context.layer > 0) {
    const Rwkv7Start start(context, options.head_dim);
    DeclareMixes(context, start);
    for (size_t i = 0; i < matrices_.size(); ++i)
      matrices_[i] = DeclareMatrix(context, kMatrixNames[i],
                                   {.out = dim_,
                                    .in = dim_,
                                    .init_scale = i == kV ? context.value_init_scale : 1,
                                    .heads = num_heads_,
                                    .float8 = true});
    DeclareLoras(context, start);
    DeclareKeyVectors(context, start);
    norm_weight_ = DeclareChannels(context, "g_norm.weight",
                                   [=](int64_t) { return std::pow(start.through, 0.7); });
    norm_bias_ = DeclareChannels(context, "g_norm.bias", [](int64_t) { return 0.0; });
    out_ = OutputProjection(context, dim_, /*bias=*/false);
  }

  MixerTraits traits() const override {
    return {.reads_values = reads_values_,
            .publishes_values = PublishesValues(),
            .state = {{.name = "x_tail", .shape = {1, dim_}, .exchange = StateExchange::kTail},
                      {.name = "kv", .shape = {num_heads_, options_.head_dim, options_.head_dim}}}};
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const auto before = [&](size_t i) {
      return call.carried() ? call.initial->tensors[i] : at::Tensor();
    };
    const ops::TokenShiftInputs shift = {.x = call.x,
                                         .mixes = {*mixes_[kR]},  // Mixed6 replaces it
                                         .tail = before(0),
                                         .starts = call.slice.starts,
                                         .segment = call.slice.segment};
    MixerOutput result;
    at::Tensor values = call.first_values;
    const Projected in = Project(shift, values);
    if (PublishesValues()) result.first_values = values;
    ops::Wkv7Inputs scan = Scan(in);
    scan.starts = call.slice.starts;
    scan.initial = before(1);
    scan.segment = call.slice.segment;
    const auto [o, state] = ops::Wkv7(scan);
    result.y = Output(in, o);
    if (call.want_state) result.state.tensors = {KeptTail(ops::TokenShiftTail(shift)), state};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                  MixerState& state) const override {
    at::Tensor none;
    return StepWithValues(x, token, state, none);
  }
  at::Tensor StepWithValues(const at::Tensor& x, const SequenceSlice&, MixerState& state,
                            at::Tensor& first_values) const override {
    at::Tensor& tail = state.tensors[0];
    at::Tensor values = first_values;
    const Projected in = Project({.x = x.unsqueeze(1), .tail = tail}, values);
    if (PublishesValues()) first_values = values;
    tail.select(1, 0).copy_(x);
    ops::Wkv7Inputs scan = Scan(in);
    for (at::Tensor* part : {&scan.r, &scan.log_decay, &scan.k, &scan.v, &scan.a, &scan.b})
      *part = part->squeeze(1);
    return Output(in, ops::Wkv7Step(scan, state.tensors[1]).unsqueeze(1)).squeeze(1);
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_);
    return {.matmul = 8 * dim * dim + 4 * dim * static_cast<double>(LoraWidth()),
            .mixing = 8 * dim * static_cast<double>(options_.head_dim)};
  }
  // Per token: x and its six mixes, the five matrices' outputs, and about twenty more vectors of
  // gates, keys and norms in fp32. The scan keeps its six inputs with and without their factors,
  // and rows of four matrices of pairs of tokens in each chunk.
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    constexpr double kPairs = 5 * 32;  // elements per token and head
    const auto dim = static_cast<double>(dim_);
    return (12 * dim + 2 * static_cast<double>(LoraWidth())) *
               static_cast<double>(bytes_per_element) +
           4 * (36 * dim + kPairs * static_cast<double>(num_heads_));
  }

 private:
  // The order of the mixes, and of the first three matrices.
  enum Mixed : size_t { kR, kK, kV, kW, kA, kG };
  static constexpr std::array<const char*, 3> kMatrixNames = {"r_proj.weight", "k_proj.weight",
                                                              "v_proj.weight"};

  // W_2 f(W_1 x) + bias, through a few channels.
  struct Lora {
    Parameter down, up, bias;
    at::Tensor operator()(const at::Tensor& x, at::Tensor (*inner)(const at::Tensor&)) const {
      const at::Tensor low = ops::Linear(x, *down);
      const at::Tensor y = ops::Linear(inner == nullptr ? low : inner(low), *up);
      return bias.declared() ? y.to(ops::ComputeType(y)) + *bias : y;
    }
  };
  struct Projected {
    at::Tensor r, k, v;        // [B, T, H, K]
    at::Tensor log_decay;      // [B, T, H, K], compute type
    at::Tensor removed, rate;  // [B, T, H, K], compute type: kappa and a
    at::Tensor gate;           // [B, T, D]
  };

  Parameter DeclareChannels(const PartContext& context, const std::string& name,
                            const std::function<double(int64_t channel)>& value,
                            std::vector<int64_t> shape = {}) const {
    if (shape.empty()) shape = {dim_};
    return DeclareFp32(context, name, std::move(shape),
                       Init::Of([value](int64_t channel, double) { return value(channel); }));
  }

  void DeclareMixes(const PartContext& context, const Rwkv7Start& start) {
    const auto declare = [&](const char* name, double power) {
      return DeclareChannels(context, name, [=](int64_t channel) {
        return 1 - std::pow(static_cast<double>(channel) / start.dim, power * start.to_last);
      });
    };
    mixes_ = {declare("x_r", 0.2), declare("x_k", 0.7), declare("x_v", 0.7),
              declare("x_w", 0.9), declare("x_a", 0.9), declare("x_g", 0.2)};
  }

  Lora DeclareLora(const PartContext& context, const std::string& name, int64_t rank,
                   const std::function<double(int64_t channel)>& bias) const {
    Lora lora;
    lora.down = DeclareMatrix(context, name + ".lora.0.weight",
                              {.out = rank, .in = dim_, .init = Init::Zeros()});
    lora.up = DeclareMatrix(context, name + ".lora.2.weight",
                            {.out = dim_,
                             .in = rank,
                             .init = Init::Normal(0.1 / std::sqrt(static_cast<double>(dim_)))});
    if (bias) lora.bias = DeclareChannels(context, name + ".lora.2.bias", bias);
    return lora;
  }

  void DeclareLoras(const PartContext& context, const Rwkv7Start& start) {
    const double power = 1 + std::pow(start.from_first, 0.3);
    decay_ = DeclareLora(context, "w_lora", options_.decay_low_rank_dim, [=](int64_t channel) {
      return -5.5 + 6 * std::pow(start.Place(channel), power) + 2.5 * start.InHead(channel);
    });
    if (reads_values_)
      value_ = DeclareLora(context, "v_lora", options_.v_low_rank_dim, [=](int64_t channel) {
        return 0.73 - 0.4 * (start.Place(channel) - 0.5);
      });
    rate_ = DeclareLora(context, "a_lora", options_.a_low_rank_dim, [=](int64_t channel) {
      return -0.19 + 0.3 * start.InHead(channel) + 0.4 * (start.Place(channel) - 0.5);
    });
    gate_ = DeclareLora(context, "g_lora", options_.gate_low_rank_dim, {});
  }

  void DeclareKeyVectors(const PartContext& context, const Rwkv7Start& start) {
    removed_scale_ = DeclareChannels(
        context, "k_k", [=](int64_t channel) { return 0.71 - 0.1 * (start.Place(channel) - 0.5); });
    rate_of_key_ = DeclareChannels(context, "k_a", [](int64_t) { return 1.02; });
    bonus_ = DeclareChannels(context, "r_k", [](int64_t) { return -0.04; },
                             {num_heads_, options_.head_dim});
  }

  bool PublishesValues() const { return options_.value_residual && !reads_values_; }
  int64_t LoraWidth() const {
    return options_.decay_low_rank_dim + options_.a_low_rank_dim + options_.gate_low_rank_dim +
           (reads_values_ ? options_.v_low_rank_dim : 0);
  }
  at::Tensor Heads(const at::Tensor& x) const { return SplitHeads(x, options_.head_dim); }

  // `shift` without its mixes. x_* are the weights of the previous token.
  std::vector<at::Tensor> Mixed6(ops::TokenShiftInputs shift) const {
    std::vector<at::Tensor> mixed;
    for (const size_t first : {size_t{kR}, size_t{kW}}) {
      shift.mixes.clear();
      for (size_t i = first; i < first + 3; ++i) shift.mixes.push_back(1 - *mixes_[i]);
      for (at::Tensor& x : ops::TokenShift(shift)) mixed.push_back(std::move(x));
    }
    return mixed;
  }

  // `values` are those of the first layer; undefined in that layer, which sets them.
  Projected Project(const ops::TokenShiftInputs& shift, at::Tensor& values) const {
    const std::vector<at::Tensor> x = Mixed6(shift);
    Projected in;
    at::Tensor v = ops::Linear(x[kV], *matrices_[kV]);
    if (reads_values_) {
      HL_CHECK(values.defined(), "rwkv7 got no values of layer 0");
      const at::Tensor share = at::sigmoid(value_(x[kV], nullptr));
      v = (v + (values.view(v.sizes()) - v) * share).to(v.scalar_type());
    } else {
      values = v;
    }
    const at::Tensor k = ops::Linear(x[kK], *matrices_[kK]);
    const at::Tensor rate = at::sigmoid(rate_(x[kA], nullptr));
    const at::Tensor keys = k.to(rate.scalar_type());
    const at::Tensor removed = Heads(keys * *removed_scale_);
    in.removed = removed * at::rsqrt(removed.square().sum(-1, /*keepdim=*/true) + options_.key_eps);
    in.rate = Heads(rate);
    in.k = Heads(keys * (1 + (rate - 1) * *rate_of_key_));
    in.r = Heads(ops::Linear(x[kR], *matrices_[kR]));
    in.v = Heads(v);
    in.log_decay = Heads(at::sigmoid(decay_(x[kW], at::tanh)) * kFastestLogDecay);
    in.gate = gate_(x[kG], at::sigmoid);
    return in;
  }

  static ops::Wkv7Inputs Scan(const Projected& in) {
    return {.r = in.r,
            .log_decay = in.log_decay,
            .k = in.k,
            .v = in.v,
            .a = -in.removed,
            .b = in.removed * in.rate};
  }

  // o [B, T, H, V] -> [B, T, D]
  at::Tensor Output(const Projected& in, const at::Tensor& o) const {
    const at::ScalarType wide = ops::ComputeType(o);
    const at::Tensor normed =
        at::layer_norm(o.to(wide), {options_.head_dim}, {}, {}, norm_eps_).flatten(2) *
            *norm_weight_ +
        *norm_bias_;
    const at::Tensor own = (in.r.to(wide) * in.k * *bonus_).sum(-1, /*keepdim=*/true) * in.v;
    return out_(((normed + own.flatten(2)) * in.gate).to(o.scalar_type()));
  }

  Rwkv7Options options_;
  int64_t dim_, num_heads_;
  double norm_eps_;
  bool reads_values_;                  // of the first layer
  std::array<Parameter, 6> mixes_;     // in the order of Mixed
  std::array<Parameter, 3> matrices_;  // of r, k and v
  Lora decay_, value_, rate_, gate_;
  Parameter removed_scale_, rate_of_key_, bonus_, norm_weight_, norm_bias_;
  OutputProjection out_;
};

}  // namespace

MixerVariant Rwkv7Variant() { return MixerVariantOf<Rwkv7Options, Rwkv7>("rwkv7"); }

}  // namespace halflife::model
