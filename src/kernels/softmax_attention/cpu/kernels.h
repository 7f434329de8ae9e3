// The functions that are compiled once per instruction set and called by softmax_attention.cc,
// which divides the work.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>

#include "core/bfloat16.h"
#include "kernels/common/chunks/chunk_entry.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/philox_lanes.h"
#include "kernels/softmax_attention/softmax_attention_args.h"

namespace halflife::kernels::cpu::softmax_attention {

// The work of one thread: queries of one row. In a forward, some of the queries of one head. In a
// backward, all queries of the heads that share one head of keys, because their gradients are added
// there.
struct Item {
  int row = 0;
  int head = 0;                      // head of the queries; in a backward, of the keys
  int first_tile = 0, end_tile = 0;  // tiles of queries
  void* scratch = nullptr;           // aligned to 64 bytes
};

struct Kernels {
  size_t (*forward_scratch_bytes)(const SoftmaxAttentionArgs& args);
  size_t (*backward_scratch_bytes)(const SoftmaxAttentionGradArgs& args);
  void (*forward)(const SoftmaxAttentionArgs& args, const Item& item);
  void (*backward)(const SoftmaxAttentionGradArgs& args, const Item& item);
};

}  // namespace halflife::kernels::cpu::softmax_attention

namespace halflife::kernels::cpu {

HL_PER_INSTRUCTION_SET(namespace softmax_attention {
  extern const cpu::softmax_attention::Kernels kKernels;
})

}  // namespace halflife::kernels::cpu
