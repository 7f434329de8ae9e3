// A cache of tensors that depend only on a batch's positions. Each tensor is made when it is first
// requested, and all layers of a model share it. Thread-safe.
//
//   const at::Tensor scale = slice.of_positions->Of(slice.positions, {"decay", {rate}}, [&] {
//     return at::exp(rate * slice.positions);
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <string_view>
#include <vector>

namespace halflife::model {

class PositionTensors {
 public:
  // Identifies a tensor and everything that it depends on in addition to the positions.
  struct Key {
    std::string_view name;  // Must have static storage.
    std::vector<double> values;
    bool operator==(const Key&) const = default;
  };
  // Returns make(), or the earlier result for the same `positions` and `key`. Position tensors are
  // compared by identity, not by value.
  at::Tensor Of(const at::Tensor& positions, const Key& key,
                const std::function<at::Tensor()>& make);

 private:
  struct Entry {
    at::Tensor positions;
    Key key;
    at::Tensor made;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace halflife::model
