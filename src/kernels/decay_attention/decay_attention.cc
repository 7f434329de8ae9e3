#include "kernels/decay_attention/decay_attention.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/exp.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>

#include "core/error.h"
#include "kernels/decay_attention/chunks.h"
#include "kernels/dispatch.h"

namespace halflife::kernels {
namespace {

using internal::Bmm;
using internal::ChunkShape;
using internal::ChunkWeights;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::unique_ptr<ChunkWeights> MakeWeights(const DecayAttentionInputs& inputs,
                                          const ChunkShape& shape, double scale) {
  const at::Tensor log_decay = internal::PackLogDecay(inputs, shape);
  return internal::IsChannelDecay(inputs) ? internal::MakeChannelWeights(log_decay, scale)
                                          : internal::MakeScalarWeights(log_decay, scale);
}

// What each chunk adds to the state: sum_s (k_s Q_s)^T v_s, [B, H, N, K, V].
at::Tensor StateTerms(const ChunkWeights& weights, const at::Tensor& k, const at::Tensor& v) {
  return Bmm(weights.WeighOutgoing(k).transpose(-1, -2), v);
}

// a += b c over the last two dims.
void AddBmm(at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  a.flatten(0, -3).baddbmm_(b.flatten(0, -3), c.flatten(0, -3));
}

struct ChunkOperands {
  at::Tensor q, k, v, dout;  // [B, H, N, C, *]
};

struct ForwardResult {
  DecayAttentionOutput output;
  at::Tensor states;  // before each chunk [B, H, N, K, V]
};

ForwardResult RunForward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  const ChunkShape shape = internal::MakeChunkShape(inputs, config);
  const auto weights = MakeWeights(inputs, shape, config.scale);
  const at::Tensor q = internal::Pack(inputs.q, shape), k = internal::Pack(inputs.k, shape),
                   v = internal::Pack(inputs.v, shape);
  ForwardResult result;
  result.states = StateTerms(*weights, k, v);
  result.output.final_state = internal::ScanStates(result.states, weights->transition(),
                                                   inputs.initial_state, /*reverse=*/false);
  at::Tensor out = Bmm(weights->Scores(q, k), v);
  AddBmm(out, weights->WeighIncoming(q), result.states);
  result.output.out = internal::Unpack(out, shape, inputs.v.scalar_type());
  return result;
}

struct ChunkGrads {
  ChunkWeights::Grads tokens;
  at::Tensor dv;  // [B, H, N, C, V]
  at::Tensor dinitial_state;
};

// With S the state before a chunk and R the gradient of the state after it: R' = G R + sum_r (q_r P_r)^T do_r going back,
// dv_s = sum_r A_rs do_r + (k_s Q_s) R.
ChunkGrads BackwardChunks(const ChunkWeights& weights, const ChunkOperands& x,
                          const at::Tensor& states, const at::Tensor& dfinal_state,
                          bool want_decay) {
  ChunkGrads grads;
  at::Tensor dstates = Bmm(weights.WeighIncoming(x.q).transpose(-1, -2), x.dout);
  grads.dinitial_state =
      internal::ScanStates(dstates, weights.transition(), dfinal_state, /*reverse=*/true);
  ChunkWeights::Terms terms = {.q = x.q,
                               .k = x.k,
                               .scores = weights.Scores(x.q, x.k),
                               .dscores = Bmm(x.dout, x.v.transpose(-1, -2)),
                               .q_state = Bmm(x.dout, states.transpose(-1, -2)),
                               .k_state = Bmm(x.v, dstates.transpose(-1, -2)),
                               .through = {}};
  if (want_decay) terms.through = (states * dstates).sum(-1);
  grads.dv = Bmm(terms.scores.transpose(-1, -2), x.dout);
  AddBmm(grads.dv, weights.WeighOutgoing(x.k), dstates);
  grads.tokens = weights.Gradients(terms);
  return grads;
}

// -inf cannot move: its gradient is 0 (the sums above are 0 too, but for rounding).
at::Tensor UnpackDecayGradient(const at::Tensor& packed, const DecayAttentionInputs& inputs,
                               const ChunkShape& shape) {
  const bool per_channel = internal::IsChannelDecay(inputs);
  const at::ScalarType dtype = inputs.log_decay.scalar_type();
  at::Tensor grad = internal::Unpack(per_channel ? packed : packed.unsqueeze(4), shape, dtype);
  if (!per_channel) grad = grad.squeeze(3);
  at::Tensor fixed = inputs.log_decay.detach() == -std::numeric_limits<double>::infinity();
  if (inputs.starts.defined())
    fixed = fixed.logical_or(per_channel ? inputs.starts.unsqueeze(2).unsqueeze(3)
                                         : inputs.starts.unsqueeze(2));
  return grad.masked_fill_(fixed, 0);
}

DecayAttentionGrads RunBackward(const DecayAttentionInputs& inputs,
                                const DecayAttentionConfig& config, const at::Tensor& dout,
                                const at::Tensor& dfinal_state, at::Tensor states) {
  const ChunkShape shape = internal::MakeChunkShape(inputs, config);
  const auto weights = MakeWeights(inputs, shape, config.scale);
  const ChunkOperands operands = {.q = internal::Pack(inputs.q, shape),
                                  .k = internal::Pack(inputs.k, shape),
                                  .v = internal::Pack(inputs.v, shape),
                                  .dout = internal::Pack(dout, shape)};
  if (!states.defined()) {
    states = StateTerms(*weights, operands.k, operands.v);
    internal::ScanStates(states, weights->transition(), inputs.initial_state, /*reverse=*/false);
  }
  const ChunkGrads grads =
      BackwardChunks(*weights, operands, states, dfinal_state, !internal::IsConstantDecay(inputs));
  const ChunkWeights::Grads& tokens = grads.tokens;
  DecayAttentionGrads result = {.dq = internal::Unpack(tokens.dq, shape, inputs.q.scalar_type()),
                                .dk = internal::Unpack(tokens.dk, shape, inputs.k.scalar_type()),
                                .dv = internal::Unpack(grads.dv, shape, inputs.v.scalar_type()),
                                .dlog_decay = {},
                                .dinitial_state = grads.dinitial_state};
  if (tokens.dlog_decay.defined())
    result.dlog_decay = UnpackDecayGradient(tokens.dlog_decay, inputs, shape);
  return result;
}

struct DecayAttentionFunction : torch::autograd::Function<DecayAttentionFunction> {
  using Optional = const std::optional<at::Tensor>&;

  static variable_list forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                               const at::Tensor& v, const at::Tensor& log_decay,
                               Optional initial_state, Optional documents, Optional starts,
                               double scale, int64_t chunk_size) {
    context->set_materialize_grads(false);
    const DecayAttentionInputs inputs = {.q = q,
                                         .k = k,
                                         .v = v,
                                         .log_decay = log_decay,
                                         .documents = documents.value_or(at::Tensor()),
                                         .starts = starts.value_or(at::Tensor()),
                                         .initial_state = initial_state.value_or(at::Tensor())};
    const ForwardResult result = RunForward(inputs, {.scale = scale, .chunk_size = chunk_size});
    context->save_for_backward(
        {q, k, v, log_decay, inputs.initial_state, inputs.documents, inputs.starts, result.states});
    context->saved_data["scale"] = scale;
    context->saved_data["chunk_size"] = chunk_size;
    return {result.output.out, result.output.final_state};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const DecayAttentionInputs inputs = {.q = saved[0],
                                         .k = saved[1],
                                         .v = saved[2],
                                         .log_decay = saved[3],
                                         .documents = saved[5],
                                         .starts = saved[6],
                                         .initial_state = saved[4]};
    const DecayAttentionConfig config = {.scale = context->saved_data["scale"].toDouble(),
                                         .chunk_size = context->saved_data["chunk_size"].toInt()};
    const at::Tensor dout = grads[0].defined() ? grads[0] : inputs.v.new_zeros(inputs.v.sizes());
    DecayAttentionGrads result = RunBackward(inputs, config, dout, grads[1], saved[7]);
    at::Tensor dinitial_state;
    if (inputs.initial_state.defined())
      dinitial_state = result.dinitial_state.to(inputs.initial_state.scalar_type());
    return {result.dq,    result.dk,    result.dv,    result.dlog_decay, dinitial_state,
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

std::optional<at::Tensor> IfDefined(const at::Tensor& x) {
  return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
}

// Sum of log_decay over all tokens, -inf where a document starts: [B, H, K or 1].
at::Tensor LogTransition(const DecayAttentionInputs& inputs, const ChunkShape& shape) {
  at::Tensor total;
  if (internal::IsConstantDecay(inputs)) {
    total = (inputs.log_decay * shape.seq_len).view({1, -1, 1}).expand({shape.batch, -1, 1});
  } else {
    total = inputs.log_decay.detach().to(shape.compute).sum(1);
    if (!internal::IsChannelDecay(inputs)) total = total.unsqueeze(2);
  }
  if (!inputs.starts.defined()) return total.contiguous();
  return total.masked_fill(inputs.starts.any(1).view({-1, 1, 1}),
                           -std::numeric_limits<double>::infinity());
}

}  // namespace

DecayAttentionOutput DecayAttention(const DecayAttentionInputs& inputs,
                                    const DecayAttentionConfig& config) {
  const variable_list out = DecayAttentionFunction::apply(
      inputs.q, inputs.k, inputs.v, inputs.log_decay, IfDefined(inputs.initial_state),
      IfDefined(inputs.documents), IfDefined(inputs.starts), config.scale, config.chunk_size);
  return {out[0], out[1]};
}

DecaySegment Summarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  const ChunkShape shape = internal::MakeChunkShape(inputs, config);
  const auto weights = MakeWeights(inputs, shape, config.scale);
  at::Tensor terms =
      StateTerms(*weights, internal::Pack(inputs.k, shape), internal::Pack(inputs.v, shape));
  return {.log_transition = LogTransition(inputs, shape),
          .state = internal::ScanStates(terms, weights->transition(), at::Tensor(), false)};
}

at::Tensor BackwardSummarise(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout) {
  const ChunkShape shape = internal::MakeChunkShape(inputs, config);
  const auto weights = MakeWeights(inputs, shape, config.scale);
  const at::Tensor q = internal::Pack(inputs.q, shape);
  at::Tensor terms = Bmm(weights->WeighIncoming(q).transpose(-1, -2), internal::Pack(dout, shape));
  return internal::ScanStates(terms, weights->transition(), at::Tensor(), true);
}

DecayAttentionGrads Backward(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config,
                             const at::Tensor& dout, const at::Tensor& dfinal_state) {
  return RunBackward(inputs, config, dout, dfinal_state, at::Tensor());
}

at::Tensor DecayAttentionStep(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                              const at::Tensor& log_decay, double scale, at::Tensor& state) {
  const at::ScalarType compute = ComputeType(state);
  at::Tensor decay = log_decay.to(compute).exp();  // [H], [B, H] or [B, H, K]
  if (decay.dim() < 3) decay = decay.unsqueeze(-1);
  state.mul_(decay.unsqueeze(-1));
  state.addcmul_(k.to(compute).unsqueeze(3), v.to(compute).unsqueeze(2));
  const at::Tensor read = Bmm(q.to(compute).unsqueeze(2) * scale, state);  // [B, H, 1, V]
  return read.squeeze(2).to(v.scalar_type());
}

}  // namespace halflife::kernels
