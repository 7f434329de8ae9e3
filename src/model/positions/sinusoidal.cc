// Fixed sines and cosines (Vaswani et al., 2017, section 3.5): channels 2i and 2i + 1 of position p
// are sin and cos of p / base^(2i / D).
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct SinusoidalOptions : OptionsOf<SinusoidalOptions> {
  double base = 10000;
  std::vector<Option> Fields() override { return {{"base", &base}}; }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(base > 1, "option base is ", base, "; a number above 1 would work");
    problems.Require(sizes.model_dim % 2 == 0, "model_dim ", sizes.model_dim,
                     " must be even: channels come in pairs of sine and cosine");
  }
};

class Sinusoidal : public Positions {
 public:
  Sinusoidal(const SinusoidalOptions& options, const PartContext& context)
      : base_(options.base), dim_(context.model_dim()) {}

  // The angles are formed in fp64: in fp32 they lose a digit for every tenfold position.
  at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const override {
    const auto options = positions.options().dtype(at::kDouble);
    const at::Tensor exponent = at::arange(0, dim_, 2, options) / static_cast<double>(dim_);
    const at::Tensor angle =
        positions.to(at::kDouble).unsqueeze(-1) * at::pow(at::Scalar(base_), -exponent);
    const at::Tensor table = at::stack({at::sin(angle), at::cos(angle)}, -1).flatten(-2);
    return x + table.to(x.scalar_type());
  }

 private:
  double base_;
  int64_t dim_;
};

}  // namespace

PositionsVariant SinusoidalPositionsVariant() {
  return VariantOf<SinusoidalOptions, Sinusoidal, Positions, PartContext>("sinusoidal");
}

}  // namespace halflife::model
