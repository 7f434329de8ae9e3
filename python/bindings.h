// Shared by the parts of the Python module `halflife`, each of which declares its classes.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "data/tokenizer.h"

namespace halflife::python {

void DeclareTokenizer(nanobind::module_& module);
void DeclareModel(nanobind::module_& module);    // after the tokenizer
void DeclareDataset(nanobind::module_& module);  // after the tokenizer
void DeclareRun(nanobind::module_& module);

using SharedTokenizer = std::shared_ptr<data::Tokenizer>;

// Moves the values into a numpy array of this shape, outermost first. Python frees them.
template <typename T>
nanobind::ndarray<nanobind::numpy, T> ToNumpy(std::vector<T> values,
                                              std::vector<size_t> shape = {}) {
  auto owned = std::make_unique<std::vector<T>>(std::move(values));
  if (shape.empty()) shape = {owned->size()};
  T* const data = owned->data();
  nanobind::capsule owner(
      owned.get(), [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  owned.release();
  return {data, shape.size(), shape.data(), owner};
}

}  // namespace halflife::python
