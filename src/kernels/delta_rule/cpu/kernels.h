// The interface between delta_rule.cc, which divides the work, and the scans, which are compiled
// once per instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/delta_rule/delta_rule_args.h"
#include "kernels/delta_rule/delta_rule_partition.h"

namespace halflife::kernels::cpu::delta {

// One value head over consecutive chunks of one sequence: the work of one thread. States are in the
// compute type (fp32, or fp64 with fp64 operands).
struct ScanItem {
  const DeltaRuleArgs* args = nullptr;
  int sequence = 0, head = 0;  // head: a value head
  int first_chunk = 0;         // first chunk of the sequence, as an index into the chunk table
  int begin = 0, end = 0;      // chunks to scan, [begin, end)
  // The values and their width: args->v and V, or an absent view, which means zeros, and K,
  // to compute a transition.
  TensorView v;
  int values = 0;
  const void* entry_state = nullptr;  // [K, values]; null: zero
  void* exit_state = nullptr;         // null: not computed
  void* scratch = nullptr;            // scratch_bytes(), aligned to 64 bytes
};

// The reverse scan: entry is dL/d(state after `end`), exit is dL/d(state before `begin`).
struct ReverseItem {
  ScanItem scan;
  TensorView dout;
  // dq and dk have one gradient per value head. The caller sums those that share a head.
  TensorView dq, dk, dv, dlog_decay, dbeta;
};

struct Kernels {
  size_t (*scratch_bytes)(const DeltaRuleArgs& args, int values, bool backward);
  void (*forward)(const ScanItem& item);
  void (*state)(const ScanItem& item);  // computes only exit_state
  void (*backward)(const ReverseItem& item);
  void (*adjoint)(const ReverseItem& item);  // computes only exit_state; reads no v and no states
  void (*step)(const DeltaRuleStepArgs& args, int row, int head);
};

}  // namespace halflife::kernels::cpu::delta

namespace halflife::kernels::cpu {

HL_PER_INSTRUCTION_SET(namespace delta { extern const cpu::delta::Kernels kKernels; })

}  // namespace halflife::kernels::cpu
