// A ramp from 0 to 1 that restarts every `period` positions, added to all channels.
#include <ATen/TensorOperators.h>
#include <ATen/ops/remainder.h>

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct ToyOptions : OptionsOf<ToyOptions> {
  int64_t period = 8;
  std::vector<Option> Fields() override { return {{"period", &period}}; }
};

class Toy : public Positions {
 public:
  Toy(const ToyOptions& options, const PartContext&) : period_(options.period) {}

  at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const override {
    const at::Tensor ramp = at::remainder(positions, period_) / static_cast<double>(period_);
    return x + ramp.to(x.scalar_type()).unsqueeze(-1);
  }

 private:
  int64_t period_;
};

}  // namespace

PositionsVariant ToyPositionsVariant() {
  return VariantOf<ToyOptions, Toy, Positions, PartContext>("toy");
}

}  // namespace halflife::model
