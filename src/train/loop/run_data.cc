#include "train/loop/run_data.h"

#include "core/error.h"
#include "eval/validation.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

// The metrics of parts of the unnamed set and those of named sets have the same form.
void RequireFreeName(const std::string& name, const data::SplitInfo& unnamed) {
  const auto require = [&](const auto& parts, const char* what) {
    for (const auto& part : parts)
      HL_CHECK_AS(ExitCode::kUsage, part.name != name, "eval.set '", name, "': ", what,
                  " of the validation split of data.path has the same name, so both would be ",
                  "val_loss/", name, ". Use another name for the set.");
  };
  require(unnamed.sources, "a file");
  require(unnamed.segments, "a segment");
}

// Token ids must represent the same text in both datasets.
void RequireSameVocabulary(const data::Dataset& other, const std::string& field,
                           const data::Dataset& training) {
  const std::string where = Concat("the training data ", training.folder().string());
  HL_CHECK_AS(ExitCode::kUsage, other.info().has_tokenizer() == training.info().has_tokenizer(),
              field, ": the dataset ", other.folder().string(),
              other.info().has_tokenizer() ? " has" : " has no", " tokenizer, and ", where,
              training.info().has_tokenizer() ? " has one" : " has none",
              ". Use a dataset that was prepared like the training data.");
  if (!other.info().has_tokenizer()) return;
  data::RequireSameTokens(other, *training.LoadTokenizer(), where);
}

}  // namespace

RunData::RunData(const RunConfig& config) : training_(data::Dataset::Open(config.data.path)) {
  for (const ValidationSetConfig& set : config.eval.sets)
    of_sets_.push_back(data::Dataset::Open(set.path));
}

std::vector<ValidationSet> RunData::ValidationSets(const RunConfig& config) const {
  std::vector<ValidationSet> sets;
  const auto add = [&](const std::string& name, const data::Dataset& dataset,
                       const std::string& split, int64_t num_windows) {
    sets.push_back(
        {.name = name,
         .tokens = data::ViewOf(dataset, data::SplitOf(split),
                                config.data.reset_at_documents || dataset.info().has_rows()),
         .num_windows = num_windows});
    if (!name.empty()) sets.back().tokens.name = Concat("eval.set '", name, "'");
  };
  if (HasValidationSplit(config, training_.info()))
    add("", training_, config.eval.split, config.eval.windows);
  for (size_t i = 0; i < of_sets_.size(); ++i) {
    const ValidationSetConfig& set = config.eval.sets[i];
    add(set.name, of_sets_[i], set.split, set.windows > 0 ? set.windows : config.eval.windows);
  }
  return sets;
}

void RunData::Require(const RunConfig& config, const model::LanguageModel& model) const {
  RequireDataset(config, model, training_);
  for (size_t i = 0; i < of_sets_.size(); ++i) {
    const std::string& name = config.eval.sets[i].name;
    const std::string field = Concat("eval.set '", name, "'");
    const data::DatasetInfo& info = of_sets_[i].info();
    HL_CHECK_AS(ExitCode::kUsage, info.vocab_size <= config.model.vocab_size, field,
                ": the dataset ", of_sets_[i].folder().string(), " has a vocabulary of ",
                info.vocab_size, ", and the model one of ", config.model.vocab_size,
                ". Prepare the set with the tokenizer of the training data.");
    RequireSameVocabulary(of_sets_[i], field, training_);
    if (HasValidationSplit(config, training_.info()))
      RequireFreeName(name, training_.split(data::SplitOf(config.eval.split)));
  }
  const std::string& best = config.ckpt.store.retention.keep_best;
  for (const ValidationSet& set : ValidationSets(config)) {
    eval::RequireLabelsOf(model, set.tokens);
    eval::RequireWindows(set.tokens, config.data.seq_len);
    HL_CHECK_AS(ExitCode::kUsage,
                set.tokens.row_len > 0 || !model.objective().predicts_next_token() ||
                    best != "val_error/" + set.name,
                "ckpt.keep_best: ", best, ". Use val_loss/", set.name,
                ": next-token prediction on text has no accuracy.");
  }
}

}  // namespace halflife::train
