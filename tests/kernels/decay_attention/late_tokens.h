// Moves the tokens of a problem to the end of a row of 2^31 - 1 tokens. The tokens before them are
// only address space, and no chunk covers them. Offsets of tokens then exceed 32 bits in every
// tensor, strided or flat.
//
//   LateTokens late(args, grads, table);  // All three refer to the moved tokens from here on.
//   cpu::Forward(args, plan); ...
//   late.CopyBack();                      // Copies the results to the original tensors.
#pragma once

#include <cstring>
#include <limits>
#include <vector>

#include "kernels/common/chunks/chunk_table.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "support/sparse_memory.h"

namespace halflife::kernels::test {

class LateTokens {
 public:
  // One row, dense tensors, and decays per token or none.
  LateTokens(DecayAttentionArgs& args, DecayAttentionGradArgs& grads, ChunkTable& table)
      : num_tokens_(args.seq_len), first_(std::numeric_limits<int>::max() - args.seq_len) {
    for (TensorView* view :
         {&args.q, &args.k, &args.v, &args.out, &args.log_decay, &args.key_scale, &grads.dout,
          &grads.dq, &grads.dk, &grads.dv, &grads.dlog_decay, &grads.dkey_scale})
      view->data = Move(view->data, view->stride_t * static_cast<int64_t>(SizeOf(view->dtype)));
    args.norm_denom = Move(args.norm_denom, args.num_heads * int64_t{sizeof(float)});
    args.seq_len = std::numeric_limits<int>::max();
    for (ChunkEntry& chunk : table.chunks) chunk.token += first_;
  }
  void CopyBack() {
    for (const Moved& moved : moved_)
      std::memcpy(moved.from, moved.Tokens(first_), moved.token_bytes * num_tokens_);
  }

 private:
  struct Moved {
    void* from;
    int64_t token_bytes;
    halflife::test::SparseMemory memory;
    void* Tokens(int64_t first) const {
      return static_cast<std::byte*>(memory.data()) + first * token_bytes;
    }
  };
  void* Move(void* from, int64_t token_bytes) {
    if (from == nullptr) return nullptr;
    const size_t bytes = token_bytes * (first_ + num_tokens_);
    moved_.push_back({from, token_bytes, halflife::test::SparseMemory(bytes)});
    std::memcpy(moved_.back().Tokens(first_), from, token_bytes * num_tokens_);
    return moved_.back().memory.data();
  }

  const int64_t num_tokens_, first_;
  std::vector<Moved> moved_;
};

}  // namespace halflife::kernels::test
