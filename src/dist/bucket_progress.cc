#include "dist/bucket_progress.h"

#include "core/error.h"

namespace halflife::dist {

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
    remaining_.push_back(static_cast<int>(bucket.params.size()));
}

void BucketProgress::MarkReady(int param) {
  HL_CHECK(!ready_.at(param), "parameter '", layout_.specs()[param].name,
           "' accumulated a gradient after it was complete: it has more readers than the ",
           layout_.specs()[param].readers, " of its ParamSpec");
  ready_[param] = true;
  --remaining_[bucket_of_[param]];
}

void BucketProgress::RequireAll() const {
  std::string missing;
  for (size_t param = 0; param < ready_.size(); ++param)
    if (!ready_[param]) missing += Concat(missing.empty() ? "" : ", ", layout_.specs()[param].name);
  HL_CHECK(missing.empty(), "no gradient reached: ", missing,
           "; does the loss depend on these parameters?");
}

}  // namespace halflife::dist
