#include "model/positions/positions.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

#include "model/positions/variants.h"

namespace halflife::model {
namespace {

// No positions: the mixers themselves depend on the order of tokens.
struct NoPositionsOptions : OptionsOf<NoPositionsOptions> {};

class NoPositions : public Positions {
 public:
  NoPositions(const NoPositionsOptions&, const PartContext&) {}
  bool reads_position_ids() const override { return false; }
};

}  // namespace

PositionsVariant NoPositionsVariant() {
  return VariantOf<NoPositionsOptions, NoPositions, Positions, PartContext>("none");
}

namespace {

// A learned vector for each position (GPT-2, BERT). Positions beyond the table are not supported.
struct LearnedOptions : OptionsOf<LearnedOptions> {
  int64_t max_positions = 1024;
  std::vector<Option> Fields() override { return {{"max_positions", &max_positions}}; }
};

class Learned : public Positions {
 public:
  Learned(const LearnedOptions& options, const PartContext& context)
      : max_positions_(options.max_positions),
        table_(DeclareTable(context, "weight",
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

namespace {

// Fixed sines and cosines (Vaswani et al., 2017, section 3.5): channels 2i and 2i + 1 of position p
// are sin and cos of p / base^(2i / D).
// In fairseq's layout, the first half of the channels are sines and the second half cosines, of (p
// + 2) / base^(i / (D/2 - 1)). Its positions are offset by 2 because of the pad token.
struct SinusoidalOptions : OptionsOf<SinusoidalOptions> {
  double base = 10000;
  std::string layout = "pairs";
  std::vector<Option> Fields() override {
    return {{"base", &base}, {"layout", &layout, {.choices = {"pairs", "fairseq"}}}};
  }
  bool halves() const { return layout == "fairseq"; }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    problems.Require(base > 1, "option base is ", base, ". Use a number above 1.");
    problems.Require(sizes.model_dim % 2 == 0, "model_dim is ", sizes.model_dim,
                     ", but channels come in pairs of sine and cosine. Use an even model_dim.");
    problems.Require(!halves() || sizes.model_dim > 2, "layout fairseq with model_dim ",
                     sizes.model_dim, ". Use a model_dim of at least 4.");
  }
};

class Sinusoidal : public Positions {
 public:
  Sinusoidal(const SinusoidalOptions& options, const PartContext& context)
      : base_(options.base), halves_(options.halves()), dim_(context.model_dim()) {}

  // Adds the vectors of positions. Angles are computed in fp64: in fp32, each tenfold increase of
  // the position costs a decimal digit of accuracy.
  at::Tensor AddTo(const at::Tensor& x, const at::Tensor& positions) const override {
    constexpr int64_t kFairseqFirst = 2;
    const int64_t half = dim_ / 2;
    const at::Tensor exponent = at::arange(half, positions.options().dtype(at::kDouble)) /
                                static_cast<double>(halves_ ? half - 1 : half);
    const at::Tensor place =
        (positions + (halves_ ? kFairseqFirst : 0)).to(at::kDouble).unsqueeze(-1);
    const at::Tensor angle = place * at::pow(at::Scalar(base_), -exponent);
    const at::Tensor sines = at::sin(angle), cosines = at::cos(angle);
    const at::Tensor table =
        halves_ ? at::cat({sines, cosines}, -1) : at::stack({sines, cosines}, -1).flatten(-2);
    return x + table.to(x.scalar_type());
  }

 private:
  double base_;
  bool halves_;
  int64_t dim_;
};

}  // namespace

PositionsVariant SinusoidalPositionsVariant() {
  return VariantOf<SinusoidalOptions, Sinusoidal, Positions, PartContext>("sinusoidal");
}

namespace {

std::vector<PositionsVariant> PositionsVariants() {
  return {
#define HL_POSITIONS(Make) Make(),
#include "model/positions/positions.inc"
#undef HL_POSITIONS
  };
}

}  // namespace

const PartKind kPositions = {"positions", "none", [] { return InfosOf(PositionsVariants()); }};

at::Tensor Positions::AddTo(const at::Tensor& x, const at::Tensor&) const { return x; }

std::unique_ptr<AttentionPositions> Positions::OfLayer(const AttentionLayer&) const {
  return nullptr;
}

std::unique_ptr<Positions> MakePositions(const PositionsConfig& config,
                                         const PartContext& context) {
  return MakePart(PositionsVariants(), config, context.sizes, context);
}

}  // namespace halflife::model
