// Which keys a query of softmax attention sees: of its document, itself and earlier ones, or later
// ones, too; all of them or by a pattern.
//
//   const KeyPattern pattern = {.window = 1024, .sinks = 4};
//   const VisibleKeys seen = VisibleKeysOf(slice.positions, num_past, pattern);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// At most one of window and block.
struct KeyPattern {
  int64_t window = 0;  // the last so many keys, the query's own included; 0: all
  // Blockwise causal attention (Sun et al., 2022, section 3.3): documents are cut into blocks of
  // so many tokens, and a query sees its own block and the one before. 0: none.
  int64_t block = 0;
  // The document's first keys are seen besides, where they lie before the others (Xiao et al.,
  // 2024).
  int64_t sinks = 0;
  // An encoder's: later keys of the document are seen, too, and a window reaches as far ahead as
  // back. Not with blocks, nor behind a past.
  bool bidirectional = false;

  // The longest distance at which a query sees a key, plus 1, sinks aside; 0: no bound.
  int64_t reach() const { return block > 0 ? 2 * block : window; }
};

// Of query t of row b, places among the keys given: it sees [first, end), and of
// [sinks, sinks + pattern.sinks) those before first. A document may have begun before the keys:
// its sinks are then negative.
struct VisibleKeys {
  at::Tensor first, end, sinks;  // [B, T] int32 on the device of the positions
};
// positions [B, T] int64: of each query in its document. The keys are the num_past tokens before
// the queries, and the queries' own: of a bidirectional pattern whole documents, but for what a row
// cuts off.
VisibleKeys VisibleKeysOf(const at::Tensor& positions, int64_t num_past, const KeyPattern& pattern);

// How many keys each query sees where none before its document's start are missing: [B, T] int64.
at::Tensor NumVisibleKeys(const at::Tensor& positions, const KeyPattern& pattern);

// Pairs of a query and a key that it sees, of a row of `seq_len` tokens of one document.
int64_t NumVisiblePairs(int64_t seq_len, const KeyPattern& pattern);

}  // namespace halflife::ops
