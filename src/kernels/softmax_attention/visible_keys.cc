#include "kernels/softmax_attention/visible_keys.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/div.h>
#include <ATen/ops/maximum.h>

#include <algorithm>

namespace halflife::kernels {
namespace {

// Of a query at this position of its document, the position of the first key that it sees.
int64_t FirstSeen(int64_t position, const KeyPattern& pattern) {
  if (pattern.block > 0) return std::max<int64_t>(0, position / pattern.block - 1) * pattern.block;
  return pattern.window > 0 ? std::max<int64_t>(0, position - pattern.window + 1) : 0;
}
at::Tensor FirstSeen(const at::Tensor& positions, const KeyPattern& pattern) {
  if (pattern.block > 0)
    return (at::div(positions, pattern.block, "floor") - 1).clamp_min(0) * pattern.block;
  return (positions - (pattern.window - 1)).clamp_min(0);
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
          .end = narrow((place + 1).expand_as(positions)),
          .sinks = narrow(starts)};
}

at::Tensor NumVisibleKeys(const at::Tensor& positions, const KeyPattern& pattern) {
  if (pattern.reach() == 0) return positions + 1;
  const at::Tensor first = FirstSeen(positions, pattern);
  return positions - first + 1 + first.clamp_max(pattern.sinks);
}

int64_t NumVisiblePairs(int64_t seq_len, const KeyPattern& pattern) {
  int64_t pairs = 0;
  for (int64_t position = 0; position < seq_len; ++position) {
    const int64_t first = FirstSeen(position, pattern);
    pairs += position - first + 1 + std::min(first, pattern.sinks);
  }
  return pairs;
}

}  // namespace halflife::kernels
