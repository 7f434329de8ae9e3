// The machines that a plan is for, as `train --dry-run --plan` names them, and what time a
// collective takes on them: t = alpha + bytes / beta.
//
//   const PlanRequest request = ParsePlan("nodes=128,gpus=8,sp=8,zero=1");
//   const double s = request.cluster.Seconds({.group = "world",
//                                             .group_size = 1024,
//                                             .kind = dist::OpKind::kAllReduce,
//                                             .bytes = 64 << 20});
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dist/rehearsal.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "ops/sequence/exchange_cost.h"
#include "train/config/run_config.h"

namespace halflife::train {

// ParsePlan fills it with what is known of the device (KnownGpus).
struct Cluster {
  std::string device = {};
  int nodes = 1, gpus = 1;  // gpus: ranks of a node
  // Of a rank, dense: as it was given; 0: the device's in the recipe's precision.
  double peak_flops = 0;
  double bf16_flops = 0, fp32_flops = 0;  // 0: not known
  double efficiency = 0.5;                // of the peak that products reach; assumed
  double hbm_bytes_per_s = 0;             // of a rank's memory
  double nvlink_bytes_per_s = 0;          // of a rank to others of its node
  double network_bytes_per_s = 0;         // of a rank to another node
  double memory_bytes = 0;                // of a rank; 0: not known
  kernels::DeviceLimits limits = {};      // of a GPU's schedules
  // The latency of an operation, and of each step of a message within a node and between two. A
  // GPU's are those of NCCL's own model for rings of the Simple protocol (NCCL 2.28,
  // src/graph/tuning.cc).
  double base_s = 8.4e-6, node_hop_s = 3.4e-6, network_hop_s = 14e-6;

  int world_size() const { return nodes * gpus; }
  // With peak_flops.
  Cluster InPrecision(const std::string& precision) const;
  // The time of one operation, with `bytes` as flight records count them: rings, and for
  // all-reduces also trees, of consecutive ranks; those of the group "control" are messages of
  // hosts.
  double Seconds(const dist::RehearsedOperation& operation) const;
  // What decides between strategies of sp ranks that share rows.
  ops::ExchangeCost RowCost(int sp) const;
  // How many ranks may share a row: they lie on one node or are all of several.
  std::vector<int> RowSizes() const;
};

struct PlanRequest {
  Cluster cluster = {};
  bool search = false;                    // auto: what of these three is absent is chosen
  std::optional<int> sp = {}, zero = {};  // absent: the recipe's
  std::optional<int64_t> micro_batch = {};
};

// "nodes=128,gpus=8,sp=8,zero=1", "auto,nodes=4,gpus=8,device=h200,memory_gib=120": the keys are
// nodes, gpus, sp, zero, micro_batch, device (h100 h200 a100 cpu), peak_tflops, efficiency,
// hbm_gbs, nvlink_gbs, network_gbs and memory_gib; GB/s are 1e9 bytes a second. Error kUsage for an
// unknown key or an impossible value, which says what would work.
PlanRequest ParsePlan(const std::string& text);

// The recipe on these machines. Error kUsage where sp is none of RowSizes().
RunConfig ConfigFor(RunConfig config, const PlanRequest& request);

}  // namespace halflife::train
