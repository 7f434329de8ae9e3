// The machines of a plan (`train --dry-run --plan`), and the time that a collective takes on them:
// t = alpha + bytes / beta.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/rehearsal.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/sequence/exchange_cost.h"
#include "train/config/run_config.h"

namespace halflife::train {

// The fractions of a GPU's limits that training steps and kernels reached on an H100
// (bench/RESULTS.md, steps of 24 layers and 16,384 tokens in bf16). Plans multiply the limits of
// their device by them. The test measured_steps_test compares plans with the measured steps.

// Matrix products with parameters, relative to the dense peak.
inline constexpr double kProductShare = 0.73;
// Memory traffic of everything that is neither a matrix product nor mixing (norms, activations,
// loss, update, gaps between kernels), relative to the memory bandwidth. ComputePiece::bytes counts
// the traffic.
inline constexpr double kTrafficShare = 0.75;

// Returns the operations per second of a mixer's work between tokens (model::FlopCount::mixing),
// relative to the peak. Returns nullopt if neither a step with this mixer nor its kernel was
// measured. Decay attention depends on the shape of a head's state [K, V]: `state_elements` is K V.
// Between the measured shapes the logarithm is interpolated, and beyond them the nearest counts.
std::optional<double> MeasuredMixingShare(std::string_view mixer, int64_t state_elements);
// The share that a plan assumes for other mixers: that of decays per channel.
inline constexpr double kAssumedMixingShare = 0.03;

// ParsePlan fills it with the known facts of the device (KnownGpus).
struct Cluster {
  std::string device = {};
  int nodes = 1, gpus = 1;  // gpus: ranks per node.
  // Dense peak of a rank, as given by the user. 0: the device's peak in the recipe's precision.
  double peak_flops = 0;
  double bf16_flops = 0, fp32_flops = 0;  // 0: unknown.
  double efficiency = kProductShare;      // Fraction of the peak that matrix products reach.
  double hbm_bytes_per_s = 0;             // Memory bandwidth of a rank.
  double nvlink_bytes_per_s = 0;          // From a rank to the other ranks of its node.
  double network_bytes_per_s = 0;         // From a rank to another node.
  double memory_bytes = 0;                // Memory of a rank. 0: unknown.
  kernels::DeviceLimits limits = {};      // Limits of a GPU, for kernel schedules.
  // Latency of an operation, and of each step of a message within a node and between two nodes. The
  // values for GPUs are those of NCCL's own model for rings with the Simple protocol (NCCL 2.28,
  // src/graph/tuning.cc).
  double base_s = 8.4e-6, node_hop_s = 3.4e-6, network_hop_s = 14e-6;

  int world_size() const { return nodes * gpus; }
  // Returns a copy with peak_flops set for this precision.
  Cluster InPrecision(const std::string& precision) const;
  // Returns the time of one operation. `bytes` are counted as in flight records. Models rings, and
  // trees as well for all-reduces, of consecutive ranks. Operations of the group "control" are
  // messages between hosts. The ranks of a group "replica" are one of each shard group.
  double Seconds(const dist::RehearsedOperation& operation) const;
  // Returns the costs that choose the exchange strategy of sp ranks that share rows.
  ops::ExchangeCost RowCost(int sp) const;
  // Returns the allowed numbers of ranks per row. They are on one node, or are all ranks of several
  // nodes.
  std::vector<int> RowSizes() const;
};

struct PlanRequest {
  Cluster cluster = {};
  bool search = false;                                // auto: choose the values that are absent.
  std::optional<int> sp = {}, zero = {}, shard = {};  // Absent: the recipe's value.
  std::optional<int64_t> micro_batch = {};
};

// Parses for example "nodes=128,gpus=8,sp=8,zero=1" or
// "auto,nodes=4,gpus=8,device=h200,memory_gib=120". The keys are nodes, gpus, sp, zero, shard,
// micro_batch, device (h100 h200 a100 cpu), links (a file, see ReadLinks), peak_tflops,
// efficiency, hbm_gbs, nvlink_gbs, network_gbs and memory_gib. GB/s are 1e9 bytes per second.
// Throws Error kUsage for an unknown key or an invalid value, with the allowed values.
PlanRequest ParsePlan(const std::string& text);

// Returns the recipe for these machines. Throws Error kUsage if sp is not one of RowSizes().
RunConfig ConfigFor(RunConfig config, const PlanRequest& request);

// The links of a cluster in a file, for plans (`--plan links=FILE`): measured bandwidths and
// latencies in place of those that a plan assumes for the device.
// docs/running_on_a_cluster.md shows a file.
//
// "node" are the links between the ranks of a node, and "network" those between nodes. "gbs" is
// what one rank sends per second, in 1e9 bytes. "latency_us" is the time of one step of a ring
// without its bytes, and "call_us" that of an operation without any step. Values that are absent
// keep those of the device.

// Sets the links of `cluster`. Throws Error kUsage with the file, the key and the fix.
void ReadLinks(const std::filesystem::path& file, Cluster& cluster);

}  // namespace halflife::train
