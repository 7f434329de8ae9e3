// The fixed decays per head of retention.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "model/mixers/linear/decay_recurrence.h"

namespace halflife::model {

// ln gamma_h with gamma_h = 1 - 2^(-5-h), h counted from 0 (Sun et al., 2023, equation 8). Computed
// by log1p, because gamma itself rounds to 1 in fp32 from head 20 on.
std::vector<double> RetentionLogDecays(int64_t num_heads);
// ln gamma_h with gamma_h = 1 - e^x, where x is evenly spaced from ln 1/32 to ln 1/512 over the
// heads: the decays of the paper's models with 1.3B to 6.7B parameters.
std::vector<double> RetentionLogDecaysOfRange(int64_t num_heads);

class FixedDecay : public LogDecay {
 public:
  explicit FixedDecay(std::vector<double> log_decays) : log_decays_(std::move(log_decays)) {}
  at::Tensor operator()(const at::Tensor& x, std::span<const ops::LinearPart>) const override;
  bool constant() const override { return true; }

 private:
  std::vector<double> log_decays_;  // [H]
};

}  // namespace halflife::model
