// What polynomial_attention.cc (who scans what) asks of the bodies that are compiled once per
// instruction set.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/bfloat16.h"
#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/cpu/math.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels::cpu::polynomial {

constexpr int kMaxChunkSize = 256;  // tokens

// One head of one sequence: the work of one thread. States are [F, V], norms [F], in the compute
// type (fp32, or fp64 beside fp64 operands); null: zero, or not wanted.
struct ScanItem {
  const PolynomialAttentionGradArgs* grads = nullptr;  // of a forward its args alone
  const PolynomialAttentionPlan* plan = nullptr;
  int head = 0;
  int begin = 0, end = 0;  // chunks of the sequence, or of a part of it, in the table
  const void* entry_state = nullptr;
  const void* entry_norm = nullptr;
  void* exit_state = nullptr;
  void* exit_norm = nullptr;
  bool state_only = false;  // the pass writes nothing else
  void* scratch = nullptr;  // aligned to 64 bytes
};

// What a scan computes (scan.h).
enum class Pass { kForward, kQueryGradient, kKeyGradient };

struct Kernels {
  // Of one thread, for sequences of up to `max_chunks` chunks.
  size_t (*scratch_bytes)(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                          int max_chunks, bool backward);
  // Whether the state behind it holds anything: without, what follows has no state to begin from.
  bool (*scan)(const ScanItem& item, Pass pass);
  void (*step)(const PolynomialAttentionStepArgs& args, int row, int head);
};
const Kernels& BaselineKernels();
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();

}  // namespace halflife::kernels::cpu::polynomial
