// The one door of the kernels to LibTorch's autograd, whose headers double the time that a file
// takes to compile: autograd.cc alone includes them. A family says here what it computes and how
// that is differentiated, as with torch.autograd.Function.
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
  Tensors saved;             // what the forward saved
  Tensors grads;             // one an output
  std::vector<bool> wanted;  // one an input: whether its gradient will be used
};
// One gradient an input; undefined where there is none.
using BackwardFunction = std::function<Tensors(const BackwardCall& call)>;

struct Forwarded {
  Tensors outputs;  // undefined ones stay so
  // Inputs, outputs or neither; undefined ones stay so. They live until a backward that does not
  // retain the graph, and one that was modified in place is an error of the backward. A tensor that
  // `backward` captures has neither rule: an input there would go unchecked, an output would keep
  // its own graph alive.
  Tensors saved;
  BackwardFunction backward;
  size_t num_constant = 0;  // outputs, the last ones, that no gradient goes through
};

struct AutogradFunction {
  const char* name = "";  // what LibTorch's messages call it
  Tensors inputs;         // that a gradient may be wanted of; undefined: absent
  // Whether an output that got no gradient has an undefined one in `grads`, not zeros.
  bool undefined_grads = false;
  std::function<Forwarded()> forward;
};

// The outputs of forward(), which runs at once and without gradients. Its backward is kept where an
// input requires a gradient and GradMode is enabled.
Tensors Apply(const AutogradFunction& function);

// forward(inputs), of which backward keeps the inputs alone: it runs `forward` a second time and
// adds to the leaves that this reads (parameters) what they get. Both runs must give the same bits,
// so what is random in them follows from a key. `forward` lives until backward has run. Where no
// input wants a gradient it runs once, as it is.
Tensors Recomputed(const char* name, const Tensors& inputs,
                   const std::function<Tensors(const Tensors& inputs)>& forward);

// The gradients of `inputs` from those of `outputs`, by the graph between them; undefined where
// there is no way. `keep_graph`: for another call.
Tensors Differentiate(const Tensors& outputs, const Tensors& grads, const Tensors& inputs,
                      bool keep_graph);

}  // namespace halflife::ops
