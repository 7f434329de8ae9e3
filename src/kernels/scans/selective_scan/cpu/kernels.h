// The functions that are compiled once per instruction set and called by selective_scan_cpu.cc.
#pragma once

#include <tuple>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/scans/selective_scan/selective_scan_args.h"

namespace halflife::kernels::cpu {

template <typename T, typename C>
struct ScanLoops {
  void (*forward)(const ScanShape<T, C>& shape, const ScanResults<T, C>& results, int64_t item,
                  void* scratch);
  void (*backward)(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                   const ScanPartials<C>& partials, int64_t item, void* scratch);
};
struct ScanKernels {
  int64_t (*scratch_bytes)(int64_t states, bool wide);
  std::tuple<ScanLoops<float, float>, ScanLoops<Bf16, float>, ScanLoops<double, double>> loops;
};
HL_PER_INSTRUCTION_SET(extern const ScanKernels kScanKernels;)

}  // namespace halflife::kernels::cpu
