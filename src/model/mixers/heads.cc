#include "model/mixers/heads.h"

namespace halflife::model {

at::Tensor SplitHeads(const at::Tensor& x, int64_t head_dim) {
  return x.unflatten(-1, {-1, head_dim});
}

at::Tensor RepeatHeads(const at::Tensor& x, int64_t num_heads) {
  const int64_t group = num_heads / x.size(2);
  if (group == 1) return x;
  return x.unsqueeze(3).expand({x.size(0), x.size(1), x.size(2), group, x.size(3)}).flatten(2, 3);
}

}  // namespace halflife::model
