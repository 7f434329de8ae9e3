// KERPLE (Chi et al., 2022): scores lose r1 ln(1 + r2 n) at distance n, or r1 n^r2 with r2 <= 2,
// with r1 and r2 learned per head and layer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/pow.h>

#include "model/positions/attention_variant.h"

namespace halflife::model {
namespace {

constexpr double kLeast = 1e-2;  // of both, as the authors' code keeps them positive

// uniform in [0, high), [H, 1]
Parameter Declare(const AttentionLayer& layer, const char* name, double high) {
  return layer.part.parameters->Declare({.name = layer.part.prefix + name,
                                         .shape = {layer.num_heads, 1},
                                         .region = dist::Region::kFp32},
                                        Init::Uniform(0, high));
}

class Kerple : public AttentionPositions {
 public:
  explicit Kerple(const AttentionLayer& layer)
      : r1_(Declare(layer, "kerple.r1", 2)), r2_(Declare(layer, "kerple.r2", 1)) {}
  bool has_bias() const override { return true; }
  bool looks_ahead() const override { return true; }

 protected:
  at::Tensor r1() const { return (*r1_).clamp_min(kLeast); }
  const Parameter& r2() const { return r2_; }

 private:
  Parameter r1_, r2_;
};

struct KerpleLogOptions : OptionsOf<KerpleLogOptions> {};

class KerpleLog : public Kerple {
 public:
  KerpleLog(const KerpleLogOptions&, const AttentionLayer& layer) : Kerple(layer) {}
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor distance = at::arange(num_distances, options);
    return -r1() * at::log1p((*r2()).clamp_min(kLeast) * distance);
  }
};

struct KerplePowerOptions : OptionsOf<KerplePowerOptions> {};

class KerplePower : public Kerple {
 public:
  KerplePower(const KerplePowerOptions&, const AttentionLayer& layer) : Kerple(layer) {}
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    const at::Tensor distance = at::arange(num_distances, options).clamp_min(1);
    // 0^r2 is 0, and the logarithm that its gradient has is not finite
    const at::Tensor powers = at::pow(distance, (*r2()).clamp(kLeast, 2.0));
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

}  // namespace halflife::model
