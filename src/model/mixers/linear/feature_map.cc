#include "model/mixers/linear/feature_map.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/roll.h>
#include <ATen/ops/softmax.h>

#include "core/error.h"
#include "ops/linear/linear.h"
#include "ops/rows/bias_map.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"

namespace halflife::model {
namespace {

// A map without parameters and with d features.
using Function = Features (*)(const at::Tensor& x);

class Elementwise : public FeatureMap {
 public:
  Elementwise(Function apply, int64_t dim) : apply_(apply), dim_(dim) {}
  Features operator()(const at::Tensor& x) const override { return apply_(x); }
  int64_t width() const override { return dim_; }

 private:
  Function apply_;
  int64_t dim_;
};

Features Relu(const at::Tensor& x) { return {at::relu(x)}; }

// A map that the kernels implement. elu(x) + 1 is that of Katharopoulos et al. (2020).
template <kernels::ElementMap kMap>
class Known : public FeatureMap {
 public:
  Known(const PartContext&, int64_t dim) : dim_(dim) {}
  Features operator()(const at::Tensor& x) const override {
    return {ops::BiasMap({{.x = x, .bias = {}, .map = kMap}})[0]};
  }
  int64_t width() const override { return dim_; }
  std::optional<kernels::ElementMap> element_map() const override { return kMap; }

 private:
  int64_t dim_;
};

struct ShiftedExpOp {
  struct Inputs {
    at::Tensor x;
  };
  struct Outputs {
    at::Tensor feature;
  };
  using Saved = Outputs;
};

at::Tensor ShiftedExp(const at::Tensor& x, at::Tensor& largest) {
  const auto backward = [](const ops::BackwardOf<ShiftedExpOp>& call) -> ShiftedExpOp::Inputs {
    return {.x = call.grads.feature * call.saved.feature};
  };
  const auto forward = [&]() -> ops::ForwardOf<ShiftedExpOp> {
    const at::Tensor wide = x.to(ops::ComputeType(x));
    const at::Tensor row = wide.amax(-1, /*keepdim=*/true);
    largest = row.squeeze(-1);
    const at::Tensor feature = (wide - row).exp_().to(x.scalar_type());
    return {.outputs = {.feature = feature}, .saved = {.feature = feature}, .backward = backward};
  };
  return ops::Apply<ShiftedExpOp>({.name = "ShiftedExp", .inputs = {.x = x}, .forward = forward})
      .feature;
}

// exp(x - max x), with the maximum over the channels of each head as the log scale.
class Exp : public FeatureMap {
 public:
  Exp(const PartContext&, int64_t dim) : dim_(dim) {}
  Features operator()(const at::Tensor& x) const override {
    Features features;
    features.x = ShiftedExp(x, features.log_scale);
    return features;
  }
  int64_t width() const override { return dim_; }
  bool has_log_scale() const override { return true; }

 private:
  int64_t dim_;
};

Parameter DeclareSquare(const PartContext& context, const std::string& name, int64_t dim) {
  return DeclareMatrix(context, name, {.out = dim, .in = dim});
}

// Adds the bias. Tied maps of q and k share the parameter, so each use is marked with ForEachUse.
at::Tensor PlusBias(const at::Tensor& y, const Parameter& bias) {
  return ops::BiasMap({{.x = y, .bias = ForEachUse(bias)}})[0];
}

// (A1 x + b1) * (A2 x + b2).
class ElementwiseProduct : public FeatureMap {
 public:
  ElementwiseProduct(const PartContext& context, int64_t dim) : dim_(dim) {
    for (size_t i = 0; i < 2; ++i) {
      const std::string layer = i == 0 ? "layer1." : "layer2.";
      weights_[i] = DeclareSquare(context, layer + "weight", dim);
      biases_[i] = DeclareBias(context, layer + "bias", dim);
    }
  }
  Features operator()(const at::Tensor& x) const override {
    const std::vector<at::Tensor> y =
        ops::SharedInputLinear(x, {ForEachUse(weights_[0]), ForEachUse(weights_[1])});
    return {PlusBias(y[0], biases_[0]) * PlusBias(y[1], biases_[1])};
  }
  int64_t width() const override { return dim_; }
  int64_t num_matrix_elements() const override { return 2 * dim_ * dim_; }
  int64_t num_activations() const override { return 3 * dim_; }

 private:
  int64_t dim_;
  Parameter weights_[2], biases_[2];
};

// softmax([2 y, -2 y]) with y = A x + b (Zhang et al., 2024). A starts as the identity.
class Hedgehog : public FeatureMap {
 public:
  Hedgehog(const PartContext& context, int64_t dim) : dim_(dim) {
    const Init identity =
        Init::Of([dim](int64_t i, double) { return i / dim == i % dim ? 1.0 : 0.0; });
    weight_ = DeclareMatrix(context, "layer.weight", {.out = dim, .in = dim, .init = identity});
    bias_ = DeclareBias(context, "layer.bias", dim);
  }
  Features operator()(const at::Tensor& x) const override {
    const at::Tensor y = 2 * PlusBias(ops::Linear(x, ForEachUse(weight_)), bias_);
    return {at::softmax(at::cat({y, -y}, -1), -1)};
  }
  int64_t width() const override { return 2 * dim_; }
  int64_t num_matrix_elements() const override { return dim_ * dim_; }
  int64_t num_activations() const override { return dim_; }

 private:
  int64_t dim_;
  Parameter weight_, bias_;
};

// relu(A x) (Kasai et al., 2021).
class T2r : public FeatureMap {
 public:
  T2r(const PartContext& context, int64_t dim)
      : dim_(dim), weight_(DeclareSquare(context, "layer.weight", dim)) {}
  Features operator()(const at::Tensor& x) const override {
    return {at::relu(ops::Linear(x, ForEachUse(weight_)))};
  }
  int64_t width() const override { return dim_; }
  int64_t num_matrix_elements() const override { return dim_ * dim_; }
  int64_t num_activations() const override { return dim_; }

 private:
  int64_t dim_;
  Parameter weight_;
};

// Deterministic parameter-free projection (Schlag et al., 2021): with r = [relu(x), relu(-x)], the
// features are the concatenated products of r and r rolled by 1 to 4 channels.
class Dpfp : public FeatureMap {
 public:
  Dpfp(const PartContext&, int64_t dim) : dim_(dim) {}
  Features operator()(const at::Tensor& x) const override {
    const at::Tensor r = at::relu(at::cat({x, -x}, -1));
    std::vector<at::Tensor> products;
    for (int64_t shift = 1; shift <= kNumShifts; ++shift)
      products.push_back(r * at::roll(r, shift, -1));
    return {at::cat(products, -1)};
  }
  int64_t width() const override { return 2 * kNumShifts * dim_; }
  int64_t num_activations() const override { return 2 * (1 + kNumShifts) * dim_; }

 private:
  static constexpr int64_t kNumShifts = 4;
  int64_t dim_;
};

using Maker = std::unique_ptr<FeatureMap> (*)(const PartContext& context, int64_t dim);
template <Function kApply>
std::unique_ptr<FeatureMap> MakeElementwise(const PartContext&, int64_t dim) {
  return std::make_unique<Elementwise>(kApply, dim);
}
template <typename Map>
std::unique_ptr<FeatureMap> MakeClass(const PartContext& context, int64_t dim) {
  return std::make_unique<Map>(context, dim);
}

struct Entry {
  const char* name;
  Maker make;
};

constexpr Entry kMaps[] = {
    {"elu", MakeClass<Known<kernels::ElementMap::kEluPlusOne>>},
    {"exp", MakeClass<Exp>},
    {"relu", MakeElementwise<Relu>},
    {"identity", MakeClass<Known<kernels::ElementMap::kIdentity>>},
    {"elementwise_product", MakeClass<ElementwiseProduct>},
    {"hedgehog", MakeClass<Hedgehog>},
    {"t2r", MakeClass<T2r>},
    {"dpfp", MakeClass<Dpfp>},
};

}  // namespace

std::vector<std::string> FeatureMapNames() {
  std::vector<std::string> names;
  for (const Entry& entry : kMaps) names.emplace_back(entry.name);
  return names;
}

std::unique_ptr<FeatureMap> MakeFeatureMap(const std::string& name, const PartContext& context,
                                           int64_t dim) {
  for (const Entry& entry : kMaps)
    if (name == entry.name) return entry.make(context, dim);
  HL_FAIL(ExitCode::kInternal, "no feature map is called '", name, "'");
}

}  // namespace halflife::model
