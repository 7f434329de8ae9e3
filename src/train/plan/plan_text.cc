#include "train/plan/plan_text.h"

#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "core/human.h"
#include "model/model_cost.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

// Returns one line: the memory of a rank, and whether there is enough.
std::string MemorySummary(const RunConfig& config, const model::LanguageModel& model,
                          const PlanScene& scene) {
  if (const std::string verdict = MemoryVerdict(config, model, scene); !verdict.empty())
    return verdict;
  const std::string total = HumanBytes(PlanMemory(config, model, scene.world_size).total());
  if (scene.memory_bytes == 0) return Concat("memory: ", total, " on each rank");
  return Concat("fits: ", total, " on each rank, and there are ", HumanBytes(scene.memory_bytes),
                " here",
                scene.ranks_of_device > 1 ? Concat(" for ", scene.ranks_of_device, " ranks") : "");
}

}  // namespace

int64_t TokensOfRun(const RunConfig& config, const PlanScene& scene) {
  const auto steps = static_cast<uint64_t>(config.train.steps);
  const int64_t samples = scene.order ? static_cast<int64_t>(scene.order->NumSamplesBefore(steps))
                                      : config.train.global_batch * config.train.steps;
  return samples * config.data.seq_len;
}

std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanScene& scene) {
  const int world_size = scene.world_size;
  std::ostringstream out;
  const auto row = [&out](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << value
        << "\n";
  };
  out << PlanSummary(config, model, world_size) << "\n"
      << MemorySummary(config, model, scene) << "\n\n";
  const model::ParameterCount count = model.CountParameters();
  const auto parameters = [](int64_t n) { return HumanCount(static_cast<double>(n)); };
  out << "parameters";
  if (scene.assumed_vocabulary)
    out << " at an assumed vocabulary of " << config.model.vocab_size << " (" << kAnotherVocabulary
        << ")";
  out << "\n";
  row("embedding", parameters(count.embedding));
  row("head", config.model.head.tied ? "tied" : parameters(count.head));
  row("mixers", parameters(count.mixer));
  row("mlps", parameters(count.mlp));
  row("norms", parameters(count.norm));
  row("total", Concat(parameters(count.total()), " (", count.total(), ")"));

  const MemoryPlan memory = PlanMemory(config, model, world_size);
  out << "memory on each rank\n";
  row("main weights, Adam m and v", HumanBytes(memory.main_and_adam));
  row("gradients and their sums", HumanBytes(memory.gradients));
  row("weights to compute with", HumanBytes(memory.compute_copy));
  row("activations (estimate)", HumanBytes(memory.activations));
  row("loss: logits, gradients", HumanBytes(memory.loss));
  if (memory.workspace > 0) row("workspace of a kernel", HumanBytes(memory.workspace));
  if (memory.states > 0) row("states before its slices", HumanBytes(memory.states));
  if (memory.saved_copy > 0) row("copy while a save is written", HumanBytes(memory.saved_copy));
  row("total", HumanBytes(memory.total()));

  const double tokens = static_cast<double>(config.train.global_batch * config.data.seq_len);
  const model::FlopCount flops = model::ModelCost(model, config.data.seq_len).FlopsPerToken();
  out << "one step on " << Counted(world_size, "rank") << "\n";
  row("tokens", HumanCount(tokens));
  row("micro-batches on each rank", Concat(NumMicroBatches(config, world_size)));
  if (config.parallel.row_ranks() > 1)
    row("ranks that share a row", Concat(config.parallel.row_ranks()));
  row("FLOPs, 6 x parameters", HumanCount(6.0 * static_cast<double>(count.total()) * tokens));
  row("FLOPs, full", HumanCount(3 * (flops.matmul + flops.mixing) * tokens));
  out << "the whole run\n";
  const auto run_tokens = static_cast<double>(TokensOfRun(config, scene));
  const int64_t whole = config.train.max_epochs;
  // Without the dataset, the number of steps of the epochs is unknown.
  if (whole == 0 || scene.train_tokens > 0) row("tokens", HumanCount(run_tokens));
  if (scene.train_tokens > 0) {
    const double epochs = run_tokens / static_cast<double>(scene.train_tokens);
    row("epochs", Concat(whole > 0 ? Concat(whole) : Fixed(epochs, 2), " of ",
                         HumanCount(static_cast<double>(scene.train_tokens)), " tokens"));
  } else if (whole > 0) {
    row("epochs", Concat(whole));
  }
  row("checkpoint", HumanBytes(12 * static_cast<double>(count.total())));
  out << "\n# the resolved config\n" << ToText(WithDerivedOptions(config));
  return out.str();
}

}  // namespace halflife::train
