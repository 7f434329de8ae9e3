// AdamW's update equals its formula in fp64, and bf16 weights are the rounded main weights.
#include "train/step/arena_optimizer.h"

#include <ATen/ops/from_blob.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/philox.h"
#include "support/peak_bytes.h"
#include "train/config/schedule.h"

namespace halflife::train {
namespace {

// Two parameters, one with and one without weight decay.
struct Fixture {
  Fixture() {
    parameters.Declare({.name = "matrix", .shape = {7, 5}, .weight_decay = true},
                       model::Init::Normal(0.5));
    parameters.Declare({.name = "norm", .shape = {11}, .region = dist::Region::kFp32},
                       model::Init::Ones());
  }
  model::ParameterSet parameters;
};

double TestGradient(int step, int64_t element) {
  const RandomKey key = MakeRandomKey(3, RandomPurpose::kTest, 0);
  return ToNormal(Draw(key, step, element, 0).x[0], Draw(key, step, element, 0).x[1]).a;
}

TEST(ArenaOptimizer, EqualsTheFormulaInFp64) {
  Fixture fixture;
  ParameterArena arena(fixture.parameters, {.states = {"m", "v"}});
  arena.Initialise(5);
  const optim::AdamWConfig config{.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
  ArenaOptimizer optimizer(arena, {.adamw = config});
  constexpr double kLr = 1e-2, kFactor = 0.25;

  for (int param = 0; param < 2; ++param) {
    SCOPED_TRACE(param);
    const int64_t count = arena.layout().specs()[param].count();
    const double decay = param == 0 ? config.weight_decay : 0;
    std::vector<double> w(count), m(count), v(count);
    arena.Initialise(5);
    arena.state("m").zero_();
    arena.state("v").zero_();
    float* flat = arena.main().mutable_data_ptr<float>() + arena.layout().offset(param);
    float* grads = arena.grads().mutable_data_ptr<float>() + arena.layout().offset(param);
    for (int64_t i = 0; i < count; ++i) w[i] = flat[i];
    for (int t = 1; t <= 20; ++t) {
      for (int64_t i = 0; i < count; ++i) {
        grads[i] = static_cast<float>(TestGradient(t, i));
        const double g = grads[i] * kFactor;
        m[i] = config.beta1 * m[i] + (1 - config.beta1) * g;
        v[i] = config.beta2 * v[i] + (1 - config.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(config.beta1, t));
        const double v_hat = v[i] / (1 - std::pow(config.beta2, t));
        w[i] -= kLr * (m_hat / (std::sqrt(v_hat) + config.eps) + decay * w[i]);
      }
      optimizer.Update(kLr, kFactor, t);
    }
    // 20 updates of at most lr, each with a few fp32 roundings (2^-24) of values below 2.
    for (int64_t i = 0; i < count; ++i) EXPECT_NEAR(flat[i], w[i], 20 * 8 * 0x1p-24) << i;
  }
}

// Every rank draws only what it updates, in blocks, with the bits of a rank that draws everything.
TEST(ParameterArena, DrawsItsOwnPartInBoundedHostMemory) {
  constexpr double kMaxBytes = 5 << 20;
  model::ParameterSet parameters;
  parameters.Declare({.name = "table", .shape = {3000, 1001}}, model::Init::Normal(0.5));
  parameters.Declare({.name = "norm", .shape = {11}, .region = dist::Region::kFp32},
                     model::Init::Normal(1));
  std::vector<std::vector<float>> drawn;
  for (int param = 0; param < parameters.size(); ++param) {
    drawn.emplace_back(parameters.specs()[param].count());
    parameters.Initialise(param, 5, drawn.back().data());
  }
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const int stage : {0, 1, 2}) {
      for (int slice = 0; slice < (stage == 0 ? 1 : 4); ++slice) {
        SCOPED_TRACE(Concat(at::toString(dtype), ", stage ", stage, ", slice ", slice));
        ParameterArena arena(parameters, {.compute_dtype = dtype,
                                          .layout = {.num_slices = 4},
                                          .zero_stage = stage,
                                          .slice = slice});
        {
          const test::PeakBytes bytes;
          arena.Initialise(5);
          EXPECT_LT(bytes.peak(), kMaxBytes);
        }
        const dist::ParameterLayout& layout = arena.layout();
        for (const dist::Fragment& part : arena.updated_fragments()) {
          const int64_t count = part.end - part.begin;
          const at::Tensor expected =
              at::from_blob(drawn[part.param].data() + part.begin, {count}, at::kFloat);
          EXPECT_TRUE(arena.main()
                          .narrow(0, layout.PlaceOf(part, arena.main_sliced_end()), count)
                          .equal(expected));
          EXPECT_TRUE(parameters.tensor(part.param)
                          .detach()
                          .view({-1})
                          .narrow(0, part.begin, count)
                          .to(at::kFloat)
                          .equal(part.param == 0 ? expected.to(dtype).to(at::kFloat) : expected));
        }
      }
    }
  }
}

// Over 64 epochs of 196 steps with the learning rate of the ReBased runs, weight decay shrinks a
// norm without a gradient by the product of (1 - lr wd).
TEST(ArenaOptimizer, DecayOfEverythingShrinksNormsWithoutAGradient) {
  const ScheduleConfig schedule{.kind = "cosine", .final_lr_ratio = 0, .per_epoch = true};
  struct Drift {
    double lr, left, half_digit;
  };
  for (const auto& [lr, left, half_digit] : {Drift{5e-4, 0.727, 5e-4}, Drift{1e-3, 0.529, 5e-4},
                                             Drift{3e-3, 0.148, 5e-4}, Drift{1e-2, 0.0017, 5e-5}}) {
    Fixture fixture;
    ParameterArena arena(fixture.parameters, {.states = {"m", "v"}});
    arena.Initialise(5);
    ArenaOptimizer optimizer(arena, {.adamw = {.weight_decay = 0.1}, .decay_all = true});
    uint64_t updates = 0;
    for (int epoch = 0; epoch < 64; ++epoch) {
      for (int step = 0; step < 196; ++step) {
        arena.grads().zero_();
        optimizer.Update(lr * LearningRateFactorOfEpoch(schedule, epoch, 64), 1, ++updates);
      }
    }
    EXPECT_NEAR(arena.View(arena.main(), 1)[0].item<double>(), left, half_digit) << lr;
  }
}

TEST(ArenaOptimizer, Bf16CopyIsTheRoundedMainWeight) {
  Fixture fixture;
  ParameterArena arena(fixture.parameters, {.compute_dtype = at::kBFloat16, .states = {"m", "v"}});
  arena.Initialise(5);
  ArenaOptimizer optimizer(arena, {});
  arena.grads().fill_(0.5);
  optimizer.Update(1e-3, 1, 1);
  const at::Tensor main = arena.View(arena.main(), 0);
  EXPECT_EQ(fixture.parameters.tensor(0).scalar_type(), at::kBFloat16);
  EXPECT_TRUE(fixture.parameters.tensor(0).detach().equal(main.to(at::kBFloat16)));
  // The fp32 region has no second copy.
  EXPECT_EQ(fixture.parameters.tensor(1).scalar_type(), at::kFloat);
  EXPECT_EQ(fixture.parameters.tensor(1).data_ptr(), arena.View(arena.main(), 1).data_ptr());
}

}  // namespace
}  // namespace halflife::train
