#include "model/position_tensors.h"

namespace halflife::model {

at::Tensor PositionTensors::Of(const at::Tensor& positions, const Key& key,
                               const std::function<at::Tensor()>& make) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.positions.is_same(positions) && entry.key == key) return entry.made;
  return entries_.emplace_back(positions, key, make()).made;
}

}  // namespace halflife::model
