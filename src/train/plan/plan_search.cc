#include "train/plan/cluster_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/human.h"
#include "train/config/plan.h"

namespace halflife::train {
namespace {

std::vector<int> RowSizesToTry(const RunConfig& config, const model::LanguageModel& model,
                               const PlanRequest& request) {
  if (request.sp) return {ConfigFor(config, request).parallel.sp};
  if (!model.LayerOfWholeRows().empty() || model.objective().classifier()) return {1};
  std::vector<int> sizes = request.cluster.RowSizes();
  std::erase_if(sizes, [&](int sp) { return sp > config.data.seq_len; });
  return sizes;
}

// Returns the divisors of the rows that a group of ranks has per step. Empty if the groups do not
// divide the global batch.
std::vector<int64_t> MicroBatchesToTry(const RunConfig& config, const PlanRequest& request,
                                       int sp) {
  const int64_t groups = request.cluster.world_size() / sp, batch = config.train.global_batch;
  std::vector<int64_t> sizes;
  if (batch % groups != 0) return sizes;
  const int64_t rows = batch / groups;
  for (int64_t size = 1; size <= rows; ++size)
    if (rows % size == 0 && (!request.micro_batch || *request.micro_batch == size))
      sizes.push_back(size);
  return sizes;
}

std::vector<int> StagesToTry(const PlanRequest& request) {
  if (request.zero) return {*request.zero};
  return request.cluster.world_size() == 1 ? std::vector<int>{0} : std::vector<int>{0, 1, 2, 3};
}

// Returns the sizes of shard groups: the ranks of one node, of two, four, ... nodes, and all ranks.
std::vector<int> ShardsToTry(const PlanRequest& request, int stage) {
  const int ranks = request.cluster.world_size();
  if (request.shard) return {*request.shard};
  if (stage == 0) return {ranks};
  std::vector<int> shards = {ranks};
  // Only the weights of stage 3 gain memory from groups of a few nodes.
  for (int shard = request.cluster.gpus; shard < ranks; shard *= 2)
    if (ranks % shard == 0 && (stage == 3 || shard == request.cluster.gpus))
      shards.push_back(shard);
  return shards;
}

bool IsBetter(const ClusterPlan& a, const ClusterPlan& b) {
  if (a.tokens_per_s != b.tokens_per_s) return a.tokens_per_s > b.tokens_per_s;
  return a.memory.total() < b.memory.total();
}

// Returns why `train` would refuse the config (for example, CUDA graphs with slices of rows). Empty
// if it would not.
std::string Refusal(const RunConfig& config, int world_size) {
  try {
    ValidateForPlan(config, world_size);
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

class Search {
 public:
  Search(const RunConfig& config, const PlanRequest& request)
      : config_(config), request_(request), model_(config.model) {}

  // Tries the largest micro-batch that fits, for each stage.
  void Try(int sp, const std::vector<int64_t>& micro_batches) {
    for (const int stage : StagesToTry(request_))
      for (const int shard : ShardsToTry(request_, stage))
        for (auto size = micro_batches.rbegin(); size != micro_batches.rend(); ++size)
          if (TryOne(sp, stage, shard, *size)) break;
  }

  const FoundPlan& found() const { return found_; }
  const std::string& smallest() const { return smallest_; }
  // The reason for the last config that `train` refuses.
  const std::string& refusal() const { return refusal_; }

 private:
  // Returns whether the plan fits.
  bool TryOne(int sp, int stage, int shard, int64_t micro_batch) {
    PlanRequest chosen = request_;
    chosen.sp = sp, chosen.zero = stage, chosen.shard = shard, chosen.micro_batch = micro_batch;
    const RunConfig config = ConfigFor(config_, chosen);
    const Cluster& cluster = request_.cluster;
    if (const std::string why = Refusal(config, cluster.world_size()); !why.empty())
      return refusal_ = why, false;
    ++found_.num_possible;
    const double least = PlanMemory(config, model_, cluster.world_size(), cluster.limits).total();
    if (!Fits(least)) return NoteTooLarge(least, config), false;
    const ClusterPlan plan = PlanCluster(config, cluster, RehearsalsOf(config));
    const double bytes = plan.memory.total();
    if (!Fits(bytes)) return NoteTooLarge(bytes, config), false;
    if (found_.num_fitting++ == 0 || IsBetter(plan, found_.plan)) found_.plan = plan;
    return true;
  }

  // Returns the rehearsals for this recipe. They are shared between ZeRO stages, on which the
  // messages between slices do not depend.
  RowRehearsals& RehearsalsOf(const RunConfig& config) {
    const int sp = config.parallel.row_ranks();
    const std::pair<int, int64_t> key(sp, config.train.micro_batch);
    return rehearsals_.try_emplace(key, config, sp - 1, request_.cluster.RowCost(sp)).first->second;
  }

  bool Fits(double bytes) const {
    const double room = request_.cluster.memory_bytes;
    return room == 0 || bytes <= kPlannedMemory * room;
  }
  void NoteTooLarge(double bytes, const RunConfig& config) {
    if (bytes >= smallest_bytes_) return;
    smallest_bytes_ = bytes;
    smallest_ = Concat(HumanBytes(bytes), " with sp ", config.parallel.row_ranks(), ", zero ",
                       config.parallel.zero_stage, " and micro_batch ", config.train.micro_batch);
  }

  const RunConfig& config_;
  const PlanRequest& request_;
  const model::LanguageModel model_;
  FoundPlan found_;
  std::map<std::pair<int, int64_t>, RowRehearsals> rehearsals_;  // By sp and micro_batch.
  double smallest_bytes_ = std::numeric_limits<double>::infinity();
  std::string smallest_, refusal_;
};

}  // namespace

FoundPlan SearchPlan(const RunConfig& config, const PlanRequest& request) {
  Search search(config, request);
  const model::LanguageModel model(config.model);
  const std::vector<int> sizes = RowSizesToTry(config, model, request);
  for (const int sp : sizes) search.Try(sp, MicroBatchesToTry(config, request, sp));
  const int ranks = request.cluster.world_size();
  HL_CHECK_AS(
      ExitCode::kUsage, search.found().num_possible > 0 || search.refusal().empty(),
      "--plan auto: `train` would refuse all plans. Reason for the last: ", search.refusal());
  HL_CHECK_AS(ExitCode::kUsage, search.found().num_possible > 0, "--plan auto: train.global_batch ",
              config.train.global_batch, " has no split over ", ranks, " ranks",
              request.micro_batch ? Concat(" with micro_batch ", *request.micro_batch) : "",
              ". Use a multiple of ", ranks / sizes.back() * request.micro_batch.value_or(1),
              ", or fewer nodes.");
  HL_CHECK_AS(ExitCode::kUsage, search.found().num_fitting > 0, "--plan auto: none of ",
              search.found().num_possible, " plans fits ",
              HumanBytes(kPlannedMemory * request.cluster.memory_bytes),
              " (90 % of a rank's memory); the smallest needs ", search.smallest(),
              ". Use more nodes, shorter rows, ",
              RecomputeOf(config) == model::Recompute::kBlock ? "" : "train.recompute block ",
              "or a smaller model.");
  return search.found();
}

}  // namespace halflife::train
