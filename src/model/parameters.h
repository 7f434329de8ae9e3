// The parameters of a model. Its parts declare them while the model is built; the owner of the
// memory binds them later. Until Bind, parameters have only shapes and names, so that planning
// (`--dry-run`) needs no memory.
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

// A handle that layers keep. All copies see the tensor once it is bound.
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

// Returns a view of the parameter, for a parameter that is used more than once per step. Call it at
// each use. Kernels write the gradient of a parameter in place, once per step; the gradients of the
// views go through autograd, which sums them first.
at::Tensor ForEachUse(const Parameter& parameter);
// Returns y [..., dim] + bias [dim], or y if no bias was declared.
at::Tensor AddBias(const at::Tensor& y, const Parameter& bias);

class ParameterSet {
 public:
  // Adds a parameter. The order of declaration is the order of the forward pass. `spec` decides
  // whether weight decay applies. Throws if the name is already declared.
  Parameter Declare(dist::ParamSpec spec, Init init);

  // The same for a parameter that several layers share under one name. The first layer declares it,
  // and each further one is counted as a reader. Throws if the shapes differ.
  Parameter DeclareShared(const dist::ParamSpec& spec, const Init& init);

  // Records that the current layer reads a parameter that was declared before. A layer counts once,
  // even if several of its parts read the parameter: they are recomputed together, so that their
  // gradients arrive as one.
  void AddReader(const Parameter& parameter);
  // The parts that follow belong to a new layer.
  void BeginLayer() { ++layer_; }

  const std::vector<dist::ParamSpec>& specs() const { return specs_; }
  int size() const { return static_cast<int>(specs_.size()); }
  // Returns the number of elements of all parameters declared so far. The difference before and
  // after a part is built is the size of the part.
  int64_t num_elements() const { return num_elements_; }
  // Assigns memory to parameter `index`: a tensor of the declared shape with any dtype and device.
  void Bind(int index, at::Tensor tensor);
  const at::Tensor& tensor(int index) const { return *handles_[index].tensor_; }

  // Writes the initial value of parameter `index` to `out` (spec.count() floats).
  void Initialise(int index, uint64_t seed, float* out) const;
  // The same for some of its elements: `out` has part.end - part.begin floats.
  void InitialisePart(int index, uint64_t seed, Init::Part part, float* out) const;

 private:
  std::vector<dist::ParamSpec> specs_;
  int64_t num_elements_ = 0;
  std::vector<Init> inits_;
  std::vector<Parameter> handles_;
  int64_t layer_ = 0;                  // counts calls of BeginLayer
  std::vector<int64_t> last_readers_;  // layer_ at the last reader of each parameter
};

}  // namespace halflife::model
