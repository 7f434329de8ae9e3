// A recipe before it runs: what it leaves open is filled in, what the model does not take is
// refused, and one line says what it is.
#pragma once

#include <string>

#include "data/dataset.h"
#include "dist/mesh.h"
#include "train/config/run_config.h"

namespace halflife::train {

dist::Mesh MeshOf(const RunConfig& config, int rank, int world_size);
// Groups of ranks that have rows of their own.
int NumRowGroups(const RunConfig& config, int world_size);
// Micro-batches that a rank takes part in, in a step.
int64_t NumMicroBatches(const RunConfig& config, int world_size);

model::Recompute RecomputeOf(const RunConfig& config);  // of one that Validate takes

// One line:
// "gla, 6 layers x 256, 5.1M parameters, 16 x 512 tokens a step on 2 ranks, 300 steps". Where
// train.max_epochs decides the length, which is in steps only once the dataset is known, epochs.
std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model, int world_size);

// Whether the dataset has text or rows in the split that eval.split names. A run without them does
// not validate.
bool HasValidationSplit(const RunConfig& config, const data::DatasetInfo& dataset);

// Error kUsage in these cases:
// - The model does not take rows as long as data.seq_len, or does not see the positions that
//   data.positions gives them.
// - Rows hold several documents, states restart at each, and a layer takes one document a row.
// - data.reset_at_documents is false on labelled rows.
// - The recipe needs validations, and the dataset does not have the split that eval.split names.
// - ckpt.keep_best needs an accuracy, and there is none.
// `dataset` may be null: not known.
void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset);

// Checks what a run of the recipe needs of its dataset: RequireRows, a vocabulary within the
// model's, a whole row in the split of eval.split if there is one, a whole step in the training
// split, and labels that the objective reads. Error kUsage or kData.
void RequireDataset(const RunConfig& config, const model::LanguageModel& model,
                    const data::Dataset& dataset);

// Error kUsage for parallel.slices on a GPU, whose sums are in NCCL's order whatever the slices.
void RequireSlicesOn(Device device, const RunConfig& config);

// Gives a recipe what a plan needs, and no dataset has to be there (null): the vocabulary is the
// recipe's, else the dataset's, else the 32,000 that the sizes of models are usually given for.
// True where it had to be assumed. Error kUsage for impossible values (Validate, on world_size
// ranks or as many as a row takes).
bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size);
// What whoever reads an assumed one can do.
inline constexpr char kAnotherVocabulary[] = "--set model.vocab_size=N for another, 259 for bytes";

// Validate, but that a plan's recipe need not name a dataset.
void ValidateForPlan(RunConfig config, int world_size);

// The config with every option that derives from others (a width from a ratio) at the value in
// force.
RunConfig WithDerivedOptions(RunConfig config);

}  // namespace halflife::train
