// The functions that are compiled once per instruction set and called by focus_pool.cc.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/focus_pool/cpu/scratch.h"
#include "kernels/focus_pool/focus_pool_args.h"

namespace halflife::kernels::cpu {

// The work of one thread: heads [first_head, end_head) of one run.
template <typename T>
struct FocusItem {
  const FocusPoolShape<T>& shape;
  const FocusPoolResults<T>& results;  // the backward reads out, row_max and row_sum
  FocusRun run;
  int64_t first_head, end_head;
  FocusScratch<T>& scratch;  // for at least as many heads
};

template <typename T>
struct FocusKernels {
  void (*forward)(const FocusItem<T>& item);
  void (*backward)(const FocusItem<T>& item, const FocusPoolGrads<T>& grads);
};
using AllFocusKernels = std::tuple<FocusKernels<float>, FocusKernels<Bf16>, FocusKernels<double>>;
HL_PER_INSTRUCTION_SET(extern const AllFocusKernels kFocusKernels;)

}  // namespace halflife::kernels::cpu
