// A learned vector for each position (GPT-2, BERT). Positions beyond the table are not supported.
#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

struct LearnedOptions : OptionsOf<LearnedOptions> {
  int64_t max_positions = 1024;
  std::vector<Option> Fields() override { return {{"max_positions", &max_positions}}; }
};

class Learned : public Positions {
 public:
  Learned(const LearnedOptions& options, const PartContext& context)
      : max_positions_(options.max_positions),
        table_(DeclareMatrix(context, "weight",
                             {.out = options.max_positions, .in = context.model_dim()})) {}
  at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const override {
    return x + at::embedding(*table_, positions);
  }
  int64_t max_positions() const override { return max_positions_; }

 private:
  int64_t max_positions_;
  Parameter table_;
};

}  // namespace

PositionsVariant LearnedPositionsVariant() {
  return VariantOf<LearnedOptions, Learned, Positions, PartContext>("learned");
}

}  // namespace halflife::model
