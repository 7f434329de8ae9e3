// Scores of the answers of a split: the sums of -ln p under a model. A run with train.preference
// needs the scores of its initial model as a reference. They are computed once and stored in the
// run's folder, because the initial weights are not stored.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "data/token_source.h"
#include "dist/communicator.h"
#include "model/language_model.h"
#include "model/sequence_parallel.h"
#include "train/preference/answer_pairs.h"

namespace halflife::train {

// Name of the file in a run's folder.
inline constexpr char kReferenceFile[] = "reference.safetensors";

class AnswerScores {
 public:
  AnswerScores() = default;
  // Makes scores of 0 for all answers of `tokens`, whose labels are data::RowLabels::kPreferences.
  explicit AnswerScores(const data::TokenView& tokens);

  // Returns the scores of these rows of the split, [B, max_pairs, 2] fp64 on the CPU. A row of -1
  // has no pairs.
  at::Tensor Of(std::span<const int64_t> rows, int64_t max_pairs) const;
  void Set(int64_t row, const double* scores);  // scores of all pairs of the row
  int64_t num_pairs() const { return std::ssize(values_) / 2; }
  std::vector<double>& values() { return values_; }
  const std::vector<double>& values() const { return values_; }

 private:
  std::vector<int64_t> first_;  // by row: the index of its first value; then the number of values
  std::vector<double> values_;  // chosen and rejected of each pair, in the order of the split
};

struct ScoringConfig {
  int64_t seq_len = 0, batch = 8;
  // As in eval::ValidationConfig.
  const model::SequenceParallel* parallel = nullptr;
  bool equal_passes = false;
  // True: no deadline applies to ranks that wait for others with more or slower batches.
  bool waits_for_all = false;
  std::function<void()> on_batch = nullptr;  // Called after each batch of this rank.
};

// Scores these rows of the split, in batches of `config.batch` that are distributed over ranks, so
// the number of ranks changes no bit. Other rows keep 0. Collective over `control`: all ranks have
// all scores.
AnswerScores ScoreAnswers(const model::LanguageModel& model, const data::TokenView& tokens,
                          std::span<const int64_t> rows, const ScoringConfig& config,
                          dist::Communicator& control);

// Returns SumPairs of the rows, and the number of their pairs.
struct ComparedRows {
  at::Tensor sums;
  int64_t num_pairs = 0;
};
ComparedRows CompareRows(const PreferenceConfig& config, const data::TokenView& tokens,
                         int64_t seq_len, std::span<const int64_t> rows, const AnswerScores& policy,
                         const AnswerScores& reference);

struct Reference {
  std::string run_id;
  std::map<data::Split, AnswerScores> splits;
};
// Throws Error kCheckpointIo.
void WriteReference(const std::filesystem::path& run, const Reference& reference);
// Returns the folder with the scores for a resumed step: that of the step's run, or that of the new
// run `own` if the other has none.
std::filesystem::path FolderOfReference(const std::filesystem::path& run,
                                        const std::filesystem::path& own);
// Reads the scores into `reference`, which has the run's id and splits of the right sizes. Throws
// Error kNoUsableCheckpoint if the file is missing or damaged, or belongs to another run or
// dataset.
void ReadReference(const std::filesystem::path& run, Reference& reference);

}  // namespace halflife::train
