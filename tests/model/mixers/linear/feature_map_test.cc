// The feature maps of q and k: values, shapes and derivatives. Learned maps are checked with the
// mixers.
#include "model/mixers/linear/feature_map.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>

#include "ops/gradient_check.h"

namespace halflife::model {
namespace {

using test::Close;
using test::Normal;

struct Built {
  ParameterSet parameters;
  std::unique_ptr<FeatureMap> map;

  Built(const std::string& name, int64_t dim) {
    map = MakeFeatureMap(name, {.parameters = &parameters, .initializer_range = 0.5}, dim);
    for (int i = 0; i < parameters.size(); ++i) {
      at::Tensor tensor = at::empty(parameters.specs()[i].shape, at::kFloat);
      parameters.Initialise(i, 3, tensor.mutable_data_ptr<float>());
      parameters.Bind(i, tensor.to(at::kDouble));
    }
  }
};

TEST(FeatureMap, HasTheWidthThatItSays) {
  for (const std::string& name : FeatureMapNames()) {
    const Built built(name, 8);
    const Features features = (*built.map)(Normal({2, 5, 3, 8}, 1));
    EXPECT_EQ(features.x.sizes().vec(), (std::vector<int64_t>{2, 5, 3, built.map->width()}))
        << name;
    EXPECT_EQ(features.log_scale.defined(), built.map->has_log_scale()) << name;
    int64_t matrices = 0;
    for (const dist::ParamSpec& spec : built.parameters.specs())
      if (spec.shape.size() == 2) matrices += spec.count();
    EXPECT_EQ(built.map->num_matrix_elements(), matrices) << name;
  }
}

TEST(FeatureMap, AreWhatTheirPapersSay) {
  const at::Tensor x = at::tensor({-2.0, -0.5, 0.0, 1.5}, at::kDouble).view({1, 1, 1, 4});
  const auto map = [&](const std::string& name) { return (*Built(name, 4).map)(x).x.flatten(); };
  EXPECT_TRUE(Close(map("elu"), at::tensor({std::exp(-2.0), std::exp(-0.5), 1.0, 2.5}, at::kDouble),
                    1e-15));
  EXPECT_TRUE(Close(map("relu"), at::tensor({0.0, 0.0, 0.0, 1.5}, at::kDouble), 0));
  EXPECT_TRUE(Close(map("identity"), x.flatten(), 0));
  // r = [0 0 0 1.5 | 2 0.5 0 0]. Rolled by j, channel c is multiplied with channel c - j.
  const at::Tensor dpfp = map("dpfp").view({4, 8});
  EXPECT_TRUE(Close(dpfp[0], at::tensor({0., 0., 0., 0., 3., 1., 0., 0.}, at::kDouble), 1e-15));
  EXPECT_TRUE(Close(dpfp[1], at::tensor({0., 0., 0., 0., 0., 0.75, 0., 0.}, at::kDouble), 1e-15));
  EXPECT_EQ(dpfp.narrow(0, 2, 2).abs().max().item<double>(), 0);
  // Hedgehog's matrix starts as the identity.
  const at::Tensor y = at::cat({2 * x.flatten(), -2 * x.flatten()});
  EXPECT_TRUE(Close(map("hedgehog"), at::softmax(y, 0), 1e-12));
}

// exp returns features and a log scale, whose product is the exponential. The largest feature is 1.
TEST(FeatureMap, ExponentialsCarryTheirScale) {
  const Built built("exp", 8);
  const at::Tensor x = Normal({2, 5, 3, 8}, 2);
  const Features features = (*built.map)(x);
  EXPECT_TRUE(Close(features.x * features.log_scale.unsqueeze(-1).exp(), x.exp(), 1e-14));
  EXPECT_TRUE(Close(features.x.amax(-1), at::ones({2, 5, 3}, at::kDouble), 0));
  EXPECT_TRUE((*built.map)(x + 500).x.isfinite().all().item<bool>());
  // A constant added to a row changes only its scale.
  const at::Tensor rows = 100 * Normal({2, 5, 3, 1}, 5);
  const Features shifted = (*built.map)(x + rows);
  EXPECT_TRUE(Close(shifted.x, features.x, 1e-13));
  EXPECT_TRUE(Close(shifted.log_scale, features.log_scale + rows.squeeze(-1), 1e-13));
}

// elu(-10) + 1 is 4.54e-5, with an error of 1e-6 for a bf16 input of -10, and never 0.
TEST(FeatureMap, EluKeepsWhatIsSmall) {
  const Built built("elu", 4);
  const double want = std::exp(-10.0);
  const at::Tensor in_fp32 = (*built.map)(at::full({1, 1, 1, 4}, -10.0, at::kFloat)).x;
  EXPECT_NEAR(in_fp32.min().item<double>() / want, 1, 1e-6);
  const at::Tensor in_bf16 = (*built.map)(at::full({1, 1, 1, 4}, -10.0, at::kBFloat16)).x;
  EXPECT_NEAR(in_bf16.min().item<double>() / want, 1, 0x1p-8);
  EXPECT_GT((*built.map)(at::full({1, 1, 1, 4}, -80.0, at::kBFloat16)).x.min().item<double>(), 0);
}

TEST(FeatureMap, DerivativesAreFiniteDifferences) {
  for (const char* name : {"elu", "exp"}) {
    const Built built(name, 8);
    const at::Tensor weights = Normal({1, 3, 2, 8}, 3);
    // The scale of exp has no gradient of its own. The product has the gradient of the features.
    const auto loss = [&](const std::vector<at::Tensor>& in) {
      const Features features = (*built.map)(in[0]);
      const at::Tensor scale = features.log_scale.defined() ? features.log_scale.unsqueeze(-1).exp()
                                                            : at::ones({1}, at::kDouble);
      return (features.x * scale * weights).sum();
    };
    test::ExpectFiniteDifferences(loss, {Normal({1, 3, 2, 8}, 4)});
  }
}

}  // namespace
}  // namespace halflife::model
