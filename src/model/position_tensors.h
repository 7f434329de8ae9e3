// Tensors that follow from a batch's positions alone, each made when it is first asked for: the
// layers of a model share them. Any thread.
//
//   const at::Tensor scale = slice.of_positions->Of(slice.positions, {rate}, [&] {
//     return at::exp(rate * slice.positions);
//   });
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <mutex>
#include <vector>

namespace halflife::model {

class PositionTensors {
 public:
  // make() or what it gave before for these positions and this key, which says all else that it
  // depends on. A tensor of positions is known by itself, not by its values.
  at::Tensor Of(const at::Tensor& positions, const std::vector<double>& key,
                const std::function<at::Tensor()>& make);

 private:
  struct Entry {
    at::Tensor positions;
    std::vector<double> key;
    at::Tensor made;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace halflife::model
