// A recipe and its resolved configuration: files in order, then `--set path=value` overrides, then
// one validation that lists all problems. The schema is in proto/halflife/. Only the .cc files of
// this folder include protobuf.
//
//   const RunConfig config =
//       LoadRunConfig("launch/recipes/gla_340m.textproto", {"optimizer.lr=3e-4"});
//   AtomicWriteFile(run / "config.textproto", ToText(config), ExitCode::kEnvironment);
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/store.h"
#include "data/row_positions.h"
#include "model/language_model.h"
#include "optim/optimizer_choice.h"
#include "train/config/schedule.h"

namespace halflife::train {

struct WeightChange {
  int64_t step = 0;
  double weight = 0;
};
// A dataset of a blend.
struct DataSource {
  std::string name, path;
  double weight = 1;
  std::vector<WeightChange> weight_at;  // Steps ascend.

  // Returns the weight after `num_steps` steps.
  double WeightAfter(int64_t num_steps) const;
};

struct DataConfig {
  std::string path;
  int64_t seq_len = 512;
  int prefetch = 4;
  std::string epoch_end = "fill";
  data::RowPositionsConfig positions;  // For training rows. All other rows have plain positions.
  bool reset_at_documents = true;      // As in data::TokenView. false is only for text.
  std::vector<DataSource> sources;     // A blend, instead of `path`.

  bool is_blend() const { return !sources.empty(); }
  // Returns the path of the dataset whose tokenizer and vocabulary the run uses. All datasets of a
  // run have the same.
  std::string& main_path() { return is_blend() ? sources[0].path : path; }
  const std::string& main_path() const { return is_blend() ? sources[0].path : path; }
  // Returns the weights of the sources after `num_steps` steps.
  std::vector<double> WeightsAfter(int64_t num_steps) const;
  // Returns the numbers of steps at which weights change, ascending, without 0.
  std::vector<int64_t> WeightSteps() const;
  // Returns for example "web 0.7, code 0.3 (0.5 from step 1000)". Checkpoints compare it.
  std::string SourcesText() const;
};

// Parameters that are trained in a way of their own.
struct ParameterGroup {
  std::string match;  // A regular expression, found anywhere in a parameter's name.
  double lr_scale = 1;
  std::optional<double> weight_decay = {};  // For the whole group. Absent: adamw.weight_decay.
  bool frozen = false;
};

struct OptimizerConfig {
  double lr = 3e-4;
  optim::AdamWConfig adamw;  // beta1, beta2, eps and weight_decay.
  double clip_norm = 1.0;    // 0: no clipping.
  bool decay_all = false;
  optim::OptimizerChoice algorithm;
  std::vector<ParameterGroup> groups = {};
  double ema_decay = 0;  // 0: no average of the weights.

  // The state array of the average. Checkpoints call it ckpt::kAverageArray.
  static constexpr char kAverage[] = "ema";
  // Returns the names of all state arrays: the algorithm's, then the average.
  std::vector<std::string> state_names() const {
    std::vector<std::string> names = algorithm.Make(adamw)->state_names();
    if (ema_decay > 0) names.emplace_back(kAverage);
    return names;
  }
  // Returns the bytes of a parameter in a checkpoint: its main weight and its states, all fp32.
  double saved_bytes_per_parameter() const {
    return 4.0 * (1 + static_cast<double>(state_names().size()));
  }
};

struct Float8Config {
  int64_t min_width = 1024;
};

// See train/preference/answer_pairs.h.
struct PreferenceConfig {
  std::string loss = "none";
  double beta = 0.1;
  bool is_on() const { return loss != "none"; }
};

struct LoopConfig {
  int64_t steps = 1000;
  int64_t global_batch = 8;
  int64_t micro_batch = 8;
  uint64_t seed = 1;
  double z_loss = 0;
  std::string precision = "fp32";
  std::string device = "auto";
  int threads = 0;
  std::string on_nonfinite = "skip";
  int max_skips = 3;
  int64_t log_every = 10;
  double time_limit_s = 0;
  bool log_samples = false;
  int64_t max_epochs = 0;
  double stop_at_accuracy = 0;
  std::string recompute = "none";
  bool cuda_graphs = false;
  int64_t patience = 0;
  double spike_sigmas = 0;
  Float8Config fp8;
  PreferenceConfig preference;
  int max_rollbacks = 0;
  int rollback_spikes = 3;
  int rollback_window = 100;

  // fp8 differs from bf16 only in the products of some layers.
  bool computes_in_bf16() const { return precision != "fp32"; }
};

// A validation set in addition to the split of data.path.
struct ValidationSetConfig {
  std::string name, path;
  std::string split = "validation";
  int64_t windows = 0;  // 0: as EvalConfig::windows.
};

struct EvalConfig {
  int64_t every = 0;
  int64_t windows = 0;
  std::string sample_prompt;
  int64_t sample_tokens = 200;
  int64_t every_epochs = 0;
  std::string split = "validation";
  std::vector<ValidationSetConfig> sets;
};

struct SaveConfig {
  int64_t every = 0;
  std::string on_error = "warn";
  bool background = true;
  ckpt::StoreConfig store;

  // keep_best names a metric of validations, so the run saves after each best validation so far.
  bool keeps_best_validation() const { return store.retention.keep_best.starts_with("val_"); }
  // Returns the metric that train.patience waits for, and that keep_best keeps if it is of a
  // validation.
  std::string validation_metric() const {
    return keeps_best_validation() ? store.retention.keep_best : "val_loss";
  }
  // Periodic saves and saves of the best validation are written from a copy, during training.
  // Training waits for the last save of a run.
  bool saves_beside_training() const {
    return background && (every > 0 || keeps_best_validation());
  }
};

struct ParallelConfig {
  int zero_stage = 0;
  std::string shard = "auto";
  int prefetch = -1;
  int sp = 1;      // Number of processes that share a row.
  int slices = 0;  // Number of slices of a row. 0: sp.
  std::string grad_reduce = "fp32";
  std::string exchange = "auto";
  // With zero_stage 2 and 3: number of buckets that may be in reduction before the next one waits.
  static constexpr int kBucketsInFlight = 3;

  int64_t first_bucket_bytes = 8 << 20;
  int64_t bucket_bytes = 0;  // 0: dist::AutoBucketBytes

  // The meaning of `auto` and `node` of `shard` in this run (ResolveShard). 0: all ranks. Not a
  // field of recipes, because a run may be resumed on other machines.
  int resolved_shard = 0;

  // Returns the number of ranks of a shard group (dist/shard_groups.h).
  int shard_ranks(int world_size) const;
  int given_shard() const;  // the number in `shard`; 0: it is not a number
  // Returns the size of a bucket of gradients in bytes. If ranks hold only parts of the gradients,
  // several buckets exist at the same time, so they are at most 256 MiB unless bucket_bytes is
  // given.
  int64_t bucket_bytes_of(int world_size, int64_t gradient_bytes) const;
  int num_prefetched() const { return prefetch >= 0 ? prefetch : zero_stage == 3 ? 1 : 2; }
  // Returns the number of ranks that share a row, each with a slice of it. Results and all sums
  // depend on this number. If it exceeds sp, each process runs several ranks as threads.
  int row_ranks() const { return slices > 0 ? slices : sp; }
  const char* row_field() const { return slices > 0 ? "parallel.slices" : "parallel.sp"; }
  bool has_whole_slices() const { return sp >= 1 && row_ranks() >= 1 && row_ranks() % sp == 0; }
  int ranks_of_process() const { return has_whole_slices() ? row_ranks() / sp : 1; }
  // Gradients of each micro-batch are summed over ranks (first over the slices of a row) before
  // micro-batches are summed. Results then do not depend on how rows
  // are assigned to ranks.
  bool sums_each_micro_batch() const { return slices > 0; }
};

struct LogConfig {
  std::string level = "info";
  bool tensorboard = true;
};

// Low-rank adaptation, see train/lora/lora.h.
struct LoraOptions {
  int64_t rank = 0;  // 0: off
  double alpha = 16;
  std::string targets;  // regular expression for whole names of weights; empty: all matrices
};

struct RunConfig {
  DataConfig data;
  model::ModelConfig model;  // vocab_size is 0 until the dataset is known.
  OptimizerConfig optimizer;
  ScheduleConfig schedule;
  LoopConfig train;
  EvalConfig eval;
  SaveConfig ckpt;
  ParallelConfig parallel;
  double comm_timeout_s = 180;
  LogConfig log;
  LoraOptions lora;
};

// Loads a recipe. A later file overrides fields of the earlier ones, by the rules of MergeRecipe
// (recipe_text.h). Does not call Validate. Errors, all kUsage:
// - an unknown name or a wrong value, with file, line, column and the correct form;
// - a --set path that does not exist;
// - train.steps in a later file or in the overrides, if train.max_epochs makes it ineffective.
RunConfig LoadRunConfig(const std::vector<std::filesystem::path>& files,
                        const std::vector<std::string>& overrides);
RunConfig LoadRunConfig(const std::filesystem::path& file,
                        const std::vector<std::string>& overrides);
RunConfig ParseRunConfig(const std::string& text, const std::string& name_for_errors,
                         const std::vector<std::string>& overrides);

// Throws one Error kUsage with all invalid values. `world_size` is the number of ranks of the run.
void Validate(const RunConfig& config, int world_size);

// Returns all fields with their values, as a run and its checkpoints store them.
// ParseRunConfig(ToText(c)) equals c.
std::string ToText(const RunConfig& config);

// Returns every field with its value as text, flat: "optimizer.lr" -> "0.003", "model.mixer" ->
// "gla", "model.mixer.gla.num_heads" -> "4", "model.hybrid.0.layers.0" -> "1".
std::map<std::string, std::string> FlatFields(const RunConfig& config);

// Returns the fields outside the model that the schema tags as part of the trajectory, flat
// ("optimizer.lr" -> "0.003"). They must be equal on resume unless --allow-change names them.
std::map<std::string, std::string> TrajectoryFields(const RunConfig& config);

// Returns ToText(config) with a comment ("# " and the help of the schema) behind each value, or
// above it if the line would be too long. The result is a valid recipe.
std::string ExplainedText(const RunConfig& config);

}  // namespace halflife::train
