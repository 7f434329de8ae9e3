#include "model/positions/attention_positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/error.h"
#include "model/positions/variants.h"
#include "ops/rows/rotary.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {

const AttentionLayer& Rotating(const AttentionLayer& layer) {
  const int64_t pairs = (layer.rotated_dim() + 1) / 2;
  HL_CHECK_AS(ExitCode::kUsage, layer.rope_theta > 1 && 2 * pairs <= layer.head_dim,
              "rotary positions cannot be used with head_dim ", layer.head_dim, " and rope_theta ",
              layer.rope_theta, ". Use an even head_dim and a rope_theta above 1.");
  return layer;
}

void AttentionPositions::Encode(AttentionHeads&, const at::Tensor&, ops::RotaryTables&) const {}

at::Tensor AttentionPositions::Bias(int64_t, const at::TensorOptions&) const { return {}; }

bool AttentionPositions::counts_distances() const {
  return has_bias() || !decay_rates().empty() || far_from() > 0;
}

at::Tensor Rotate(const at::Tensor& x, const at::Tensor& positions,
                  std::span<const double> frequencies, double factor) {
  return ops::ApplyRotary(
      x, ops::MakeRotaryTable(positions, frequencies, factor, ops::ComputeType(x)));
}

RotaryPositions::RotaryPositions(const AttentionLayer& layer)
    : RotaryPositions(ops::RotaryFrequencies(Rotating(layer).rotated_dim(), layer.rope_theta)) {}

void RotaryPositions::Encode(AttentionHeads& heads, const at::Tensor& positions,
                             ops::RotaryTables& tables) const {
  const auto table = tables.Of(positions, frequencies_, factor_, ops::ComputeType(heads.q));
  const ops::RotatedPair rotated =
      ops::ApplyRotary(heads.q, heads.k, table, {.q = heads.q_gradient, .k = heads.k_gradient});
  heads.q = rotated.q, heads.k = rotated.k;
}

namespace {

// ALiBi (Press et al., 2022): the score decreases by slope_h per token of distance. In encoders
// this applies to later keys as well as to earlier ones. Nothing is rotated or learned. Setting
// slope_scale to the training length divided by the text length interpolates positions (Al-Khateeb
// et al., 2023).
struct AlibiOptions : OptionsOf<AlibiOptions> {
  double slope_scale = 1;  // Factor of all slopes. 0: scores do not depend on distance.
  std::vector<Option> Fields() override { return {{"slope_scale", &slope_scale}}; }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(slope_scale >= 0 && std::isfinite(slope_scale), "option slope_scale is ",
                     slope_scale,
                     ". Use a number from 0 on, so that scores decrease with the distance.");
  }
};

class Alibi : public AttentionPositions {
 public:
  Alibi(const AlibiOptions& options, const AttentionLayer& layer)
      : slopes_(AlibiSlopes(layer.num_heads)) {
    for (double& slope : slopes_) slope *= options.slope_scale;
  }
  bool has_bias() const override { return true; }
  bool looks_ahead() const override { return true; }
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor slopes =
        ops::ConstantsOn(options.device(), slopes_, c10::typeMetaToScalarType(options.dtype()))
            .unsqueeze(1);
    return -slopes * at::arange(num_distances, options);
  }

 private:
  std::vector<double> slopes_;
};

}  // namespace

std::vector<double> AlibiSlopes(int64_t num_heads) {
  int64_t power = 1;
  while (2 * power <= num_heads) power *= 2;
  const auto slope = [](int64_t head, int64_t heads) {
    return std::exp2(-8.0 * static_cast<double>(head + 1) / static_cast<double>(heads));
  };
  std::vector<double> slopes;
  for (int64_t head = 0; head < power; ++head) slopes.push_back(slope(head, power));
  for (int64_t head = 0; head < num_heads - power; ++head)
    slopes.push_back(slope(2 * head, 2 * power));
  return slopes;
}

PositionsVariant AlibiPositionsVariant() {
  return AttentionVariantOf<AlibiOptions, Alibi>("alibi");
}

namespace {

// KERPLE (Chi et al., 2022): the score decreases by r1 ln(1 + r2 n) at distance n (kerple_log), or
// by r1 n^r2 with r2 <= 2 (kerple_power). r1 and r2 are learned per head and layer.
// Minimum of r1 and r2, which the authors' code also keeps positive.
constexpr double kMin = 1e-2;
constexpr double kNoLimit = std::numeric_limits<double>::infinity();

// Declares a parameter [H, 1] that starts uniform in [0, high).
Parameter Declare(const AttentionLayer& layer, const char* name, double high) {
  return DeclareFp32(layer.part, name, {layer.num_heads, 1}, Init::Uniform(0, high));
}

struct LimitedOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor limited;
  };
  using Saved = Inputs;
};

// Returns x limited to low to high. Outside, gradients that lead back inside pass, so that a
// parameter beyond a limit is still learned; those that lead further outside are 0.
at::Tensor Limited(const at::Tensor& x, double low, double high) {
  const auto backward = [low, high](const ops::BackwardOf<LimitedOp>& call) -> LimitedOp::Inputs {
    const at::Tensor &saved = call.saved.x, &grad = call.grads.limited;
    const at::Tensor leads_out =
        ((saved < low) & (grad > 0)) | ((saved > high) & (grad < 0));  // A step is against grad.
    return {.x = grad.masked_fill(leads_out, 0)};
  };
  const auto forward = [&]() -> ops::ForwardOf<LimitedOp> {
    return {.outputs = {.limited = x.clamp(low, high)}, .saved = {.x = x}, .backward = backward};
  };
  return ops::Apply<LimitedOp>({.name = "Limited", .inputs = {.x = x}, .forward = forward}).limited;
}

class Kerple : public AttentionPositions {
 public:
  // r1 and r2 start uniform in [0, high_r1) and [0, high_r2), as in the authors' code.
  Kerple(const AttentionLayer& layer, double high_r1, double high_r2)
      : r1_(Declare(layer, "kerple.r1", high_r1)), r2_(Declare(layer, "kerple.r2", high_r2)) {}
  bool has_bias() const override { return true; }
  bool looks_ahead() const override { return true; }

 protected:
  at::Tensor r1() const { return Limited(*r1_, kMin, kNoLimit); }
  at::Tensor r2(double high) const { return Limited(*r2_, kMin, high); }

 private:
  Parameter r1_, r2_;
};

struct KerpleLogOptions : OptionsOf<KerpleLogOptions> {};

class KerpleLog : public Kerple {
 public:
  KerpleLog(const KerpleLogOptions&, const AttentionLayer& layer) : Kerple(layer, 2, 1) {}
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor distance = at::arange(num_distances, options);
    return -r1() * at::log1p(r2(kNoLimit) * distance);
  }
};

struct KerplePowerOptions : OptionsOf<KerplePowerOptions> {};

class KerplePower : public Kerple {
 public:
  KerplePower(const KerplePowerOptions&, const AttentionLayer& layer) : Kerple(layer, 1, 2) {}
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor distance = at::arange(num_distances, options).clamp_min(1);
    // Distance 0 is handled separately: 0^r2 is 0, but its gradient contains the logarithm of 0.
    const at::Tensor powers = at::pow(distance, r2(2));
    return -r1() * powers * (at::arange(num_distances, options) > 0).to(options.dtype());
  }
};

}  // namespace

PositionsVariant KerpleLogPositionsVariant() {
  return AttentionVariantOf<KerpleLogOptions, KerpleLog>("kerple_log");
}
PositionsVariant KerplePowerPositionsVariant() {
  return AttentionVariantOf<KerplePowerOptions, KerplePower>("kerple_power");
}

namespace {

// T5's relative positions (Raffel et al., 2020): each head adds a learned bias per bucket of
// distances to its scores. All layers share the biases. Unlike in T5, scores are scaled by
// 1/sqrt(d).
struct T5Options : OptionsOf<T5Options> {
  int64_t num_buckets = 32, max_distance = 128;
  std::vector<Option> Fields() override {
    return {{"num_buckets", &num_buckets}, {"max_distance", &max_distance}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(num_buckets % 2 == 0, "option num_buckets is ", num_buckets,
                     ". Use an even number.");
    problems.Require(max_distance > num_buckets / 2, "option max_distance is ", max_distance,
                     ". Use more than half of num_buckets, ", num_buckets / 2, ".");
  }
};

class T5Bias : public AttentionPositions {
 public:
  T5Bias(const T5Options& options, Parameter table) : options_(options), table_(std::move(table)) {}
  bool has_bias() const override { return true; }
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    // The table is made for the next power of 2 and then narrowed. Decoding adds one distance per
    // token and so needs only few tables, which are cached.
    const std::vector<int64_t> of_distances =
        T5Buckets(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_distances))),
                  options_.num_buckets, options_.max_distance);
    const at::Tensor buckets =
        ops::ConstantsOn(options.device(),
                         std::vector<double>(of_distances.begin(), of_distances.end()), at::kLong)
            .narrow(0, 0, num_distances);
    // index_select is not used here: its backward on a GPU waits for the host.
    return at::embedding(*table_, buckets).t().to(options.dtype());
  }

 private:
  T5Options options_;
  Parameter table_;  // [num_buckets, H]
};

// The first layer declares the table. All other layers share it.
class T5Positions : public Positions {
 public:
  T5Positions(const T5Options& options, const PartContext& context)
      : options_(options), context_(context) {}
  bool in_attention() const override { return true; }
  std::unique_ptr<AttentionPositions> OfLayer(const AttentionLayer& layer) const override {
    if (num_heads_ == 0) {
      num_heads_ = layer.num_heads;
      const double std_dev = 1 / std::sqrt(static_cast<double>(context_.model_dim()));
      table_ = DeclareFp32(context_, "relative_attention_bias.weight",
                           {options_.num_buckets, num_heads_}, Init::Normal(std_dev));
    } else {
      context_.parameters->AddReader(table_);
    }
    HL_CHECK_AS(ExitCode::kUsage, layer.num_heads == num_heads_, "positions t5: one layer has ",
                layer.num_heads, " heads and another has ", num_heads_,
                ", but all layers share one table. Use the same number of heads in all layers.");
    return std::make_unique<T5Bias>(options_, table_);
  }

 private:
  T5Options options_;
  PartContext context_;
  mutable int64_t num_heads_ = 0;  // 0: no layer has been made yet.
  mutable Parameter table_;
};

}  // namespace

std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance) {
  const int64_t exact = num_buckets / 2;
  std::vector<int64_t> buckets;
  for (int64_t distance = 0; distance < num_distances; ++distance) {
    int64_t bucket = distance;
    if (distance >= exact) {
      const double part = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                          std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
      // The small offset keeps exact powers from being rounded down into the bucket below.
      const auto steps =
          static_cast<int64_t>(std::floor(part * static_cast<double>(num_buckets - exact) + 1e-9));
      bucket = std::min(num_buckets - 1, exact + steps);
    }
    buckets.push_back(bucket);
  }
  return buckets;
}

PositionsVariant T5PositionsVariant() {
  return VariantOf<T5Options, T5Positions, Positions, PartContext>("t5");
}

}  // namespace halflife::model
