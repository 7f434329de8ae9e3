// The parameters of a model: declared by its parts while it is built, given memory later by whoever
// owns the arena. Until Bind they have shapes and names only, so planning (`--dry-run`) needs no
// memory.
//
//   Parameter weight =
//       parameters.Declare({.name = "w", .shape = {D}, .region = Region::kFp32}, Init::Ones());
//   ... parameters.Bind(i, tensor) for each, by the trainer or by inference ...
//   at::mm(x, weight->t());
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dist/parameter_layout.h"
#include "model/init.h"

namespace halflife::model {

// A handle that layers keep; all copies see the tensor once it is bound.
class Parameter {
 public:
  const at::Tensor& operator*() const { return *tensor_; }
  const at::Tensor* operator->() const { return tensor_.get(); }
  int index() const { return index_; }
  bool declared() const { return index_ >= 0; }

 private:
  friend class ParameterSet;
  std::shared_ptr<at::Tensor> tensor_;
  int index_ = -1;
};

// A parameter that a step uses more than once. A kernel writes a parameter's gradient where that
// lies, once a step; by this name autograd adds up all uses first.
at::Tensor ForEachUse(const Parameter& parameter);
// y [..., dim] + bias [dim] where one was declared.
at::Tensor AddBias(const at::Tensor& y, const Parameter& bias);

class ParameterSet {
 public:
  // Registration order is forward order. Whether weight decay takes hold of it is the spec's own
  // word. A name declared twice is an Error.
  Parameter Declare(dist::ParamSpec spec, Init init);

  // One layer more reads what another one has declared.
  void AddReader(const Parameter& parameter);

  const std::vector<dist::ParamSpec>& specs() const { return specs_; }
  int size() const { return static_cast<int>(specs_.size()); }
  // The elements of all parameters so far: a part's own are the difference before and after it is
  // built.
  int64_t num_elements() const { return num_elements_; }
  // Gives parameter `index` its memory: any dtype and device, the declared shape.
  void Bind(int index, at::Tensor tensor);
  const at::Tensor& tensor(int index) const { return *handles_[index].tensor_; }

  // Fills `out` (count floats) with the initial value of parameter `index`.
  void Initialise(int index, uint64_t seed, float* out) const;

 private:
  std::vector<dist::ParamSpec> specs_;
  int64_t num_elements_ = 0;
  std::vector<Init> inits_;
  std::vector<Parameter> handles_;
};

}  // namespace halflife::model
