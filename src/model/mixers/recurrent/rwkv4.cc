// Time mixing of RWKV-4 (Peng et al., 2023), the half of its block in which tokens see each other.
// Keys, values and receptances are projections of a per-channel mix of a token and the one before
// it. The output is the average of the values with weights e^key, gated by the receptance. The
// weights decay per channel, and the token's own key has a bonus. Parameters are named as in
// RWKV-4's models.
#include <array>
#include <cmath>
#include <functional>
#include <vector>

#include "model/mixers/variants.h"
#include "model/projections.h"
#include "ops/linear/linear.h"
#include "ops/rows/swiglu.h"
#include "ops/rows/token_shift.h"
#include "ops/scans/wkv4.h"

namespace halflife::model {
namespace {

struct Rwkv4Options : OptionsOf<Rwkv4Options> {
  std::string wkv_dtype = "fp32";  // bf16: rounds the average and its gradients
  int64_t attention_dim = 0;       // Channels of keys, values and the average; 0: model_dim.
  std::vector<Option> Fields() override {
    return {{"wkv_dtype", &wkv_dtype, {.choices = {"fp32", "bf16"}}},
            {"attention_dim", &attention_dim, {.min = 0}}};
  }
  void Resolve(const ModelSizes& sizes, ProblemList&) override {
    if (attention_dim == 0) attention_dim = sizes.model_dim;
  }
};

// The relative depth of a layer, which determines RWKV's initial values.
struct Depth {
  explicit Depth(const PartContext& context) {
    const auto layer = static_cast<double>(context.layer),
               layers = static_cast<double>(context.sizes.num_layers);
    from_first = layers > 1 ? layer / (layers - 1) : 0;
    to_last = 1 - layer / layers;
  }
  double from_first, to_last;  // from 0 to 1, and from 1 to 1 / L
};

class Rwkv4 : public Mixer {
 public:
  Rwkv4(const Rwkv4Options& options, const PartContext& context)
      : dim_(context.model_dim()),
        inner_(options.attention_dim),
        round_to_bf16_(options.wkv_dtype == "bf16") {
    const Depth depth(context);
    const auto dim = static_cast<double>(dim_), inner = static_cast<double>(inner_);
    decay_ = DeclareChannels(context, "time_decay", inner_, [=](int64_t channel, double) {
      const double place = inner > 1 ? static_cast<double>(channel) / (inner - 1) : 0;
      return -5 + 8 * std::pow(place, 0.7 + 1.3 * depth.from_first);
    });
    first_ = DeclareChannels(context, "time_first", inner_, [](int64_t channel, double) {
      return std::log(0.3) + 0.5 * static_cast<double>((channel + 1) % 3 - 1);
    });
    const auto declare_mix = [&](const char* name, double power, double shift) {
      return DeclareChannels(context, name, dim_, [=](int64_t channel, double) {
        return std::pow(static_cast<double>(channel) / dim, power) + shift;
      });
    };
    mixes_ = {declare_mix("time_mix_k", depth.to_last, 0),
              declare_mix("time_mix_v", depth.to_last, 0.3 * depth.from_first),
              declare_mix("time_mix_r", depth.to_last / 2, 0)};
    const Init init = Init::UniformOfFanIn(dim_);
    const auto declare_matrix = [&](const char* name, const Init& start) {
      return DeclareMatrix(context, name, {.out = inner_, .in = dim_, .init = start});
    };
    matrices_ = {declare_matrix("key.weight", init),
                 declare_matrix("value.weight", init.Scaled(context.value_init_scale)),
                 declare_matrix("receptance.weight", init)};
    out_ = OutputProjection(context, inner_, /*bias=*/false,
                            {.name = "output", .init = init.Scaled(context.output_init_scale)});
  }

  MixerTraits traits() const override {
    MixerTraits traits;
    traits.state = {{.name = "x_tail", .shape = {1, dim_}, .exchange = StateExchange::kTail},
                    {.name = "numerator", .shape = {inner_}, .log_scale = 3},
                    {.name = "denominator", .shape = {inner_}, .log_scale = 3},
                    {.name = "log_scale", .shape = {inner_}, .exchange = StateExchange::kLogScale}};
    return traits;
  }

  MixerOutput Forward(const MixerCall& call) const override {
    const bool carried = call.carried();
    const auto before = [&](size_t i) { return carried ? call.initial->tensors[i] : at::Tensor(); };
    const ops::TokenShiftInputs shift = {.x = call.x,
                                         .mixes = Mixes(),
                                         .tail = before(0),
                                         .starts = call.slice.starts,
                                         .segment = call.slice.segment};
    const Projected y = Project(shift);
    const auto [wkv, memory] = ops::Wkv4({.k = y.k,
                                          .v = y.v,
                                          .log_decay = *decay_,
                                          .negative_exp = true,
                                          .bonus = *first_,
                                          .starts = call.slice.starts,
                                          .initial = {before(1), before(2), before(3)},
                                          .round_to_bf16 = round_to_bf16_,
                                          .segment = call.slice.segment});
    MixerOutput result = {.y = out_(ops::Glu(y.r, wkv)), .state = {}};
    if (call.want_state)
      result.state.tensors = {KeptTail(ops::TokenShiftTail(shift)), memory.numerator,
                              memory.denominator, memory.log_scale};
    return result;
  }

  at::Tensor Step(const at::Tensor& x, const SequenceSlice&, MixerState& state) const override {
    at::Tensor& tail = state.tensors[0];
    const Projected y = Project({.x = x.unsqueeze(1), .mixes = Mixes(), .tail = tail});
    tail.select(1, 0).copy_(x);
    ops::WkvMemory memory = {state.tensors[1], state.tensors[2], state.tensors[3]};
    at::Tensor wkv = ops::Wkv4Step({.k = y.k.squeeze(1),
                                    .v = y.v.squeeze(1),
                                    .log_decay = *decay_,
                                    .negative_exp = true,
                                    .bonus = *first_},
                                   memory);
    if (round_to_bf16_ && wkv.scalar_type() == at::kFloat)
      wkv = wkv.to(at::kBFloat16).to(at::kFloat);
    return out_(ops::Glu(y.r.squeeze(1), wkv));
  }

  FlopCount FlopsPerToken(int64_t) const override {
    const auto dim = static_cast<double>(dim_), inner = static_cast<double>(inner_);
    // Three mixes of two tokens, two sums each for the output and the state, and the gate.
    return {.matmul = 8 * dim * inner, .mixing = 6 * dim + 14 * inner};
  }
  double ActivationBytesPerToken(int64_t, int64_t bytes_per_element) const override {
    // x, its three mixes, k, v, r, the average, and the gated average.
    const auto dim = static_cast<double>(dim_), inner = static_cast<double>(inner_);
    constexpr double kTokensPerKeptState = 16;  // a state is three fp32 sums
    return (4 * dim + 5 * inner) * static_cast<double>(bytes_per_element) +
           4 * 3 * inner / kTokensPerKeptState;
  }

 private:
  static Parameter DeclareChannels(const PartContext& context, const std::string& name,
                                   int64_t channels, Init::Formula value) {
    return DeclareFp32(context, name, {channels}, Init::Of(std::move(value)));
  }

  std::vector<at::Tensor> Mixes() const { return {*mixes_[0], *mixes_[1], *mixes_[2]}; }

  struct Projected {
    at::Tensor k, v, r;  // [B, T, inner_]
  };
  Projected Project(const ops::TokenShiftInputs& shift) const {
    const std::vector<at::Tensor> mixed = ops::TokenShift(shift);
    return {.k = ops::Linear(mixed[0], *matrices_[0]),
            .v = ops::Linear(mixed[1], *matrices_[1]),
            .r = ops::Linear(mixed[2], *matrices_[2])};
  }

  int64_t dim_, inner_;  // D, and the channels of k, v, r and the average
  bool round_to_bf16_;
  Parameter decay_, first_;
  std::array<Parameter, 3> mixes_, matrices_;  // of k, v and r
  OutputProjection out_;
};

}  // namespace

MixerVariant Rwkv4Variant() { return MixerVariantOf<Rwkv4Options, Rwkv4>("rwkv4"); }

}  // namespace halflife::model
