#include "train/config/plan.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "core/error.h"
#include "core/human.h"
#include "data/token_source.h"
#include "eval/validation.h"

namespace halflife::train {
namespace {

// Returns why the position ids of data.positions would not reach the model. Empty if they do.
std::string WhyPositionIdsAreIgnored(const model::LanguageModel& model) {
  const bool in_attention = model.positions().in_attention();
  for (int64_t layer = 0; in_attention && layer < model.config().num_layers; ++layer) {
    const model::MixerTraits traits = model.block(layer).mixer().traits();
    // Distances that are counted in tokens would ignore the position ids.
    if (traits.takes_positions && !traits.reads_position_ids)
      return Concat("model.positions ", model.config().positions.name(),
                    " counts distances in tokens");
  }
  const bool read = model.positions().reads_position_ids() ||
                    model.AnyLayerHas(&model::MixerTraits::reads_position_ids);
  return read ? "" : "no layer rotates and nothing is added to embeddings";
}

void RequirePositionIds(const data::RowPositionsConfig& ids, const model::LanguageModel& model) {
  if (ids.plain()) return;
  const std::string why_not = WhyPositionIdsAreIgnored(model);
  HL_CHECK_AS(ExitCode::kUsage, why_not.empty(), "data.positions: ", ids.kind,
              ". Use plain: ", why_not, ", so the model would not see other positions.");
  const int64_t most = model.positions().max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || ids.length <= most,
              "data.positions_length: ", ids.length, ". Use at most max_positions of the ",
              model.config().positions.name(), " table, ", most);
}

// Rejects settings that need a validation split if the dataset has none. Such a run validates only
// its named sets.
void RequireValidationSplit(const RunConfig& config, const data::DatasetInfo& dataset) {
  if (HasValidationSplit(config, dataset)) return;
  std::vector<std::string> needs;
  const bool validates = !config.eval.sets.empty() || config.data.is_blend();
  if (!validates && config.eval.every > 0) needs.push_back("eval.every");
  if (!validates && config.eval.every_epochs > 0) needs.push_back("eval.every_epochs");
  if (!validates && !config.eval.sample_prompt.empty()) needs.push_back("eval.sample_prompt");
  if (config.train.stop_at_accuracy > 0) needs.push_back("train.stop_at_accuracy");
  const std::string& best = config.ckpt.store.retention.keep_best;
  // The sets of a blend have names; RunData checks those.
  if (!config.data.is_blend() && (best == "val_loss" || best == "val_error"))
    needs.push_back("ckpt.keep_best");
  HL_CHECK_AS(
      ExitCode::kUsage, needs.empty(), "the dataset has no ", config.eval.split,
      " split, which the recipe needs for ", Join(needs, " and "), ". Remove ",
      needs.size() == 1 ? "this setting" : "these settings",
      " to train without validation, or prepare the dataset with ",
      dataset.has_rows() ? Concat("a ", config.eval.split, " split.") : "--validation-tail 0.05.");
}

}  // namespace

bool HasValidationSplit(const RunConfig& config, const data::DatasetInfo& dataset) {
  if (config.data.is_blend()) return false;
  return (config.eval.split == "test" ? dataset.test : dataset.validation).num_tokens > 0;
}

dist::DataMesh MeshOf(const RunConfig& config, int rank, int world_size) {
  const ParallelConfig& parallel = config.parallel;
  const int shard = parallel.shard_ranks(world_size);
  // Shard groups are subtrees of the sum only if it adds the slices of a row first.
  const bool rows_first =
      parallel.sums_each_micro_batch() || (shard < world_size && parallel.row_ranks() > 1);
  return {rank, world_size, parallel.row_ranks(), rows_first, shard};
}

void ResolveShard(RunConfig& config, int world_size, int ranks_of_node, bool on_gpu) {
  ParallelConfig& parallel = config.parallel;
  parallel.resolved_shard = 0;
  if (parallel.zero_stage == 0) return;
  const int sp = parallel.row_ranks();
  const bool possible =
      world_size % ranks_of_node == 0 && (ranks_of_node % sp == 0 || sp % ranks_of_node == 0);
  if (parallel.shard == "node") {
    HL_CHECK_AS(ExitCode::kUsage, possible, "parallel.shard node: ", ranks_of_node, " of ",
                world_size, " ranks are on this node, and ", Counted(sp, "rank"),
                " share a row. Use equal numbers of ranks on all nodes, with whole rows on each, "
                "or parallel.shard world.");
    parallel.resolved_shard = ranks_of_node;
  } else if (parallel.shard == "auto" && on_gpu && possible) {
    parallel.resolved_shard = ranks_of_node;
  }
}

int NumRowGroups(const RunConfig& config, int world_size) {
  return std::max(world_size / config.parallel.row_ranks(), 1);
}

int64_t NumMicroBatches(const RunConfig& config, int world_size) {
  return config.train.global_batch / (config.train.micro_batch * NumRowGroups(config, world_size));
}

model::Recompute RecomputeOf(const RunConfig& config) {
  static const std::map<std::string, model::Recompute> kWays = {
      {"none", model::Recompute::kNone},
      {"mixer", model::Recompute::kMixer},
      {"block", model::Recompute::kBlock}};
  return kWays.at(config.train.recompute);
}

std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model,
                        int world_size) {
  return Concat(
      model::MixerSummary(config.model), ", ", config.model.num_layers, " layers x ",
      config.model.model_dim, ", ",
      HumanCount(static_cast<double>(model.CountParameters().total())), " parameters, ",
      config.train.global_batch, " x ", config.data.seq_len, " tokens a step on ",
      Counted(world_size, "rank"),
      config.parallel.row_ranks() > 1 ? Concat(", ", config.parallel.row_ranks(), " to a row") : "",
      ", ",
      config.train.max_epochs > 0 ? Counted(config.train.max_epochs, "epoch")
                                  : Counted(config.train.steps, "step"));
}

std::string PrecisionWarning(const RunConfig& config, bool on_gpu) {
  if (!on_gpu || config.train.precision != "fp32") return "";
  return "precision: in fp32 on a GPU, decay attention computes a product as three of bf16, "
         "polynomial attention uses the recurrent (per-token) kernel, softmax attention uses "
         "LibTorch, and matrix products are slower. Use train.precision=bf16, unless the run must "
         "be in fp32.";
}

void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset) {
  const int64_t most = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || config.data.seq_len <= most, "data.seq_len is ",
              config.data.seq_len, ", beyond ", model.LimitOfPositions(),
              ". Use a data.seq_len of at most ", most, ".");
  const std::string whole = model.LayerOfWholeRows();
  const ParallelConfig& parallel = config.parallel;
  const char* const field = parallel.row_field();
  HL_CHECK_AS(ExitCode::kUsage, parallel.row_ranks() == 1 || whole.empty(), field, " ",
              parallel.row_ranks(), ": ", whole,
              " mixes whole rows and cannot split a row over several ranks. Use ", field,
              " 1, or a mixer ", "with a state, for example gla.");
  HL_CHECK_AS(ExitCode::kUsage, parallel.row_ranks() == 1 || !model.objective().classifier(), field,
              " ", parallel.row_ranks(), ": objective ", config.model.objective.name(),
              " reads whole documents, and no rank would have a whole document. Use ", field,
              " 1.");
  RequirePositionIds(config.data.positions, model);
  if (dataset == nullptr) return;
  HL_CHECK_AS(ExitCode::kUsage, config.data.reset_at_documents || !dataset->has_rows(),
              "data.reset_at_documents is false, and the documents of labelled rows are separate "
              "examples. Use data.reset_at_documents=true, or a dataset of text.");
  const std::string layer = model.LayerOfOneDocument();
  const bool resets = config.data.reset_at_documents && dataset->packs_documents();
  HL_CHECK_AS(ExitCode::kUsage, !resets || layer.empty(), layer,
              " mixes whole rows, and rows of text are packed with several documents. Use ",
              dataset->has_rows() ? ""
                                  : "text that is one document (`prepare --documents file`), "
                                    "data.reset_at_documents=false, or ",
              "a mixer whose state restarts with a document, e.g. gla.");
  // The same condition as in eval/validation.
  const bool has_accuracy = dataset->has_rows() || !model.objective().predicts_next_token();
  HL_CHECK_AS(
      ExitCode::kUsage, has_accuracy || config.ckpt.store.retention.keep_best != "val_error",
      "ckpt.keep_best: val_error. Use val_loss or loss: next-token prediction on text has no "
      "accuracy. Labelled rows and the objective masked_token have one.");
  HL_CHECK_AS(ExitCode::kUsage, config.eval.split != "test" || dataset->has_rows(),
              "eval.split is 'test', and text has no test split. Use eval.split 'validation'.");
  RequireValidationSplit(config, *dataset);
}

void RequireDataset(const RunConfig& config, const model::LanguageModel& model,
                    const data::Dataset& dataset) {
  const int64_t vocab = dataset.info().vocab_size;
  HL_CHECK_AS(ExitCode::kUsage, config.model.vocab_size >= vocab, "model.vocab_size ",
              config.model.vocab_size, " is smaller than the dataset's vocabulary of ", vocab, " (",
              dataset.folder().string(), "). Remove the field to use the dataset's.");
  RequireRows(config, model, &dataset.info());
  const data::SampleOrder order = OrderOf(config, dataset.info());
  const int64_t num_tokens = dataset.info().train.num_tokens;
  HL_CHECK_AS(ExitCode::kData, order.num_windows > 0, "the training split of ",
              dataset.folder().string(), " has ", num_tokens,
              " tokens, fewer than data.seq_len + 1 = ", config.data.seq_len + 1,
              ". Prepare more text, or use a data.seq_len of at most ",
              std::max<int64_t>(num_tokens - 1, 1), ".");
  HL_CHECK_AS(
      ExitCode::kUsage, order.epoch_end != data::EpochEnd::kDrop || order.StepsPerEpoch() > 0,
      "the training split of ", dataset.folder().string(), " has ", order.num_windows,
      " rows, fewer than train.global_batch ", config.train.global_batch,
      ", and data.epoch_end drop leaves out rows that do not fill a step. Use a train.global_batch "
      "of at most ",
      order.num_windows, ", or data.epoch_end short.");
  if (HasValidationSplit(config, dataset.info()))
    eval::RequireWindows(data::ViewOf(dataset, data::SplitOf(config.eval.split)),
                         config.data.seq_len);
  eval::RequireLabelsOf(model, data::ViewOf(dataset, data::Split::kTrain));
  const bool pairs = dataset.info().labels == data::RowLabels::kPreferences;
  HL_CHECK_AS(ExitCode::kUsage, pairs == config.train.preference.is_on(), "the dataset ",
              dataset.folder().string(),
              pairs ? " has pairs of answers" : " has no pairs of answers",
              ", and train.preference.loss is ", config.train.preference.loss, ". Use ",
              pairs ? "--set train.preference.loss=dpo."
                    : "a dataset of `halflife prepare --labels preferences`, or "
                      "--set train.preference.loss=none.");
}

void RequireSlicesOn(Device device, const RunConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, !device.is_cuda() || config.parallel.slices == 0,
              "parallel.slices ", config.parallel.slices,
              ": on a GPU, NCCL determines the order of sums, independently of the slices. Use "
              "parallel.slices "
              "0, or train.device 'cpu'.");
}

void ValidateForPlan(RunConfig config, int world_size) {
  if (config.data.main_path().empty()) config.data.main_path() = "DATASET";
  Validate(config, world_size);
}

bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size) {
  constexpr int64_t kUsualVocabulary = 32000;
  const bool names_none = config.model.vocab_size == 0;
  if (names_none)
    config.model.vocab_size = dataset != nullptr ? dataset->vocab_size : kUsualVocabulary;
  ValidateForPlan(config, std::max(world_size, config.parallel.row_ranks()));
  if (dataset != nullptr) ResolveSteps(config, *dataset);
  return names_none && dataset == nullptr;
}

RunConfig WithDerivedOptions(RunConfig config) {
  config.model = model::Resolved(config.model);
  return config;
}

std::optional<data::DatasetInfo> FindTrainingInfo(const RunConfig& config) {
  std::error_code ignored;
  if (!std::filesystem::exists(config.data.main_path(), ignored)) return std::nullopt;
  data::DatasetInfo info = data::Dataset::Open(config.data.main_path()).info();
  for (size_t i = 1; i < config.data.sources.size(); ++i)
    info.train.num_tokens +=
        data::Dataset::Open(config.data.sources[i].path).info().train.num_tokens;
  return info;
}

data::SampleOrder OrderOf(const RunConfig& config, const data::DatasetInfo& dataset) {
  return {.num_windows = data::NumWindows(dataset.train, dataset.row_len, config.data.seq_len),
          .global_batch = config.train.global_batch,
          .epoch_end = data::EpochEndOf(config.data.epoch_end)};
}

void ResolveSteps(RunConfig& config, const data::DatasetInfo& dataset) {
  if (config.train.max_epochs == 0) return;
  const data::SampleOrder order = OrderOf(config, dataset);
  HL_CHECK_AS(ExitCode::kUsage,
              order.num_windows > 0 &&
                  (order.epoch_end == data::EpochEnd::kFill || order.StepsPerEpoch() > 0),
              "train.max_epochs ", config.train.max_epochs, ": the training split has ",
              order.num_windows, " rows of data.seq_len ", config.data.seq_len,
              ", which do not fill a step of train.global_batch ", config.train.global_batch,
              " with data.epoch_end ", config.data.epoch_end,
              ". Use a smaller train.global_batch, or data.epoch_end short.");
  config.train.steps = order.StepsOf(config.train.max_epochs);
}

bool ValidationIsDue(const EvalConfig& config, const data::SampleOrder& order, int64_t num_steps) {
  if (config.every > 0 && num_steps % config.every == 0) return true;
  if (config.every_epochs == 0) return false;
  const int64_t epoch = order.EpochOf(static_cast<uint64_t>(num_steps));
  const int64_t before = order.EpochOf(static_cast<uint64_t>(num_steps - 1));
  return epoch / config.every_epochs > before / config.every_epochs;
}

}  // namespace halflife::train
