// Compares a checkpoint with the run that resumes from it. They must agree about the model family,
// the model config, the tensors, and every config field that changes the trajectory. Mesh, ZeRO
// stage, kernels and paths may differ.
#pragma once

#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/store.h"

namespace halflife::ckpt {

// One line per difference, with both values; empty when they agree.
std::vector<std::string> FindDifferences(const Manifest& manifest, const Expectation& expectation,
                                         const ArenaView& arena);
// Error kUsage that lists all of them, for a checkpoint of a step past the run's last, and of
// CheckAllowedNames.
void CheckAgreement(const Manifest& manifest, const std::string& step_name,
                    const Expectation& expectation, const ArenaView& arena);

// Error kUsage for a name in allow_change that is no field of either side, nor a part of the model
// that has fields ("model.mixer"). `manifest`: null where there is no checkpoint.
void CheckAllowedNames(const Expectation& expectation, const Manifest* manifest);
// The names of all fields of the expectation that a checkpoint must agree with, as a recipe has
// them: "optimizer.lr", "model.mixer.gla.num_heads".
std::vector<std::string> ComparedFields(const Expectation& expectation);

// The value of a stored field for readers. Checkpoints hold numbers in 17 digits; this is the
// shortest text of the same number: "0.0030000000000000001" -> "0.003". Other text is returned
// unchanged.
std::string ReadableValue(const std::string& stored);

// {"a": {"b": [1, 2]}} -> {"a.b": "[1,2]"}; text that is no JSON object -> {"": text}.
std::map<std::string, std::string> FlattenJson(const std::string& text);

}  // namespace halflife::ckpt
