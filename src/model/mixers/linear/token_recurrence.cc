#include "model/mixers/linear/token_recurrence.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "core/error.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

using ops::SegmentState;
using ops::SegmentSummary;
using ops::Tensors;

// The recurrence over the tokens of one slice, whose state is fp32 or fp64.
class TokenScan {
 public:
  struct Output {
    at::Tensor o;      // [B, T, H, V], dtype of the inputs
    at::Tensor state;  // [B, H, K, V] after the last token
  };

  TokenScan(const TokenRecurrence& recurrence, const at::Tensor& starts, const at::Tensor& input)
      : recurrence_(recurrence),
        starts_(starts),
        shape_(recurrence.state_shape()),
        batch_(input.size(0)),
        seq_len_(input.size(1)),
        options_(input.options().dtype(ops::ComputeType(input)).requires_grad(false)) {}

  at::Tensor ZeroState() const {
    return at::zeros({batch_, shape_.num_heads, shape_.dim_k, shape_.dim_v}, options_);
  }

  // `state`: before the first token.
  Output Run(const Tensors& inputs, at::Tensor state) const {
    const at::ScalarType dtype = inputs[0].scalar_type();
    Tensors outputs;
    for (int64_t t = 0; t < seq_len_; ++t) {
      const TokenRecurrence::Token token = TokenAt(inputs, t);
      // Fills rather than multiplies by 0, which would pass a NaN on.
      if (starts_.defined())
        state = state.masked_fill(starts_.select(1, t).view({batch_, 1, 1, 1}), 0);
      state = recurrence_.Transition(token, state) + recurrence_.Update(token);
      outputs.push_back(recurrence_.Read(token, state));
    }
    if (outputs.empty())
      return {.o = at::zeros({batch_, 0, shape_.num_heads, shape_.dim_v}, options_).to(dtype),
              .state = state};
    return {.o = at::stack(outputs, 1).to(dtype), .state = state};
  }

  // Summarises a slice without gradients. The transition of the whole slice is the product of its
  // tokens' transitions.
  SegmentSummary Summarise(const Tensors& inputs, const ops::RowSegment& row) const {
    const at::NoGradGuard no_grad;
    at::Tensor product = at::eye(shape_.dim_k, options_)
                             .expand({batch_, shape_.num_heads, shape_.dim_k, shape_.dim_k});
    for (int64_t t = 0; t < seq_len_; ++t)
      product = recurrence_.Transition(TokenAt(inputs, t), product);
    return {.own = {.values = {Run(inputs, ZeroState()).state}},
            .transition_matrix = ops::CutMatrixByStarts(product.contiguous(), row)};
  }

  SegmentSummary EmptySummary() const {
    return {.own = {.values = {ZeroState()}},
            .transition_matrix =
                at::zeros({batch_, shape_.num_heads, shape_.dim_k, shape_.dim_k}, options_)};
  }

 private:
  TokenRecurrence::Token TokenAt(const Tensors& inputs, int64_t t) const {
    TokenRecurrence::Token token;
    for (const at::Tensor& x : inputs) token.push_back(x.select(1, t).to(options_.dtype()));
    return token;
  }

  const TokenRecurrence& recurrence_;
  const at::Tensor starts_;  // [B, T] bool, or undefined
  const TokenRecurrence::StateShape shape_;
  const int64_t batch_, seq_len_;
  const at::TensorOptions options_;
};

// Scans a slice whose earlier tokens are on other ranks.
at::Tensor ScanSegment(const TokenScan& scan, const Tensors& inputs, const ops::RowSegment& row) {
  const auto run = [scan](const Tensors& x, const SegmentState& before) -> ops::ScannedSegment {
    const TokenScan::Output output =
        scan.Run(x, before.values.empty() ? scan.ZeroState() : before.values[0]);
    return {.outputs = {output.o}, .after = {.values = {output.state}}};
  };
  return ops::RunSegment({.name = "TokenRecurrence",
                          .inputs = inputs,
                          .run = run,
                          .summarise = [&] { return scan.Summarise(inputs, row); },
                          .nothing = [&] { return scan.EmptySummary(); }},
                         row)[0];
}

}  // namespace

MixerTraits TokenRecurrence::traits() const {
  const StateShape shape = state_shape();
  return {.state = {{.name = "kv", .shape = {shape.num_heads, shape.dim_k, shape.dim_v}}}};
}

RecurrenceOutput TokenRecurrence::Scan(const RecurrenceInputs& inputs,
                                       const MixerCall& call) const {
  const Tensors prepared = Prepare(inputs);
  HL_CHECK(!prepared.empty(), "a recurrence of tokens without inputs");
  const TokenScan scan(*this, call.slice.starts, prepared[0]);
  if (call.slice.segment != nullptr)
    return {.o = ScanSegment(scan, prepared, *call.slice.segment), .state = {}};
  TokenScan::Output output =
      scan.Run(prepared, call.carried() ? call.initial->tensors[0] : scan.ZeroState());
  RecurrenceOutput result = {.o = output.o, .state = {}};
  if (call.want_state) result.state = {output.state};
  return result;
}

at::Tensor TokenRecurrence::Step(const RecurrenceInputs& inputs, const SequenceSlice&,
                                 std::span<at::Tensor> state) const {
  const Tensors prepared = Prepare(inputs);
  TokenScan::Output output = TokenScan(*this, /*starts=*/{}, prepared[0]).Run(prepared, state[0]);
  state[0] = output.state;
  return output.o.squeeze(1);
}

}  // namespace halflife::model
