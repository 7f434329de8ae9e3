// The initial bias of the step sizes of a state-space layer (Gu and Dao, 2023).
#pragma once

#include <cmath>

#include "model/init.h"

namespace halflife::model {

// Values whose softplus, the step size, is log-uniform in [low, high].
inline Init BiasOfSteps(double low, double high) {
  return Init::Of([low, high](int64_t, double uniform) {
    const double step = low * std::pow(high / low, uniform);
    return step + std::log(-std::expm1(-step));
  });
}

}  // namespace halflife::model
