// Muon (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon): a matrix moves along its
// momentum, made nearly orthogonal by Newton-Schulz steps:
//
//   M <- mu M + G,   X = G + mu M (Nesterov),
//   Y0 = X / |X|,    Y <- a Y + (b A + c A A) Y with A = Y Y^T,
//   W <- W - lr (wd W + 0.2 sqrt(max(rows, columns)) Y).
//
// The last line is that of Liu et al. (2025), "Muon is scalable for LLM training": the factor gives
// the update the root mean square of AdamW's, so one learning rate and one weight decay serve all
// parameters. Parameters without matrices (vectors, convolutions, embeddings, heads) are updated by
// AdamW.
#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "core/concat.h"
#include "core/error.h"
#include "optim/adamw.h"
#include "optim/optimizer_choice.h"

namespace halflife::optim {
namespace {

struct MuonConfig : ConfigOf<MuonConfig> {
  double momentum = 0.95;
  bool nesterov = true;
  int64_t newton_schulz_steps = 5;
  bool per_head = false;

  std::vector<Option> Fields() override {
    return {{"momentum", &momentum},
            {"nesterov", &nesterov},
            {"newton_schulz_steps", &newton_schulz_steps},
            {"per_head", &per_head}};
  }
  std::vector<std::string> Problems() const override {
    std::vector<std::string> problems;
    if (!(momentum >= 0 && momentum < 1))
      problems.push_back(Concat("momentum: ", momentum, ". Use [0, 1)"));
    if (newton_schulz_steps < 1 || newton_schulz_steps > 100)
      problems.push_back(
          Concat("newton_schulz_steps: ", newton_schulz_steps, ". Use 1 to 100 (for example 5)"));
    return problems;
  }
};

at::Tensor View(const TensorRef& ref, at::IntArrayRef shape) {
  const at::Device device = ref.device.is_cuda()
                                ? at::Device(at::kCUDA, static_cast<int8_t>(ref.device.index))
                                : at::Device(at::kCPU);
  const at::ScalarType dtype = ref.dtype == DType::kBF16 ? at::kBFloat16 : at::kFloat;
  return at::from_blob(ref.data, shape, at::TensorOptions().dtype(dtype).device(device));
}

// Returns the matrix with the singular vectors of x [rows, columns] and singular values near 1.
at::Tensor Orthogonalise(const at::Tensor& x, int64_t num_steps) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  constexpr double kEps = 1e-7;
  const bool tall = x.size(0) > x.size(1);
  const at::Tensor norm = at::linalg_vector_norm(x, 2, {}, /*keepdim=*/false, at::kFloat);
  at::Tensor y = (tall ? x.t() : x) / (norm + kEps).to(x.scalar_type());
  for (int64_t step = 0; step < num_steps; ++step) {
    const at::Tensor a = at::mm(y, y.t());
    y = at::addmm(y, at::addmm(a, a, a, kB, kC), y, kA);
  }
  return tall ? y.t() : y;
}

// Stage and Apply consist of operations with one rounding each, so an element's bits do not depend
// on the range in which it is computed.
class MuonRule : public MatrixRule {
 public:
  explicit MuonRule(const MuonConfig& config) : config_(config) {}

  bool per_head() const override { return config_.per_head; }
  DType value_dtype(Device::Kind device) const override {
    return device == Device::Kind::kCuda ? DType::kBF16 : DType::kF32;
  }
  double TransformFlops(int64_t rows, int64_t columns) const override {
    const auto a = static_cast<double>(std::min(rows, columns));
    const auto b = static_cast<double>(std::max(rows, columns));
    return static_cast<double>(config_.newton_schulz_steps) * (4 * a * a * b + 2 * a * a * a);
  }

  void Stage(const UpdateArgs& args, const Range& range, const TensorRef& out) const override {
    at::Tensor momentum = Part(args.states[0] + range.state_shift, range, args.device);
    const float* const grads = args.grads + range.grads_shift;
    const at::Tensor grad = Part(const_cast<float*>(grads), range, args.device) * args.grad_factor;
    momentum.mul_(config_.momentum).add_(grad);
    at::Tensor values = View(out, {out.count});
    if (config_.nesterov) {
      values.copy_((momentum * config_.momentum).add_(grad));
    } else {
      values.copy_(momentum);
    }
  }

  void Transform(const TensorRef& matrix, int64_t rows, int64_t columns) const override {
    at::Tensor x = View(matrix, {rows, columns});
    const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
    x.copy_(Orthogonalise(x, config_.newton_schulz_steps) * scale);
  }

  void Apply(const UpdateArgs& args, const Range& range, const TensorRef& in) const override {
    at::Tensor main = Part(args.main + range.main_shift, range, args.device);
    const double lr = args.lr * range.lr_scale;
    main.mul_(1 - lr * range.weight_decay).sub_(View(in, {in.count}).to(at::kFloat) * lr);
    if (args.copy == nullptr || !range.has_copy) return;
    View({args.copy + range.begin, in.count, DType::kBF16, args.device}, {in.count}).copy_(main);
  }

 private:
  // `shifted` is indexed by the elements of the arena.
  static at::Tensor Part(float* shifted, const Range& range, Device device) {
    const int64_t count = range.end - range.begin;
    return View({shifted + range.begin, count, DType::kF32, device}, {count});
  }

  MuonConfig config_;
};

class Muon : public AdamW {
 public:
  Muon(const MuonConfig& config, const AdamWConfig& adamw) : AdamW(adamw), rule_(config) {}

  // For the parameters of AdamW, "momentum" is m. Matrices do not use v.
  std::vector<std::string> state_names() const override { return {"momentum", "v"}; }
  const MatrixRule* matrix_rule() const override { return &rule_; }

 private:
  MuonRule rule_;
};

}  // namespace

OptimizerKind MuonKind() { return KindOf<MuonConfig, Muon>("muon"); }

}  // namespace halflife::optim
