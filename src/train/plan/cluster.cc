#include "train/plan/cluster.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/json_text.h"
#include "core/nearest.h"
#include "dist/request.h"
#include "train/config/plan.h"
#include "train/device.h"

namespace halflife::train {
namespace {

// Decay attention on an H100: `ns` are those of a token and head, forward and backward.
struct MeasuredKernel {
  double state_elements = 0;  // K V of a head
  double ns = 0;
};
constexpr MeasuredKernel kPerHead[] = {{64 * 64, 1.173}, {128 * 128, 2.914}, {128 * 256, 6.325}};
constexpr MeasuredKernel kPerToken[] = {{64 * 64, 1.450}, {128 * 128, 3.435}, {128 * 256, 7.095}};
constexpr MeasuredKernel kPerChannel[] = {{64 * 64, 3.277}, {128 * 128, 8.360}, {128 * 256, 11.70}};
constexpr double kPeakOfThem = 989e12;
// model::FlopCount::mixing of a token, head and element of its state, in forward and backward.
constexpr double kFlopsPerElement = 12;

struct Family {
  std::span<const MeasuredKernel> kernels;
  // The share in a measured step, relative to that of the kernel in a benchmark of its own.
  double in_step;
};
constexpr Family kHeads = {kPerHead, 0.97}, kTokens = {kPerToken, 0.97},
                 kChannels = {kPerChannel, 0.88};

double ShareOf(const MeasuredKernel& kernel) {
  return kFlopsPerElement * kernel.state_elements / (kernel.ns * 1e-9) / kPeakOfThem;
}

double ShareOf(const Family& family, double state_elements) {
  const auto above = std::ranges::find_if(family.kernels, [&](const MeasuredKernel& kernel) {
    return kernel.state_elements >= state_elements;
  });
  if (above == family.kernels.end()) return family.in_step * ShareOf(family.kernels.back());
  if (above == family.kernels.begin()) return family.in_step * ShareOf(*above);
  const MeasuredKernel& below = *std::prev(above);
  const double part = std::log(state_elements / below.state_elements) /
                      std::log(above->state_elements / below.state_elements);
  return family.in_step * std::pow(ShareOf(below), 1 - part) * std::pow(ShareOf(*above), part);
}

}  // namespace

std::optional<double> MeasuredMixingShare(std::string_view mixer, int64_t state_elements) {
  static const std::map<std::string_view, Family> kFamilies = {
      {"gla", kChannels},  {"hgrn2", kChannels},  {"lightning", kHeads},
      {"mamba2", kTokens}, {"retention", kHeads}, {"retnet", kHeads}};
  static const std::map<std::string_view, double> kShares = {
      {"mamba", 0.0026}, {"rebased", 0.0073}, {"softmax", 0.165}};
  if (const auto family = kFamilies.find(mixer); family != kFamilies.end() && state_elements > 0)
    return ShareOf(family->second, static_cast<double>(state_elements));
  const auto found = kShares.find(mixer);
  return found == kShares.end() ? std::nullopt : std::optional(found->second);
}

namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr int kMaxRanks = 1 << 20;  // The step's scalars are exact up to this number.

const std::vector<std::string> kDevices = [] {
  std::vector<std::string> devices;
  for (const GpuFacts& gpu : KnownGpus())
    if (!gpu.device.empty()) devices.emplace_back(gpu.device);
  devices.emplace_back("cpu");
  return devices;
}();

Cluster Preset(const std::string& device) {
  if (const GpuFacts* const gpu = FindPlannedGpu(device)) {
    return {.device = device,
            .bf16_flops = gpu->bf16_flops_per_s,
            .fp32_flops = gpu->fp32_flops_per_s,
            .hbm_bytes_per_s = gpu->memory_bytes_per_s,
            .nvlink_bytes_per_s = gpu->nvlink_bytes_per_s,
            .network_bytes_per_s = gpu->network_bytes_per_s,
            .memory_bytes = gpu->memory_bytes,
            .limits = gpu->limits};
  }
  // Rates of a core of a small server and of 10 GbE. An operation is polled every 50 us.
  return {.device = device,
          .efficiency = 1,
          .hbm_bytes_per_s = 10e9,
          .nvlink_bytes_per_s = 3e9,
          .network_bytes_per_s = 1.2e9,
          .base_s = 50e-6,
          .node_hop_s = 5e-6,
          .network_hop_s = 30e-6};
}

double NumberOf(const std::string& key, const std::string& value, const std::string& works) {
  char* end = nullptr;
  const double number = std::strtod(value.c_str(), &end);
  HL_CHECK_AS(ExitCode::kUsage,
              !value.empty() && *end == '\0' && std::isfinite(number) && number > 0, "--plan ", key,
              "=", value, " is invalid. Use ", works, ".");
  return number;
}

int64_t CountOf(const std::string& key, const std::string& value, int64_t least, int64_t most) {
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, 10);
  HL_CHECK_AS(ExitCode::kUsage, !value.empty() && *end == '\0' && number >= least && number <= most,
              "--plan ", key, "=", value, " is invalid. Use a whole number from ", least, " to ",
              most, ".");
  return number;
}

struct Assignment {
  std::string key, value;
};

// Splits a text at commas. A word without '=' has no value.
std::vector<Assignment> Split(const std::string& text) {
  std::vector<Assignment> assignments;
  std::istringstream pieces(text);
  for (std::string piece; std::getline(pieces, piece, ',');) {
    const size_t equals = piece.find('=');
    if (equals == std::string::npos) {
      assignments.push_back({piece, ""});
    } else {
      assignments.push_back({piece.substr(0, equals), piece.substr(equals + 1)});
    }
  }
  return assignments;
}

double EfficiencyOf(const std::string& key, const std::string& value) {
  constexpr char kWorks[] = "a number above 0 and up to 1";
  const double efficiency = NumberOf(key, value, kWorks);
  HL_CHECK_AS(ExitCode::kUsage, efficiency <= 1, "--plan ", key, "=", value, " is invalid. Use ",
              kWorks, ".");
  return efficiency;
}

using Setter = std::function<void(const Assignment&, PlanRequest&)>;

// Sets a whole number from `least` to `most`.
template <typename Int>
Setter SetCount(Int Cluster::*field, int64_t least, int64_t most) {
  return [=](const Assignment& given, PlanRequest& request) {
    request.cluster.*field = static_cast<Int>(CountOf(given.key, given.value, least, most));
  };
}
template <typename Int>
Setter SetCount(std::optional<Int> PlanRequest::*field, int64_t least, int64_t most) {
  return [=](const Assignment& given, PlanRequest& request) {
    request.*field = static_cast<Int>(CountOf(given.key, given.value, least, most));
  };
}

// Sets a number above 0, in units of `unit`.
Setter SetAmount(double Cluster::*field, double unit) {
  return [=](const Assignment& given, PlanRequest& request) {
    request.cluster.*field = unit * NumberOf(given.key, given.value, "a number > 0");
  };
}

struct PlanKey {
  std::string name;
  Setter set;
};
const std::vector<PlanKey> kKeys = {
    {"nodes", SetCount(&Cluster::nodes, 1, kMaxRanks)},
    {"gpus", SetCount(&Cluster::gpus, 1, 1024)},
    {"sp", SetCount(&PlanRequest::sp, 1, kMaxRanks)},
    {"zero", SetCount(&PlanRequest::zero, 0, 3)},
    {"shard", SetCount(&PlanRequest::shard, 1, kMaxRanks)},
    {"micro_batch", SetCount(&PlanRequest::micro_batch, 1, std::numeric_limits<int32_t>::max())},
    // ParsePlan reads these two first, so that other keys override them.
    {"device", [](const Assignment&, PlanRequest&) {}},
    {"links", [](const Assignment&, PlanRequest&) {}},
    {"peak_tflops", SetAmount(&Cluster::peak_flops, 1e12)},
    {"efficiency",
     [](const Assignment& given, PlanRequest& request) {
       request.cluster.efficiency = EfficiencyOf(given.key, given.value);
     }},
    {"hbm_gbs", SetAmount(&Cluster::hbm_bytes_per_s, 1e9)},
    {"nvlink_gbs", SetAmount(&Cluster::nvlink_bytes_per_s, 1e9)},
    {"network_gbs", SetAmount(&Cluster::network_bytes_per_s, 1e9)},
    {"memory_gib", SetAmount(&Cluster::memory_bytes, kGiB)},
};

const PlanKey& FindKey(const std::string& name) {
  const auto found = std::ranges::find(kKeys, name, &PlanKey::name);
  if (found != kKeys.end()) return *found;
  std::vector<std::string> names;
  for (const PlanKey& key : kKeys) names.push_back(key.name);
  HL_FAIL(ExitCode::kUsage, "--plan has no '", name, "'", DidYouMean(name, names),
          "\nUse auto, or one of ", Join(names, ", "), " with =VALUE.");
}

std::string DeviceOf(const std::vector<Assignment>& assignments) {
  for (const Assignment& assignment : assignments) {
    if (assignment.key != "device") continue;
    HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(kDevices, assignment.value) > 0,
                "--plan device=", assignment.value, DidYouMean(assignment.value, kDevices),
                "\nUse one of ", Join(kDevices, ", "),
                ". For another device, use the nearest of these with its own peak_tflops, hbm_gbs "
                "and memory_gib.");
    return assignment.value;
  }
  return "h100";
}

}  // namespace

PlanRequest ParsePlan(const std::string& text) {
  const std::vector<Assignment> assignments = Split(text);
  HL_CHECK_AS(ExitCode::kUsage, !assignments.empty(),
              "--plan '' names no machines. Use for example nodes=4,gpus=8.");
  PlanRequest request = {.cluster = Preset(DeviceOf(assignments))};
  for (const Assignment& given : assignments)
    if (given.key == "links") ReadLinks(given.value, request.cluster);
  std::set<std::string> seen;
  for (const Assignment& given : assignments) {
    HL_CHECK_AS(ExitCode::kUsage, seen.insert(given.key).second, "--plan names ", given.key,
                " twice. Name it once.");
    if (given.key == "auto" && given.value.empty()) {
      request.search = true;
    } else {
      FindKey(given.key).set(given, request);
    }
  }
  const Cluster& cluster = request.cluster;
  HL_CHECK_AS(ExitCode::kUsage, cluster.nodes <= kMaxRanks / cluster.gpus,
              "--plan nodes=", cluster.nodes, ",gpus=", cluster.gpus, " are too many. Use at most ",
              kMaxRanks, " ranks in total.");
  HL_CHECK_AS(ExitCode::kUsage, cluster.peak_flops > 0 || cluster.bf16_flops > 0,
              "--plan device=cpu: the speed of its cores is unknown. Add peak_tflops=NUMBER, for "
              "example the full FLOPs per second of a run on one rank, in units of 1e12.");
  return request;
}

Cluster Cluster::InPrecision(const std::string& precision) const {
  Cluster cluster = *this;
  if (peak_flops == 0) cluster.peak_flops = precision == "fp32" ? fp32_flops : bf16_flops;
  return cluster;
}

std::vector<int> Cluster::RowSizes() const {
  std::vector<int> sizes;
  for (int sp = 1; sp <= world_size(); ++sp)
    if (world_size() % sp == 0 && (gpus % sp == 0 || sp % gpus == 0)) sizes.push_back(sp);
  return sizes;
}

RunConfig ConfigFor(RunConfig config, const PlanRequest& request) {
  const Cluster& cluster = request.cluster;
  if (request.sp) config.parallel.sp = *request.sp;
  if (request.zero) config.parallel.zero_stage = *request.zero;
  if (request.micro_batch) config.train.micro_batch = *request.micro_batch;
  if (request.shard) config.parallel.shard = Concat(*request.shard);
  HL_CHECK_AS(ExitCode::kUsage, request.search || !request.shard || config.parallel.zero_stage > 0,
              "--plan shard=", request.shard.value_or(0),
              " with zero=0: stage 0 has no shard groups. Use zero=1, 2 or 3, or leave out shard.");
  if (config.parallel.zero_stage == 0) config.parallel.shard = "auto";
  const bool on_gpu = cluster.device != "cpu";
  config.train.device = on_gpu ? "cuda" : "cpu";
  const std::vector<int> sizes = cluster.RowSizes();
  HL_CHECK_AS(ExitCode::kUsage, std::ranges::count(sizes, config.parallel.sp) > 0,
              "--plan nodes=", cluster.nodes, ",gpus=", cluster.gpus, " with sp ",
              config.parallel.sp,
              ": the ranks of a row must be on one node, or be all ranks of several nodes. Use sp ",
              Join(sizes, ", "), ".");
  ResolveShard(config, cluster.world_size(), cluster.gpus, on_gpu);
  return config;
}

double Cluster::Seconds(const dist::RehearsedOperation& operation) const {
  const int ranks = operation.group_size;
  if (ranks == 1) return 0;
  const auto bytes = static_cast<double>(operation.bytes);
  const double others = ranks - 1;
  // Every rank sends to every other rank, through its host's processor.
  if (operation.group == "control") return 50e-6 + others * 2e-6 + bytes * others / 1e9;
  // Consecutive ranks on one node, or one of each shard group.
  const bool replicas = dist::KindOfGroup(operation.group) == "replica";
  const int of_node = std::min(ranks, replicas ? std::max(1, ranks / nodes) : gpus);
  const int group_nodes = (ranks + of_node - 1) / of_node;
  const bool crosses = group_nodes > 1;
  if (operation.kind == dist::OpKind::kSendRecv)
    return base_s + (crosses ? network_hop_s : node_hop_s) +
           bytes / (crosses ? network_bytes_per_s : nvlink_bytes_per_s);
  // A ring enters and leaves a node once for each network card of its ranks.
  const double rate =
      crosses ? std::min(nvlink_bytes_per_s, of_node * network_bytes_per_s) : nvlink_bytes_per_s;
  const double network_hops = crosses ? group_nodes : 0, node_hops = others - network_hops;
  const double ring_s =
      std::max(0.0, node_hops) * node_hop_s + std::min(others, network_hops) * network_hop_s;
  const double moved = bytes * others / ranks / rate;
  if (operation.kind != dist::OpKind::kAllReduce) return base_s + ring_s + moved;
  const double tree_s = 2 * (of_node - 1) * node_hop_s + 2 * std::log2(group_nodes) * network_hop_s;
  return base_s + std::min(2 * ring_s, tree_s) + 2 * moved;
}

ops::ExchangeCost Cluster::RowCost(int sp) const {
  const auto seconds = [&](dist::OpKind kind, int64_t bytes) {
    return Seconds({.group = "rows", .group_size = sp, .kind = kind, .bytes = bytes});
  };
  constexpr int64_t kBytes = 1 << 20;
  const auto slope = [&](dist::OpKind kind, int64_t factor) {
    return (seconds(kind, factor * kBytes) - seconds(kind, 0)) / kBytes;
  };
  return {.gather_s = seconds(dist::OpKind::kAllGather, 0),
          .gather_s_per_byte = slope(dist::OpKind::kAllGather, sp),
          .shift_s = seconds(dist::OpKind::kSendRecv, 0),
          .shift_s_per_byte = slope(dist::OpKind::kSendRecv, 1)};
}

namespace {

using Json = nlohmann::ordered_json;

struct Amount {
  double Cluster::*field;
  double unit;
};
using Amounts = std::map<std::string, Amount>;

const std::map<std::string, Amounts>& Levels() {
  static const std::map<std::string, Amounts> levels = {
      {"node",
       {{"gbs", {&Cluster::nvlink_bytes_per_s, 1e9}},
        {"latency_us", {&Cluster::node_hop_s, 1e-6}}}},
      {"network",
       {{"gbs", {&Cluster::network_bytes_per_s, 1e9}},
        {"latency_us", {&Cluster::network_hop_s, 1e-6}}}},
      {"", {{"call_us", {&Cluster::base_s, 1e-6}}}}};
  return levels;
}

[[noreturn]] void FailOfKey(const std::string& file, const std::string& key,
                            const std::vector<std::string>& known) {
  HL_FAIL(ExitCode::kUsage, file, " has no key '", key, "'", DidYouMean(key, known), ". Use ",
          Join(known, ", "), ".");
}

// `level`: "" for the keys of the file itself.
void ReadAmount(const std::string& file, const std::string& level, const std::string& key,
                const Json& value, Cluster& cluster) {
  const Amounts& amounts = Levels().at(level);
  const std::string name = level.empty() ? key : Concat(level, ".", key);
  const auto found = amounts.find(key);
  if (found == amounts.end()) {
    std::vector<std::string> known;
    for (const auto& [of, amount] : amounts)
      known.push_back(level.empty() ? of : Concat(level, ".", of));
    if (level.empty()) known.insert(known.end(), {"node", "network"});
    FailOfKey(file, name, known);
  }
  HL_CHECK_AS(ExitCode::kUsage, value.is_number() && value.get<double>() > 0, file, ": ", name,
              " is ", value.dump(), ". Use a number above 0.");
  cluster.*found->second.field = found->second.unit * value.get<double>();
}

}  // namespace

void ReadLinks(const std::filesystem::path& file, Cluster& cluster) {
  const std::string name = file.string();
  std::error_code error;
  HL_CHECK_AS(ExitCode::kUsage, std::filesystem::is_regular_file(file, error),
              "--plan links=", name,
              ": there is no such file. Use a file like {\"node\": {\"gbs\": 370, "
              "\"latency_us\": 3}, \"network\": {\"gbs\": 44, \"latency_us\": 11}}.");
  const Json links = Json::parse(ReadJsonText(file), nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kUsage, links.is_object(), name,
              " is not a JSON object. Use {\"node\": {...}, \"network\": {...}}.");
  for (const auto& [key, value] : links.items()) {
    if (key.empty() || !Levels().contains(key)) {
      ReadAmount(name, "", key, value, cluster);
      continue;
    }
    HL_CHECK_AS(ExitCode::kUsage, value.is_object(), name, ": ", key, " is ", value.dump(),
                ". Use {\"gbs\": NUMBER, \"latency_us\": NUMBER}.");
    for (const auto& [of_level, number] : value.items())
      ReadAmount(name, key, of_level, number, cluster);
  }
}

}  // namespace halflife::train
