#include "train/plan/memory_plan.h"

#include <algorithm>
#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "core/pairwise_sum.h"
#include "model/model_cost.h"
#include "model/sequence_parallel.h"
#include "train/config/plan.h"
#include "train/device.h"
#include "train/lora/lora.h"
#include "train/step/float8_layers.h"
#include "train/step/matrix_exchange.h"
#include "train/step/parameter_groups.h"
#include "train/step/parameter_units.h"

namespace halflife::train {
namespace {

bool RunsOnGpu(const RunConfig& config) {
  return config.train.device == "cuda" ||
         (config.train.device == "auto" && ChooseDevice("auto", 0).is_cuda());
}

double Exact(const MemoryPlan& plan) {
  return plan.main_and_optimizer + plan.gradients + plan.compute_copy + plan.frozen + plan.gathered;
}

// The sizes of the arena's arrays on one rank (ParameterArena), without padding.
class ArenaPlan {
 public:
  // `lora`: null if all weights are trained.
  ArenaPlan(const RunConfig& config, const model::LanguageModel& model, const LoraSizes* lora,
            int world_size)
      : parallel_(config.parallel),
        bf16_(config.train.computes_in_bf16() && lora == nullptr),
        world_size_(world_size),
        slices_(parallel_.zero_stage > 0 ? world_size : 1),
        shards_(parallel_.zero_stage > 0 ? parallel_.shard_ranks(world_size) : 1),
        units_(static_cast<size_t>(config.model.num_layers) + 2) {
    if (lora != nullptr) {  // A and B are computed with in fp32.
      parameters_ = trained_ = static_cast<double>(lora->trained);
      return;
    }
    const std::vector<int> unit_of = UnitsOf(model);
    const std::vector<ParameterRule> rules = RulesOf(config.optimizer, model.parameters().specs());
    for (size_t param = 0; param < unit_of.size(); ++param) {
      const dist::ParamSpec& spec = model.parameters().specs()[param];
      const auto count = static_cast<double>(spec.count());
      parameters_ += count;
      if (!rules[param].frozen) trained_ += count;
      largest_tensor_ = std::max(largest_tensor_, count);
      const bool computes = spec.region == dist::Region::kCompute;
      if (computes && unit_of[param] >= 0) units_[static_cast<size_t>(unit_of[param])] += count;
      if (computes) of_copy_ += count;
    }
    if (parallel_.zero_stage < 3) std::ranges::fill(units_, 0);
    for (const double unit : units_) in_units_ += unit;
  }

  double shards() const { return shards_; }
  double trained() const { return trained_; }  // elements that are not frozen
  // Returns the elements of the largest bucket, which may be one tensor.
  double largest_bucket() const {
    const int64_t bytes =
        parallel_.bucket_bytes_of(world_size_, static_cast<int64_t>(4 * parameters_));
    double elements = static_cast<double>(bytes) / 4;
    // Buckets end with their unit.
    if (in_units_ > 0) elements = std::min(elements, std::ranges::max(units_));
    return std::max(elements, largest_tensor_);
  }
  // Returns the bytes of the shares that a rank adds in the order of ranks: of its part of a
  // bucket, and of its range over the shard groups.
  double ShareBytes() const {
    const double over_groups = shards_ < slices_ ? 1 / shards_ : 0;
    return 4 * std::min(trained_, largest_bucket()) * (1 + over_groups);
  }
  // Returns the bytes of main weights and states, of which a checkpoint has `saved` bytes per
  // parameter.
  double MainAndStates(double saved) const {
    if (slices_ == 1) return (saved - 4) * trained_ + 4 * parameters_;
    const double sliced = bf16_ ? parameters_ : in_units_;  // of the main weights
    return (saved - 4) * trained_ / slices_ + 4 * (parameters_ - sliced + sliced / slices_);
  }
  double Copy() const {
    const double held = in_units_ / shards_;
    if (bf16_) return 2 * (parallel_.zero_stage < 3 ? parameters_ : of_copy_ - in_units_ + held);
    return slices_ == shards_ ? 0 : 4 * held;
  }
  // Returns the bytes of the slots of units: those of blocks, and one for embedding and head.
  double Gathered() const {
    const double edges = std::max(units_.front(), units_.back());
    double block = 0;
    for (size_t unit = 1; unit + 1 < units_.size(); ++unit) block = std::max(block, units_[unit]);
    return (bf16_ ? 2 : 4) * (edges + (parallel_.num_prefetched() + 1) * block);
  }

 private:
  const ParallelConfig& parallel_;
  bool bf16_;
  int world_size_;
  double slices_, shards_;     // W and S
  std::vector<double> units_;  // elements by unit
  double parameters_ = 0, trained_ = 0, largest_tensor_ = 0, of_copy_ = 0, in_units_ = 0;
};

// Returns the bytes of the values that a rank stages, and with ZeRO also of those that it receives,
// of at most three batches. A batch has at least one matrix.
double MatrixBufferBytes(const RunConfig& config, const model::LanguageModel& model,
                         int world_size) {
  const auto optimizer = config.optimizer.algorithm.Make(config.optimizer.adamw);
  const optim::MatrixRule* const rule = optimizer->matrix_rule();
  if (rule == nullptr || config.lora.rank > 0) return 0;
  int64_t all = 0, largest = 0;
  for (const dist::ParamSpec& spec : model.parameters().specs()) {
    for (const MatrixPart& part : spec.parts) {
      all += part.rows * spec.shape[1];
      largest = std::max(largest, part.rows * spec.shape[1]);
    }
  }
  const bool sliced = config.parallel.zero_stage > 0 && world_size > 1;
  const int64_t batch = std::max(ExchangePlace{}.batch_elements, largest);
  const int64_t staged = std::min(sliced ? all / world_size : all, 3 * batch);
  const int64_t received = sliced ? std::min(std::max(all / world_size, largest), 3 * batch) : 0;
  const auto kind = RunsOnGpu(config) ? Device::Kind::kCuda : Device::Kind::kCpu;
  return static_cast<double>(staged + received) *
         static_cast<double>(SizeOf(rule->value_dtype(kind)));
}

// Returns a change of the step with which the run would fit into `room` bytes per rank, or "".
std::string SettingsThatFit(const RunConfig& config, const model::LanguageModel& model,
                            const PlanTarget& target, double room) {
  RunConfig other = config;
  const auto fits = [&] { return PlanMemory(other, model, target.world_size).total() <= room; };
  if (RecomputeOf(config) != model::Recompute::kBlock) {
    other.train.recompute = "block";
    if (fits()) return "train.recompute block.";
    other.train.recompute = config.train.recompute;
  }
  for (other.train.micro_batch /= 2; other.train.micro_batch >= 1; other.train.micro_batch /= 2) {
    const int64_t unit = other.train.micro_batch * NumRowGroups(config, target.world_size);
    if (config.train.global_batch % unit == 0 && fits())
      return Concat("train.micro_batch ", other.train.micro_batch, ".");
  }
  other.train.micro_batch = 1;
  for (other.data.seq_len /= 2; other.data.seq_len >= 1; other.data.seq_len /= 2) {
    if (config.train.global_batch % NumRowGroups(config, target.world_size) == 0 && fits())
      return Concat("train.micro_batch 1 with data.seq_len ", other.data.seq_len, ".");
  }
  return "";
}

// Returns a change with which the run would fit into `room` bytes per rank.
std::string WhatFits(const RunConfig& config, const model::LanguageModel& model,
                     const PlanTarget& target, double room) {
  const MemoryPlan plan = PlanMemory(config, model, target.world_size);
  RunConfig waits = config;
  waits.ckpt.background = false;
  if (plan.saved_copy > 0 && PlanMemory(waits, model, target.world_size).total() <= room)
    return "Use ckpt.background false.";
  if (const std::string found = SettingsThatFit(config, model, target, room); !found.empty())
    return "Use " + found;
  if (plan.saved_copy > 0)
    if (const std::string found = SettingsThatFit(waits, model, target, room); !found.empty())
      return "Use ckpt.background false and " + found;
  const auto parameters = static_cast<double>(model.CountParameters().total());
  return Concat("The weights, the optimizer's states and the gradients take ",
                HumanBytes(Exact(plan)), " per rank. Use a model of at most ",
                HumanCount(room * parameters / Exact(plan)), " parameters.");
}

}  // namespace

MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size) {
  // A plan for the CPU does not initialise a GPU.
  const Device gpu = RunsOnGpu(config) ? ChooseDevice("auto", 0) : Device{};
  return PlanMemory(config, model, world_size, GpuLimits(gpu));
}

MemoryPlan PlanMemory(const RunConfig& config, const model::LanguageModel& model, int world_size,
                      const kernels::DeviceLimits& gpu) {
  const bool lora = config.lora.rank > 0;
  const LoraSizes of_lora = lora ? SizesOfLora(config.lora, model) : LoraSizes();
  const double parameters =
      static_cast<double>(lora ? of_lora.trained : model.CountParameters().total());
  // For the rank with the longest slice of each row.
  const int64_t slice = model::CutRow(config.data.seq_len, config.parallel.row_ranks(),
                                      model::SequenceParallel::kAlign)[0];
  const int64_t tokens = config.train.micro_batch * slice;
  const bool bf16 = config.train.computes_in_bf16();
  const int bytes_per_element = bf16 ? 2 : 4;
  const ArenaPlan arena(config, model, lora ? &of_lora : nullptr, world_size);
  const double trained = arena.trained();
  // Levels of the pairwise sum of micro-batches (GradientSync).
  const bool in_order =
      !config.parallel.sums_each_micro_batch() && (RunsOnGpu(config) || config.train.cuda_graphs);
  const int levels = in_order ? 0 : NumLevels(NumMicroBatches(config, world_size));
  // A recorded graph has its own buffers, in addition to those of other micro-batches and of
  // validation.
  const int copies = config.train.cuda_graphs && RunsOnGpu(config) ? 2 : 1;
  const bool in_bf16 = world_size > 1 && config.parallel.grad_reduce == "bf16";
  const bool sums_shares =
      world_size > 1 && config.parallel.grad_reduce == "ordered" && RunsOnGpu(config);
  // Stages 2 and 3 hold the buckets in flight and the one that fills. The last bucket in flight may
  // exist in both types.
  const double buckets =
      arena.largest_bucket() * (4 + (in_bf16 ? 2 : 4) * ParallelConfig::kBucketsInFlight);
  const double gradients =
      config.parallel.zero_stage > 1
          ? 4 * trained / arena.shards() *
                    (config.parallel.sums_each_micro_batch() ? 1 + levels : 1) +
                std::min((in_bf16 ? 6 : 4) * trained, buckets)
          : trained * (4 * (1 + levels) + (in_bf16 ? 2 : 0));
  const double main_and_states = config.optimizer.saved_bytes_per_parameter();
  const double copy =
      config.ckpt.saves_beside_training() ? main_and_states * parameters / world_size : 0;
  const model::ModelCost of_rows(model, config.data.seq_len, RunsOnGpu(config)),
      of_slices(model, slice);
  return {
      .main_and_optimizer = arena.MainAndStates(main_and_states),
      .gradients = gradients,
      .compute_copy =
          arena.Copy() + Float8Bytes(config, model.parameters().specs(), RunsOnGpu(config)),
      // The gradient of the largest target exists while it is passed to A and B.
      .frozen = bytes_per_element * static_cast<double>(of_lora.frozen_compute + of_lora.targets) +
                4 * static_cast<double>(of_lora.frozen_fp32 + of_lora.largest_target),
      .gathered = arena.Gathered(),
      .activations = copies * static_cast<double>(tokens) *
                     of_rows.ActivationBytesPerToken(bytes_per_element, RecomputeOf(config)),
      .loss = copies * of_slices.LossBytes(config.train.micro_batch,
                                           {.bf16 = bf16, .gpu = RunsOnGpu(config)}),
      .workspace = RunsOnGpu(config)
                       ? copies * of_slices.WorkspaceBytes({.batch = config.train.micro_batch,
                                                            .seq_len = slice,
                                                            .bf16 = bf16,
                                                            .gpu = gpu})
                       : 0,
      .saved_copy = RunsOnGpu(config) ? 0 : copy,
      .matrices = MatrixBufferBytes(config, model, world_size),
      .shares = sums_shares ? arena.ShareBytes() : 0,
      .states = config.parallel.row_ranks() == 1
                    ? 0
                    : static_cast<double>(config.train.micro_batch) *
                          of_slices.StateBytesPerRow(bytes_per_element),
      .pinned_staging = RunsOnGpu(config) ? copy : 0};
}

PlanTarget CurrentTarget(const RunConfig& config, int world_size, int local_size) {
  PlanTarget target{.world_size = world_size};
  if (!RunsOnGpu(config)) {
    target.ranks_of_device = local_size;
    target.memory_bytes = DeviceMemoryBytes({});
  } else if (const Device device = ChooseDevice("auto", 0); device.is_cuda()) {
    target.memory_bytes = DeviceMemoryBytes(device);
  }
  return target;
}

std::string MemoryVerdict(const RunConfig& config, const model::LanguageModel& model,
                          const PlanTarget& target) {
  const double room = static_cast<double>(target.memory_bytes) / target.ranks_of_device;
  const double total = PlanMemory(config, model, target.world_size).total();
  if (target.memory_bytes == 0 || total <= room) return "";
  const std::string ranks =
      target.ranks_of_device == 1 ? "" : Concat(" for each of ", target.ranks_of_device, " ranks");
  return Concat("does not fit: ", HumanBytes(total), ranks, ", and there are ",
                HumanBytes(target.memory_bytes), " here. ", WhatFits(config, model, target, room));
}

void RequireMemory(const RunConfig& config, const model::LanguageModel& model,
                   const PlanTarget& target, int rank) {
  const std::string verdict = MemoryVerdict(config, model, target);
  if (verdict.empty()) return;
  const double exact = Exact(PlanMemory(config, model, target.world_size));
  HL_CHECK_AS(ExitCode::kUsage,
              exact * target.ranks_of_device <= static_cast<double>(target.memory_bytes),
              "this run ", verdict);
  if (rank == 0) HL_WARN("train", "by estimate this run ", verdict);
}

namespace {

// Returns one line: the memory of a rank, and whether there is enough.
std::string MemorySummary(const RunConfig& config, const model::LanguageModel& model,
                          const PlanTarget& target) {
  if (const std::string verdict = MemoryVerdict(config, model, target); !verdict.empty())
    return verdict;
  const std::string total = HumanBytes(PlanMemory(config, model, target.world_size).total());
  if (target.memory_bytes == 0) return Concat("memory: ", total, " on each rank");
  return Concat(
      "fits: ", total, " on each rank, and there are ", HumanBytes(target.memory_bytes), " here",
      target.ranks_of_device > 1 ? Concat(" for ", target.ranks_of_device, " ranks") : "");
}

// Returns for example "steps 1 to 100: 0 to 0.0003, linear".
std::string RatesOf(const Phase& phase, double lr) {
  const std::string steps = phase.begin + 1 == phase.end
                                ? Concat("step ", phase.end)
                                : Concat("steps ", phase.begin + 1, " to ", phase.end);
  return Concat(steps, ": ", phase.from * lr,
                phase.from == phase.to ? "" : Concat(" to ", phase.to * lr, ", ", phase.shape));
}

}  // namespace

int64_t TokensOfRun(const RunConfig& config, const PlanTarget& target) {
  const auto steps = static_cast<uint64_t>(config.train.steps);
  const int64_t samples = target.order ? static_cast<int64_t>(target.order->NumSamplesBefore(steps))
                                       : config.train.global_batch * config.train.steps;
  return samples * config.data.seq_len;
}

std::string PlanText(const RunConfig& config, const model::LanguageModel& model,
                     const PlanTarget& target) {
  const int world_size = target.world_size;
  std::ostringstream out;
  const auto row = [&out](const char* name, const std::string& value) {
    out << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << value
        << "\n";
  };
  out << PlanSummary(config, model, world_size) << "\n"
      << MemorySummary(config, model, target) << "\n\n";
  const model::ParameterCount count = model.CountParameters();
  const auto parameters = [](int64_t n) { return HumanCount(static_cast<double>(n)); };
  out << "parameters";
  if (target.assumed_vocabulary)
    out << " at an assumed vocabulary of " << config.model.vocab_size << " (" << kAnotherVocabulary
        << ")";
  out << "\n";
  row("embedding", parameters(count.embedding));
  row("head", config.model.head.tied ? "tied" : parameters(count.head));
  row("mixers", parameters(count.mixer));
  row("mlps", parameters(count.mlp));
  row("norms", parameters(count.norm));
  row("total", Concat(parameters(count.total()), " (", count.total(), ")"));
  const int64_t trained =
      config.lora.rank > 0 ? SizesOfLora(config.lora, model).trained : count.total();
  if (config.lora.rank > 0) row("trained by LoRA", Concat(parameters(trained), " (", trained, ")"));

  if (config.train.precision == "fp8") {
    RequireFloat8(config, model.parameters().specs(), /*compute_capability=*/0);
    row("multiplied in FP8", DescribeFloat8(config.train, model.parameters().specs()));
  }

  const MemoryPlan memory = PlanMemory(config, model, world_size);
  out << "memory on each rank\n";
  row("main weights, optimizer", HumanBytes(memory.main_and_optimizer));
  row("gradients and their sums", HumanBytes(memory.gradients));
  row("weights to compute with", HumanBytes(memory.compute_copy));
  if (memory.frozen > 0) row("frozen weights", HumanBytes(memory.frozen));
  if (memory.gathered > 0) row("weights of gathered layers", HumanBytes(memory.gathered));
  row("activations (estimate)", HumanBytes(memory.activations));
  row("loss: logits, gradients", HumanBytes(memory.loss));
  if (memory.workspace > 0) row("workspace of a kernel", HumanBytes(memory.workspace));
  if (memory.matrices > 0) row("matrices of the update", HumanBytes(memory.matrices));
  if (memory.shares > 0) row("shares of a gradient sum", HumanBytes(memory.shares));
  if (memory.states > 0) row("states of earlier slices", HumanBytes(memory.states));
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
  if (!config.schedule.per_epoch && (config.train.max_epochs == 0 || target.train_tokens > 0)) {
    out << "learning rate\n";
    for (const Phase& phase : PhasesOf(config.schedule, config.train.steps))
      row(phase.name.c_str(), RatesOf(phase, config.optimizer.lr));
  }
  out << "the whole run\n";
  const auto run_tokens = static_cast<double>(TokensOfRun(config, target));
  const int64_t whole = config.train.max_epochs;
  // Without the dataset, the number of steps of the epochs is unknown.
  if (whole == 0 || target.train_tokens > 0) row("tokens", HumanCount(run_tokens));
  if (target.train_tokens > 0) {
    const double epochs = run_tokens / static_cast<double>(target.train_tokens);
    row("epochs", Concat(whole > 0 ? Concat(whole) : Fixed(epochs, 2), " of ",
                         HumanCount(static_cast<double>(target.train_tokens)), " tokens"));
  } else if (whole > 0) {
    row("epochs", Concat(whole));
  }
  row("checkpoint",
      HumanBytes(config.optimizer.saved_bytes_per_parameter() * static_cast<double>(trained)));
  out << "\n# the resolved config\n" << ToText(WithDerivedOptions(config));
  return out.str();
}

}  // namespace halflife::train
