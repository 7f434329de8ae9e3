// The recurrence of a linear mixer: what it computes from the queries, keys and values of its heads
// between the projections and the output norm. LinearMixer (linear_mixer.h) provides everything
// around it. A recurrence defines its own state, also for decoding and for rows that are split over
// ranks, and its costs.
//
// Shapes: B batch, T seq_len, H heads of the output, Hq, Hk and Hv heads of q, k and v, F features
// of q and k, V head_dim_v.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/mixer.h"
#include "model/mixers/linear/feature_map.h"
#include "ops/linear/linear.h"

namespace halflife::model {

// The heads that LinearMixer passes to the recurrence. Head h of the output reads head
// h * heads / H of each operand.
struct RecurrenceHeads {
  int64_t num_heads = 0;  // H, the largest of the following, which divide it
  int64_t num_q_heads = 0, num_k_heads = 0, num_v_heads = 0;  // Hq, Hk, Hv
  int64_t num_features = 0, head_dim_v = 0;                   // F, V
  bool keys_have_log_scale = false;  // RecurrenceInputs::k.log_scale is defined
};

struct RecurrenceInputs {
  at::Tensor x;                               // [B, T, model_dim], the input of the mixer
  std::span<const ops::LinearPart> products;  // [B, T, *], x times each of Recurrence::Weights()
  Features q, k;                              // [B, T, Hq, F] and [B, T, Hk, F]
  at::Tensor v;                               // [B, T, Hv, V]
  ops::ColumnSlice v_gradient = {};           // buffer of the gradient of v
};

struct RecurrenceOutput {
  at::Tensor o;                   // [B, T, H, V]
  std::vector<at::Tensor> state;  // as in traits().state; empty unless want_state
};

// The work and memory of a recurrence per token.
struct RecurrenceCost {
  int64_t matrix_elements = 0;  // of the weights that each token is multiplied with
  double mixing_flops = 0;      // FlopCount::mixing
  // Elements that backward keeps in the compute dtype and in fp32, without x, q, k, v and o.
  double activations = 0, fp32_activations = 0;
  bool keeps_q_and_k = true;  // whether backward keeps q and k as the recurrence receives them
};

class Recurrence {
 public:
  virtual ~Recurrence() = default;

  // Returns the properties that the recurrence gives its mixer. `state` lists its own tensors.
  virtual MixerTraits traits() const = 0;
  // Matrices [*, model_dim] whose products with x it reads. LinearMixer multiplies them together
  // with its projections, in one matrix product.
  virtual std::vector<at::Tensor> Weights() const { return {}; }

  // Processes all tokens of call.slice. The initial state is the first part of
  // call.initial->tensors.
  virtual RecurrenceOutput Scan(const RecurrenceInputs& inputs, const MixerCall& call) const = 0;
  // Processes one token of each row: inputs with T = 1 -> o [B, H, V]. Updates `state`.
  virtual at::Tensor Step(const RecurrenceInputs& inputs, const SequenceSlice& token,
                          std::span<at::Tensor> state) const = 0;

  virtual RecurrenceCost CostPerToken(int64_t seq_len) const = 0;
  // As in Mixer.
  virtual double GpuActivationBytesPerToken(int64_t /*bytes_per_element*/) const { return 0; }
  virtual double WorkspaceBytes(const GpuBatch&) const { return 0; }
};

// Makes a recurrence and declares its parameters.
using RecurrenceFactory =
    std::function<std::unique_ptr<Recurrence>(const PartContext&, const RecurrenceHeads&)>;

}  // namespace halflife::model
