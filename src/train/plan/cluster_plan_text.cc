#include "train/plan/cluster_plan.h"

#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/error.h"
#include "core/human.h"

namespace halflife::train {
namespace {

using Json = nlohmann::ordered_json;

std::string Percent(double part) { return Concat(Fixed(100 * part, 1), " %"); }
std::string Milliseconds(double seconds) { return Concat(Fixed(1e3 * seconds, 2), " ms"); }

struct MemoryPart {
  const char* key;   // Key in JSON.
  const char* name;  // Name in the text.
  double bytes;
  bool is_estimate;
};
std::vector<MemoryPart> PartsOf(const MemoryPlan& memory) {
  return {{"main_and_optimizer", "main weights, optimizer", memory.main_and_optimizer, false},
          {"gradients", "gradients and their sums", memory.gradients, false},
          {"compute_copy", "weights to compute with", memory.compute_copy, false},
          {"frozen", "frozen weights", memory.frozen, false},
          {"gathered", "weights of gathered layers", memory.gathered, false},
          {"activations", "activations", memory.activations, true},
          {"loss", "loss: logits, gradients", memory.loss, false},
          {"workspace", "workspace of a kernel", memory.workspace, false},
          {"matrices", "matrices of the update", memory.matrices, false},
          {"shares", "shares of a gradient sum", memory.shares, false},
          {"states", "states of earlier slices", memory.states, false},
          {"exchange", "messages between slices", memory.exchange, true},
          {"saved_copy", "copy while a save is written", memory.saved_copy, false},
          {"libraries", "driver and NCCL", memory.libraries, true},
          {"margin", "margin", memory.margin, true}};
}

class Lines {
 public:
  void Add(const std::string& line) { out_ << line << "\n"; }
  void Row(const std::string& name, const std::string& value, const std::string& remark = "") {
    out_ << "  " << std::left << std::setw(28) << name << std::right << std::setw(12) << value
         << (remark.empty() ? "" : "  ") << remark << "\n";
  }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
};

void AddMemory(const ClusterPlan& plan, Lines& lines) {
  lines.Add("memory on each rank");
  for (const MemoryPart& part : PartsOf(plan.memory))
    if (part.bytes > 0)
      lines.Row(part.name, HumanBytes(part.bytes), part.is_estimate ? "estimate" : "");
  const double total = plan.memory.total(), room = plan.cluster.memory_bytes;
  lines.Row("total", HumanBytes(total),
            room > 0 ? Concat("of ", HumanBytes(room), ", ", Percent(total / room)) : "");
  if (plan.memory.pinned_staging > 0)
    lines.Row("pinned on the host, for saves", HumanBytes(plan.memory.pinned_staging));
}

void AddCollectives(const ClusterPlan& plan, Lines& lines) {
  if (plan.collectives.empty()) return;
  lines.Add("collectives of a step, of one rank");
  const auto row = [&](const auto&... cells) {
    constexpr int kWidths[] = {-9, 6, -15, -24, 8, 12, 12, 12, 12};
    std::ostringstream line;
    size_t i = 0;
    const auto cell = [&](const auto& value) {
      const int width = kWidths[i++];
      line << (width < 0 ? std::left : std::right) << std::setw(std::abs(width)) << value << " ";
    };
    (cell(cells), ...);
    std::string text = line.str();
    text.erase(text.find_last_not_of(' ') + 1);
    lines.Add("  " + text);
  };
  row("group", "ranks", "operation", "of", "count", "bytes", "time", "hidden", "exposed");
  for (const PlannedCollective& c : plan.collectives)
    row(c.group, c.group_size, c.kind, c.what, c.count, HumanBytes(static_cast<double>(c.bytes)),
        Milliseconds(c.seconds), Milliseconds(std::max(0.0, c.seconds - c.exposed_seconds)),
        Milliseconds(c.exposed_seconds));
}

void AddStep(const ClusterPlan& plan, Lines& lines) {
  const int ranks = plan.cluster.world_size();
  lines.Add("one step, modelled");
  lines.Row("tokens", HumanCount(static_cast<double>(plan.tokens)),
            Concat(plan.num_micro_batches,
                   plan.num_micro_batches == 1 ? " micro-batch of " : " micro-batches of ",
                   Counted(plan.micro_batch, "row"), " on each rank"));
  lines.Row("time", Milliseconds(plan.step_s));
  lines.Row("compute", Milliseconds(plan.compute_s));
  if (plan.assumed_s > 0)
    lines.Row("mixing, rate assumed", Milliseconds(plan.assumed_s),
              Percent(plan.assumed_s / plan.step_s));
  lines.Row("exposed communication", Milliseconds(plan.exposed_s()),
            Percent(plan.exposed_s() / plan.step_s));
  lines.Row("tokens/s", HumanCount(plan.tokens_per_s));
  lines.Row("tokens/s of a rank", HumanCount(plan.tokens_per_s / ranks));
  const std::string peak = Concat("of ", Fixed(plan.cluster.peak_flops / 1e12, 1), " TFLOP/s");
  lines.Row("MFU, 6 x parameters", Percent(plan.mfu_6p), peak);
  lines.Row("MFU, full", Percent(plan.mfu_full), peak);
  lines.Row("checkpoint", HumanBytes(plan.checkpoint_bytes));
  lines.Row("a save blocks",
            plan.save_blocked_s ? Milliseconds(*plan.save_blocked_s) : "until written");
  lines.Add("largest losses of a step");
  for (size_t i = 0; i < std::min<size_t>(plan.losses.size(), 3); ++i) {
    const PlannedLoss& loss = plan.losses[i];
    lines.Add(Concat("  ", Milliseconds(loss.seconds), ", ", Percent(loss.seconds / plan.step_s),
                     "  ", loss.what));
  }
}

Json ClusterJson(const Cluster& cluster) {
  return {{"device", cluster.device},
          {"nodes", cluster.nodes},
          {"gpus", cluster.gpus},
          {"peak_tflops", cluster.peak_flops / 1e12},
          {"efficiency", cluster.efficiency},
          {"hbm_gbs", cluster.hbm_bytes_per_s / 1e9},
          {"nvlink_gbs", cluster.nvlink_bytes_per_s / 1e9},
          {"network_gbs", cluster.network_bytes_per_s / 1e9},
          {"memory_bytes",
           cluster.memory_bytes > 0 ? Json(static_cast<uint64_t>(cluster.memory_bytes)) : Json()}};
}

Json MemoryJson(const MemoryPlan& memory) {
  Json json, estimates = Json::array();
  for (const MemoryPart& part : PartsOf(memory)) {
    json[Concat(part.key, "_bytes")] = static_cast<uint64_t>(part.bytes);
    if (part.is_estimate) estimates.push_back(part.key);
  }
  json["total_bytes"] = static_cast<uint64_t>(memory.total());
  json["pinned_staging_bytes"] = static_cast<uint64_t>(memory.pinned_staging);
  json["estimates"] = estimates;
  return json;
}

}  // namespace

std::string ClusterPlanText(const ClusterPlan& plan) {
  Lines lines;
  for (const std::string& warning : plan.warnings) lines.Add("warning: " + warning);
  const Cluster& cluster = plan.cluster;
  lines.Add(Concat(Counted(cluster.nodes, "node"), " x ", cluster.gpus, " ", cluster.device, ": ",
                   cluster.world_size() / plan.sp, " data-parallel x ", plan.sp,
                   " sequence-parallel", ", ZeRO stage ", plan.zero_stage,
                   plan.shard < cluster.world_size() ? Concat(" in groups of ", plan.shard) : "",
                   ", micro-batch ", plan.micro_batch));
  if (plan.trained < plan.parameters)
    lines.Row("parameters trained by LoRA", HumanCount(static_cast<double>(plan.trained)),
              Concat("of ", HumanCount(static_cast<double>(plan.parameters))));
  AddMemory(plan, lines);
  AddCollectives(plan, lines);
  AddStep(plan, lines);
  return lines.text();
}

Json ClusterPlanJson(const ClusterPlan& plan) {
  Json collectives = Json::array(), losses = Json::array();
  for (const PlannedCollective& row : plan.collectives)
    collectives.push_back({{"group", row.group},
                           {"ranks", row.group_size},
                           {"operation", row.kind},
                           {"what", row.what},
                           {"count", row.count},
                           {"bytes", row.bytes},
                           {"seconds", row.seconds},
                           {"exposed_seconds", row.exposed_seconds}});
  for (const PlannedLoss& loss : plan.losses)
    losses.push_back({{"what", loss.what}, {"seconds", loss.seconds}});
  return {{"warnings", plan.warnings},
          {"cluster", ClusterJson(plan.cluster)},
          {"sp", plan.sp},
          {"zero_stage", plan.zero_stage},
          {"shard", plan.shard},
          {"micro_batch", plan.micro_batch},
          {"micro_batches", plan.num_micro_batches},
          {"parameters", plan.parameters},
          {"trained_parameters", plan.trained},
          {"tokens_per_step", plan.tokens},
          {"memory_of_one_rank", MemoryJson(plan.memory)},
          {"collectives", collectives},
          {"step_seconds", plan.step_s},
          {"compute_seconds", plan.compute_s},
          {"assumed_seconds", plan.assumed_s},
          {"exposed_seconds", plan.exposed_s()},
          {"tokens_per_s", plan.tokens_per_s},
          {"tokens_per_s_of_a_rank", plan.tokens_per_s / plan.cluster.world_size()},
          {"mfu_6p", plan.mfu_6p},
          {"mfu_full", plan.mfu_full},
          {"checkpoint_bytes", static_cast<uint64_t>(plan.checkpoint_bytes)},
          {"save_blocked_seconds", plan.save_blocked_s ? Json(*plan.save_blocked_s) : Json()},
          {"losses", losses}};
}

}  // namespace halflife::train
