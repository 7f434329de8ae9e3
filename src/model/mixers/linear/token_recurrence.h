// A recurrence that is written with LibTorch operations, for one token at a time:
//
//   S_t = A_t S_{t-1} + B_t,   o_t = read(S_t),   S [H, K, V] per row
//
// A_t acts on the K key channels of each head and may be any K x K matrix: a decay, or
// I - beta k k^T of the delta rule. A subclass writes these three operations for one token. The
// base class makes everything else that a mixer needs: a differentiable scan over rows with packed
// documents, rows that are split over several ranks, and decoding.
//
//   class MovingAverage : public TokenRecurrence {
//    public:
//     StateShape state_shape() const override { return {.num_heads = 4, .dim_k = 1, .dim_v = 16}; }
//     std::vector<at::Tensor> Prepare(const RecurrenceInputs& x) const override { return {x.v}; }
//     at::Tensor Transition(const Token&, const at::Tensor& s) const override { return 0.9 * s; }
//     at::Tensor Update(const Token& x) const override { return x[0].unsqueeze(2); }
//     at::Tensor Read(const Token&, const at::Tensor& s) const override { return s.squeeze(2); }
//     RecurrenceCost CostPerToken(int64_t) const override { return {.mixing_flops = 128}; }
//   };
//
// It is correct on CPU and GPU, but slow: it launches several operations per token, and autograd
// keeps a few states per token. Use it to try an idea, and write kernels once it works.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/mixers/linear/recurrence.h"

namespace halflife::model {

class TokenRecurrence : public Recurrence {
 public:
  struct StateShape {
    int64_t num_heads = 0, dim_k = 0, dim_v = 0;
  };
  // One token of each tensor that Prepare returns, [B, ...]: fp32 (fp64 for fp64 inputs).
  using Token = std::vector<at::Tensor>;

  virtual StateShape state_shape() const = 0;
  // Returns the tensors [B, T, ...] that the three operations read. Differentiable; at least one.
  virtual std::vector<at::Tensor> Prepare(const RecurrenceInputs& inputs) const = 0;
  // Returns A_t S for a state [B, H, K, V], or for any other number of columns in place of V. It
  // must be linear in S and treat the columns alike.
  virtual at::Tensor Transition(const Token& token, const at::Tensor& state) const = 0;
  // Returns B_t [B, H, K, V], or a shape that broadcasts to it.
  virtual at::Tensor Update(const Token& token) const = 0;
  // o_t [B, H, V] from the state after the token.
  virtual at::Tensor Read(const Token& token, const at::Tensor& state) const = 0;

  MixerTraits traits() const final;
  RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const final;
  at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                  std::span<at::Tensor> state) const final;
};

}  // namespace halflife::model
