// The keys that a query of softmax attention sees. They belong to the query's document; they are
// the query's own and earlier tokens or, if bidirectional, later ones too; a pattern may restrict
// them.
//
//   const KeyPattern pattern = {.window = 1024, .sinks = 4};
//   const VisibleKeys seen = VisibleKeysOf(slice.positions, num_past, pattern);
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace halflife::ops {

// At most one of window and block may be set.
struct KeyPattern {
  int64_t window = 0;  // number of last keys that are visible, including the query's own; 0: all
  // Blockwise causal attention (Sun et al., 2022, section 3.3): documents are divided into blocks
  // of this many tokens, and a query sees its own block and the previous one. 0: none.
  int64_t block = 0;
  // Number of first keys of the document that are visible in addition to the window or block (Xiao
  // et al., 2024).
  int64_t sinks = 0;
  // For encoders: later keys of the document are visible too, and a window extends equally far in
  // both directions. Not allowed with blocks or with past keys.
  bool bidirectional = false;

  // Returns the largest distance to a visible key, plus 1, not counting sinks; 0: unbounded.
  int64_t reach() const { return block > 0 ? 2 * block : window; }
};

// Indices of the visible keys for query t of row b: it sees [first, end), and those of [sinks,
// sinks + pattern.sinks) that are before `first`. If a document began before the first key, its
// `sinks` is negative.
struct VisibleKeys {
  at::Tensor first, end, sinks;  // [B, T] int32 on the device of the positions
};
// positions [B, T] int64 are those of each query in its document. The keys are the num_past tokens
// before the queries, followed by the queries' own. For a bidirectional pattern the keys are whole
// documents, except where a row ends within one.
VisibleKeys VisibleKeysOf(const at::Tensor& positions, int64_t num_past, const KeyPattern& pattern);

// Returns the number of keys that each query sees if its whole document is present: [B, T] int64.
at::Tensor NumVisibleKeys(const at::Tensor& positions, const KeyPattern& pattern);

// Returns the number of visible pairs of a query and a key in a row of `seq_len` tokens of one
// document.
int64_t NumVisiblePairs(int64_t seq_len, const KeyPattern& pattern);

}  // namespace halflife::ops
