// Initial values of parameters. Each value is a pure function of (seed, name of the parameter,
// element), so it does not depend on the order of layers, the world size, the number of threads or
// the device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "core/philox.h"

namespace halflife::model {

class Init {
 public:
  static Init Normal(double std_dev) { return Init(Kind::kNormal, 0, std_dev); }
  // Draws from a normal distribution, again until the value is within `cut` standard deviations of
  // 0.
  static Init TruncatedNormal(double std_dev, double cut = 2) {
    Init init(Kind::kTruncatedNormal, 0, std_dev);
    init.cut_ = cut;
    return init;
  }
  static Init Uniform(double low, double high) { return Init(Kind::kUniform, low, high); }
  // Draws uniformly in +-1/sqrt(fan_in), as torch.nn.Linear and torch.nn.Conv1d with `fan_in`
  // inputs do.
  static Init UniformOfFanIn(int64_t fan_in);
  static Init Constant(double value) { return Init(Kind::kConstant, value, value); }
  static Init Zeros() { return Constant(0); }
  static Init Ones() { return Constant(1); }
  // Evenly spaced over the channels (the last dim), from `first` to `last`.
  static Init Range(double first, double last) { return Init(Kind::kRange, first, last); }

  // Computes a value from the index of the element and its own uniform draw in [0, 1). Several
  // threads call it at once.
  using Formula = std::function<double(int64_t element, double uniform)>;
  static Init Of(Formula value) {
    Init init(Kind::kFormula, 0, 0);
    init.formula_ = std::move(value);
    return init;
  }

  // Returns the same values times `factor`, for example to scale branches by the depth of the
  // model.
  Init Scaled(double factor) const {
    Init init = *this;
    init.factor_ *= factor;
    return init;
  }

  // Elements [begin, end) of a parameter.
  struct Part {
    int64_t begin = 0, end = 0;
  };
  // Fills `out` with a part of the parameter of this name and shape, on the threads of LibTorch.
  void Fill(const std::string& name, const std::vector<int64_t>& shape, uint64_t seed, Part part,
            float* out) const;

 private:
  enum class Kind { kConstant, kNormal, kTruncatedNormal, kUniform, kRange, kFormula };
  Init(Kind kind, double low, double high) : kind_(kind), low_(low), high_(high) {}

  void FillPiece(Part piece, int64_t channels, RandomKey key, float* out) const;

  Kind kind_;
  double low_, high_;  // For a normal: 0 and the standard deviation.
  double cut_ = 0;
  Formula formula_;
  double factor_ = 1;
};

// Initialises the bias of the step sizes of a state-space layer (Gu and Dao, 2023): softplus of the
// bias, the step size, is log-uniform in [low, high].
Init BiasOfSteps(double low, double high);

}  // namespace halflife::model
