// The examples of src/train's headers. The parameters of a function are the variables that its
// example uses.
#include <ATen/core/Tensor.h>

#include <functional>
#include <iostream>

#include <nlohmann/json.hpp>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"
#include "dist/gradient_reducer.h"
#include "ops/torch/host_transfer.h"
#include "train/config/foreign_names.h"
#include "train/config/model_schema.h"
#include "train/config/run_config.h"
#include "train/loop/stop_policy.h"
#include "train/loop/trainer.h"
#include "train/lora/lora.h"
#include "train/plan/cluster_plan.h"
#include "train/plan/memory_plan.h"
#include "train/record/run_folder.h"
#include "train/step/gradient_norm.h"
#include "train/step/gradient_sync.h"
#include "train/step/matrix_exchange.h"
#include "train/step/micro_batch_graph.h"
#include "train/step/parameter_arena.h"
#include "train/step/parameter_groups.h"
#include "train/step/step.h"

namespace halflife::train {

using Path = std::filesystem::path;
using RankContextPointer = std::unique_ptr<dist::RankContext>;

void Print(const std::string& name, const std::string& summary);
void PartHelpExample() {
#include "examples/train/config/model_schema.h"
}

void ForeignNamesExample() {
#include "examples/train/config/foreign_names.h"
}

void RunConfigExample(const Path& run) {
#include "examples/train/config/run_config.h"
}

void StopFlagsExample() {
#include "examples/train/loop/stop_policy.h.2"
}

void StopPolicyExample(StopPolicy& policy, StepRunner& runner, int64_t step, uint64_t& num_updates,
                       const Stopwatch& clock) {
#include "examples/train/loop/stop_policy.h"
}

void LoraExample(const RunConfig& config, model::LanguageModel& model,
                 const ckpt::WeightSource& base) {
#include "examples/train/lora/lora.h"
}

void TrainerExample(const RunConfig& config, Device device, RunFolder folder,
                    RankContextPointer& context) {
#include "examples/train/loop/trainer.h"
}

void RunFolderExample(const Path& path, dist::RankContext& context) {
#include "examples/train/record/run_folder.h"
}

void ClusterPlanExample(const RunConfig& config) {
#include "examples/train/plan/cluster_plan.h"
}

void MemoryPlanExample(const RunConfig& config, const model::LanguageModel& model, int rank) {
#include "examples/train/plan/memory_plan.h"
}

void PlanSearchExample(const RunConfig& config) {
#include "examples/train/plan/cluster_plan.h.2"
}

void ArenaOptimizerExample(ParameterArena& arena, const RunConfig& config, double lr, double clip,
                           uint64_t num_updates) {
#include "examples/train/step/arena_optimizer.h"
}

void GradientNormExample(const std::vector<dist::Fragment>& fragments, ParameterArena& arena) {
#include "examples/train/step/gradient_norm.h"
}

void GradientSyncExample(ParameterArena& arena, dist::Communicator& communicator,
                         model::LanguageModel& model, int64_t n, const at::Tensor& loss){
#include "examples/train/step/gradient_sync.h"
}

at::Tensor SumsOf(const eval::BatchTensors& batch);

void MicroBatchGraphExample(at::Device device, const eval::BatchTensors& tensors) {
#include "examples/train/step/micro_batch_graph.h"
}

void MatrixExchangeExample(const dist::ParameterLayout& layout,
                           const std::vector<std::vector<HeldRange>>& held,
                           const std::vector<double>& flops, dist::Communicator& comm,
                           const MatrixExchange::Steps& steps) {
#include "examples/train/step/matrix_exchange.h"
}

void Update(int param, double lr);
void ParameterGroupsExample(const dist::ParameterLayout& layout, const RunConfig& config, int param,
                            double lr) {
#include "examples/train/step/parameter_groups.h"
}

void ParameterArenaExample(model::LanguageModel& model, uint64_t seed) {
#include "examples/train/step/parameter_arena.h"
}

void StepExample(const RunConfig& config, model::LanguageModel& model, ParameterArena& arena,
                 data::TokenSource& source, dist::RankContext& context, Device device, int64_t step,
                 uint64_t& num_updates, const StepScalars& flags) {
#include "examples/train/step/step.h"
}

}  // namespace halflife::train
