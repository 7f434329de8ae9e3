// A recipe before it runs: fills in open fields, refuses a recipe that the model does not support,
// and describes the run in one line.
#pragma once

#include <optional>
#include <string>

#include "data/dataset.h"
#include "data/sample_order.h"
#include "dist/mesh.h"
#include "train/config/run_config.h"

namespace halflife::train {

dist::DataMesh MeshOf(const RunConfig& config, int rank, int world_size);
// Decides what parallel.shard auto and node mean on these machines. Throws Error kUsage if `node`
// is not possible.
void ResolveShard(RunConfig& config, int world_size, int ranks_of_node, bool on_gpu);
// Returns the number of groups of ranks with rows of their own (data-parallel groups).
int NumRowGroups(const RunConfig& config, int world_size);
// Returns the number of micro-batches per step that a rank takes part in.
int64_t NumMicroBatches(const RunConfig& config, int world_size);

model::Recompute RecomputeOf(const RunConfig& config);  // `config` has passed Validate.

// Returns one line, for example "gla, 6 layers x 256, 5.1M parameters, 16 x 512 tokens a step on 2
// ranks, 300 steps". If train.max_epochs is set, the line has epochs instead of steps, because the
// number of steps depends on the dataset.
std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model, int world_size);

// Returns a warning for a run in fp32 on a GPU, which has its fastest kernels for bf16. Empty:
// none.
std::string PrecisionWarning(const RunConfig& config, bool on_gpu);

// Returns whether the dataset has text or rows in the split that eval.split names. Without them, a
// run validates only the sets of eval.set. A blend has no unnamed validation set: false.
bool HasValidationSplit(const RunConfig& config, const data::DatasetInfo& dataset);

// Throws Error kUsage in these cases:
// - Rows of data.seq_len are longer than the model supports.
// - The model does not use the position ids of data.positions.
// - Rows hold several documents, states are reset at each, and a layer supports only one document
//   per row.
// - data.reset_at_documents is false on labelled rows.
// - The recipe needs validations, and the dataset does not have the split that eval.split names.
// - ckpt.keep_best needs an accuracy, and there is none.
// If `dataset` is null, the checks that need the dataset are skipped.
void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset);

// Checks that the dataset fits the recipe:
// - RequireRows holds, and the vocabulary is within the model's.
// - The split of eval.split has at least one whole row if it exists, and the training split at
//   least one whole step.
// - The labels that the objective and train.preference need exist.
// Throws Error kUsage or kData.
void RequireDataset(const RunConfig& config, const model::LanguageModel& model,
                    const data::Dataset& dataset);

// Throws Error kUsage for parallel.slices on a GPU, where NCCL determines the order of sums.
void RequireSlicesOn(Device device, const RunConfig& config);

// Completes a recipe for a plan, which does not need a dataset (null). The vocabulary is the
// recipe's, otherwise the dataset's, otherwise 32,000, a common size in published models. Returns
// true if it had to be assumed. Throws Error kUsage for invalid values (Validate, for world_size
// ranks or as many as a row needs).
bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size);
// How to replace an assumed vocabulary.
inline constexpr char kAnotherVocabulary[] = "--set model.vocab_size=N for another, 259 for bytes";

// Validate, except that the recipe of a plan may lack a dataset.
void ValidateForPlan(RunConfig config, int world_size);

// Returns the config with the effective value of every derived option (for example a width from a
// ratio).
RunConfig WithDerivedOptions(RunConfig config);

// Returns the facts of the training data, of a blend those of its first source with the tokens of
// all. Returns nullopt if there is no dataset yet.
std::optional<data::DatasetInfo> FindTrainingInfo(const RunConfig& config);

// Returns the order of the samples of the training split.
data::SampleOrder OrderOf(const RunConfig& config, const data::DatasetInfo& dataset);

// Sets train.steps from train.max_epochs, if that is set. Throws Error kUsage if the training split
// does not fill a single step.
void ResolveSteps(RunConfig& config, const data::DatasetInfo& dataset);

// Returns whether a validation is due after `num_steps` steps, by eval.every or eval.every_epochs.
bool ValidationIsDue(const EvalConfig& config, const data::SampleOrder& order, int64_t num_steps);

}  // namespace halflife::train
