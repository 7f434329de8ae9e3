// What softmax_attention.cc (who computes what) asks of the bodies that are compiled once per
// instruction set.
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
#include "kernels/common/cpu/math.h"
#include "kernels/common/cpu/philox_lanes.h"
#include "kernels/softmax_attention/softmax_attention_args.h"

namespace halflife::kernels::cpu::softmax_attention {

// Queries of one row: the work of one thread. A forward takes some of the queries of one head; a
// backward all of the heads that share one head of keys, as their gradients meet there.
struct Item {
  int row = 0;
  int head = 0;                      // of the queries; of a backward, of the keys
  int first_tile = 0, end_tile = 0;  // of queries
  void* scratch = nullptr;           // aligned to 64 bytes
};

struct Kernels {
  size_t (*forward_scratch_bytes)(const SoftmaxAttentionArgs& args);
  size_t (*backward_scratch_bytes)(const SoftmaxAttentionGradArgs& args);
  void (*forward)(const SoftmaxAttentionArgs& args, const Item& item);
  void (*backward)(const SoftmaxAttentionGradArgs& args, const Item& item);
};
const Kernels& BaselineKernels();
const Kernels& Avx2Kernels();
const Kernels& Avx512Kernels();

}  // namespace halflife::kernels::cpu::softmax_attention
