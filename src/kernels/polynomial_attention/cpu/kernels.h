// The functions that are compiled once per instruction set and called by polynomial_attention.cc,
// which divides the work.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "core/bfloat16.h"
#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"

namespace halflife::kernels::cpu::polynomial {

constexpr int kMaxChunkSize = 256;  // tokens

// The work of one thread: one head of one sequence. States are [F, V] and norms [F], in the compute
// type (fp32, or fp64 for fp64 operands); null: zero, or not computed.
struct ScanItem {
  const PolynomialAttentionGradArgs* grads = nullptr;  // a forward only uses its args
  const PolynomialAttentionPlan* plan = nullptr;
  int head = 0;
  int begin = 0, end = 0;  // chunks, in the table, of the sequence or of a part of it
  const void* entry_state = nullptr;
  const void* entry_norm = nullptr;
  void* exit_state = nullptr;
  void* exit_norm = nullptr;
  bool state_only = false;  // the pass writes nothing but the state
  void* scratch = nullptr;  // aligned to 64 bytes
};

// The result of a scan (scan.h).
enum class Pass { kForward, kQueryGradient, kKeyGradient };

struct Kernels {
  // Returns the scratch bytes of a thread for sequences of up to `max_chunks` chunks.
  size_t (*scratch_bytes)(const PolynomialAttentionArgs& args, const PolynomialAttentionPlan& plan,
                          int max_chunks, bool backward);
  // Returns true if the final state is not empty. If it is empty, the next part starts without a
  // state.
  bool (*scan)(const ScanItem& item, Pass pass);
  void (*step)(const PolynomialAttentionStepArgs& args, int row, int head);
};

}  // namespace halflife::kernels::cpu::polynomial

namespace halflife::kernels::cpu {

HL_PER_INSTRUCTION_SET(namespace polynomial { extern const cpu::polynomial::Kernels kKernels; })

}  // namespace halflife::kernels::cpu
