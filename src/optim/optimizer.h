// The rule by which gradients change the weights. An optimizer names its state arrays and updates
// ranges of flat fp32 arrays. The caller owns the arrays, decides which ranges a rank updates, and
// saves the state arrays in checkpoints under the names that the optimizer gives them.
//
// An update element by element needs nothing else. An optimizer that updates whole matrices also
// has a MatrixRule, because a rank may hold only a slice of a matrix.
//
//   const std::unique_ptr<Optimizer> optimizer = choice.Make(adamw_config);
//   const std::string table = optimizer->Prepare(ranges);   // once
//   optimizer->Update({.main = w, .grads = g, .states = {m, v}, .table = table.data(), .lr = lr,
//                      .grad_factor = clip, .num_updates = t});
//
// A new optimizer is a file, a line in optimizers.inc and a message in the schema
// (docs/adding_an_optimizer.md).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor_ref.h"
#include "kernels/adamw/adamw_args.h"

namespace halflife::optim {

// beta1, beta2, eps and weight_decay. Every optimizer gets them: those that treat only matrices in
// a way of their own update the other parameters by AdamW.
using AdamWConfig = kernels::AdamWConfig;

// Consecutive elements of one parameter that this rank updates.
struct Range {
  std::string parameter;       // its name
  std::vector<int64_t> shape;  // of the whole parameter, outermost first
  int64_t first = 0;           // the element of the parameter that `begin` is
  int64_t begin = 0, end = 0;  // elements of the arena
  float weight_decay = 0;      // 0 for parameters that do not decay
  float lr_scale = 1;          // factor of the learning rate
  bool has_copy = false;       // whether UpdateArgs::copy holds these elements
  // Element i of the arena is at i + shift of an array. All state arrays have the same shift.
  int64_t main_shift = 0, grads_shift = 0, state_shift = 0;
};

struct UpdateArgs {
  float* main = nullptr;         // the weights
  const float* grads = nullptr;  // the gradient is grads * grad_factor
  std::vector<float*> states;    // in the order of state_names()
  uint16_t* copy = nullptr;      // bf16, the rounded weights, by the arena's index; null: none
  const void* table = nullptr;   // what Prepare returned, in the memory of the arrays
  double lr = 0, grad_factor = 1;
  uint64_t num_updates = 1;  // counts this one
  Device device;             // of all arrays
  cudaStream_t stream = nullptr;
};

// The update of weights of hidden layers that are matrices (dist::ParamSpec::parts). It has three
// steps:
//
// 1. Stage, for each range that this rank updates, computes values from the gradient.
// 2. Transform works on the values of a whole matrix. One rank does this for each matrix.
// 3. Apply, for each range again, changes the weights by the transformed values.
//
// The caller moves the values between ranks. A matrix is always transformed as a whole, so if the
// first and the last step treat each element by itself, results do not depend on how ranks share
// the matrices.
class MatrixRule {
 public:
  virtual ~MatrixRule() = default;

  // Returns true if each head of a part is a matrix of its own.
  virtual bool per_head() const = 0;
  // Returns the type of the values that are moved. The transform computes in it.
  virtual DType value_dtype(Device::Kind device) const = 0;
  // FLOPs of Transform, by which the matrices are shared among ranks.
  virtual double TransformFlops(int64_t rows, int64_t columns) const = 0;

  // Advances the range's state and writes its values to `out` [range.end - range.begin].
  virtual void Stage(const UpdateArgs& args, const Range& range, const TensorRef& out) const = 0;
  // Transforms `matrix` [rows, columns] in place.
  virtual void Transform(const TensorRef& matrix, int64_t rows, int64_t columns) const = 0;
  // Updates the range's weights, and their copy, by its transformed values `in`.
  virtual void Apply(const UpdateArgs& args, const Range& range, const TensorRef& in) const = 0;
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // Returns the state arrays, such as {"m", "v"}. Each is fp32, has an element for every element of
  // the arena, and starts at zero. Checkpoints call them "optim/m" and "optim/v".
  virtual std::vector<std::string> state_names() const = 0;
  // Returns the rule by which this optimizer updates matrices. Null: it updates them element by
  // element, like all other parameters.
  virtual const MatrixRule* matrix_rule() const { return nullptr; }

  // Called once, before Update, with all ranges but those of the matrix rule. Returns the bytes
  // that Update reads in the memory of the arrays.
  virtual std::string Prepare(const std::vector<Range>& ranges) = 0;
  // Updates the weights and states of these ranges, and rounds the new weights into the copy.
  virtual void Update(const UpdateArgs& args) = 0;
};

}  // namespace halflife::optim
