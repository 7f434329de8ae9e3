#include "model/mixers/linear/fixed_decay.h"

#include <cmath>

#include "ops/torch/host_transfer.h"

namespace halflife::model {

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

at::Tensor FixedDecay::operator()(const at::Tensor& x, std::span<const ops::LinearPart>) const {
  return ops::ConstantsOn(x.device(), log_decays_, at::kFloat);
}

}  // namespace halflife::model
