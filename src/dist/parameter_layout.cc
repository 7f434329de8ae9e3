#include "dist/parameter_layout.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "core/error.h"

namespace halflife::dist {
namespace {

// In elements. 64 elements of fp32 are 256 bytes, which is a multiple of a cache line and suits GPU
// transactions.
constexpr int64_t kAlignment = 64;
constexpr int64_t kBytesPerGradient = 4;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

void CheckSpecs(const std::vector<ParamSpec>& specs) {
  std::unordered_set<std::string> names;
  const auto add = [&](const std::string& name) {
    HL_CHECK(names.insert(name).second, "two parameters are named '", name, "'");
  };
  for (const ParamSpec& spec : specs) {
    add(spec.name);
    for (const std::string& alias : spec.aliases) add(alias);
    for (const int64_t extent : spec.shape) {
      HL_CHECK(extent >= 0, "parameter '", spec.name, "' has a negative extent ", extent);
    }
    int64_t rows = 0;
    for (const MatrixPart& part : spec.parts) {
      HL_CHECK(part.rows % part.heads == 0, "parameter '", spec.name, "': a part of ", part.rows,
               " rows does not have ", part.heads, " equal heads");
      rows += part.rows;
    }
    HL_CHECK(spec.parts.empty() || (spec.shape.size() == 2 && rows == spec.shape[0]), "parameter '",
             spec.name, "' consists of parts with ", rows, " rows, which are not all of its rows");
  }
}

int UnitOf(int param, Region region, const std::vector<int>& units) {
  return region == Region::kFp32 || units.empty() ? -1 : units[param];
}

bool IsFrozen(int param, const LayoutConfig& config) {
  return !config.frozen.empty() && config.frozen[param];
}

// Returns the parameters of a region in the order of the arena: reverse registration order, those
// of no unit last, and in each unit the frozen ones last.
std::vector<int> ArenaOrder(const std::vector<ParamSpec>& specs, Region region,
                            const LayoutConfig& config) {
  std::vector<int> order;
  for (int param = static_cast<int>(specs.size()) - 1; param >= 0; --param)
    if (specs[param].region == region) order.push_back(param);
  const auto unit_of = [&](int param) { return UnitOf(param, region, config.units); };
  std::ranges::stable_partition(order, [&](int param) { return unit_of(param) >= 0; });
  for (auto begin = order.begin(); begin != order.end();) {
    const auto end = std::find_if(begin, order.end(), [&, unit = unit_of(*begin)](int param) {
      return unit_of(param) != unit;
    });
    std::stable_partition(begin, end, [&](int param) { return !IsFrozen(param, config); });
    begin = end;
  }
  return order;
}

}  // namespace

int64_t ParamSpec::count() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

int64_t AutoBucketBytes(int num_ranks, int64_t gradient_bytes) {
  constexpr int64_t kMin = 64 << 20, kPerRank = 4 << 20;
  return std::clamp(kPerRank * num_ranks, kMin, std::max(kMin, gradient_bytes / 8));
}

ParameterLayout::ParameterLayout(std::vector<ParamSpec> specs, const LayoutConfig& config)
    : specs_(std::move(specs)),
      frozen_(config.frozen),
      offsets_(specs_.size()),
      num_slices_(config.num_slices) {
  HL_CHECK(num_slices_ >= 1, "num_slices ", num_slices_, " must be at least 1");
  HL_CHECK(config.bucket_bytes > 0 && config.first_bucket_bytes > 0, "bucket sizes ",
           config.first_bucket_bytes, " and ", config.bucket_bytes, " bytes must be positive");
  HL_CHECK(config.units.empty() || config.units.size() == specs_.size(), config.units.size(),
           " units for ", specs_.size(), " parameters");
  HL_CHECK(frozen_.empty() || frozen_.size() == specs_.size(), frozen_.size(), " of ",
           specs_.size(), " parameters may be frozen");
  CheckSpecs(specs_);
  // The slice size is a multiple of 8 elements, so that vector loads never cross the border of two
  // ranks' slices.
  const int64_t unit = std::lcm(kAlignment, int64_t{8} * num_slices_);
  int64_t end = 0;  // end of the arena so far
  const auto close = [&] {
    end = RoundUp(end, unit);
    Bucket& bucket = buckets_.back();
    bucket.end = end;
    bucket.trained_begin = num_trained_elements_;
    if (!bucket.frozen) num_trained_elements_ += end - bucket.begin;
  };
  for (const Region region : {Region::kCompute, Region::kFp32}) {
    bool open = false;
    int unit_of_bucket = -1;
    for (const int param : ArenaOrder(specs_, region, config)) {
      const int64_t count = specs_[param].count();
      const int64_t start = RoundUp(end, kAlignment);
      const int64_t limit_bytes =
          buckets_.size() <= 1 ? config.first_bucket_bytes : config.bucket_bytes;
      const int of_param = UnitOf(param, region, config.units);
      const bool full =
          (start + count - (open ? buckets_.back().begin : 0)) * kBytesPerGradient > limit_bytes;
      const bool is_frozen = frozen(param);
      if (open && (full || of_param != unit_of_bucket || is_frozen != buckets_.back().frozen)) {
        close();
        open = false;
      }
      unit_of_bucket = of_param;
      if (!open) {
        buckets_.push_back(
            {.begin = end, .end = end, .region = region, .params = {}, .frozen = is_frozen});
        open = true;
      }
      offsets_[param] = RoundUp(end, kAlignment);
      end = offsets_[param] + count;
      buckets_.back().params.push_back(param);
    }
    if (open) close();
    if (region == Region::kCompute) num_compute_elements_ = end;
  }
  num_elements_ = end;
}

int64_t ParameterLayout::num_parameters() const {
  int64_t total = 0;
  for (const ParamSpec& spec : specs_) total += spec.count();
  return total;
}

ParameterLayout::SliceRange ParameterLayout::SliceOf(const Bucket& bucket, int part,
                                                     int parts) const {
  const int64_t count = (bucket.end - bucket.begin) / parts;
  return {bucket.begin + part * count, bucket.begin / parts, count};
}

const Bucket& ParameterLayout::BucketOf(int64_t element) const {
  return *std::prev(std::ranges::upper_bound(buckets_, element, {}, &Bucket::begin));
}

int64_t ParameterLayout::PlaceOf(int64_t element, const Division& division) const {
  if (division.trained) {
    const Bucket& bucket = BucketOf(element);
    HL_CHECK(!bucket.frozen, "element ", element, " of the arena is frozen");
    if (!division.divides()) return element - bucket.begin + bucket.trained_begin;
    const SliceRange held = SliceOf(bucket, division.part, division.parts);
    return element - held.arena_begin + bucket.trained_begin / division.parts;
  }
  if (element >= division.end) return element - division.end + division.end / division.parts;
  const SliceRange held = SliceOf(BucketOf(element), division.part, division.parts);
  return element - held.arena_begin + held.slice_begin;
}

std::vector<Fragment> ParameterLayout::SliceFragments(int slice) const {
  HL_CHECK(0 <= slice && slice < num_slices_, "slice ", slice, " of ", num_slices_);
  std::vector<Fragment> fragments;
  for (const Bucket& bucket : buckets_) {
    const SliceRange range = SliceOf(bucket, slice);
    for (const int param : bucket.params) {
      const int64_t offset = offsets_[param];
      const int64_t begin = std::max(range.arena_begin, offset);
      const int64_t end = std::min(range.arena_begin + range.count, offset + specs_[param].count());
      if (begin < end)
        fragments.push_back({param, begin - offset, end - offset, begin,
                             begin - range.arena_begin + range.slice_begin});
    }
  }
  return fragments;
}

std::vector<Fragment> ParameterLayout::AllFragments() const {
  std::vector<Fragment> fragments;
  fragments.reserve(specs_.size());
  for (const Bucket& bucket : buckets_) {
    for (const int param : bucket.params) {
      fragments.push_back({param, 0, specs_[param].count(), offsets_[param], 0});
    }
  }
  return fragments;
}

std::vector<int> BucketsOfParameters(const ParameterLayout& layout) {
  std::vector<int> buckets(layout.specs().size());
  for (size_t bucket = 0; bucket < layout.buckets().size(); ++bucket)
    for (const int param : layout.buckets()[bucket].params)
      buckets[param] = static_cast<int>(bucket);
  return buckets;
}

BucketProgress::BucketProgress(const ParameterLayout& layout)
    : layout_(layout), bucket_of_(BucketsOfParameters(layout)) {}

void BucketProgress::Begin() {
  ready_.assign(layout_.specs().size(), false);
  remaining_.clear();
  for (const Bucket& bucket : layout_.buckets())
    remaining_.push_back(bucket.frozen ? 0 : static_cast<int>(bucket.params.size()));
}

void BucketProgress::MarkReady(int param) {
  HL_CHECK(!layout_.frozen(param), "the frozen parameter '", layout_.specs()[param].name,
           "' received a gradient");
  HL_CHECK(!ready_.at(param), "parameter '", layout_.specs()[param].name,
           "' accumulated a gradient after it was complete: it has more readers than the ",
           layout_.specs()[param].readers, " of its ParamSpec");
  ready_[param] = true;
  --remaining_[bucket_of_[param]];
}

void BucketProgress::RequireAll() const {
  std::string missing;
  for (size_t param = 0; param < ready_.size(); ++param)
    if (!ready_[param] && !layout_.frozen(static_cast<int>(param)))
      missing += Concat(missing.empty() ? "" : ", ", layout_.specs()[param].name);
  HL_CHECK(missing.empty(), "no gradient reached: ", missing,
           "; does the loss depend on these parameters?");
}

}  // namespace halflife::dist
