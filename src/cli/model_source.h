// Opens the model of `--model`: a run, one step of it (see ckpt::FindStep), or a folder that
// transformers saved.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "ckpt/weight_source.h"
#include "cli/command_line/options.h"
#include "cli/shared_facts.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Returns the placement of this rank of a machine, and makes its GPU current for this thread. Error
// kEnvironment if a GPU is requested but missing.
infer::Placement PlacementOf(const PlaceOptions& place, int local_rank = 0);
// `tokenizer` is an argument of data::OpenTokenizer. Empty: the model's own.
infer::LoadedModel LoadAnyModel(const std::filesystem::path& model, const std::string& tokenizer,
                                const infer::Placement& placement);
std::unique_ptr<ckpt::WeightSource> OpenWeights(const std::filesystem::path& model);
// Returns "--model" with the hash of its config and of all loaded weights.
SharedFact WeightsFact(const infer::LoadedModel& loaded);
// Returns null if the model has no tokenizer.
std::unique_ptr<data::Tokenizer> OpenTokenizer(const std::filesystem::path& model);

}  // namespace halflife::cli
