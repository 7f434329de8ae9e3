// The functions that are compiled once per instruction set and called by wkv4_cpu.cc.
#pragma once

#include <tuple>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/scans/wkv4/wkv4_args.h"

namespace halflife::kernels::cpu {

template <typename T, typename C>
struct WkvLoops {
  void (*forward)(const WkvShape<T, C>& shape, const WkvResults<T, C>& results, int64_t item);
  void (*backward)(const WkvShape<T, C>& shape, const WkvGrads<T, C>& grads, C* dlog_decay,
                   C* dbonus, int64_t item);
};
using WkvKernels =
    std::tuple<WkvLoops<float, float>, WkvLoops<Bf16, float>, WkvLoops<double, double>>;
HL_PER_INSTRUCTION_SET(extern const WkvKernels kWkvKernels;)

}  // namespace halflife::kernels::cpu
