// Compares a checkpoint with the run that resumes from it. They must agree about the model family,
// the model config, the tensors, and every config field that changes the trajectory. Mesh, ZeRO
// stage, kernels and paths may differ.
#pragma once

#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "ckpt/store.h"

namespace halflife::ckpt {

// Returns one line per difference, with both values. Empty: they agree.
std::vector<std::string> FindDifferences(const Manifest& manifest, const Expectation& expectation,
                                         const ArenaView& arena);
// Throws Error kUsage that lists all differences. Also throws if the step is beyond the run's last
// step, or as CheckAllowedNames does.
void CheckAgreement(const Manifest& manifest, const std::string& step_name,
                    const Expectation& expectation, const ArenaView& arena);

// Throws Error kUsage for a name in allow_change that is neither a field of either side nor a model
// part with fields ("model.mixer"). `manifest` is null if there is no checkpoint.
void CheckAllowedNames(const Expectation& expectation, const Manifest* manifest);
// Returns the names of all fields of the expectation that a checkpoint must agree with, as in a
// recipe: "optimizer.lr", "model.mixer.gla.num_heads".
std::vector<std::string> ComparedFields(const Expectation& expectation);

// Returns a stored value in a readable form. Checkpoints store numbers with 17 digits, and this
// returns the shortest text of the same number: "0.0030000000000000001" -> "0.003". Other text is
// unchanged.
std::string ReadableValue(const std::string& stored);

// Flattens a JSON object: {"a": {"b": [1, 2]}} -> {"a.b": "[1,2]"}. Other text -> {"": text}.
std::map<std::string, std::string> FlattenJson(const std::string& text);

}  // namespace halflife::ckpt
