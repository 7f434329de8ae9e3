// Muon (Jordan et al., 2024): a matrix moves along its momentum, made nearly orthogonal by five
// Newton-Schulz steps. The scale of Liu et al. (2025) gives the update the size of AdamW's, so one
// learning rate serves all parameters. Vectors, embeddings and the head are updated by AdamW.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>

#include "core/concat.h"
#include "optim/adamw.h"
#include "optim/optimizer_choice.h"

namespace halflife::optim {
namespace {

struct MuonConfig : ConfigOf<MuonConfig> {
  double momentum = 0.95;
  std::vector<Option> Fields() override { return {{"momentum", &momentum}}; }
  std::vector<std::string> Problems() const override {
    if (momentum >= 0 && momentum < 1) return {};
    return {Concat("momentum: ", momentum, ". Use [0, 1)")};
  }
};

// The matrix with the singular vectors of x and singular values near 1.
at::Tensor Orthogonalised(const at::Tensor& x) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  constexpr int kSteps = 5;
  const bool tall = x.size(0) > x.size(1);
  at::Tensor y = (tall ? x.t() : x) / (x.norm() + 1e-7);
  for (int step = 0; step < kSteps; ++step) {
    const at::Tensor square = at::mm(y, y.t());
    y = kA * y + at::mm(kB * square + kC * at::mm(square, square), y);
  }
  return tall ? y.t() : y;
}

class Muon : public Optimizer {
 public:
  Muon(const MuonConfig& config, const AdamWConfig& adamw) : config_(config), adamw_(adamw) {}

  // For the parameters of AdamW, "momentum" is m. Matrices do not use v.
  std::vector<std::string> state_names() const override { return {"momentum", "v"}; }
  bool NeedsWholeMatrices() const override { return true; }

  std::string Prepare(const std::vector<Range>& ranges) override {
    std::vector<Range> others;
    for (const Range& range : ranges) (IsForMuon(range) ? matrices_ : others).push_back(range);
    return adamw_.Prepare(others);
  }

  void Update(const UpdateArgs& args) override {
    adamw_.Update(args);
    for (const Range& range : matrices_) UpdateMatrix(range, args);
  }

 private:
  static bool IsForMuon(const Range& range) {
    const auto contains = [&](const char* text) {
      return range.parameter.find(text) != std::string::npos;
    };
    return range.shape.size() == 2 && !contains("embeddings") && !contains("head");
  }

  void UpdateMatrix(const Range& range, const UpdateArgs& args) const {
    const auto view = [&](const void* first, at::ScalarType dtype) {
      const at::Device device = args.device.is_cuda()
                                    ? at::Device(at::kCUDA, static_cast<int8_t>(args.device.index))
                                    : at::Device(at::kCPU);
      return at::from_blob(const_cast<void*>(first), range.shape,
                           at::TensorOptions().dtype(dtype).device(device));
    };
    at::Tensor main = view(args.main + range.begin + range.main_shift, at::kFloat);
    at::Tensor momentum = view(args.states[0] + range.begin + range.state_shift, at::kFloat);
    const at::Tensor grad =
        view(args.grads + range.begin + range.grads_shift, at::kFloat) * args.grad_factor;
    momentum.mul_(config_.momentum).add_(grad);
    const at::Tensor direction = Orthogonalised(grad + config_.momentum * momentum);
    const double scale = 0.2 * std::sqrt(std::max(range.shape[0], range.shape[1]));
    main.mul_(1 - args.lr * range.weight_decay).sub_(direction, args.lr * scale);
    if (args.copy != nullptr && range.has_copy)
      view(args.copy + range.begin, at::kBFloat16).copy_(main);
  }

  MuonConfig config_;
  AdamW adamw_;
  std::vector<Range> matrices_;
};

}  // namespace

OptimizerKind MuonKind() { return KindOf<MuonConfig, Muon>("muon"); }

}  // namespace halflife::optim
