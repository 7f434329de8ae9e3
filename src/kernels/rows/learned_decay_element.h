// One element of a decay that is learned as an offset from its head's base, for CPU and GPU.
#pragma once

#include <cmath>

#include "kernels/common/host_device.h"
#include "kernels/rows/learned_decay_args.h"

namespace halflife::kernels {

struct OffHead {
  // `head` counts from 0. The base, -2^(-H/h), is rounded to fp32 once.
  HL_EVERYWHERE OffHead(int64_t head, const LearnedDecayArgs& args)
      : base(static_cast<float>(
            -exp2(-static_cast<double>(args.heads) / static_cast<double>(head + 1)))),
        scale(args.scale),
        most(args.most) {}
  HL_EVERYWHERE float Of(float p) const {
    const float x = base - scale * p;
    return x > most ? most : x;  // NaN stays NaN
  }
  HL_EVERYWHERE float Slope(float p) const { return base - scale * p > most ? 0.0f : -scale; }

  float base, scale, most;
};

}  // namespace halflife::kernels
