#include "model/mixers/linear/log_decay.h"

#include <algorithm>
#include <cmath>

#include "model/projections.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

// The initial step sizes softplus(dt_bias) are log-uniform in this range (Gu and Dao, 2024).
constexpr double kMinStep = 1e-3, kMaxStep = 0.1;

// `low` must be above 0: the logarithm of A = 0 is -inf, and such a head never recovers.
Init InitOfLogA(double low, double high) {
  return Init::Of([=](int64_t, double uniform) { return std::log(low + uniform * (high - low)); });
}

}  // namespace

at::Tensor FixedDecay::operator()(const at::Tensor& x, std::span<const ops::LinearPart>) const {
  return ops::ConstantsOn(x.device(), log_decays_, at::kFloat);
}

std::vector<double> RetentionLogDecays(int64_t num_heads) {
  std::vector<double> logs;
  for (int64_t head = 0; head < num_heads; ++head)
    logs.push_back(std::log1p(-std::exp2(-5.0 - static_cast<double>(head))));
  return logs;
}

std::vector<double> RetentionLogDecaysOfRange(int64_t num_heads) {
  const double first = std::log(1.0 / 32), last = std::log(1.0 / 512);
  std::vector<double> logs;
  for (int64_t head = 0; head < num_heads; ++head) {
    const double part =
        num_heads == 1 ? 0 : static_cast<double>(head) / static_cast<double>(num_heads - 1);
    logs.push_back(std::log1p(-std::exp(first + part * (last - first))));
  }
  return logs;
}

std::vector<double> MiniMaxLogDecays(int64_t num_heads, const LayerNumber& layer) {
  const auto heads = static_cast<double>(num_heads), last = static_cast<double>(layer.count - 1);
  const double of_layer = 1 - static_cast<double>(layer.index) / (last + 1e-5) + 1e-5;
  std::vector<double> logs;
  for (int64_t head = 0; head < num_heads; ++head)
    logs.push_back(-std::exp2(-8 * static_cast<double>(head + 1) / heads) * of_layer);
  return logs;
}

std::vector<double> LinearLogDecays(int64_t num_heads, const LayerNumber& layer) {
  const double of_layer = 1 - static_cast<double>(layer.index) / static_cast<double>(layer.count);
  std::vector<double> logs;
  for (int64_t head = 0; head < num_heads; ++head)
    logs.push_back(-8 * static_cast<double>(head) / static_cast<double>(num_heads) * of_layer);
  return logs;
}

SoftplusDecay::SoftplusDecay(const SoftplusDecayForm& form, const PartContext& context)
    : form_(form),
      width_(form.num_heads * std::max<int64_t>(form.num_channels, 1)),
      model_dim_(context.model_dim()) {
  const int64_t inner = form.rank > 0 ? form.rank : width_;
  in_ = DeclareMatrix(context, form.rank > 0 ? "f_proj.0.weight" : "a_proj.weight",
                      {.out = inner, .in = model_dim_});
  if (form.rank > 0)
    out_ = DeclareMatrix(context, "f_proj.1.weight",
                         {.out = width_, .in = form.rank, .heads = form.num_heads});
  log_a_ = DeclareFp32(context, "A_log", {form.num_heads},
                       InitOfLogA(form.initial_min, form.initial_max));
  bias_ = DeclareFp32(context, "dt_bias", {width_}, BiasOfSteps(kMinStep, kMaxStep));
}

ops::DeltaGatesOutput SoftplusDecay::operator()(std::span<const ops::LinearPart> products,
                                                const ops::LinearPart& b, double beta_scale) const {
  ops::LinearPart logits = products[0];
  if (out_.declared()) logits = {.y = ops::Linear(logits.y, *out_, logits.gradient)};
  ops::DeltaGatesOutput gates =
      ops::DeltaGates({.x = logits.y,
                       .bias = *bias_,
                       .a_log = *log_a_,
                       .b = b.y,
                       .x_gradient = logits.gradient,
                       .b_gradient = b.gradient},
                      {.bound = form_.lower_bound, .beta_scale = beta_scale});
  if (per_channel()) gates.log_decay = SplitHeads(gates.log_decay, form_.num_channels);
  return gates;
}

int64_t SoftplusDecay::num_matrix_elements() const {
  return form_.rank > 0 ? form_.rank * (model_dim_ + width_) : model_dim_ * width_;
}

}  // namespace halflife::model
