// The datasets of a run: the one that it trains on, and those of its validation sets.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/token_source.h"
#include "model/language_model.h"
#include "train/config/run_config.h"

namespace halflife::train {

// What one validation scores. Its metrics end in "/<name>", or are plain if the name is empty.
struct ValidationSet {
  std::string name;
  data::TokenView tokens;   // Borrows a dataset of RunData.
  int64_t num_windows = 0;  // See eval::ChooseWindows.
};

class RunData {
 public:
  // Opens all datasets of the recipe. Error kData if one cannot be opened.
  explicit RunData(const RunConfig& config);

  // Checks the datasets against the recipe and the model, beyond Validate: RequireDataset, and for
  // each validation set the vocabulary, the tokenizer, the labels and the number of windows. Error
  // kUsage or kData.
  void Require(const RunConfig& config, const model::LanguageModel& model) const;

  const data::Dataset& training() const { return training_; }
  // The unnamed set first, if data.path has the split of eval.split. Then eval.set, in order.
  std::vector<ValidationSet> ValidationSets(const RunConfig& config) const;

 private:
  data::Dataset training_;
  std::vector<data::Dataset> of_sets_;  // One for each entry of eval.set.
};

}  // namespace halflife::train
