// KERPLE (Chi et al., 2022): the score decreases by r1 ln(1 + r2 n) at distance n (kerple_log), or
// by r1 n^r2 with r2 <= 2 (kerple_power). r1 and r2 are learned per head and layer.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/log1p.h>
#include <ATen/ops/pow.h>

#include "model/positions/attention_variant.h"

namespace halflife::model {
namespace {

// Minimum of r1 and r2, which the authors' code also keeps positive.
constexpr double kLeast = 1e-2;

// Declares a parameter [H, 1] that starts uniform in [0, high).
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
    // Distance 0 is handled separately: 0^r2 is 0, but its gradient contains the logarithm of 0.
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
