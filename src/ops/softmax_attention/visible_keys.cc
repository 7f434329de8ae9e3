#include "ops/softmax_attention/visible_keys.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cummin.h>
#include <ATen/ops/div.h>
#include <ATen/ops/full.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/where.h>

#include <algorithm>
#include <tuple>

namespace halflife::ops {
namespace {

// Returns the position of the first key that a query at `position` of its document sees.
int64_t FirstSeen(int64_t position, const KeyPattern& pattern) {
  if (pattern.block > 0) return std::max<int64_t>(0, position / pattern.block - 1) * pattern.block;
  return pattern.window > 0 ? std::max<int64_t>(0, position - pattern.window + 1) : 0;
}
at::Tensor FirstSeen(const at::Tensor& positions, const KeyPattern& pattern) {
  if (pattern.block > 0)
    return (at::div(positions, pattern.block, "floor") - 1).clamp_min(0) * pattern.block;
  return (positions - (pattern.window - 1)).clamp_min(0);
}

// Returns the end of each query's document, [B, T]: the index at which the next document starts.
at::Tensor DocumentEnds(const at::Tensor& positions, const at::Tensor& place) {
  const int64_t num_queries = positions.size(1);
  if (num_queries == 0) return positions;
  const at::Tensor starts = at::where(positions.eq(0), place, num_queries);
  const at::Tensor later =
      at::cat({starts.narrow(1, 1, num_queries - 1),
               at::full({positions.size(0), 1}, num_queries, positions.options())},
              1);
  return std::get<0>(at::cummin(later.flip(1), 1)).flip(1);
}

at::Tensor EndsOf(const at::Tensor& positions, const at::Tensor& place, const KeyPattern& pattern) {
  if (!pattern.bidirectional) return (place + 1).expand_as(positions);
  const at::Tensor ends = DocumentEnds(positions, place);
  return pattern.window > 0 ? at::minimum(ends, place + pattern.window) : ends;
}

}  // namespace

VisibleKeys VisibleKeysOf(const at::Tensor& positions, int64_t num_past,
                          const KeyPattern& pattern) {
  const int64_t num_queries = positions.size(1);
  const at::Tensor place =
      at::arange(num_past, num_past + num_queries, positions.options()).unsqueeze(0);
  const at::Tensor starts = place - positions;
  const at::Tensor first = pattern.reach() == 0 ? starts : starts + FirstSeen(positions, pattern);
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kInt).contiguous(); };
  return {.first = narrow(first.clamp_min(0)),
          .end = narrow(EndsOf(positions, place, pattern)),
          .sinks = narrow(starts)};
}

at::Tensor NumVisibleKeys(const at::Tensor& positions, const KeyPattern& pattern) {
  const at::Tensor place = at::arange(positions.size(1), positions.options()).unsqueeze(0);
  const at::Tensor up_to = EndsOf(positions, place, pattern) - place + positions;
  if (pattern.reach() == 0) return up_to;
  const at::Tensor first = FirstSeen(positions, pattern);
  return up_to - first + first.clamp_max(pattern.sinks);
}

int64_t NumVisiblePairs(int64_t seq_len, const KeyPattern& pattern) {
  int64_t pairs = 0;
  for (int64_t position = 0; position < seq_len; ++position) {
    const int64_t first = FirstSeen(position, pattern);
    const int64_t ahead =
        pattern.window > 0 ? std::min(seq_len, position + pattern.window) : seq_len;
    const int64_t end = pattern.bidirectional ? ahead : position + 1;
    pairs += end - first + std::min(first, pattern.sinks);
  }
  return pairs;
}

}  // namespace halflife::ops
