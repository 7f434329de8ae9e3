// Decay attention with constant decays equals its quadratic form over all pairs of tokens, written
// with LibTorch's operators and differentiated by autograd. These are the required properties of
// RetNet and D2D.
#include <ATen/ops/arange.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/full.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "ops/decay_attention/tensor_problem.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::DecayProblem;
using test::LargestError;
using test::MakeProblem;
using test::MeanError;
using test::Normal;
using test::Oracle;

// All results of a problem: out and the final state, then the gradients of q, k, v, log_decay and
// the initial state.
struct Results {
  std::vector<at::Tensor> tensors;
  static constexpr const char* kNames[] = {"out", "state",      "norm",   "dq",   "dk",
                                           "dv",  "dlog_decay", "dstate", "dnorm"};
};

std::vector<at::Tensor*> InputsOf(DecayProblem& p) {
  DecayAttentionInputs& in = p.inputs;
  return {&in.q, &in.k, &in.v, &in.log_decay, &in.initial_state.kv, &in.initial_state.norm};
}
DecayProblem To(DecayProblem p, at::ScalarType dtype) {
  for (at::Tensor* x : InputsOf(p))
    if (x->defined()) *x = x->to(dtype);
  for (at::Tensor* x : {&p.dout, &p.dfinal_state.kv, &p.dfinal_state.norm, &p.inputs.key_scale})
    if (x->defined()) *x = x->to(dtype);
  return p;
}

// log_decay is [H] or [H, K]. Computes in fp64.
DecayAttentionOutput ByPairs(const DecayProblem& p) {
  const DecayAttentionInputs& in = p.inputs;
  const int64_t seq_len = in.q.size(1);
  const at::Tensor place = at::arange(seq_len, at::kDouble);
  const at::Tensor rates = in.log_decay.dim() == 1 ? in.log_decay.unsqueeze(1) : in.log_decay;
  const auto decays = [&](const at::Tensor& tokens) {  // [..., H, 1 or K]
    return (tokens.unsqueeze(-1).unsqueeze(-1) * rates).exp();
  };
  const at::Tensor distance = place.unsqueeze(1) - place;  // [T, S]
  const at::Tensor q = p.config.scale * in.q;
  const at::Tensor k = in.key_scale.defined() ? in.k * in.key_scale.unsqueeze(3) : in.k;
  const at::Tensor of_channels = decays(distance.clamp_min(0)).expand({-1, -1, -1, in.q.size(3)});
  const at::Tensor weights = at::einsum("bthc,bshc,tshc->bhts", {q, k, of_channels}).tril();
  const at::Tensor carried = q * decays(place + 1);  // The part from the initial state.
  at::Tensor out = at::einsum("bhts,bshv->bthv", {weights, in.v});
  if (in.initial_state.kv.defined())
    out = out + at::einsum("bthc,bhcv->bthv", {carried, in.initial_state.kv});
  if (p.config.norm == kernels::NormKind::kSumOfKeys) {
    at::Tensor sums = weights.sum(3).transpose(1, 2);
    if (in.initial_state.norm.defined())
      sums = sums + at::einsum("bthc,bhc->bth", {carried, in.initial_state.norm});
    out = out / (sums + p.config.norm_eps).unsqueeze(3);
  }
  DecayState state;
  const at::Tensor left = k * decays(seq_len - 1 - place);
  const at::Tensor whole = decays(at::full({}, static_cast<double>(seq_len), at::kDouble));
  state.kv = at::einsum("bshc,bshv->bhcv", {left, in.v});
  if (in.initial_state.kv.defined())
    state.kv = state.kv + whole.unsqueeze(-1) * in.initial_state.kv;
  if (p.config.norm == kernels::NormKind::kSumOfKeys) {
    state.norm = left.sum(1);
    if (in.initial_state.norm.defined()) state.norm = state.norm + whole * in.initial_state.norm;
  }
  return {.out = out, .final_state = state};
}

template <typename Forward>
Results Differentiate(const DecayProblem& problem, const Forward& forward) {
  DecayProblem p = problem;
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x : InputsOf(p))
    if (x->defined()) leaves.push_back(*x = x->detach().clone().requires_grad_());
  const DecayAttentionOutput output = forward(p);
  std::vector<at::Tensor> outputs = {output.out}, grads = {p.dout};
  const auto add = [&](const at::Tensor& x, const at::Tensor& dx) {
    if (dx.defined()) outputs.push_back(x), grads.push_back(dx);
  };
  add(output.final_state.kv, p.dfinal_state.kv);
  add(output.final_state.norm, p.dfinal_state.norm);
  Results results;
  for (const at::Tensor& x : {output.out, output.final_state.kv, output.final_state.norm})
    results.tensors.push_back(x.defined() ? x.detach() : x);
  size_t next = 0;
  const std::vector<at::Tensor> of_leaves = torch::autograd::grad(outputs, leaves, grads);
  for (const at::Tensor* x : InputsOf(p))
    results.tensors.push_back(x->defined() ? of_leaves[next++] : at::Tensor());
  return results;
}
Results Kernel(const DecayProblem& problem, int64_t chunk_size = 0, int num_segments = 0) {
  return Differentiate(problem, [&](DecayProblem& p) {
    p.inputs.chunks = MakeSequenceChunks(
        {.batch = p.inputs.q.size(0), .seq_len = p.inputs.q.size(1), .chunk_size = chunk_size},
        at::kCPU);
    p.config.num_segments = num_segments;
    return DecayAttention(p.inputs, p.config);
  });
}

void Expect(const Results& got, const Results& want, double tolerance, double decay_tolerance,
            double (*error)(const at::Tensor&, const at::Tensor&) = LargestError) {
  for (size_t i = 0; i < want.tensors.size(); ++i) {
    if (!want.tensors[i].defined()) continue;
    const bool of_decay = std::string_view(Results::kNames[i]) == "dlog_decay";
    EXPECT_LE(error(got.tensors[i], want.tensors[i]), of_decay ? decay_tolerance : tolerance)
        << Results::kNames[i];
  }
}

// Decays of ln(1 - 2^(-5 - h)).
DecayProblem Retention(int64_t seq_len, uint64_t seed, at::ScalarType dtype) {
  DecayProblem p = MakeProblem(
      {.seq_len = seq_len, .heads = 4, .kind = kernels::DecayKind::kPerHead}, seed, at::kDouble);
  p.inputs.log_decay = (-at::exp2(-5 - at::arange(4, at::kDouble))).log1p();
  return To(p, dtype);
}

// Test 13 of retention: the parallel form, chunks of any size (16 tokens do not divide 150, and 50
// tokens may be one chunk) and the recurrent form, chunks of one, are equal for any initial state.
TEST(RetentionForms, AreEqual) {
  for (const int64_t seq_len : {50, 150}) {
    const DecayProblem wide = Retention(seq_len, 500, at::kDouble);
    const Results want = Differentiate(wide, ByPairs);
    for (const int64_t chunk : {1, 3, 16, 50, 64}) {
      SCOPED_TRACE(testing::Message() << seq_len << " tokens, chunks of " << chunk);
      Expect(Kernel(wide, chunk), want, 1e-10, 1e-10);
      Expect(Kernel(To(wide, at::kFloat), chunk), want, 1e-5, 1e-4);
    }
  }
}

// bf16 operands. State and decays are fp32.
TEST(RetentionForms, Bf16IsClose) {
  for (const int64_t chunk : {16, 64}) {
    DecayProblem narrow = Retention(150, 510, at::kFloat);
    for (at::Tensor* x : {&narrow.inputs.q, &narrow.inputs.k, &narrow.inputs.v, &narrow.dout})
      *x = x->to(at::kBFloat16);
    const Results got = Kernel(narrow, chunk);
    EXPECT_EQ(got.tensors[1].scalar_type(), at::kFloat);
    Expect(got, Differentiate(To(narrow, at::kDouble), ByPairs), 5e-3, 5e-3, MeanError);
  }
}

// D2D's decays: Pb_h = -2^(-H/h), plus the trained part s Ps per channel. Keys and queries are
// positive features.
DecayProblem D2d(int64_t seq_len, uint64_t seed, at::ScalarType dtype, bool states, double trained,
                 bool per_channel = true) {
  constexpr int64_t kHeads = 4, kWidth = 8;
  DecayProblem p = MakeProblem({.batch = 1,
                                .seq_len = seq_len,
                                .heads = kHeads,
                                .dim_k = kWidth,
                                .dim_v = 6,
                                .kind = kernels::DecayKind::kPerHeadChannel,
                                .initial_state = states,
                                .normalised = true},
                               seed, at::kDouble);
  const at::Tensor base = -at::exp2(-kHeads / at::arange(1, kHeads + 1, at::kDouble));
  p.inputs.log_decay = base;
  if (per_channel)
    p.inputs.log_decay =
        (base.unsqueeze(1) - trained * Normal({kHeads, kWidth}, seed + 20).abs()).contiguous();
  if (!states) p.dfinal_state = {};
  return To(p, dtype);
}

// Properties 1 and 2 of D2D: the parallel form, chunks of any size, the recurrent form, and
// segments of a sequence are equal.
TEST(D2dForms, AreEqual) {
  for (const int64_t seq_len : {1, 17, 64, 65, 150}) {
    const DecayProblem wide = D2d(seq_len, 520, at::kDouble, /*states=*/true, 0.1);
    const Results want = Differentiate(wide, ByPairs);
    for (const int64_t chunk : {1, 16, 32, 64}) {
      SCOPED_TRACE(testing::Message() << seq_len << " tokens, chunks of " << chunk);
      Expect(Kernel(wide, chunk), want, 1e-12, 1e-10);
      Expect(Kernel(To(wide, at::kFloat), chunk), want, 1e-5, 1e-4);
    }
  }
}

// The same for long rows, with the fp64 recurrence instead of the quadratic form.
TEST(D2dForms, LongRowsEqualTheRecurrence) {
  for (const int64_t seq_len : {512, 2048}) {
    const DecayProblem wide = D2d(seq_len, 530, at::kDouble, /*states=*/false, 0.1);
    const auto oracle = Oracle(wide);
    const Results want = {{oracle.output.out, oracle.output.final_state.kv,
                           oracle.output.final_state.norm, oracle.grads.dq, oracle.grads.dk,
                           oracle.grads.dv, oracle.grads.dlog_decay}};
    Expect(Kernel(wide), want, 1e-12, 1e-10);
    const DecayProblem single = To(wide, at::kFloat);
    for (const int64_t chunk : {16, 32, 64})
      for (const int segments : {1, 4}) {
        SCOPED_TRACE(testing::Message() << seq_len << " tokens, chunks of " << chunk);
        Expect(Kernel(single, chunk, segments), want, 1e-5, 1e-4);
      }
    DecayProblem narrow = single;  // Only rounded operands.
    for (at::Tensor* x : {&narrow.inputs.q, &narrow.inputs.k, &narrow.inputs.v, &narrow.dout})
      *x = x->to(at::kBFloat16);
    EXPECT_LE(LargestError(Kernel(narrow).tensors[0], want.tensors[0]), 2e-2);
  }
}

// Property 5: without initial and final states, the gradient of a decay is the sum over the whole
// row, sum_t t (q dq - k dk). Adding a constant to t changes nothing.
TEST(D2dForms, GradientsOfDecaysAreTheirGlobalForm) {
  const DecayProblem p = D2d(150, 540, at::kDouble, /*states=*/false, 0.1);
  const Results got = Kernel(p), by_autograd = Differentiate(p, ByPairs);
  const at::Tensor difference = p.inputs.q * got.tensors[3] - p.inputs.k * got.tensors[4];
  const at::Tensor place = at::arange(150, at::kDouble).view({1, 150, 1, 1});
  const at::Tensor global = (place * difference).sum(at::IntArrayRef({0, 1}));
  EXPECT_LE(LargestError(got.tensors[6], by_autograd.tensors[6]), 1e-10);
  EXPECT_LE(LargestError(global, by_autograd.tensors[6]), 1e-10);
  EXPECT_LE(difference.sum(at::IntArrayRef({0, 1})).abs().max().item<double>(),
            1e-11 * difference.abs().sum().item<double>());
}

// Property 6: without training, the decays of channels equal those of their heads. The kernels for
// both agree in fp32, gradients included.
TEST(D2dForms, UntrainedChannelsAreTheirHeads) {
  const DecayProblem channels = D2d(300, 550, at::kFloat, /*states=*/false, 0);
  const DecayProblem heads = D2d(300, 550, at::kFloat, /*states=*/false, 0, /*per_channel=*/false);
  Results got = Kernel(channels);
  const Results want = Kernel(heads);
  got.tensors[6] = got.tensors[6].sum(1);
  Expect(got, want, 1e-6, 1e-4);
}

}  // namespace
}  // namespace halflife::ops
