// Low-rank adaptation (LoRA; Hu et al., 2021): a matrix W [out, in] of a layer becomes
//
//   W = W0 + (alpha / rank) B A,   A [rank, in], B [out, rank],
//
// where W0 is frozen and only A and B are trained. A starts as in torch.nn.Linear and B at zero, so
// training begins with the model of W0.
//
// The model computes with W itself, which is refreshed after each update. Every layer therefore
// runs the kernels of ordinary training and of the merged model. Backward computes the gradient of
// one W at a time in a buffer that is freed at once, and passes its projections to A and B:
//
//   dA = (alpha / rank) B^T dW,   dB = (alpha / rank) dW A^T.
//
// The arena of the run (train/step/parameter_arena.h) contains only A and B, and so do its
// gradients, optimizer states, ZeRO slices and checkpoints. The frozen weights exist once in the
// compute dtype, and those of targets twice (W0 and W).
//
//   Lora lora(config.lora, model);
//   lora.Bind(at::kCPU, at::kFloat);               // the model's parameters
//   ParameterArena arena(lora.parameters(), {});   // A and B
//   lora.Load(base);
//   lora.Refresh();   // after each change of A and B
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "ckpt/weight_source.h"
#include "model/language_model.h"
#include "train/config/run_config.h"

namespace halflife::train {

// Returns the indices of the adapted parameters: the matrices of layers whose whole name matches
// options.targets. Without targets: all whose sides are longer than the rank. Throws Error kUsage
// if there is none, if the expression is invalid, or if a side of a match is not longer than the
// rank.
std::vector<int> LoraTargets(const LoraOptions& options, const model::LanguageModel& model);

// Elements of the parameters of a run with LoRA.
struct LoraSizes {
  int64_t trained = 0;                          // of A and B
  int64_t frozen_compute = 0, frozen_fp32 = 0;  // of the model, by region
  int64_t targets = 0;                          // of the adapted matrices
  int64_t largest_target = 0;
};
LoraSizes SizesOfLora(const LoraOptions& options, const model::LanguageModel& model);

class Lora {
 public:
  // `model` is borrowed. Declares A and B. Errors as in LoraTargets.
  Lora(const LoraOptions& options, model::LanguageModel& model);
  ~Lora();  // detaches the gradients of the targets
  Lora(const Lora&) = delete;
  Lora& operator=(const Lora&) = delete;

  // Returns A and B of each target. Their names are the name of the target's weight plus kLoraA or
  // kLoraB.
  model::ParameterSet& parameters() { return parameters_; }
  // Allocates the model's weights and binds them. The memory has the order of a ParameterLayout, so
  // that products of neighbouring weights are joined as in ordinary training.
  void Bind(at::Device device, at::ScalarType compute_dtype);
  void Load(const ckpt::WeightSource& base);
  // Computes W of every target.
  void Refresh();
  // Passes the gradients of targets to the gradient sinks of A and B, which must exist.
  void PassGradients();

 private:
  class Sink;
  struct Adapted {
    int param = 0;            // of the model
    model::Parameter a, b;    // of parameters_
    at::Tensor base, weight;  // W0 and W [out, in] in the compute dtype; W is the model's memory
  };
  void AddGradient(const Adapted& target, const at::Tensor& gradient) const;

  model::LanguageModel& model_;
  const double scale_;
  model::ParameterSet parameters_;
  std::vector<Adapted> targets_;
  std::vector<at::Tensor> weights_;  // of the model, by parameter
};

}  // namespace halflife::train
