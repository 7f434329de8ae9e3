// The recurrence of RWKV-7: golden values, and chunks = steps with gradients, documents and states.
#include "ops/scans/wkv7.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "ops/golden_draws.h"
#include "ops/torch/autograd.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::Normal;

constexpr int64_t kBatch = 2, kHeads = 3, kDimK = 5, kDimV = 4;

at::Tensor Unit(const at::Tensor& x) {
  return x * at::rsqrt(x.square().sum(-1, /*keepdim=*/true) + 1e-6);
}
at::Tensor LogDecay(const at::Tensor& raw) { return at::sigmoid(raw) * -std::exp(-0.5); }

// Draws inputs with the ranges that RWKV-7 has.
Wkv7Inputs Random(int64_t seq_len, at::ScalarType dtype = at::kDouble) {
  const std::vector<int64_t> keys = {kBatch, seq_len, kHeads, kDimK},
                             values = {kBatch, seq_len, kHeads, kDimV};
  const at::Tensor removed = Unit(Normal(keys, 5));
  Wkv7Inputs in = {.r = Normal(keys, 1),
                   .log_decay = LogDecay(Normal(keys, 2)),
                   .k = Normal(keys, 3),
                   .v = Normal(values, 4),
                   .a = -removed,
                   .b = removed * at::sigmoid(Normal(keys, 6)),
                   .initial = Normal({kBatch, kHeads, kDimK, kDimV}, 7)};
  for (at::Tensor* x : {&in.r, &in.log_decay, &in.k, &in.v, &in.a, &in.b, &in.initial})
    *x = x->to(dtype).requires_grad_();
  return in;
}
Tensors Leaves(const Wkv7Inputs& in) {
  return {in.r, in.log_decay, in.k, in.v, in.a, in.b, in.initial};
}

// Computes the recurrence, token by token.
Wkv7Output Steps(const Wkv7Inputs& in) {
  at::Tensor state = in.initial;
  Tensors outputs;
  for (int64_t t = 0; t < in.r.size(1); ++t) {
    if (in.starts.defined())
      state = state.masked_fill(in.starts.select(1, t).view({-1, 1, 1, 1}), 0);
    const auto column = [&](const at::Tensor& x) { return x.select(1, t).unsqueeze(3); };
    const at::Tensor u = column(in.a).transpose(2, 3).matmul(state);
    state = column(in.log_decay).exp() * state + column(in.b) * u +
            column(in.k) * in.v.select(1, t).unsqueeze(2);
    outputs.push_back(column(in.r).transpose(2, 3).matmul(state).squeeze(2));
  }
  return {at::stack(outputs, 1), state};
}

Tensors Gradients(const Wkv7Output& out, const Wkv7Inputs& in) {
  const at::Tensor loss =
      (out.o * Normal(out.o.sizes().vec(), 8, out.o.scalar_type())).sum() +
      (out.final_state * Normal(out.final_state.sizes().vec(), 9, out.final_state.scalar_type()))
          .sum();
  return Differentiate({loss}, {at::ones_like(loss)}, Leaves(in), /*keep_graph=*/false);
}

void ExpectEqual(const Wkv7Inputs& in, double tolerance, double of_gradients) {
  const Wkv7Output got = Wkv7(in), want = Steps(in);
  EXPECT_TRUE(Close(got.o, want.o, tolerance));
  EXPECT_TRUE(Close(got.final_state, want.final_state, tolerance));
  const Tensors got_grads = Gradients(got, in), want_grads = Gradients(want, in);
  for (size_t i = 0; i < got_grads.size(); ++i)
    EXPECT_TRUE(Close(got_grads[i], want_grads[i], of_gradients)) << "input " << i;
}

TEST(Wkv7Test, ChunksEqualSteps) {
  for (const int64_t seq_len : {1, 2, 31, 32, 33, 64, 65, 100}) {
    SCOPED_TRACE(seq_len);
    ExpectEqual(Random(seq_len), 1e-12, 1e-10);
  }
}

// Starts at the edges of chunks, twice in a chunk, and at the first and the last token.
TEST(Wkv7Test, DocumentsAreSeparate) {
  Wkv7Inputs in = Random(100);
  in.starts = at::zeros({kBatch, 100}, at::kBool);
  for (const int64_t t : {0, 5, 6, 32, 63, 99}) in.starts.select(0, 0)[t] = true;
  for (const int64_t t : {31, 64, 70}) in.starts.select(0, 1)[t] = true;
  ExpectEqual(in, 1e-12, 1e-10);
}

TEST(Wkv7Test, AStepIsAChunkOfOneToken) {
  const Wkv7Inputs in = Random(40);
  const Wkv7Output whole = Wkv7(in);
  at::Tensor state = in.initial.detach().clone();
  for (int64_t t = 0; t < 40; ++t) {
    const auto at_t = [&](const at::Tensor& x) { return x.detach().select(1, t); };
    const at::Tensor o = Wkv7Step({.r = at_t(in.r),
                                   .log_decay = at_t(in.log_decay),
                                   .k = at_t(in.k),
                                   .v = at_t(in.v),
                                   .a = at_t(in.a),
                                   .b = at_t(in.b)},
                                  state);
    EXPECT_TRUE(Close(o, whole.o.select(1, t), 1e-12)) << t;
  }
  EXPECT_TRUE(Close(state, whole.final_state, 1e-12));
}

// fp32 rounds sums of up to 32 log decays, and exponentials of them, of up to e^19.4.
TEST(Wkv7Test, Fp32IsCloseToFp64) {
  const Wkv7Output got = Wkv7(Random(512, at::kFloat)), want = Wkv7(Random(512));
  EXPECT_TRUE(Close(got.o, want.o, 1e-5));
  EXPECT_TRUE(Close(got.final_state, want.final_state, 1e-5));
  Wkv7Inputs fastest = Random(100, at::kFloat), exact = Random(100);
  fastest.log_decay = (fastest.log_decay * 0 - std::exp(-0.5)).detach();
  exact.log_decay = (exact.log_decay * 0 - std::exp(-0.5)).detach();
  EXPECT_TRUE(Close(Wkv7(fastest).o, Wkv7(exact).o, 2e-5));
}

// Golden values of an independent fp64 implementation.
TEST(Wkv7Test, GoldenValues) {
  constexpr int64_t kSeqLen = 6, kK = 3, kV = 2;
  test::GoldenDraws draws(108);
  const auto draw = [&](int64_t width) { return draws({1, kSeqLen, 1, width}); };
  Wkv7Inputs in;
  in.r = draw(kK), in.log_decay = LogDecay(draw(kK)), in.k = draw(kK), in.v = draw(kV);
  const at::Tensor removed = Unit(draw(kK));
  in.a = -removed, in.b = removed * at::sigmoid(draw(kK));
  const auto [o, state] = Wkv7(in);
  test::ExpectGolden(o[0][5][0], {0.265309764, 0.001826760});
  test::ExpectGolden(state.square().sum().view({1}), {0.337317449});
}

}  // namespace
}  // namespace halflife::ops
