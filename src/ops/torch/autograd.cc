#include "ops/torch/autograd.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable_info.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace halflife::ops {
namespace {

namespace autograd = torch::autograd;

// The autograd node of all kernels. Like torch::autograd::CppNode, but the backward is a value and
// not a class.
class KernelNode : public autograd::Node {
 public:
  KernelNode(const char* name, bool undefined_grads)
      : name_(name), undefined_grads_(undefined_grads) {}

  std::string name() const override { return name_; }

  // `outputs` are already wrapped. A saved output must not keep this node alive.
  void Keep(const Tensors& outputs, const Tensors& saved, const BackwardFunction& backward) {
    for (const at::Tensor& output : outputs)
      output.defined() ? output_info_.emplace_back(output) : output_info_.emplace_back();
    for (const at::Tensor& x : saved) {
      if (x.defined()) {
        saved_.emplace_back(x, /*is_output=*/x.grad_fn().get() == this);
      } else {
        saved_.emplace_back();
      }
    }
    backward_ = backward;
  }

  autograd::variable_list apply(autograd::variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    Tensors results =
        backward_({.saved = Saved(), .grads = Grads(std::move(grads)), .wanted = Wanted()});
    HL_CHECK(results.size() == num_outputs(), name_, " returned ", results.size(),
             " gradients for ", num_outputs(), " inputs");
    return results;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    released_ = !saved_.empty() || released_;
    saved_.clear();
  }

 private:
  Tensors Saved() {
    TORCH_CHECK(!released_, autograd::ERR_BACKWARD_TWICE);
    const std::shared_ptr<Node> self = shared_from_this();
    Tensors saved;
    for (const autograd::SavedVariable& x : saved_) saved.push_back(x.unpack(self));
    return saved;
  }

  Tensors Grads(Tensors&& grads) const {
    at::OptionalDeviceGuard guard;
    for (size_t i = 0; i < grads.size() && !undefined_grads_; ++i)
      if (!grads[i].defined()) grads[i] = output_info_[i].zeros(guard);
    return std::move(grads);
  }

  std::vector<bool> Wanted() const {
    std::vector<bool> wanted;
    for (size_t i = 0; i < num_outputs(); ++i) wanted.push_back(task_should_compute_output(i));
    return wanted;
  }

  const char* name_;
  bool undefined_grads_;
  bool released_ = false;  // set by a backward that did not retain the graph
  std::vector<autograd::SavedVariable> saved_;
  std::vector<autograd::VariableInfo> output_info_;
  BackwardFunction backward_;
};

// Returns the outputs with `node` as their grad_fn. A null `node` makes them constants.
Tensors Wrap(const Tensors& inputs, const Forwarded& result,
             const std::shared_ptr<KernelNode>& node) {
  std::unordered_set<at::TensorImpl*> constant;
  for (size_t i = result.outputs.size() - result.num_constant; i < result.outputs.size(); ++i)
    constant.insert(result.outputs[i].unsafeGetTensorImpl());
  std::vector<std::optional<at::Tensor>> raw;
  for (const at::Tensor& output : result.outputs)
    raw.push_back(output.defined() ? std::optional(output) : std::nullopt);
  const auto no_jvp = [](const Tensors&, const Tensors&) -> Tensors {
    TORCH_CHECK(false, "the kernels have no forward-mode differentiation");
  };
  const auto view_as_self = [](const at::Tensor& x) { return x.view_as(x); };
  Tensors outputs;
  for (const std::optional<at::Tensor>& output :
       autograd::_wrap_outputs(inputs, constant, {}, raw, node, no_jvp, {}, view_as_self, false))
    outputs.push_back(output.value_or(at::Tensor()));
  return outputs;
}

// Detached copies of the inputs as leaves of a separate graph, and the outputs computed from them.
struct OwnGraph {
  Tensors leaves, outputs;

  OwnGraph(const Tensors& inputs, const std::function<Tensors(const Tensors&)>& forward) {
    for (const at::Tensor& x : inputs) {
      leaves.push_back(x.defined() ? x.detach() : x);
      if (x.defined()) leaves.back().requires_grad_(x.requires_grad());
    }
    const c10::AutoGradMode with_gradients(true);
    outputs = forward(leaves);
  }
};

}  // namespace

Tensors Apply(const AutogradFunction& function) {
  if (const auto& functorch = at::functorch::functorchTLSAccessor())
    functorch->checkSupportsCppAutogradFunction();
  std::shared_ptr<KernelNode> node;
  if (c10::GradMode::is_enabled() && autograd::any_variable_requires_grad(function.inputs)) {
    // Created before the forward runs, because the engine runs nodes with higher sequence numbers
    // first.
    node = {new KernelNode(function.name, function.undefined_grads), autograd::deleteNode};
    node->set_next_edges(autograd::collect_next_edges(function.inputs));
    node->clear_input_metadata();
  }
  Forwarded result;
  {
    const c10::AutoGradMode no_grad(false);
    result = function.forward();
  }
  Tensors given;
  for (const at::Tensor& input : function.inputs)
    if (input.defined()) given.push_back(input);
  Tensors outputs = Wrap(given, result, node);
  if (node != nullptr) node->Keep(outputs, result.saved, result.backward);
  return outputs;
}

Tensors Recomputed(const char* name, const Tensors& inputs,
                   const std::function<Tensors(const Tensors& inputs)>& forward) {
  if (!c10::GradMode::is_enabled() || !autograd::any_variable_requires_grad(inputs))
    return forward(inputs);
  const auto backward = [forward](const BackwardCall& call) -> Tensors {
    OwnGraph graph(call.saved, forward);
    autograd::edge_list from;
    Tensors with;
    for (size_t i = 0; i < graph.outputs.size(); ++i) {
      if (!call.grads[i].defined() || !graph.outputs[i].requires_grad()) continue;
      from.push_back(autograd::impl::gradient_edge(graph.outputs[i]));
      with.push_back(call.grads[i]);
    }
    graph.outputs.clear();  // autograd::backward would otherwise hold them until it ends
    if (!from.empty())
      autograd::Engine::get_default_engine().execute(from, with, /*keep_graph=*/false,
                                                     /*create_graph=*/false,
                                                     /*accumulate_grad=*/true);
    Tensors grads;
    for (const at::Tensor& leaf : graph.leaves)
      grads.push_back(leaf.defined() ? leaf.grad() : at::Tensor());
    return grads;
  };
  // Gradients are enabled in the first run too: kernels choose their code path by whether a
  // gradient is requested, and another path gives other bits.
  const auto once = [&]() -> Forwarded {
    const OwnGraph graph(inputs, forward);
    Forwarded result = {.outputs = {}, .saved = inputs, .backward = backward};
    for (const at::Tensor& output : graph.outputs)
      result.outputs.push_back(output.defined() ? output.detach() : output);
    return result;
  };
  return Apply({.name = name, .inputs = inputs, .undefined_grads = true, .forward = once});
}

Tensors Differentiate(const Tensors& outputs, const Tensors& grads, const Tensors& inputs,
                      bool keep_graph) {
  Tensors from, with;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad() && grads[i].defined())
      from.push_back(outputs[i]), with.push_back(grads[i]);
  if (from.empty() || inputs.empty()) return Tensors(inputs.size());
  return autograd::grad(from, inputs, with, keep_graph, /*create_graph=*/false,
                        /*allow_unused=*/true);
}

}  // namespace halflife::ops
