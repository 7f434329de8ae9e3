#include "kernels/linear/linear.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SharedInputLinearFunction : torch::autograd::Function<SharedInputLinearFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               at::TensorList weights) {
    variable_list saved = {x}, outs;
    for (const at::Tensor& weight : weights) {
      saved.push_back(weight);
      outs.push_back(at::linear(x, weight));
    }
    context->set_materialize_grads(false);
    context->save_for_backward(std::move(saved));
    return outs;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = saved[0].flatten(0, -2);  // [tokens, D]
    at::Tensor dx;
    variable_list result(1 + grads.size());
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!grads[i].defined()) continue;
      const at::Tensor& weight = saved[1 + i];
      const at::Tensor dy = grads[i].flatten(0, -2);
      if (context->needs_input_grad(1 + i)) result[1 + i] = at::mm(dy.t(), x);
      if (!context->needs_input_grad(0)) continue;
      if (dx.defined()) {
        dx.addmm_(dy, weight);
      } else {
        dx = at::mm(dy, weight);
      }
    }
    if (dx.defined()) result[0] = dx.view(saved[0].sizes());
    return result;
  }
};

}  // namespace

std::vector<at::Tensor> SharedInputLinear(const at::Tensor& x,
                                          const std::vector<at::Tensor>& weights) {
  return SharedInputLinearFunction::apply(x, at::TensorList(weights));
}

}  // namespace halflife::kernels
