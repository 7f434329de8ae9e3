// Defines differentiable operations from a forward and a backward function, like
// torch.autograd.Function. LibTorch's autograd headers double the compile time of a file, so only
// autograd.cc includes them; every kernel family goes through this header.
//
//   const auto backward = [](const BackwardCall& call) -> Tensors {
//     return {2 * call.saved[0] * call.grads[0]};
//   };
//   const auto forward = [&]() -> Forwarded {
//     return {.outputs = {x * x}, .saved = {x}, .backward = backward};
//   };
//   const Tensors out = Apply({.name = "Square", .inputs = {x}, .forward = forward});
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <functional>
#include <vector>

namespace halflife::ops {

using Tensors = std::vector<at::Tensor>;

struct BackwardCall {
  Tensors saved;             // saved by the forward
  Tensors grads;             // one per output
  std::vector<bool> wanted;  // one per input: whether its gradient will be used
};
// One gradient per input; undefined if the input has none.
using BackwardFunction = std::function<Tensors(const BackwardCall& call)>;

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
