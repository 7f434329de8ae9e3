// What the benchmark of decay attention runs, on any device: random problems, the kernels' call,
// and counts of what a call must do.
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
  int64_t qk_heads = 0;  // of q and k, shared by `heads` of v, decay and output; 0: as many
  int segments = 0;      // of a row, scanned side by side; 0: the plan's choice

  int64_t values() const { return dim_v == 0 ? dim : dim_v; }
  int64_t groups() const { return qk_heads == 0 ? heads : qk_heads; }
};

struct Problem {
  at::Tensor q, k, v;    // [B, T, groups, K], the same, [B, T, H, V]: leaves
  at::Tensor log_decay;  // fp32 [H], [B, T, H] or [B, T, H, K]; a leaf unless constant
  at::Tensor dout;
  // Made once a batch, as in training: else each call would upload a table of its own.
  std::shared_ptr<const ops::SequenceChunks> chunks;
  double scale;
  int segments;

  Problem(const Shape& shape, const at::TensorOptions& options);
  std::vector<at::Tensor> leaves() const;
};

at::Tensor Ours(const Problem& problem);
// dq, dk, dv and, unless the decay is constant, dlog_decay.
std::vector<at::Tensor> OursWithGradients(const Problem& problem);

// Multiply-adds x 2 of the chunked algorithm at C = 64, whole squares counted, q k^T once a head:
// the same for every form, whatever its chunks, so that rates compare times. What is executed is
// less: on the CPU two thirds of it.
double Flops(const Shape& shape, bool backward);
// Bytes that no schedule avoids: each operand read and each result written once, in the forward and
// once more in the backward.
double CompulsoryBytes(const Shape& shape, int64_t element_bytes, bool backward);

// Largest relative RMS error of outputs and gradients against the oracle, on two heads of the first
// 300 tokens.
double WorstError(const Shape& shape, const at::TensorOptions& options);

}  // namespace halflife::bench
