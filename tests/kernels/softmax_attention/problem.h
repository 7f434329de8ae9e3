// Random problems of softmax attention, one for each part of its formula, for tests on the CPU and
// on a GPU.
#pragma once

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/random_tensors.h"
#include "ops/softmax_attention/softmax_attention.h"

namespace halflife::kernels::attention_test {

using test::Normal;

struct Shape {
  const char* name = "";
  int64_t batch = 2, seq_len = 70, num_past = 0, heads = 2, kv_heads = 2, dim = 8, dim_v = 6;
  ops::KeyPattern pattern = {};
  bool bias = false, bias_scale = false;
  int64_t far_from = 0;
  bool own_far_keys = false;
  bool decay = false;
  bool squared_relu = false;
  double dropout = 0;                 // Rate on the weights.
  bool one_document = false;          // Declared as one document per row.
  std::vector<int64_t> starts = {0};  // Document starts, as tokens of a row.
};

// Every part of the formula, with sizes at and between the edges of tiles.
inline const std::vector<Shape> kShapes = {
    {.name = "one token", .seq_len = 1},
    {.name = "a tile", .seq_len = 64},
    {.name = "three tiles", .seq_len = 129, .dim = 40, .dim_v = 33},
    {.name = "shared keys", .heads = 4, .kv_heads = 2},
    {.name = "a past", .seq_len = 66, .num_past = 67},
    {.name = "documents", .seq_len = 150, .starts = {0, 1, 63, 64, 130}},
    {.name = "a window", .seq_len = 200, .pattern = {.window = 70}, .starts = {0, 20}},
    {.name = "blocks", .seq_len = 165, .pattern = {.block = 32}, .starts = {0, 5}},
    {.name = "sinks", .seq_len = 200, .pattern = {.window = 10, .sinks = 3}, .starts = {0, 70}},
    {.name = "bias", .seq_len = 130, .num_past = 3, .kv_heads = 1, .bias = true},
    {.name = "bias in a window", .seq_len = 140, .pattern = {.window = 33}, .bias = true},
    {.name = "scaled bias",
     .seq_len = 130,
     .num_past = 3,
     .heads = 4,
     .kv_heads = 2,
     .bias = true,
     .bias_scale = true,
     .starts = {0, 40}},
    {.name = "scaled bias with sinks",
     .seq_len = 140,
     .pattern = {.window = 33, .sinks = 2},
     .bias = true,
     .bias_scale = true},
    {.name = "far", .seq_len = 140, .far_from = 20, .own_far_keys = true, .starts = {0, 10}},
    {.name = "far queries", .seq_len = 140, .kv_heads = 1, .far_from = 130},
    {.name = "far with sinks",
     .seq_len = 140,
     .pattern = {.window = 16, .sinks = 2},
     .bias = true,
     .far_from = 16,
     .own_far_keys = true},
    {.name = "decay", .seq_len = 150, .num_past = 20, .kv_heads = 1, .decay = true},
    {.name = "decay in blocks", .seq_len = 170, .pattern = {.block = 48}, .decay = true},
    {.name = "both ways",
     .seq_len = 150,
     .pattern = {.bidirectional = true},
     .starts = {0, 1, 63, 64, 130}},
    {.name = "a window both ways",
     .seq_len = 170,
     .kv_heads = 1,
     .pattern = {.window = 40, .bidirectional = true},
     .starts = {0, 20}},
    {.name = "bias both ways",
     .seq_len = 150,
     .kv_heads = 1,
     .pattern = {.bidirectional = true},
     .bias = true,
     .starts = {0, 64, 100}},
    {.name = "scaled bias both ways",
     .seq_len = 100,
     .pattern = {.bidirectional = true},
     .bias = true,
     .bias_scale = true,
     .starts = {0, 64}},
    {.name = "scaled bias of squared ReLU",
     .seq_len = 70,
     .bias = true,
     .bias_scale = true,
     .squared_relu = true},
    {.name = "bias in a window both ways",
     .seq_len = 140,
     .pattern = {.window = 33, .bidirectional = true},
     .bias = true},
    {.name = "squared ReLU",
     .seq_len = 140,
     .kv_heads = 1,
     .dim_v = 70,
     .squared_relu = true,
     .starts = {0, 10}},
    {.name = "squared ReLU of one query", .seq_len = 1, .num_past = 70, .squared_relu = true},
    {.name = "squared ReLU with sinks",
     .seq_len = 90,
     .num_past = 5,
     .pattern = {.window = 10, .sinks = 3},
     .squared_relu = true,
     .starts = {0, 70}},
    {.name = "squared ReLU both ways",
     .seq_len = 100,
     .pattern = {.window = 30, .bidirectional = true},
     .squared_relu = true,
     .starts = {0, 33}},
    {.name = "dropout of one query", .seq_len = 1, .num_past = 40, .dropout = 0.5},
    {.name = "dropout",
     .seq_len = 140,
     .num_past = 3,
     .heads = 4,
     .kv_heads = 2,
     .dropout = 0.3,
     .starts = {0, 40}},
    {.name = "dropout in a window with sinks",
     .seq_len = 200,
     .pattern = {.window = 20, .sinks = 3},
     .bias = true,
     .bias_scale = true,
     .dropout = 0.1,
     .starts = {0, 70}},
    {.name = "dropout both ways",
     .seq_len = 130,
     .pattern = {.bidirectional = true},
     .bias = true,
     .dropout = 0.2},
    {.name = "dropout of far pairs",
     .seq_len = 140,
     .far_from = 20,
     .own_far_keys = true,
     .dropout = 0.2},
    {.name = "dropout of decays", .seq_len = 150, .decay = true, .dropout = 0.2},
    {.name = "dropout of squared ReLU",
     .seq_len = 140,
     .kv_heads = 1,
     .dim_v = 70,
     .squared_relu = true,
     .dropout = 0.2,
     .starts = {0, 10}}};

struct Problem {
  ops::SoftmaxAttentionInputs in;
  ops::SoftmaxAttentionConfig config;

  Problem To(at::ScalarType dtype) const {
    Problem other = *this;
    for (at::Tensor* x : {&other.in.q, &other.in.k, &other.in.v, &other.in.far_q, &other.in.far_k})
      if (x->defined()) *x = x->to(dtype);
    for (at::Tensor* x : {&other.in.bias, &other.in.bias_scale})
      if (x->defined()) *x = x->to(dtype == at::kDouble ? at::kDouble : at::kFloat);
    return other;
  }
  at::Tensor Out(at::ScalarType dtype = at::kDouble) const {
    const Problem other = To(dtype);
    return ops::SoftmaxAttention(other.in, other.config);
  }
};

inline at::Tensor Positions(const Shape& shape) {
  at::Tensor positions = at::zeros({shape.batch, shape.seq_len}, at::kLong);
  auto* data = positions.mutable_data_ptr<int64_t>();
  for (int64_t row = 0; row < shape.batch; ++row) {
    int64_t start = -shape.num_past;  // The past belongs to the first document.
    for (int64_t t = 0; t < shape.seq_len; ++t) {
      // Each row has different starts.
      if (t > row && std::ranges::count(shape.starts, t - row) > 0) start = t;
      data[row * shape.seq_len + t] = t - start;
    }
  }
  return positions;
}

inline Problem MakeProblem(const Shape& s, uint64_t seed) {
  const int64_t keys = s.num_past + s.seq_len;
  Problem p;
  p.in.q = Normal({s.batch, s.seq_len, s.heads, s.dim}, seed);
  p.in.k = Normal({s.batch, keys, s.kv_heads, s.dim}, seed + 1);
  p.in.v = Normal({s.batch, keys, s.kv_heads, s.dim_v}, seed + 2);
  p.in.positions = Positions(s);
  p.in.one_document = s.one_document;
  if (s.far_from > 0) p.in.far_q = Normal({s.batch, s.seq_len, s.heads, s.dim}, seed + 3);
  if (s.own_far_keys) p.in.far_k = Normal({s.batch, keys, s.kv_heads, s.dim}, seed + 4);
  if (s.bias) p.in.bias = Normal({s.heads, keys + 5}, seed + 5);
  if (s.bias_scale) p.in.bias_scale = Normal({s.batch, s.seq_len}, seed + 6);
  p.config = {.scale = 1 / std::sqrt(static_cast<double>(s.dim)),
              .pattern = s.pattern,
              .squared_relu = s.squared_relu,
              .far_from = s.far_from};
  if (s.dropout > 0)
    p.config.dropout = {.rate = s.dropout,
                        .key = MakeRandomKey(seed, RandomPurpose::kTest, 3),
                        .samples = at::arange(s.batch, at::kLong) + (int64_t{5} << 32),
                        .first_position = s.num_past};
  for (int64_t c = 0; c < s.dim && s.decay; ++c)
    p.config.decay_rates.push_back(-0.003 * static_cast<double>(c));
  return p;
}

}  // namespace halflife::kernels::attention_test
