#include "train/plan.h"

#include <iomanip>
#include <sstream>

#include "core/concat.h"
#include "core/human.h"
#include "core/pairwise_sum.h"
#include "kernels/cross_entropy/linear_cross_entropy.h"
#include "train/device.h"

namespace halflife::train {

MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size) {
  const double parameters = static_cast<double>(model.CountParameters().total());
  const double tokens = static_cast<double>(config.train.micro_batch * config.data.seq_len);
  const bool bf16 = config.train.precision == "bf16";
  const int bytes_per_element = bf16 ? 2 : 4;
  const int64_t num_micro = config.train.global_batch / (config.train.micro_batch * world_size);
  const bool on_gpu = config.train.device == "cuda" ||
                      (config.train.device == "auto" && ChooseDevice("auto", 0).is_cuda());
  const int levels = on_gpu ? 0 : NumLevels(num_micro);  // GradientHooks
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
  return Concat(config.model.mixer.name, ", ", config.model.num_layers, " layers x ",
                config.model.model_dim, ", ",
                HumanCount(static_cast<double>(model.CountParameters().total())), " parameters, ",
                config.train.global_batch, " x ", config.data.seq_len, " tokens a step on ",
                world_size, world_size == 1 ? " rank, " : " ranks, ", config.train.steps, " steps");
}

std::string PlanText(const RunConfig& config, const model::LanguageModel& model, int world_size) {
  std::ostringstream out;
  const auto row = [&out](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << value
        << "\n";
  };
  out << "# the resolved config\n" << ToText(config) << "\n";
  const model::ParameterCount count = model.CountParameters();
  const auto parameters = [](int64_t n) { return HumanCount(static_cast<double>(n)); };
  out << "parameters\n";
  row("embedding", parameters(count.embedding));
  row("head", config.model.tie_embeddings ? "tied" : parameters(count.head));
  row("mixers", parameters(count.mixer));
  row("mlps", parameters(count.mlp));
  row("norms", parameters(count.norm));
  row("total", Concat(parameters(count.total()), " (", count.total(), ")"));

  const MemoryPlan memory = PlanMemory(config, model, world_size);
  const auto bytes = [](double n) { return HumanBytes(static_cast<uint64_t>(n)); };
  out << "memory on each rank\n";
  row("main weights, Adam m and v", bytes(memory.main_and_adam));
  row("gradients and their sums", bytes(memory.gradients));
  row("compute copy", bytes(memory.compute_copy));
  row("activations (estimate)", bytes(memory.activations));
  row("loss: logits, gradients", bytes(memory.loss));
  row("total", bytes(memory.total()));

  const double tokens = static_cast<double>(config.train.global_batch * config.data.seq_len);
  const model::FlopCount flops = model.FlopsPerToken(config.data.seq_len);
  out << "one step on " << world_size << (world_size == 1 ? " rank\n" : " ranks\n");
  row("tokens", HumanCount(tokens));
  row("micro-batches on each rank",
      Concat(config.train.global_batch / (config.train.micro_batch * world_size)));
  row("FLOPs, 6 x parameters", HumanCount(6.0 * static_cast<double>(count.total()) * tokens));
  row("FLOPs, full", HumanCount(3 * (flops.matmul + flops.mixing) * tokens));
  out << "the whole run\n";
  row("tokens", HumanCount(tokens * static_cast<double>(config.train.steps)));
  row("checkpoint", bytes(12 * static_cast<double>(count.total())));
  return out.str();
}

}  // namespace halflife::train
