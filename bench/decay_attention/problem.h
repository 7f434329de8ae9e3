// The problems of the decay attention benchmark on any device: random inputs, the kernels' call,
// and counts of the necessary work.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ops/sequence/sequence_chunks.h"

namespace halflife::bench {

struct Shape {
  // constant per head; per_token; per_channel: per token and channel
  std::string kind = "per_head";
  int64_t batch = 2, seq_len = 4096, heads = 8;
  int64_t dim = 64;      // K of a head
  int64_t dim_v = 0;     // V; 0: K
  int64_t qk_heads = 0;  // Heads of q and k, shared by `heads` of v, decay and output; 0: heads.
  int segments = 0;      // Segments of a row that are scanned in parallel; 0: the plan decides.

  int64_t values() const { return dim_v == 0 ? dim : dim_v; }
  int64_t groups() const { return qk_heads == 0 ? heads : qk_heads; }
};

struct Problem {
  at::Tensor q, k, v;    // [B, T, groups, K], the same, [B, T, H, V]: leaves
  at::Tensor log_decay;  // fp32 [H], [B, T, H] or [B, T, H, K]; a leaf unless constant
  at::Tensor dout;
  // Made once per batch, as in training. Otherwise each call would upload its own table.
  std::shared_ptr<const ops::SequenceChunks> chunks;
  double scale;
  int segments;

  Problem(const Shape& shape, const at::TensorOptions& options);
  std::vector<at::Tensor> leaves() const;
};

at::Tensor Ours(const Problem& problem);
// dq, dk, dv and, unless the decay is constant, dlog_decay.
std::vector<at::Tensor> OursWithGradients(const Problem& problem);

// Returns 2 x the multiply-adds of the chunked algorithm with C = 64, counting whole squares, with
// q k^T once per head. The number is the same for all forms and chunk sizes, so that rates compare
// times. The executed number is smaller: two thirds of it on the CPU.
double Flops(const Shape& shape, bool backward);
// Returns the bytes that every schedule must move: each operand is read and each result written
// once in forward, and again in backward.
double CompulsoryBytes(const Shape& shape, int64_t element_bytes, bool backward);

// Returns the largest relative RMS error of outputs and gradients against the oracle, on two heads
// of the first 300 tokens.
double WorstError(const Shape& shape, const at::TensorOptions& options);

}  // namespace halflife::bench
