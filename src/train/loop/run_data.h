// The datasets of a run: those that it trains on, and those of its validation sets.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/state.h"
#include "data/blend.h"
#include "data/dataset.h"
#include "data/token_source.h"
#include "model/language_model.h"
#include "train/config/run_config.h"

namespace halflife::train {

// The input of one validation. Its metrics end in "/<name>", or are plain if the name is empty.
struct ValidationSet {
  std::string name;
  data::TokenView tokens;   // Borrows a dataset of RunData.
  int64_t num_windows = 0;  // See eval::ChooseWindows.
};

class RunData {
 public:
  // Opens all datasets of the recipe. Throws Error kData if one cannot be opened.
  explicit RunData(const RunConfig& config);

  // Checks the datasets against the recipe and the model, beyond Validate: RequireDataset for each
  // training dataset; and for all others the vocabulary, the tokenizer, the labels and the number
  // of windows. Throws Error kUsage or kData.
  void Require(const RunConfig& config, const model::LanguageModel& model) const;

  // The dataset of data.path, or of the first source of a blend.
  const data::Dataset& training() const { return training_.front(); }
  // The dataset of data.path, or of each source of a blend.
  const std::vector<data::Dataset>& sources() const { return training_; }
  // Returns the hash of the training data, over all sources of a blend.
  Hash128 hash() const;
  // Returns the hashes of all datasets, including those of validation sets.
  std::string AllHashes() const;
  // Returns one line with folders and hashes.
  std::string Description(const RunConfig& config) const;

  // Returns the validation sets in this order: the unnamed set, if data.path has the split of
  // eval.split; the sources of a blend that have it; eval.set.
  std::vector<ValidationSet> ValidationSets(const RunConfig& config) const;

  // Throws Error kUsage if the dataset of a blend's source is not the one that a checkpoint has
  // drawn rows from.
  void RequireSameSources(const RunConfig& config, const ckpt::DataCursor& stored) const;
  // Returns the training rows as a stream. For a blend, `stored` (null: a new run) has the segments
  // before step `num_steps`, from a checkpoint. If the recipe's weights differ there, a new segment
  // begins at this step. Throws as RequireSameSources.
  std::unique_ptr<data::TokenSource> MakeSource(const RunConfig& config,
                                                const data::TokenSourceConfig& source,
                                                const ckpt::DataCursor* stored, int64_t num_steps);
  // Adds the state of a blend to a cursor whose next_sample is set. None for a single dataset.
  void AddBlend(const RunConfig& config, const data::Blend& blend, int64_t num_steps,
                ckpt::DataCursor& cursor) const;

 private:
  std::vector<data::Dataset> training_;  // One for each entry of data.source, or that of data.path.
  std::vector<data::Dataset> of_sets_;   // One for each entry of eval.set.
  // The hashes of the sources of the blend, in its order. It has removed sources, too.
  std::vector<Hash128> blend_hashes_;
};

}  // namespace halflife::train
