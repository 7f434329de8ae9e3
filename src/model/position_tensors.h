// Tensors that follow from a batch's positions alone, each made when it is first asked for: the
// layers of a model share them. Any thread.
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
  // What a tensor is, and all that it depends on beside the positions.
  struct Key {
    std::string_view name;  // of static storage
    std::vector<double> values;
    bool operator==(const Key&) const = default;
  };
  // make(), or what it gave before for these positions and this key. A tensor of positions is known
  // by itself, not by its values.
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
