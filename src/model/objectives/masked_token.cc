// Masked language modelling (Devlin et al., 2019): a share of the tokens is chosen; the model sees
// a mask in place of 80 % of them, a random token in place of 10 %, the token itself at the rest,
// and must name what stood there. The choices are functions of (seed, sample, position).
#include "core/error.h"
#include "core/philox.h"
#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

constexpr int32_t kNoLabel = -100;

struct MaskedTokenOptions : OptionsOf<MaskedTokenOptions> {
  double rate = 0.15;
  double mask_share = 0.8, random_share = 0.1;  // of the chosen tokens
  int64_t mask_id = 2;                          // the token that hides others
  std::vector<Option> Fields() override {
    return {{"rate", &rate},
            {"mask_share", &mask_share},
            {"random_share", &random_share},
            {"mask_id", &mask_id, {.min = 0, .max = INT32_MAX}}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(rate > 0 && rate <= 1, "option rate is ", rate,
                     "; a share in (0, 1] would work");
    problems.Require(mask_share >= 0 && random_share >= 0 && mask_share + random_share <= 1,
                     "mask_share ", mask_share, " and random_share ", random_share,
                     "; shares of at most 1 together would work");
  }
};

class MaskedToken : public Objective {
 public:
  MaskedToken(const MaskedTokenOptions& options, const ObjectiveContext& context)
      : options_(options), vocab_size_(static_cast<uint32_t>(context.vocab_size)) {
    HL_CHECK_AS(ExitCode::kUsage, options.mask_id < context.vocab_size,
                "objective masked_token: ", "option mask_id is ", options.mask_id,
                "; a token below the vocabulary of ", context.vocab_size, " would work");
  }

  void Label(const LabelledRows& rows) const override {
    const RandomKey key = MakeRandomKey(rows.seed, RandomPurpose::kMask, 0);
    for (int64_t row = 0; row < rows.batch; ++row) {
      for (int64_t t = 0; t < rows.seq_len; ++t) {
        const size_t place = row * rows.seq_len + t;
        const RandomCounter draw = Draw(key, rows.samples[row], static_cast<uint32_t>(t), 0);
        int32_t& input = rows.inputs[place];
        const bool chosen = ToUniform(draw.x[0]) < options_.rate;
        rows.labels[place] = chosen ? input : kNoLabel;
        if (chosen) input = Shown(input, draw);
      }
    }
  }

 private:
  int32_t Shown(int32_t token, const RandomCounter& draw) const {
    const double share = ToUniform(draw.x[1]);
    if (share < options_.mask_share) return static_cast<int32_t>(options_.mask_id);
    if (share >= options_.mask_share + options_.random_share) return token;
    return static_cast<int32_t>(static_cast<uint64_t>(draw.x[2]) * vocab_size_ >> 32);
  }

  MaskedTokenOptions options_;
  uint32_t vocab_size_;
};

}  // namespace

ObjectiveVariant MaskedTokenVariant() {
  return VariantOf<MaskedTokenOptions, MaskedToken, Objective, ObjectiveContext>("masked_token");
}

}  // namespace halflife::model
