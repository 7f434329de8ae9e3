// Opens what `--model` names: a run, one step of it (see ckpt::FindStep), or a folder that
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

// Of this rank of a machine; its GPU is then the thread's own. Error kEnvironment where there is
// none and one is asked for.
infer::Placement PlacementOf(const PlaceOptions& place, int local_rank = 0);
// `tokenizer` is what data::OpenTokenizer takes. Empty: the model's own.
infer::LoadedModel LoadAnyModel(const std::filesystem::path& model, const std::string& tokenizer,
                                const infer::Placement& placement);
std::unique_ptr<ckpt::WeightSource> OpenWeights(const std::filesystem::path& model);
// "--model" with the hash of its config and of all weights as they were loaded.
SharedFact WeightsFact(const infer::LoadedModel& loaded);
// Null where it carries none.
std::unique_ptr<data::Tokenizer> OpenTokenizer(const std::filesystem::path& model);

}  // namespace halflife::cli
