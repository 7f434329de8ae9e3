// Lion (Chen et al., 2023): every weight moves by the learning rate, against the sign of a mean of
// its momentum and its gradient. The state is one array.
#include <ATen/TensorOperators.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/sign.h>

#include "core/concat.h"
#include "optim/optimizer_choice.h"

namespace halflife::optim {
namespace {

struct LionConfig : ConfigOf<LionConfig> {
  double rate = 0.9;
  std::vector<Option> Fields() override { return {{"rate", &rate}}; }
  std::vector<std::string> Problems() const override {
    if (rate >= 0 && rate < 1) return {};
    return {Concat("rate: ", rate, ". Use [0, 1)")};
  }
};

class Lion : public Optimizer {
 public:
  Lion(const LionConfig& config, const AdamWConfig& adamw)
      : rate_(config.rate), momentum_rate_(adamw.beta2) {}

  std::vector<std::string> state_names() const override { return {"momentum"}; }

  std::string Prepare(const std::vector<Range>& ranges) override {
    ranges_ = ranges;
    return {};
  }

  void Update(const UpdateArgs& args) override {
    for (const Range& range : ranges_) UpdateRange(range, args);
  }

 private:
  void UpdateRange(const Range& range, const UpdateArgs& args) const {
    const auto view = [&](const void* array, int64_t first, at::ScalarType dtype) {
      const at::Device device = args.device.is_cuda()
                                    ? at::Device(at::kCUDA, static_cast<int8_t>(args.device.index))
                                    : at::Device(at::kCPU);
      auto* const bytes = static_cast<char*>(const_cast<void*>(array));
      return at::from_blob(bytes + first * static_cast<int64_t>(at::elementSize(dtype)),
                           {range.end - range.begin},
                           at::TensorOptions().dtype(dtype).device(device));
    };
    at::Tensor main = view(args.main, range.begin + range.main_shift, at::kFloat);
    at::Tensor momentum = view(args.states[0], range.begin + range.state_shift, at::kFloat);
    const at::Tensor grad =
        view(args.grads, range.begin + range.grads_shift, at::kFloat) * args.grad_factor;
    const double lr = args.lr * range.lr_scale;
    main.mul_(1 - lr * range.weight_decay)
        .sub_(at::sign(momentum * rate_ + grad * (1 - rate_)) * lr);
    momentum.mul_(momentum_rate_).add_(grad * (1 - momentum_rate_));
    if (args.copy != nullptr && range.has_copy)
      view(args.copy, range.begin, at::kBFloat16).copy_(main);
  }

  double rate_, momentum_rate_;
  std::vector<Range> ranges_;
};

}  // namespace

OptimizerKind LionKind() { return KindOf<LionConfig, Lion>("lion"); }

}  // namespace halflife::optim
