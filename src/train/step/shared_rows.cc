#include "train/step/shared_rows.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <map>
#include <span>
#include <vector>

#include "core/human.h"
#include "core/log.h"
#include "dist/mesh.h"
#include "ops/sequence/exchange_cost.h"
#include "ops/torch/host_transfer.h"
#include "train/config/plan.h"
#include "train/device.h"

namespace halflife::train {
namespace {

void LogCost(const ops::ExchangeCost& cost) {
  HL_INFO("train", "between the slices of a row a message takes ", Fixed(1e6 * cost.shift_s, 0),
          " us and ", Fixed(1e12 * cost.shift_s_per_byte, 0),
          " us a MB, to gather one of each rank ", Fixed(1e6 * cost.gather_s, 0), " us and ",
          Fixed(1e12 * cost.gather_s_per_byte, 0), " us a MB");
}

// Returns the fewest threads of any rank. The pieces of a scan are messages, so all ranks must have
// equal pieces. Collective.
int FewestThreads(ops::SegmentGroup& group, Device device) {
  const std::vector<int64_t> own = {device.is_cuda() ? 0 : at::get_num_threads()};
  const at::Tensor gathered =
      group.AllGather(ops::UploadValues(own, ToTorch(device)), "threads").flatten();
  group.Settle();  // because a copy from a GPU waits without a deadline
  const at::Tensor all = ops::ReadBack(gathered);
  const std::span<const int64_t> of_ranks(all.const_data_ptr<int64_t>(), all.numel());
  return static_cast<int>(*std::ranges::min_element(of_ranks));
}

}  // namespace

ops::StateStrategy StrategyOf(const std::string& exchange) {
  using enum ops::StateStrategy;
  static const std::map<std::string, ops::StateStrategy> kStrategies = {
      {"auto", kCheapest}, {"gather", kGather}, {"ring", kRing}, {"scan", kScan}};
  return kStrategies.at(exchange);
}

SharedRows ShareRows(const RunConfig& config, dist::RankContext& context, Device device) {
  const dist::DataMesh mesh = MeshOf(config, context.rank(), context.world_size());
  if (mesh.sp() == 1) return {};
  dist::RequireRowsOnWholeHosts(context.control(), context.host(), mesh);
  SharedRows rows = {.ranks = dist::Split(context.world(), mesh.RowGroup(), dist::GroupRole::kRows),
                     .parallel = {}};
  rows.parallel = {.group = model::MakeSegmentGroup(*rows.ranks),
                   .strategy = StrategyOf(config.parallel.exchange)};
  rows.parallel->threads = FewestThreads(*rows.parallel->group, device);
  if (rows.parallel->strategy == ops::StateStrategy::kCheapest) {
    rows.parallel->cost = std::make_shared<const ops::ExchangeCost>(
        ops::MeasureExchange(*rows.parallel->group, ToTorch(device)));
    LogCost(*rows.parallel->cost);
  }
  return rows;
}

}  // namespace halflife::train
