// Runs the blocks in one forward pass over a slice of rows. It prepares the call of each mixer,
// applies dropout, and recomputes in backward what is not kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "model/blocks/block.h"
#include "model/language_model.h"
#include "ops/rows/dropout.h"

namespace halflife::model {

class ForwardPass : public std::enable_shared_from_this<ForwardPass> {
 public:
  // Borrows all three arguments. If rows continue from a `state`, it has an element for every
  // layer; otherwise it is null.
  ForwardPass(const ModelConfig& config, const ForwardContext& context, ModelState* state)
      : config_(config), context_(context), state_(state) {}

  at::Tensor DropFromEmbedding(const at::Tensor& x) const;
  void Run(size_t layer, const Block& block, ResidualStream& stream) const;
  // Puts a node behind a block whose backward calls context.await_backward(layer). Autograd runs it
  // after the backward of all later blocks, and before that of any part of this block: of the nodes
  // that are ready, it runs the latest first.
  void AwaitInBackward(size_t layer, ResidualStream& stream) const;

 private:
  ops::DropoutConfig DropoutOf(uint32_t site, double rate) const;
  at::Tensor Drop(uint32_t site, const at::Tensor& x, double rate) const;
  // `first_values` are those of earlier layers, and are replaced if the mixer publishes its own.
  at::Tensor Mix(size_t layer, const Mixer& mixer, const at::Tensor& x, const SequenceSlice& slice,
                 at::Tensor& first_values) const;
  MixerOutput Call(size_t layer, const Mixer& mixer, MixerCall& call) const;
  MixerOutput OverSegments(size_t layer, const Mixer& mixer, const MixerCall& call) const;
  void RunOnce(size_t layer, const Block& block, ResidualStream& stream,
               const SequenceSlice& slice) const;
  bool drops() const { return context_.training && context_.dropout; }
  bool recomputes(Recompute what) const {
    return context_.training && state_ == nullptr && context_.recompute == what;
  }

  const ModelConfig& config_;
  ForwardContext context_;
  ModelState* state_;
};

}  // namespace halflife::model
