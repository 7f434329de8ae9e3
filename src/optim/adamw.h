// AdamW (Loshchilov and Hutter, 2019), in one pass of the kernels of kernels/adamw over all ranges.
// Optimizers that have their own update only for matrices, such as Muon, use it for all other
// parameters.
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
