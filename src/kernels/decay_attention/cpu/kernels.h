// The interface between decay_attention.cc (schedule, sums over heads) and the scans, which are
// compiled once per instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/decay_attention/cpu/workspace.h"
#include "kernels/decay_attention/decay_attention_args.h"

namespace halflife::kernels::cpu {

// One head over consecutive chunks of one sequence: the work of one thread. States are [K, V] and
// norms [K], in the compute type (fp32, or fp64 with fp64 operands).
struct ScanItem {
  const DecayAttentionArgs* args = nullptr;
  const DecayAttentionPlan* plan = nullptr;
  int sequence = 0, head = 0;
  int first_chunk = 0;     // first chunk of the sequence, as an index into the chunk table
  int begin = 0, end = 0;  // chunks to scan, [begin, end)
  const void* entry_state = nullptr;  // forward: the state before `begin`; null: zero
  const void* entry_norm = nullptr;
  void* exit_state = nullptr;  // null: not computed
  void* exit_norm = nullptr;
  void* log_transition = nullptr;  // [K or 1]: sum of log_decay over the item; null: not computed
  void* scratch = nullptr;         // ScratchBytes(), aligned to 64 bytes
};

// The reverse scan: entry is dL/d(state after `end`), exit is dL/d(state before `begin`).
struct ReverseItem {
  ScanItem scan;
  TensorView dout;
  // One gradient per output head. The caller sums those of heads that share an operand.
  TensorView dq, dk, dv, dlog_decay;
  TensorView dkey_scale;
  double* dlambda = nullptr;  // [1 or K]: constant decays; null: not computed
};

// The address at which the state before `chunk` (an index into the chunk table) is saved.
struct CheckpointAddress {
  void* state = nullptr;
  void* norm = nullptr;
};
CheckpointAddress FindCheckpoint(const ScanItem& item, const CheckpointLayout& layout, int chunk);

struct Kernels {
  size_t (*scratch_bytes)(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                          bool backward);
  void (*forward)(const ScanItem& item);
  void (*state)(const ScanItem& item);  // computes exit_state from entry_state, without outputs
  void (*backward)(const ReverseItem& item);
  void (*reverse_state)(const ReverseItem& item);  // computes exit_state from entry_state
  void (*step)(const DecayAttentionStepArgs& args, int row, int head);
};
HL_PER_INSTRUCTION_SET(extern const Kernels kKernels;)
// Returns the kernels for the instruction set in use.
const Kernels& KernelsInUse();

}  // namespace halflife::kernels::cpu
