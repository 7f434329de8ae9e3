// Defines differentiable operations from a forward and a backward function, like
// torch.autograd.Function. LibTorch's autograd headers double the compile time of a file, so only
// autograd.cc includes them; every kernel family goes through this header.
//
// An operation declares three structs of tensors: its inputs that may require a gradient, its
// outputs, and the tensors that its forward saves for its backward. The backward returns an Inputs
// whose fields are the gradients.
//
//   struct Square {
//     struct Inputs { at::Tensor x; };
//     struct Outputs { at::Tensor y; };
//     struct Saved { at::Tensor x; };
//   };
//   const auto backward = [](const BackwardOf<Square>& call) -> Square::Inputs {
//     return {.x = 2 * call.saved.x * call.grads.y};
//   };
//   const auto forward = [&]() -> ForwardOf<Square> {
//     return {.outputs = {.y = x * x}, .saved = {.x = x}, .backward = backward};
//   };
//   const at::Tensor y = Apply<Square>({.name = "Square", .inputs = {x}, .forward = forward}).y;
//
// The functions on lists of tensors are for operations whose inputs or outputs are a list.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "ops/torch/tensor_struct.h"

namespace halflife::ops {

using Tensors = std::vector<at::Tensor>;

struct BackwardCall {
  Tensors saved;             // saved by the forward
  Tensors grads;             // one per output
  std::vector<bool> wanted;  // one per input: whether its gradient will be used
};
// One gradient per input; undefined if the input has none. The call is passed by value, so that a
// backward can own the tensors that nothing else references.
using BackwardFunction = std::function<Tensors(BackwardCall call)>;

struct Forwarded {
  Tensors outputs;  // may be undefined
  // Inputs, outputs or intermediate tensors; may be undefined. They live until a backward pass that
  // does not retain the graph. The backward fails if one of them was modified in place. Do not
  // capture tensors in `backward` instead: a captured input would not be checked for modification,
  // and a captured output would keep its own graph alive.
  Tensors saved;
  BackwardFunction backward;
  // Number of outputs, counted from the last, that are not differentiable.
  size_t num_constant = 0;
};

struct AutogradFunction {
  const char* name = "";  // name in LibTorch's messages
  Tensors inputs;         // inputs that may require a gradient; undefined: absent
  // If true, an output without a gradient has an undefined tensor in `grads` instead of zeros.
  bool undefined_grads = false;
  std::function<Forwarded()> forward;
};

// Runs forward() immediately, without recording gradients, and returns its outputs. The backward is
// kept if an input requires a gradient and GradMode is enabled.
Tensors Apply(const AutogradFunction& function);

// Returns true if Apply() would keep a backward: GradMode is enabled and a tensor of the struct
// requires a gradient.
template <typename S>
bool WillBeDifferentiated(const S& inputs) {
  bool requires_grad = false;
  tensor_struct::VisitTensors(inputs, [&](const at::Tensor& x) {
    requires_grad = requires_grad || (x.defined() && x.requires_grad());
  });
  return requires_grad && c10::GradMode::is_enabled();
}

// The types above for an operation with structs of tensors. Fields have the same meaning.
template <typename Op>
struct BackwardOf {
  typename Op::Saved saved;
  typename Op::Outputs grads;
  std::vector<bool> wanted;

  // Returns true if the gradient of a field of the inputs will be used.
  bool Wants(at::Tensor Op::Inputs::*input) const { return wanted[IndexOfField(input)]; }
  // The same for element `number` of a list, or for a field of that element.
  bool Wants(std::vector<at::Tensor> Op::Inputs::*list, size_t number) const {
    return wanted[IndexOfField(list) + number];
  }
  template <typename Element>
  bool Wants(std::vector<Element> Op::Inputs::*list, size_t number,
             at::Tensor Element::*input) const {
    const size_t per_element = ToList(Element()).size();
    return wanted[IndexOfField(list) + number * per_element + IndexOfField(input)];
  }
};

template <typename Op>
struct ForwardOf {
  typename Op::Outputs outputs;
  typename Op::Saved saved;
  std::function<typename Op::Inputs(const BackwardOf<Op>& call)> backward;
  size_t num_constant = 0;
};

template <typename Op>
struct OperationCall {
  const char* name = "";
  typename Op::Inputs inputs;
  bool undefined_grads = false;
  std::function<ForwardOf<Op>()> forward;
};

template <typename Op>
typename Op::Outputs Apply(const OperationCall<Op>& call) {
  const auto forward = [&]() -> Forwarded {
    ForwardOf<Op> result = call.forward();
    return {.outputs = ToList(result.outputs),
            .saved = ToList(result.saved),
            .backward =
                [backward = std::move(result.backward)](BackwardCall given) {
                  return ToList(
                      backward({.saved = FromList<typename Op::Saved>(std::move(given.saved)),
                                .grads = FromList<typename Op::Outputs>(std::move(given.grads)),
                                .wanted = std::move(given.wanted)}));
                },
            .num_constant = result.num_constant};
  };
  return FromList<typename Op::Outputs>(Apply({.name = call.name,
                                               .inputs = ToList(call.inputs),
                                               .undefined_grads = call.undefined_grads,
                                               .forward = forward}));
}

// Activation checkpointing: returns forward(inputs) and keeps only the inputs. The backward pass
// runs `forward` again and also accumulates the gradients of the leaves (parameters) that it reads.
// Both runs must produce the same bits, so random numbers must be a function of a key. `forward` is
// kept alive until the backward has run. If no input requires a gradient, `forward` runs once as it
// is.
Tensors Recomputed(const char* name, const Tensors& inputs,
                   const std::function<Tensors(const Tensors& inputs)>& forward);

// Returns the gradients of `inputs` given those of `outputs`, through the graph between them;
// undefined for an input that no output depends on. Set `keep_graph` if the graph is needed for
// another call.
Tensors Differentiate(const Tensors& outputs, const Tensors& grads, const Tensors& inputs,
                      bool keep_graph);

}  // namespace halflife::ops
