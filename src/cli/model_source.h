// Opens the model of `--model`: a run, one step of it (see ckpt::FindStep), or a folder that
// transformers saved. Compares the model, and other facts, between ranks.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/weight_source.h"
#include "cli/command_line/options.h"
#include "data/chat/chat_template.h"
#include "dist/rank_context.h"
#include "infer/model_loader.h"

namespace halflife::cli {

// Facts that must be equal on all ranks before they share work. Otherwise ranks would wait for
// others with less work. A path is not such a fact, because every host may have its own copy.
//
//   RequireAlike(context, {WeightsFact(loaded), {"--windows", "5", "5"}});
//
// `value` is compared, and `words` is printed: {"--data", "12ab...", "datasets/mine (hash
// 12ab...)"}.
struct SharedFact {
  std::string name, value, words;
};
// Collective, with the same names on every rank. Throws Error kUsage with each fact in which a rank
// differs from rank 0.
void RequireAlike(dist::RankContext& context, const std::vector<SharedFact>& facts);

// Returns the type of the computation. `precision` is that of ComputeOptions.
at::ScalarType ComputeTypeOn(const Device& device, const std::string& precision);
// Returns the placement of this rank of a machine, and makes its GPU current for this thread.
// Throws Error kEnvironment if a GPU is requested but missing.
infer::Placement PlacementOf(const ComputeOptions& compute, int local_rank = 0);
// `tokenizer` is an argument of data::OpenTokenizer. Empty: the model's own. `weights` is that of
// infer::LoadModel.
infer::LoadedModel LoadAnyModel(const std::filesystem::path& model, const std::string& tokenizer,
                                const infer::Placement& placement,
                                const std::string& weights = "main");
// Returns the template that is named, else the tokenizer's if it is a known one, else chatml.
data::ChatTemplate ChatTemplateOf(const std::string& name, const data::Tokenizer& tokenizer);
std::unique_ptr<ckpt::WeightSource> OpenWeights(const std::filesystem::path& model);
// Returns "--model" with the hash of its config and of all loaded weights.
SharedFact WeightsFact(const infer::LoadedModel& loaded);
// Returns null if the model has no tokenizer.
std::unique_ptr<data::Tokenizer> OpenTokenizer(const std::filesystem::path& model);

}  // namespace halflife::cli
