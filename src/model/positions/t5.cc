// T5's relative positions (Raffel et al., 2020): each head adds a learned bias per bucket of
// distances to its scores. All layers share the biases. Unlike in T5, scores are scaled by
// 1/sqrt(d).
#include "model/positions/t5.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "model/positions/attention_variant.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

struct T5Options : OptionsOf<T5Options> {
  int64_t num_buckets = 32, max_distance = 128;
  std::vector<Option> Fields() override {
    return {{"num_buckets", &num_buckets}, {"max_distance", &max_distance}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(num_buckets % 2 == 0, "option num_buckets is ", num_buckets,
                     ". Use an even number.");
    problems.Require(max_distance > num_buckets / 2, "option max_distance is ", max_distance,
                     ". Use more than half of num_buckets, ", num_buckets / 2, ".");
  }
};

class T5Bias : public AttentionPositions {
 public:
  T5Bias(const T5Options& options, Parameter table) : options_(options), table_(std::move(table)) {}
  bool has_bias() const override { return true; }
  at::Tensor Bias(int64_t num_distances, const at::TensorOptions& options) const override {
    // The table is made for the next power of 2 and then narrowed. Decoding adds one distance per
    // token and so needs only few tables, which are cached.
    const std::vector<int64_t> of_distances =
        T5Buckets(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_distances))),
                  options_.num_buckets, options_.max_distance);
    const at::Tensor buckets =
        ops::ConstantsOn(options.device(),
                         std::vector<double>(of_distances.begin(), of_distances.end()), at::kLong)
            .narrow(0, 0, num_distances);
    // index_select is not used here: its backward on a GPU waits for the host.
    return at::embedding(*table_, buckets).t().to(options.dtype());
  }

 private:
  T5Options options_;
  Parameter table_;  // [num_buckets, H]
};

// The first layer declares the table. All other layers share it.
class T5Positions : public Positions {
 public:
  T5Positions(const T5Options& options, const PartContext& context)
      : options_(options), context_(context) {}
  bool in_attention() const override { return true; }
  std::unique_ptr<AttentionPositions> OfLayer(const AttentionLayer& layer) const override {
    if (num_heads_ == 0) {
      num_heads_ = layer.num_heads;
      const double std_dev = 1 / std::sqrt(static_cast<double>(context_.model_dim()));
      table_ =
          context_.parameters->Declare({.name = context_.prefix + "relative_attention_bias.weight",
                                        .shape = {options_.num_buckets, num_heads_},
                                        .region = dist::Region::kFp32},
                                       Init::Normal(std_dev));
    } else {
      context_.parameters->AddReader(table_);
    }
    HL_CHECK_AS(ExitCode::kUsage, layer.num_heads == num_heads_, "positions t5: one layer has ",
                layer.num_heads, " heads and another has ", num_heads_,
                ", but all layers share one table. Use the same number of heads in all layers.");
    return std::make_unique<T5Bias>(options_, table_);
  }

 private:
  T5Options options_;
  PartContext context_;
  mutable int64_t num_heads_ = 0;  // 0: no layer has been made yet.
  mutable Parameter table_;
};

}  // namespace

std::vector<int64_t> T5Buckets(int64_t num_distances, int64_t num_buckets, int64_t max_distance) {
  const int64_t exact = num_buckets / 2;
  std::vector<int64_t> buckets;
  for (int64_t distance = 0; distance < num_distances; ++distance) {
    int64_t bucket = distance;
    if (distance >= exact) {
      const double part = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                          std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
      // The small offset keeps exact powers from being rounded down into the bucket below.
      const auto steps =
          static_cast<int64_t>(std::floor(part * static_cast<double>(num_buckets - exact) + 1e-9));
      bucket = std::min(num_buckets - 1, exact + steps);
    }
    buckets.push_back(bucket);
  }
  return buckets;
}

PositionsVariant T5PositionsVariant() {
  return VariantOf<T5Options, T5Positions, Positions, PartContext>("t5");
}

}  // namespace halflife::model
