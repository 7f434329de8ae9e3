#include "train/plan/cluster_plan.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "dist/parameter_gather.h"
#include "dist/request.h"
#include "model/model_cost.h"
#include "ops/sequence/tokens_before.h"
#include "train/config/plan.h"
#include "train/lora/lora.h"
#include "train/plan/timeline.h"

namespace halflife::train {
namespace {

using dist::OpKind;
using dist::RehearsedEvent;
using dist::RehearsedOperation;

constexpr double kMiB = 1024.0 * 1024;
// Slowdown of compute while collectives run (assumed).
constexpr double kComputeTax = 0.04;
// From a GPU's memory to pinned memory of its host (assumed: PCIe 4).
constexpr double kHostCopyBytesPerS = 25e9;
// The driver's context, and per communicator NCCL_BUFFSIZE in both directions of 32 channels.
constexpr double kContextBytes = 512 * kMiB, kCommunicatorBytes = 32 * 2 * 4 * kMiB;
constexpr double kMargin = 0.05;  // Fraction of the rest.

// Groups within a node and between nodes use different links.
enum Lane : int {
  kCompute,
  kRows,
  kGradients,
  kParameters,
  kScalars,
  kReplicaGradients,
  kReplicaParameters
};

Lane LaneOf(const RehearsedOperation& operation) {
  if (operation.group == "control") return kScalars;
  if (dist::KindOfGroup(operation.group) == "rows") return kRows;
  const bool replicas = dist::KindOfGroup(operation.group) == "replica";
  if (operation.what == dist::kParameterBucket) return replicas ? kReplicaParameters : kParameters;
  return replicas ? kReplicaGradients : kGradients;
}

using CollectiveKey = std::tuple<std::string, std::string, std::string>;
CollectiveKey KeyOf(const RehearsedOperation& operation) {
  return {dist::KindOfGroup(operation.group), dist::Name(operation.kind), operation.what};
}

// The parts of a piece run one after another.
struct PieceSeconds {
  double products = 0, mixing = 0, traffic = 0;
  double total() const { return products + mixing + traffic; }
};
PieceSeconds SecondsOf(const ComputePiece& piece, const Cluster& cluster) {
  const double products = piece.matmul_flops / (cluster.peak_flops * cluster.efficiency);
  if (cluster.device == "cpu") {
    // The given rate is measured over whole steps, so it includes the memory traffic of a step.
    const double mixing = piece.mixing_flops / (cluster.peak_flops * cluster.efficiency);
    return {products, mixing,
            std::max(0.0, piece.bytes / cluster.hbm_bytes_per_s - products - mixing)};
  }
  const double share =
      MeasuredMixingShare(piece.mixer, piece.state_elements).value_or(kAssumedMixingShare);
  return {products, piece.mixing_flops / (cluster.peak_flops * share),
          piece.bytes / (cluster.hbm_bytes_per_s * kTrafficShare)};
}

// Returns the seconds of each operation, by index. In a shift, a rank that takes no part waits for
// those that do.
std::vector<double> SecondsOf(const std::vector<RehearsedOperation>& operations,
                              const Cluster& cluster) {
  std::map<std::string, int64_t> largest;
  for (const RehearsedOperation& operation : operations)
    largest[operation.what] = std::max(largest[operation.what], operation.bytes);
  std::vector<double> seconds;
  for (RehearsedOperation operation : operations) {
    if (operation.kind == OpKind::kSendRecv && operation.bytes == 0)
      operation.bytes = largest.at(operation.what);
    seconds.push_back(cluster.Seconds(operation));
  }
  return seconds;
}

// The two steps of a rehearsal on their lanes.
struct StepTimeline {
  std::vector<TimelineOperation> operations;
  std::vector<int64_t> collective;  // By operation: index in the rehearsal. -1: compute.
  std::vector<int> updates;         // The operations that end each step.
  Timeline timeline;
};

StepTimeline TimelineOf(const StepOperations& step, const Cluster& cluster,
                        const std::vector<double>& seconds) {
  StepTimeline result;
  std::vector<int> place(seconds.size(), -1);  // By collective: index among the operations.
  std::vector<int> after;                      // Dependencies of the next operation.
  int shard_sum = -1;                          // The latest sum of a bucket in a shard group.
  for (const RehearsedEvent& event : step.rehearsal.events()) {
    const auto value = static_cast<size_t>(event.value);
    const auto next = static_cast<int>(result.operations.size());
    if (event.kind == RehearsedEvent::Kind::kWait) {
      after.push_back(place[value]);
      continue;
    }
    const bool computes = event.kind == RehearsedEvent::Kind::kCompute;
    result.collective.push_back(computes ? -1 : event.value);
    if (computes) {
      const ComputePiece& piece = step.pieces[value];
      result.operations.push_back({kCompute, SecondsOf(piece, cluster).total(), std::move(after)});
      if (piece.kind == ComputePiece::Kind::kUpdate) result.updates.push_back(next);
      after = {next};
    } else {
      place[value] = next;
      const Lane lane = LaneOf(step.rehearsal.operations()[value]);
      result.operations.push_back({lane, seconds[value], after});
      if (lane == kGradients) shard_sum = next;
      // The rehearsal sends the range of a bucket right after it has issued the bucket's sum.
      if (lane == kReplicaGradients) result.operations.back().after.push_back(shard_sum);
    }
  }
  result.timeline = Schedule(result.operations, {.taxed_lane = kCompute, .tax = kComputeTax});
  return result;
}

void AddTimes(const StepOperations& step, const Cluster& cluster, ClusterPlan& plan) {
  const std::vector<double> seconds = SecondsOf(step.rehearsal.operations(), cluster);
  const StepTimeline steps = TimelineOf(step, cluster, seconds);
  const std::vector<Interval>& intervals = steps.timeline.intervals;
  plan.step_s = intervals[steps.updates[1]].end - intervals[steps.updates[0]].end;
  std::map<CollectiveKey, PlannedCollective*> rows;
  for (PlannedCollective& row : plan.collectives) rows[{row.group, row.kind, row.what}] = &row;
  for (size_t i = static_cast<size_t>(step.second_operation); i < seconds.size(); ++i)
    rows.at(KeyOf(step.rehearsal.operations()[i]))->seconds += seconds[i];
  for (size_t i = static_cast<size_t>(steps.updates[0]) + 1; i < intervals.size(); ++i) {
    if (steps.operations[i].lane != kCompute) continue;
    plan.compute_s += steps.operations[i].seconds;
    for (const Waited& wait : WaitsOf(static_cast<int>(i), steps.operations, steps.timeline)) {
      const auto collective = static_cast<size_t>(steps.collective[wait.operation]);
      rows.at(KeyOf(step.rehearsal.operations()[collective]))->exposed_seconds += wait.seconds;
    }
  }
}

// Adds the losses: time of a step beyond products at the peak rate. They sum to plan.step_s minus
// that time.
void AddLosses(const StepOperations& step, double ideal_flops, ClusterPlan& plan) {
  const Cluster& cluster = plan.cluster;
  double flops = 0, recomputed = 0, products = 0, mixing = 0, traffic = 0, update = 0;
  for (const ComputePiece& piece : step.pieces) {
    const PieceSeconds seconds = SecondsOf(piece, cluster);
    if (piece.kind == ComputePiece::Kind::kUpdate) {
      update += seconds.total();
      continue;
    }
    const auto times = static_cast<double>(step.num_micro_batches);
    products += times * (seconds.products - piece.matmul_flops / cluster.peak_flops);
    mixing += times * (seconds.mixing - piece.mixing_flops / cluster.peak_flops);
    traffic += times * seconds.traffic;
    if (cluster.device != "cpu" && !MeasuredMixingShare(piece.mixer, piece.state_elements))
      plan.assumed_s += times * seconds.mixing;
    flops += times * (piece.flops() - piece.recomputed_flops);
    recomputed += times * piece.recomputed_flops;
  }
  std::map<std::string, double> waits;
  for (const PlannedCollective& row : plan.collectives)
    waits[Concat("waiting for ", row.what, " of ", row.group)] += row.exposed_seconds;
  plan.losses = {
      {"matrix products below the device's peak", products},
      {"mixing of tokens below the device's peak", mixing},
      {"norms, activations and other memory traffic", traffic},
      {"the update", update},
      {"recomputation", recomputed / cluster.peak_flops},
      {"slices of rows with more work than the mean", (flops - ideal_flops) / cluster.peak_flops}};
  for (const auto& [what, seconds] : waits) plan.losses.push_back({what, seconds});
  double known = ideal_flops / cluster.peak_flops;
  for (const PlannedLoss& loss : plan.losses) known += loss.seconds;
  plan.losses.push_back({"compute slowed by collectives", plan.step_s - known});
  std::ranges::stable_sort(plan.losses, std::ranges::greater(), &PlannedLoss::seconds);
}

// Adds memory that the formulas of a start omit, and uses the arena's exact sizes.
void AddMemory(const RunConfig& config, const StepOperations& step, ClusterPlan& plan) {
  MemoryPlan& memory = plan.memory;
  memory.main_and_optimizer = step.main_and_optimizer_bytes;
  memory.compute_copy = step.compute_copy_bytes;
  memory.gathered = step.unit_bytes;
  memory.matrices = step.matrix_buffer_bytes;
  if (config.parallel.zero_stage > 1 && plan.cluster.world_size() > 1)
    memory.gradients = step.gradient_bytes + step.bucket_slot_bytes;
  int64_t whole_past = 0;  // Over all layers and micro-batches.
  std::map<std::string, int> groups;
  for (const RehearsedOperation& operation : step.operations()) {
    if (operation.group != "control") groups[operation.group] = operation.group_size;
    if (LaneOf(operation) != kRows) continue;
    const bool shift = operation.kind == OpKind::kSendRecv;
    const double both = shift ? 2 : 1 + 1.0 / operation.group_size;
    memory.exchange = std::max(memory.exchange, both * static_cast<double>(operation.bytes));
    if (operation.kind == OpKind::kAllGather && operation.what == ops::kTokensBefore)
      whole_past += operation.bytes;
  }
  memory.states += static_cast<double>(whole_past) / static_cast<double>(step.num_micro_batches);
  if (config.train.device == "cuda")
    memory.libraries = kContextBytes + kCommunicatorBytes * static_cast<double>(groups.size());
  memory.margin = kMargin * memory.total();
}

void AddSave(const RunConfig& config, const StepOperations& step, ClusterPlan& plan) {
  plan.checkpoint_bytes =
      config.optimizer.saved_bytes_per_parameter() * static_cast<double>(plan.trained);
  if (!config.ckpt.saves_beside_training()) return;
  // The next update waits for a copy of this rank's share.
  const double bytes = plan.checkpoint_bytes / plan.cluster.world_size();
  const double copy_s = config.train.device == "cuda" ? bytes / kHostCopyBytesPerS
                                                      : 2 * bytes / plan.cluster.hbm_bytes_per_s;
  const double until_update = plan.step_s - SecondsOf(step.pieces.back(), plan.cluster).total();
  plan.save_blocked_s = std::max(0.0, copy_s - until_update);
}

void AddWarnings(const RunConfig& config, ClusterPlan& plan) {
  const double total = plan.memory.total(), room = plan.cluster.memory_bytes;
  const auto percent = [](double x) { return Concat(Fixed(100 * x, 0), " %"); };
  if (room > 0 && total > kPlannedMemory * room)
    plan.warnings.push_back(
        Concat("memory: ", HumanBytes(total), " of a rank's ", HumanBytes(room), ", ",
               percent(total / room),
               total > room ? "; it does not fit. " : "; estimates may be too low by this margin. ",
               "Use a smaller micro_batch, a higher zero or a larger sp."));
  if (plan.exposed_s() > 0.1 * plan.step_s)
    plan.warnings.push_back(Concat("communication: compute waits for it in ",
                                   percent(plan.exposed_s() / plan.step_s), " of a step"));
  const std::string precision = PrecisionWarning(config, config.train.device == "cuda");
  if (!precision.empty()) plan.warnings.push_back(precision);
}

}  // namespace

std::map<std::string, int64_t> ClusterPlan::BytesByGroup() const {
  std::map<std::string, int64_t> bytes;
  for (const PlannedCollective& row : collectives) bytes[row.group] += row.bytes;
  return bytes;
}

double ClusterPlan::exposed_s() const {
  double sum = 0;
  for (const PlannedCollective& row : collectives) sum += row.exposed_seconds;
  return sum;
}

std::vector<PlannedCollective> CollectivesOf(const StepOperations& step) {
  std::vector<PlannedCollective> rows;
  std::map<CollectiveKey, size_t> row_of;
  for (const RehearsedOperation& operation : step.operations()) {
    const auto [found, is_new] = row_of.emplace(KeyOf(operation), rows.size());
    if (is_new)
      rows.push_back({.group = dist::KindOfGroup(operation.group),
                      .group_size = operation.group_size,
                      .kind = dist::Name(operation.kind),
                      .what = operation.what});
    ++rows[found->second].count;
    rows[found->second].bytes += operation.bytes;
  }
  return rows;
}

ClusterPlan PlanCluster(const RunConfig& config, const Cluster& machines,
                        RowRehearsals& rehearsals) {
  const Cluster cluster = machines.InPrecision(config.train.precision);
  const int world_size = cluster.world_size();
  const StepOperations step = RehearseStep(
      config, {.rank = config.parallel.row_ranks() - 1, .world_size = world_size}, rehearsals);
  const model::LanguageModel model(config.model);
  ClusterPlan plan = {.cluster = cluster,
                      .sp = config.parallel.row_ranks(),
                      .zero_stage = config.parallel.zero_stage,
                      .shard = config.parallel.shard_ranks(world_size),
                      .micro_batch = config.train.micro_batch,
                      .num_micro_batches = step.num_micro_batches,
                      .parameters = model.CountParameters().total(),
                      .tokens = config.train.global_batch * config.data.seq_len,
                      .trained = config.lora.rank > 0 ? SizesOfLora(config.lora, model).trained
                                                      : model.CountParameters().total(),
                      .memory = PlanMemory(config, model, world_size, cluster.limits),
                      .collectives = CollectivesOf(step)};
  AddTimes(step, cluster, plan);
  AddMemory(config, step, plan);
  AddSave(config, step, plan);
  const model::FlopCount token = model::ModelCost(model, config.data.seq_len).FlopsPerToken();
  const auto tokens = static_cast<double>(plan.tokens);
  const double full = 3 * (token.matmul + token.mixing) * tokens;
  plan.tokens_per_s = tokens / plan.step_s;
  const double peak = cluster.peak_flops * world_size;
  plan.mfu_6p = 6 * static_cast<double>(plan.parameters) * plan.tokens_per_s / peak;
  plan.mfu_full = full / plan.step_s / peak;
  AddLosses(step, full / world_size, plan);
  AddWarnings(config, plan);
  return plan;
}

ClusterPlan PlanCluster(const RunConfig& config, const Cluster& cluster) {
  RowRehearsals rehearsals(config, config.parallel.row_ranks() - 1,
                           cluster.RowCost(config.parallel.row_ranks()));
  return PlanCluster(config, cluster, rehearsals);
}

}  // namespace halflife::train
