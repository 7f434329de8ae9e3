// AdamW (Loshchilov and Hutter, 2019) by the kernels of kernels/adamw, in one pass over all ranges.
// Optimizers that treat only matrices in a way of their own use it for their other ranges.
#pragma once

#include "optim/optimizer.h"

namespace halflife::optim {

class AdamW : public Optimizer {
 public:
  explicit AdamW(const AdamWConfig& config) : config_(config) {}

  std::vector<std::string> state_names() const override { return {"m", "v"}; }
  std::string Prepare(const std::vector<Range>& ranges) override;
  void Update(const UpdateArgs& args) override;

 private:
  AdamWConfig config_;
  int num_segments_ = 0;
  int64_t max_segment_ = 0;  // elements
};

}  // namespace halflife::optim
