// Retention as in RetNet (Sun et al., 2023, section 2) and torchscale. It differs from `retention`,
// which is fla's form, in three points:
//   1. The rotation uses torchscale's angles.
//   2. The norm of each head has no weight.
//   3. Each row is divided by the root of the sum of its decays,
//
//   o_n = q_n S_n / sqrt(K s_n),  s_n = sum_{j <= n} gamma^(n-j) = (1 - gamma^(n+1)) / (1 - gamma),
//
// where n counts the tokens of the document. The divisor is folded into the query, so the parallel,
// recurrent and chunkwise forms are the same.
//
// The paper also divides each row of scores by its absolute sum. This has no recurrent form, and
// the norm of each head cancels it up to its eps. row_norm torchscale_parallel includes it, for
// checkpoints that must reproduce torchscale's parallel form. It reads all earlier keys for every
// query, as attention does, and its divisor has no gradient.
#include <ATen/TensorOperators.h>
#include <ATen/ops/expm1.h>
#include <ATen/ops/rsqrt.h>

#include <cmath>

#include "model/mixers/linear/decay_recurrence.h"
#include "model/mixers/linear/linear_mixer.h"
#include "model/mixers/linear/log_decay.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

struct RetNetOptions : OptionsOf<RetNetOptions, LinearHeadOptions> {
  double rope_theta = 10000;
  std::string decay = "heads";
  std::string row_norm = "decay";

  RetNetOptions() : OptionsOf(/*heads=*/4, /*k=*/1, /*v=*/2) {}
  std::vector<Option> Fields() override {
    std::vector<Option> fields = LinearHeadOptions::Fields();
    fields.push_back({"rope_theta", &rope_theta});
    fields.push_back({"decay", &decay, {.choices = {"heads", "range"}}});
    fields.push_back(
        {"row_norm", &row_norm, {.choices = {"decay", "none", "torchscale_parallel"}}});
    return fields;
  }
  void Resolve(const ModelSizes& sizes, ProblemList& problems) override {
    LinearHeadOptions::Resolve(sizes, problems);
    problems.Require(rope_theta > 1, "option rope_theta is ", rope_theta,
                     ". Use a number above 1.");
    problems.Require(
        head_dim_k % 2 == 0 && head_dim_k > 2, "key width per head ", head_dim_k,
        " does not fit the rotation, which pairs channels. Use an even width of at least 4.");
  }
};

// theta^(-j / (d/2 - 1)) for j = 0 to d/2 - 1. The last frequency is exactly 1 / theta.
std::vector<double> TorchscaleFrequencies(int64_t dim, double theta) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < dim / 2; ++j)
    frequencies.push_back(
        std::pow(theta, -static_cast<double>(j) / static_cast<double>(dim / 2 - 1)));
  return frequencies;
}

DecayForm MakeDecayForm(const RetNetOptions& options) {
  const std::vector<double> log_decays = options.decay == "heads"
                                             ? RetentionLogDecays(options.num_heads)
                                             : RetentionLogDecaysOfRange(options.num_heads);
  DecayForm form = {.rotary_frequencies =
                        TorchscaleFrequencies(options.head_dim_k, options.rope_theta)};
  form.make_decay = [log_decays](const PartContext&) {
    return std::make_unique<FixedDecay>(log_decays);
  };
  form.score_norm = options.row_norm == "torchscale_parallel";
  if (options.row_norm != "none")
    form.query_scale = {.key = log_decays, .of = [log_decays](const at::Tensor& positions) {
                          const at::Tensor rates = ops::ConstantsOn(positions.device(), log_decays);
                          // (1 - gamma^(n + 1)) / (1 - gamma) [B, T, H]
                          const at::Tensor sums =
                              at::expm1((positions + 1).to(at::kDouble).unsqueeze(-1) * rates) /
                              at::expm1(rates);
                          return at::rsqrt(sums);
                        }};
  return form;
}

LinearForm MakeRetNetForm(const RetNetOptions& options) {
  return {.make_recurrence = MakeDecayRecurrence(MakeDecayForm(options)),
          .norm_name = "g_norm_swish_gate.weight",
          .norm_affine = false};
}

}  // namespace

MixerVariant RetNetVariant() { return LinearVariantOf<RetNetOptions, MakeRetNetForm>("retnet"); }

}  // namespace halflife::model
