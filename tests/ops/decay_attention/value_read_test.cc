// The read of decay attention's state from the side of its values: the recurrence, its gradients,
// documents, and decays of any strength.
#include "ops/decay_attention/decay_value_read.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>
#include <string>
#include <vector>

#include "ops/decay_attention/tensor_problem.h"
#include "support/expect_error.h"

namespace halflife::ops {
namespace {

using test::Close;
using test::DecayStrength;
using test::Normal;

struct Shape {
  int64_t batch = 2, seq_len = 65, heads = 4, kv_heads = 4, dim_k = 12, dim_v = 20;
  DecayStrength strength = DecayStrength::kMild;
  bool documents = false, initial_state = true;
};

DecayValueReadInputs MakeInputs(const Shape& shape, at::ScalarType dtype = at::kDouble) {
  const int64_t B = shape.batch, T = shape.seq_len;
  DecayValueReadInputs in = {
      .q = Normal({B, T, shape.heads, shape.dim_v}, 1, dtype),
      .k = Normal({B, T, shape.kv_heads, shape.dim_k}, 2, dtype),
      .v = Normal({B, T, shape.kv_heads, shape.dim_v}, 3, dtype),
      .log_decay =
          test::RandomLogDecay({B, T, shape.kv_heads, shape.dim_k}, shape.strength, 4).to(dtype)};
  if (shape.initial_state)
    in.initial_state = Normal({B, shape.heads, shape.dim_k, shape.dim_v}, 5, dtype);
  return in;
}

at::Tensor Starts(const Shape& shape) {
  return test::Uniform({shape.batch, shape.seq_len}, 6) < (shape.documents ? 0.1 : -1);
}

// Computes the recurrence, token by token.
DecayValueReadOutput ByToken(const DecayValueReadInputs& in, const Shape& shape) {
  const int64_t group = shape.heads / shape.kv_heads;
  const auto repeated = [&](const at::Tensor& x) { return x.repeat_interleave(group, 2); };
  const at::Tensor k = repeated(in.k), v = repeated(in.v), decay = repeated(in.log_decay).exp();
  const at::Tensor keeps = Starts(shape).logical_not();
  at::Tensor state =
      in.initial_state.defined()
          ? in.initial_state
          : at::zeros({shape.batch, shape.heads, shape.dim_k, shape.dim_v}, in.q.options());
  std::vector<at::Tensor> rows;
  for (int64_t t = 0; t < shape.seq_len; ++t) {
    const at::Tensor kept = keeps.select(1, t).to(state.scalar_type()).view({-1, 1, 1, 1});
    state = state * kept * decay.select(1, t).unsqueeze(3) +
            k.select(1, t).unsqueeze(3) * v.select(1, t).unsqueeze(2);
    rows.push_back(at::matmul(state, in.q.select(1, t).unsqueeze(3)).squeeze(3));
  }
  return {.out = at::stack(rows, 1), .final_state = state};
}

TEST(DecayValueReadTest, IsTheRecurrenceWithItsGradients) {
  for (const Shape& shape :
       {Shape{}, Shape{.seq_len = 1}, Shape{.seq_len = 16, .kv_heads = 2},
        Shape{.seq_len = 63, .kv_heads = 1, .initial_state = false},
        Shape{.seq_len = 200, .strength = DecayStrength::kStrong},
        Shape{.seq_len = 130, .strength = DecayStrength::kResets},
        Shape{.seq_len = 130, .dim_k = 20, .dim_v = 12, .strength = DecayStrength::kNearOne},
        Shape{.seq_len = 130, .kv_heads = 2, .documents = true, .initial_state = false}}) {
    SCOPED_TRACE("T " + std::to_string(shape.seq_len) + ", key heads " +
                 std::to_string(shape.kv_heads));
    DecayValueReadInputs in = MakeInputs(shape);
    if (shape.documents) in.chunks = test::ChunksOf(Starts(shape));
    std::vector<at::Tensor> leaves;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay, &in.initial_state}) {
      if (!x->defined()) continue;
      *x = x->detach().requires_grad_();
      leaves.push_back(*x);
    }
    const DecayValueReadOutput got = DecayValueRead(in), want = ByToken(in, shape);
    EXPECT_TRUE(Close(got.out, want.out, 1e-12));
    std::vector<at::Tensor> got_outputs = {got.out}, want_outputs = {want.out},
                            douts = {Normal(want.out.sizes().vec(), 7)};
    if (!shape.documents) {  // the state of each document is not in the recurrence above
      EXPECT_TRUE(Close(got.final_state, want.final_state, 1e-12));
      got_outputs.push_back(got.final_state), want_outputs.push_back(want.final_state);
      douts.push_back(Normal(want.final_state.sizes().vec(), 8));
    }
    const auto got_grads = torch::autograd::grad(got_outputs, leaves, douts);
    const auto want_grads = torch::autograd::grad(want_outputs, leaves, douts);
    for (size_t i = 0; i < leaves.size(); ++i) {
      // A decay of -inf has the gradient 0. The formula by tokens multiplies it with exp(-inf) too.
      EXPECT_TRUE(Close(got_grads[i], want_grads[i], 1e-11)) << "gradient " << i;
    }
  }
}

// fp32 against fp64 over a long row: relative RMS of the outputs 2e-6, of the gradients 5e-6.
TEST(DecayValueReadTest, Fp32StaysCloseToFp64) {
  const Shape shape = {.batch = 1,
                       .seq_len = 4096,
                       .heads = 1,
                       .kv_heads = 1,
                       .dim_k = 16,
                       .dim_v = 16,
                       .initial_state = false};
  const auto run = [&](at::ScalarType dtype) {
    const DecayValueReadInputs narrow = MakeInputs(shape, at::kFloat);
    DecayValueReadInputs in = narrow;
    std::vector<at::Tensor> leaves;
    for (at::Tensor* x : {&in.q, &in.k, &in.v, &in.log_decay}) {
      *x = x->to(dtype).detach().requires_grad_();
      leaves.push_back(*x);
    }
    const at::Tensor out = DecayValueRead(in).out;
    std::vector<at::Tensor> results = {out.detach()};
    for (const at::Tensor& grad :
         torch::autograd::grad({out}, leaves, {Normal(out.sizes().vec(), 7, at::kFloat).to(dtype)}))
      results.push_back(grad);
    return results;
  };
  const auto narrow = run(at::kFloat), wide = run(at::kDouble);
  for (size_t i = 0; i < wide.size(); ++i) {
    const at::Tensor error = narrow[i].to(at::kDouble) - wide[i];
    const double rms = (error.square().mean() / wide[i].square().mean()).sqrt().item<double>();
    EXPECT_LE(rms, i == 0 ? 2e-6 : 5e-6) << "result " << i;
  }
}

// Long rows whose decays sum to -80,000, and rows of resets only: finite and exact.
TEST(DecayValueReadTest, StrongDecaysAreExact) {
  for (const double decay : {-5.0, -1000.0, -std::numeric_limits<double>::infinity()}) {
    SCOPED_TRACE(decay);
    const Shape shape = {.batch = 1,
                         .seq_len = 16384,
                         .heads = 1,
                         .kv_heads = 1,
                         .dim_k = 4,
                         .dim_v = 4,
                         .initial_state = false};
    DecayValueReadInputs in = MakeInputs(shape, at::kFloat);
    in.log_decay.fill_(decay);
    in.q.requires_grad_(), in.k.requires_grad_(), in.log_decay.requires_grad_();
    const at::Tensor out = DecayValueRead(in).out;
    // Tokens before the previous one count exp(-10) or less.
    const at::Tensor own = (in.q * in.v).sum(-1, true) * in.k;
    at::Tensor want = own.detach().clone();
    if (decay == -5.0) {
      const at::Tensor before =
          (in.q.narrow(1, 1, shape.seq_len - 1) * in.v.narrow(1, 0, shape.seq_len - 1))
              .sum(-1, true) *
          in.k.narrow(1, 0, shape.seq_len - 1) * std::exp(-5.0);
      want.narrow(1, 1, shape.seq_len - 1).add_(before.detach());
    }
    EXPECT_TRUE(Close(out, want, decay == -5.0 ? 1e-4 : 1e-6));
    for (const at::Tensor& grad : torch::autograd::grad({out.sum()}, {in.q, in.k, in.log_decay}))
      EXPECT_TRUE(grad.isfinite().all().item<bool>());
  }
}

TEST(DecayValueReadTest, BadInput) {
  DecayValueReadInputs in = MakeInputs({});
  in.q = in.q.narrow(3, 0, 7);
  EXPECT_HL_ERROR(DecayValueRead(in), ExitCode::kInternal,
                  "DecayValueRead got q [2, 65, 4, 7] fp64 on cpu, k [2, 65, 4, 12]",
                  "Use [B, T, H, V] for q");
}

}  // namespace
}  // namespace halflife::ops
