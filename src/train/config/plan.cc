#include "train/config/plan.h"

#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "core/pairwise_sum.h"
#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "train/config/epochs.h"
#include "train/device.h"

namespace halflife::train {

namespace {

bool RunsOnGpu(const RunConfig& config) {
  return config.train.device == "cuda" ||
         (config.train.device == "auto" && ChooseDevice("auto", 0).is_cuda());
}

double Exact(const MemoryPlan& plan) {
  return plan.main_and_adam + plan.gradients + plan.compute_copy;
}

std::string Bytes(double bytes) { return HumanBytes(static_cast<uint64_t>(bytes)); }

// What would fit into `room` bytes a rank instead.
std::string WhatFits(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene, double room) {
  const double parameters = static_cast<double>(model.CountParameters().total());
  const MemoryPlan plan = PlanMemory(config, model, scene.world_size);
  RunConfig other = config;
  const auto fits = [&] { return PlanMemory(other, model, scene.world_size).total() <= room; };
  for (other.train.micro_batch /= 2; other.train.micro_batch >= 1; other.train.micro_batch /= 2) {
    const int64_t unit = other.train.micro_batch * scene.world_size;
    if (config.train.global_batch % unit == 0 && fits())
      return Concat("train.micro_batch ", other.train.micro_batch, " would fit");
  }
  other.train.micro_batch = 1;
  for (other.data.seq_len /= 2; other.data.seq_len >= 1; other.data.seq_len /= 2) {
    if (config.train.global_batch % scene.world_size == 0 && fits())
      return Concat("train.micro_batch 1 with data.seq_len ", other.data.seq_len, " would fit");
  }
  return Concat("its weights, Adam and gradients alone take ", Bytes(Exact(plan)),
                " a rank; a model of at most ", HumanCount(room * parameters / Exact(plan)),
                " parameters would fit");
}

}  // namespace

MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size) {
  const double parameters = static_cast<double>(model.CountParameters().total());
  const double tokens = static_cast<double>(config.train.micro_batch * config.data.seq_len);
  const bool bf16 = config.train.precision == "bf16";
  const int bytes_per_element = bf16 ? 2 : 4;
  const int64_t num_micro = config.train.global_batch / (config.train.micro_batch * world_size);
  const int levels = RunsOnGpu(config) ? 0 : NumLevels(num_micro);  // GradientHooks
  return {
      .main_and_adam = 12 * parameters,
      .gradients = 4 * parameters * (1 + levels),
      .compute_copy = bf16 ? 2 * parameters : 0,
      .activations = tokens * model.ActivationBytesPerToken(config.data.seq_len, bytes_per_element),
      .loss = kernels::LinearCrossEntropyBytes(config.train.micro_batch * config.data.seq_len,
                                               model.config().vocab_size, model.config().model_dim,
                                               /*widened=*/bf16)};
}

std::string PlanSummary(const RunConfig& config, const model::LanguageModel& model,
                        int world_size) {
  return Concat(model::MixerSummary(config.model), ", ", config.model.num_layers, " layers x ",
                config.model.model_dim, ", ",
                HumanCount(static_cast<double>(model.CountParameters().total())), " parameters, ",
                config.train.global_batch, " x ", config.data.seq_len, " tokens a step on ",
                world_size, world_size == 1 ? " rank, " : " ranks, ", config.train.steps, " steps");
}

PlanScene SceneHere(const RunConfig& config, int world_size, int local_size) {
  PlanScene scene{.world_size = world_size};
  if (!RunsOnGpu(config)) {
    scene.ranks_of_device = local_size;
    scene.memory_bytes = DeviceMemoryBytes({});
  } else if (const Device device = ChooseDevice("auto", 0); device.is_cuda()) {
    scene.memory_bytes = DeviceMemoryBytes(device);
  }
  return scene;
}

std::string MemoryVerdict(const RunConfig& config, const model::LanguageModel& model,
                          const PlanScene& scene) {
  const double room = static_cast<double>(scene.memory_bytes) / scene.ranks_of_device;
  const double total = PlanMemory(config, model, scene.world_size).total();
  if (scene.memory_bytes == 0 || total <= room) return "";
  const std::string ranks =
      scene.ranks_of_device == 1 ? "" : Concat(" for each of ", scene.ranks_of_device, " ranks");
  return Concat("does not fit: ", Bytes(total), ranks, ", and there are ",
                HumanBytes(scene.memory_bytes), " here; ", WhatFits(config, model, scene, room));
}

void RequireMemory(const RunConfig& config, const model::LanguageModel& model,
                   const PlanScene& scene, int rank) {
  const std::string verdict = MemoryVerdict(config, model, scene);
  if (verdict.empty()) return;
  const double exact = Exact(PlanMemory(config, model, scene.world_size));
  HL_CHECK_AS(ExitCode::kUsage,
              exact * scene.ranks_of_device <= static_cast<double>(scene.memory_bytes), "this run ",
              verdict);
  if (rank == 0) HL_WARN("train", "by estimate this run ", verdict);
}

void RequireRows(const RunConfig& config, const model::LanguageModel& model,
                 const data::DatasetInfo* dataset) {
  const int64_t most = model.max_positions();
  HL_CHECK_AS(ExitCode::kUsage, most == 0 || config.data.seq_len <= most, "data.seq_len is ",
              config.data.seq_len, ", and the model's tables have ", most,
              " positions; a data.seq_len of at most ", most, " would work, or longer tables");
  if (dataset == nullptr) return;
  const std::string layer = model.LayerOfOneDocument();
  HL_CHECK_AS(ExitCode::kUsage, !dataset->packs_documents() || layer.empty(), layer,
              " mixes whole rows, and rows of text are packed with several documents; text that is "
              "one document (`prepare --documents file`), or a mixer whose state restarts with a "
              "document, e.g. gla, would work");
  HL_CHECK_AS(ExitCode::kUsage, config.eval.split != "test" || dataset->has_rows(),
              "eval.split is 'test', and text has no test split; eval.split 'validation' would "
              "work");
}

bool CompleteForPlan(RunConfig& config, const data::DatasetInfo* dataset, int world_size) {
  constexpr int64_t kUsualVocabulary = 32000;
  const bool names_none = config.model.vocab_size == 0;
  if (names_none)
    config.model.vocab_size = dataset != nullptr ? dataset->vocab_size : kUsualVocabulary;
  RunConfig complete = config;
  if (complete.data.path.empty()) complete.data.path = "DATASET";  // all that may be missing
  Validate(complete, world_size);
  if (dataset != nullptr) ResolveSteps(config, *dataset);
  return names_none && dataset == nullptr;
}

RunConfig WithDerivedOptions(RunConfig config) {
  config.model = model::Resolved(config.model);
  return config;
}

std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene) {
  const int world_size = scene.world_size;
  std::ostringstream out;
  const auto row = [&out](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << value
        << "\n";
  };
  out << "# the resolved config\n" << ToText(WithDerivedOptions(config)) << "\n";
  const model::ParameterCount count = model.CountParameters();
  const auto parameters = [](int64_t n) { return HumanCount(static_cast<double>(n)); };
  out << "parameters\n";
  row("embedding", parameters(count.embedding));
  row("head", config.model.head.tied ? "tied" : parameters(count.head));
  row("mixers", parameters(count.mixer));
  row("mlps", parameters(count.mlp));
  row("norms", parameters(count.norm));
  row("total", Concat(parameters(count.total()), " (", count.total(), ")"));

  const MemoryPlan memory = PlanMemory(config, model, world_size);
  out << "memory on each rank\n";
  row("main weights, Adam m and v", Bytes(memory.main_and_adam));
  row("gradients and their sums", Bytes(memory.gradients));
  row("compute copy", Bytes(memory.compute_copy));
  row("activations (estimate)", Bytes(memory.activations));
  row("loss: logits, gradients", Bytes(memory.loss));
  row("total", Bytes(memory.total()));
  if (const std::string verdict = MemoryVerdict(config, model, scene); !verdict.empty())
    out << "  " << verdict << "\n";

  const double tokens = static_cast<double>(config.train.global_batch * config.data.seq_len);
  const model::FlopCount flops = model.FlopsPerToken(config.data.seq_len);
  out << "one step on " << world_size << (world_size == 1 ? " rank\n" : " ranks\n");
  row("tokens", HumanCount(tokens));
  row("micro-batches on each rank",
      Concat(config.train.global_batch / (config.train.micro_batch * world_size)));
  row("FLOPs, 6 x parameters", HumanCount(6.0 * static_cast<double>(count.total()) * tokens));
  row("FLOPs, full", HumanCount(3 * (flops.matmul + flops.mixing) * tokens));
  out << "the whole run\n";
  const double run_tokens = tokens * static_cast<double>(config.train.steps);
  row("tokens", HumanCount(run_tokens));
  if (scene.train_tokens > 0) {
    const double epochs = run_tokens / static_cast<double>(scene.train_tokens);
    const int64_t whole = config.train.max_epochs;
    row("epochs", Concat(whole > 0 ? Concat(whole) : Fixed(epochs, 2), " of ",
                         HumanCount(static_cast<double>(scene.train_tokens)), " tokens"));
  }
  row("checkpoint", Bytes(12 * static_cast<double>(count.total())));
  return out.str();
}

}  // namespace halflife::train
