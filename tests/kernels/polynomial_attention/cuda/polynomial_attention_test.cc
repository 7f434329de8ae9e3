// The emulated CUDA kernels of polynomial attention equal the oracle.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "core/bfloat16.h"
#include "kernels/common/chunks/chunk_table.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"
#include "kernels/polynomial_attention/polynomial_attention_reference.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

#if HL_EMULATED_ASAN || HL_EMULATED_TSAN
constexpr bool kSlow = true;
#else
constexpr bool kSlow = false;
#endif

using Values = std::vector<double>;

struct Shape {
  int batch = 1, seq_len = 20, heads = 2, dim = 8, dim_v = 10;
  PolynomialWeights weights = {1, 1, 0.5};
  bool normalise = true, states = false, bf16 = false;
  std::vector<int32_t> document_starts = {};
};

Values Draw(size_t count, uint64_t seed, bool narrow) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Values values(count);
  for (double& x : values) {
    x = static_cast<float>(normal(random));
    if (narrow) x = Widen(RoundToBf16(static_cast<float>(x)));
  }
  return values;
}

// [B, T, H, width] in fp32 or bf16.
class Rows {
 public:
  Rows(const Shape& shape, int width, const Values& values = {})
      : shape_(shape), width_(width), wide_(Size(), NAN), narrow_(Size(), Bf16{0x7fff}) {
    for (size_t i = 0; i < values.size(); ++i) {
      wide_[i] = static_cast<float>(values[i]);
      narrow_[i] = RoundToBf16(wide_[i]);
    }
  }
  TensorView view() {
    void* const data = shape_.bf16 ? static_cast<void*>(narrow_.data()) : wide_.data();
    const int64_t heads = int64_t{1} * shape_.heads * width_;
    return {data, heads * shape_.seq_len, heads, width_, shape_.bf16 ? DType::kBF16 : DType::kF32};
  }
  Values Get() const {
    Values values(wide_.begin(), wide_.end());
    for (size_t i = 0; shape_.bf16 && i < values.size(); ++i) values[i] = Widen(narrow_[i]);
    return values;
  }

 private:
  size_t Size() const { return size_t{1} * shape_.batch * shape_.seq_len * shape_.heads * width_; }
  Shape shape_;
  int width_;
  std::vector<float> wide_;
  std::vector<Bf16> narrow_;
};

// Filled with NaN, aligned to 16 bytes or more.
class Workspace {
 public:
  explicit Workspace(size_t bytes) : values_(bytes / sizeof(double) + 2, NAN) {}
  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(values_.data()) + 15) / 16 * 16);
  }

 private:
  std::vector<double> values_;
};

std::vector<float> Floats(const Values& values) { return {values.begin(), values.end()}; }

void ExpectClose(const char* name, const Values& got, const Values& want, double tolerance,
                 double least) {
  ASSERT_EQ(got.size(), want.size()) << name;
  double error = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
  }
  const double scale = std::max(std::sqrt(size), least * std::sqrt(want.size()));
  EXPECT_LE(std::sqrt(error), tolerance * scale) << name;
}

class Problem {
 public:
  explicit Problem(const Shape& shape) : shape_(shape), layout_(shape.dim, shape.weights) {
    const size_t tokens = size_t{1} * shape.batch * shape.seq_len * shape.heads;
    reference_ = {.batch = shape.batch,
                  .seq_len = shape.seq_len,
                  .num_heads = shape.heads,
                  .head_dim = shape.dim,
                  .head_dim_v = shape.dim_v};
    reference_.scale = 1 / std::sqrt(shape.dim);
    reference_.weights = shape.weights;
    reference_.normalise = shape.normalise;
    reference_.q = Draw(tokens * shape.dim, 1, shape.bf16);
    reference_.k = Draw(tokens * shape.dim, 2, shape.bf16);
    reference_.v = Draw(tokens * shape.dim_v, 3, shape.bf16);
    reference_.dout = Draw(tokens * shape.dim_v, 4, shape.bf16);
    reference_.starts.assign(shape.batch * shape.seq_len, 0);
    for (const int32_t start : shape.document_starts) reference_.starts[start] = 1;
    if (!shape.states) return;
    reference_.initial_state = Draw(Norms() * shape.dim_v, 5, false);
    reference_.dfinal_state = Draw(Norms() * shape.dim_v, 6, false);
    if (!shape.normalise) return;
    reference_.dfinal_norm = Draw(Norms(), 7, false);
    reference_.initial_norm.assign(Norms(), 0.0);  // Adds 8 to every sum of similarities.
    for (size_t f = 0; f < Norms(); f += layout_.count) reference_.initial_norm[f] = 8;
  }

  void ExpectAll(PolynomialForm form = PolynomialForm::kByShape) {
    const PolynomialReferenceResult want = PolynomialReference(reference_);
    Rows q(shape_, shape_.dim, reference_.q), k(shape_, shape_.dim, reference_.k),
        v(shape_, shape_.dim_v, reference_.v), dout(shape_, shape_.dim_v, reference_.dout);
    Rows out(shape_, shape_.dim_v), dq(shape_, shape_.dim), dk(shape_, shape_.dim),
        dv(shape_, shape_.dim_v);
    const ChunkTable table = MakeChunkTable({.batch = shape_.batch,
                                             .seq_len = shape_.seq_len,
                                             .chunk_size = 16,
                                             .document_starts = shape_.document_starts});
    PolynomialAttentionArgs args = Args(table);
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    std::vector<float> denominators(reference_.q.size() / shape_.dim);
    std::vector<float> initial = Floats(reference_.initial_state),
                       initial_norm = Floats(reference_.initial_norm),
                       dfinal = Floats(reference_.dfinal_state),
                       dfinal_norm = Floats(reference_.dfinal_norm);
    std::vector<float> final_state(Norms() * shape_.dim_v), final_norm(Norms()),
        dinitial(final_state), dinitial_norm(final_norm);
    args.norm_denom = denominators.data();
    if (shape_.states) args.initial_state = initial.data(), args.final_state = final_state.data();
    if (shape_.states && shape_.normalise)
      args.initial_norm = initial_norm.data(), args.final_norm = final_norm.data();
    const PolynomialAttentionPlan plan =
        MakePlan(args, {.chunk_size = 16, .form = form, .is_cuda = true});
    EXPECT_EQ(plan.quadratic, shape_.bf16 && !shape_.states && form != PolynomialForm::kChunked);
    Workspace forward_workspace(cuda::ForwardWorkspaceBytes(args, plan));
    args.workspace = forward_workspace.data();
    cuda::Forward(args, plan, nullptr);

    Workspace workspace(cuda::WorkspaceBytes(args, plan));
    args.workspace = workspace.data();
    PolynomialAttentionGradArgs grads;
    grads.forward = args;
    grads.dout = dout.view(), grads.dq = dq.view(), grads.dk = dk.view(), grads.dv = dv.view();
    if (shape_.states) grads.dfinal_state = dfinal.data(), grads.dinitial_state = dinitial.data();
    if (shape_.states && shape_.normalise)
      grads.dfinal_norm = dfinal_norm.data(), grads.dinitial_norm = dinitial_norm.data();
    cuda::Backward(grads, plan, nullptr);

    // As on the CPU: fp32 sums, whose normalised gradients are differences of terms of size 1, or
    // bf16 rounding of stored values.
    const double tolerance = shape_.bf16 ? 2e-2 : 1e-6 * std::max(10.0, Cancellation(want));
    ExpectClose("out", out.Get(), want.out, tolerance, 1e-3);
    ExpectClose("dq", dq.Get(), want.dq, tolerance, 0.3);
    ExpectClose("dk", dk.Get(), want.dk, tolerance, 0.3);
    ExpectClose("dv", dv.Get(), want.dv, tolerance, 1e-3);
    if (!shape_.states) return;
    const auto values = [](const std::vector<float>& x) { return Values(x.begin(), x.end()); };
    ExpectClose("final_state", values(final_state), want.final_state, tolerance, 1e-3);
    ExpectClose("dinitial_state", values(dinitial), want.dinitial_state, tolerance, 1e-3);
    if (!shape_.normalise) return;
    ExpectClose("final_norm", values(final_norm), want.final_norm, tolerance, 1e-3);
    ExpectClose("dinitial_norm", values(dinitial_norm), want.dinitial_norm, tolerance, 1e-3);
  }

  // Returns the largest factor by which sums of features exceed the sum of similarities, and so
  // amplify its error. The kernel 1 + s + s^2 / 2 cancels little. s^2 cancels if q and the first
  // keys are almost orthogonal.
  double Cancellation(const PolynomialReferenceResult& want) const {
    if (!shape_.normalise) return 1;
    double worst = 1;
    const Values w = ReferenceWeights(layout_, QueryWeights(shape_.weights, reference_.scale));
    for (size_t sequence = 0; sequence < size_t(shape_.batch) * shape_.heads; ++sequence) {
      const size_t b = sequence / shape_.heads, h = sequence % shape_.heads;
      Values sums(layout_.count);
      for (int t = 0; t < shape_.seq_len; ++t) {
        const size_t token = (b * shape_.seq_len + t) * shape_.heads + h;
        const bool starts = reference_.starts[b * shape_.seq_len + t] != 0;
        const Values of_q = ReferenceFeatures(layout_, &reference_.q[token * shape_.dim]),
                     of_k = ReferenceFeatures(layout_, &reference_.k[token * shape_.dim]);
        double sum = 0;
        for (int f = 0; f < layout_.count; ++f) {
          sums[f] = (starts ? 0 : sums[f]) + of_k[f];
          sum += std::abs(w[f] * of_q[f] * sums[f]);
        }
        worst = std::max(worst, sum / want.norm[token]);
      }
    }
    return worst;
  }

  void ForwardWithoutAWorkspace() {
    Rows q(shape_, shape_.dim, reference_.q), k(shape_, shape_.dim, reference_.k),
        v(shape_, shape_.dim_v, reference_.v), out(shape_, shape_.dim_v);
    const ChunkTable table =
        MakeChunkTable({.batch = shape_.batch, .seq_len = shape_.seq_len, .chunk_size = 16});
    PolynomialAttentionArgs args = Args(table);
    args.q = q.view(), args.k = k.view(), args.v = v.view(), args.out = out.view();
    cuda::Forward(args, MakePlan(args, {.chunk_size = 16, .is_cuda = true}), nullptr);
  }

  // Runs every token by the decoding step, from a state of zero.
  void ExpectSteps() {
    const PolynomialReferenceResult want = PolynomialReference(reference_);
    Rows q(shape_, shape_.dim, reference_.q), k(shape_, shape_.dim, reference_.k),
        v(shape_, shape_.dim_v, reference_.v), out(shape_, shape_.dim_v);
    std::vector<float> state(Norms() * shape_.dim_v), norm(Norms());
    for (int t = 0; t < shape_.seq_len; ++t) {
      const auto at = [&](Rows& rows) {
        TensorView view = rows.view();
        const auto bytes = static_cast<int64_t>(SizeOf(view.dtype));
        view.data = static_cast<std::byte*>(view.data) + t * view.stride_t * bytes;
        return view;
      };
      PolynomialAttentionStepArgs args;
      args.batch = shape_.batch, args.num_heads = shape_.heads;
      args.head_dim = shape_.dim, args.head_dim_v = shape_.dim_v;
      args.scale = reference_.scale, args.weights = shape_.weights;
      args.normalise = shape_.normalise, args.norm_eps = reference_.norm_eps;
      args.q = at(q), args.k = at(k), args.v = at(v), args.out = at(out);
      args.state = state.data(), args.norm = norm.data();
      cuda::Step(args, nullptr);
    }
    ExpectClose("out", out.Get(), want.out, shape_.bf16 ? 2e-2 : 1e-5, 1e-3);
    ExpectClose("state", {state.begin(), state.end()}, want.final_state, 1e-5, 1e-3);
  }

 private:
  size_t Norms() const { return size_t{1} * shape_.batch * shape_.heads * layout_.count; }
  PolynomialAttentionArgs Args(const ChunkTable& table) const {
    PolynomialAttentionArgs args;
    args.batch = shape_.batch, args.seq_len = shape_.seq_len, args.num_heads = shape_.heads;
    args.head_dim = shape_.dim, args.head_dim_v = shape_.dim_v;
    args.scale = reference_.scale, args.weights = shape_.weights;
    args.normalise = shape_.normalise, args.norm_eps = reference_.norm_eps;
    args.num_sequences = shape_.batch;
    args.num_chunks = static_cast<int>(table.chunks.size());
    args.chunks = table.chunks.data();
    args.sequence_begin = table.sequence_begin.data();
    return args;
  }

  Shape shape_;
  FeatureLayout layout_;
  PolynomialReferenceProblem reference_;
};

// Properties 1 and 2 of the two papers' kernels.
TEST(CudaPolynomial, KernelsStatesAndDocuments) {
  for (const PolynomialWeights& weights :
       {PolynomialWeights{1, 1, 0.5}, {0, 0, 1}, {0.5, 1, 0.5}, {0, 1, 0}})
    for (const bool states : {false, true}) {
      Shape shape = {.weights = weights, .states = states};
      shape.normalise = weights.a2 != 0 && !(states && weights.a0 == 0);
      if (kSlow && !(states && shape.normalise && weights.a0 == 1)) continue;
      Problem(shape).ExpectAll();
      if (kSlow) continue;
      shape.batch = 2, shape.document_starts = {3, 16, 20};
      Problem(shape).ExpectAll();
    }
}

TEST(CudaPolynomial, AnyWidthAndLength) {
  for (const auto& [seq_len, dim, dim_v] :
       {std::tuple{1, 16, 5}, {17, 3, 1}, {40, 5, 21}, {9, 64, 2}, {18, 16, 42}}) {
    if (kSlow && dim_v != 21) continue;
    Problem({.seq_len = seq_len, .heads = 1, .dim = dim, .dim_v = dim_v}).ExpectAll();
  }
}

TEST(CudaPolynomial, Bf16) {
  Problem({.seq_len = kSlow ? 5 : 20, .bf16 = true}).ExpectAll(PolynomialForm::kChunked);
  if (!kSlow) Problem({.seq_len = 6, .bf16 = true}).ExpectSteps();
}

// All pairs of tokens on tensor cores: sizes at and between the edges of tiles, partially filled
// widths and documents, and slices of V.
TEST(CudaPolynomial, Quadratic) {
  for (const PolynomialWeights& weights :
       {PolynomialWeights{1, 1, 0.5}, {0, 0, 1}, {0.5, 1, 0.5}, {0, 1, 0}}) {
    Shape shape = {.seq_len = 70, .dim = 16, .dim_v = 21, .weights = weights, .bf16 = true};
    shape.normalise = weights.a2 != 0;
    Problem(shape).ExpectAll();
    shape.batch = 2, shape.document_starts = {3, 64, 70, 135};
    Problem(shape).ExpectAll();
  }
  for (const auto& [seq_len, dim, dim_v] :
       {std::tuple{1, 16, 8}, {64, 16, 64}, {129, 24, 16}, {66, 5, 9}, {65, 64, 136}})
    Problem({.seq_len = seq_len, .heads = 1, .dim = dim, .dim_v = dim_v, .bf16 = true}).ExpectAll();
}

// Pairs of tiles in which every query sees every key take a path of their own. A document's start
// inside a tile leaves some of them.
TEST(CudaPolynomial, QuadraticOfTilesThatAreSeenCompletely) {
  for (const PolynomialWeights& weights :
       {PolynomialWeights{1, 1, 0.5}, {0, 0, 1}, {0.5, 1, 0.5}, {0, 1, 0}}) {
    Shape shape = {
        .seq_len = 200, .heads = 1, .dim = 16, .dim_v = 21, .weights = weights, .bf16 = true};
    shape.normalise = weights.a2 != 0;
    Problem(shape).ExpectAll();
    shape.document_starts = {70};
    if (!kSlow) Problem(shape).ExpectAll();
  }
}

TEST(CudaPolynomial, QuadraticWithoutAWorkspace) {
  Shape shape = {.seq_len = 4, .bf16 = true};
  EXPECT_HL_ERROR(Problem(shape).ForwardWithoutAWorkspace(), ExitCode::kInternal,
                  "the quadratic form on CUDA needs 32 bytes of workspace, got none");
}

TEST(CudaPolynomial, StepsAreTheWhole) {
  Problem({.batch = 2, .seq_len = 5, .dim_v = 70}).ExpectSteps();
  // More features than a block has threads, so each warp has a part of the divisor.
  Problem({.seq_len = 3, .heads = 1, .dim = 24, .dim_v = 4}).ExpectSteps();
  if (!kSlow) Problem({.seq_len = 9, .dim = 16, .normalise = false}).ExpectSteps();
}

}  // namespace
}  // namespace halflife::kernels
