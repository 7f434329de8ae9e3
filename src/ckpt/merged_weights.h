// The weights of a step with the names and shapes of its model. For a run with low-rank adaptation
// (train/lora/lora.h) they are W + scale B A, from the step's A and B and the base weights W in the
// run's folder.
//
//   const std::unique_ptr<WeightSource> weights = WeightsOfStep(StepReader::Open(step_dir));
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "ckpt/weight_source.h"

namespace halflife::ckpt {

// The folder of a run with the base weights, in the format of a step; and the ends of the names of
// A [rank, in] and B [out, rank], after the name of W [out, in].
inline constexpr char kLoraBaseFolder[] = "base";
inline constexpr std::string_view kLoraA = ".lora_a", kLoraB = ".lora_b";
// The field of the step's trajectory with alpha; scale = alpha / rank.
inline constexpr char kLoraAlphaField[] = "lora.alpha";

bool IsLoraStep(const StepReader& step);
// alpha of a step for which IsLoraStep is true.
double LoraAlpha(const StepReader& step);

// `weights`: "main", or "ema" for the moving average of a run that keeps one. Throws Error
// kNoUsableCheckpoint if the base weights are missing or belong to another run, and kUsage if the
// step has no average.
std::unique_ptr<WeightSource> WeightsOfStep(StepReader step, const std::string& weights = "main");

}  // namespace halflife::ckpt
