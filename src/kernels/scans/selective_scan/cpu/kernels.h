// The functions that are compiled once per instruction set and called by selective_scan_cpu.cc.
#pragma once

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
  ScanLoops<float, float> f32;
  ScanLoops<Bf16, float> bf16;
  ScanLoops<double, double> f64;
};
HL_PER_INSTRUCTION_SET(extern const ScanKernels kScanKernels;)

}  // namespace halflife::kernels::cpu
