// Softmax attention on a GPU gives the results of the CPU on the same bf16 tensors, for every
// route: LibTorch's attention, our own kernels, and LibTorch's basic calls. Skipped without a GPU.
#include <torch/csrc/autograd/autograd.h>

#include "kernels/softmax_attention/problem.h"
#include "ops/gpu_test.h"

namespace halflife::kernels {
namespace {

using namespace attention_test;

// The problems that LibTorch's own attention supports on a GPU, as in a training step on whole
// rows: one document per row, declared as such, with values as wide as keys.
const std::vector<Shape> kPlainShapes = {
    {.name = "plain", .seq_len = 129, .dim = 64, .dim_v = 64, .one_document = true},
    {.name = "plain with shared keys",
     .seq_len = 200,
     .heads = 4,
     .kv_heads = 2,
     .dim = 128,
     .dim_v = 128,
     .one_document = true},
    {.name = "plain both ways",
     .seq_len = 100,
     .dim = 64,
     .dim_v = 64,
     .pattern = {.bidirectional = true},
     .one_document = true}};

std::vector<at::Tensor*> Leaves(Problem& p) {
  std::vector<at::Tensor*> leaves = {&p.in.q, &p.in.k, &p.in.v};
  for (at::Tensor* x : {&p.in.far_q, &p.in.far_k, &p.in.bias})
    if (x->defined()) leaves.push_back(x);
  return leaves;
}

// Returns the output and the gradient of every leaf.
std::vector<at::Tensor> Results(const Problem& given, const at::Tensor& dout, at::Device device) {
  Problem p = given;
  p.in.positions = p.in.positions.to(device);
  at::Tensor& samples = p.config.dropout.samples;
  if (samples.defined()) samples = samples.to(device);
  if (p.in.bias_scale.defined()) p.in.bias_scale = p.in.bias_scale.to(device);
  std::vector<at::Tensor> leaves;
  for (at::Tensor* x : Leaves(p)) {
    *x = x->to(device).requires_grad_();
    leaves.push_back(*x);
  }
  std::vector<at::Tensor> results = {ops::SoftmaxAttention(p.in, p.config)};
  for (const at::Tensor& grad : torch::autograd::grad({results[0]}, leaves, {dout.to(device)}))
    results.push_back(grad);
  for (at::Tensor& x : results) x = x.detach().cpu().to(at::kDouble);
  return results;
}

class SoftmaxAttentionGpuTest : public test::GpuTest<testing::TestWithParam<Shape>> {};

TEST_P(SoftmaxAttentionGpuTest, EqualsTheCpu) {
  const Problem p = MakeProblem(GetParam(), 5).To(at::kBFloat16);
  const Shape& s = GetParam();
  const at::Tensor dout = Normal({s.batch, s.seq_len, s.heads, s.dim_v}, 9, at::kBFloat16);
  const std::vector<at::Tensor> want = Results(p, dout, at::kCPU),
                                got = Results(p, dout, at::kCUDA);
  ASSERT_EQ(got.size(), want.size());
  // Weights, dS, outputs and gradients are rounded to bf16 on one side or on both: 2^-8 each, of
  // sums whose terms are up to a few times larger.
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(i == 0 ? "out" : "gradient of leaf " + std::to_string(i - 1));
    EXPECT_LE((got[i] - want[i]).norm().item<double>(),
              2e-2 * want[i].norm().item<double>() + 1e-3);
  }
}

// Two runs give the same bits, because every sum has a fixed order. The exception is the gradient
// of a bias that LibTorch's calls add by index.
TEST_P(SoftmaxAttentionGpuTest, IsTheSameEveryTime) {
  const Shape& s = GetParam();
  if (s.bias && s.far_from > 0) GTEST_SKIP() << "LibTorch's sums by index have no order";
  if (s.one_document) GTEST_SKIP() << "LibTorch's attention adds up dq in any order";
  const Problem p = MakeProblem(s, 5).To(at::kBFloat16);
  const at::Tensor dout = Normal({s.batch, s.seq_len, s.heads, s.dim_v}, 9, at::kBFloat16);
  const std::vector<at::Tensor> first = Results(p, dout, at::kCUDA),
                                second = Results(p, dout, at::kCUDA);
  for (size_t i = 0; i < first.size(); ++i) EXPECT_TRUE(test::BitEqual(first[i], second[i])) << i;
}

std::string NameOf(const testing::TestParamInfo<Shape>& shape) {
  std::string name = shape.param.name;
  std::ranges::replace(name, ' ', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Shapes, SoftmaxAttentionGpuTest, testing::ValuesIn(kShapes), NameOf);
INSTANTIATE_TEST_SUITE_P(Plain, SoftmaxAttentionGpuTest, testing::ValuesIn(kPlainShapes), NameOf);

}  // namespace
}  // namespace halflife::kernels
