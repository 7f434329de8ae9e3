// Attention of a single query, for decoding. Keys and values are read once, in place; nothing is
// transposed.
#pragma once

#include "kernels/softmax_attention/cpu/tile_pair.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention {

template <typename T>
class SingleQuery {
 public:
  SingleQuery(const SoftmaxAttentionArgs& args, ScratchSpace& space) : args_(args) {
    rows_ = space.Matrix<T>(kTile, std::max(args.head_dim, args.head_dim_v));
    scores_ = space.Array<T>(RoundUp(args.num_keys, kTile));
    q_ = space.Array<T>(RoundUp(args.head_dim, kPanel));
    far_q_ = space.Array<T>(RoundUp(args.head_dim, kPanel));
    met_q_ = space.Array<T>(RoundUp(args.head_dim, kPanel));
    out_ = space.Array<T>(RoundUp(args.head_dim_v, kPanel));
    if (args.decay_rates != nullptr) decays_ = space.Array<T>(int64_t{1} * kTile * args.head_dim);
  }

  void Run(const Item& item) {
    item_ = &item;
    kv_head_ = SharedHead(item.head, args_.num_kv_heads, args_.num_heads);
    const ChunkEntry token = TileOfTokens(item.row, 0, 1);
    Load(args_.q, token, q_);
    if (args_.has_far()) Load(args_.far_q, token, far_q_);
    for (int j = 0; j < RoundUp(args_.head_dim_v, kPanel); ++j) out_[j] = 0;
    for (int i = 0; i < RoundUp(args_.head_dim, kPanel); ++i) met_q_[i] = 0;
    for (int i = 0; i < args_.head_dim && decays_ != nullptr; ++i)
      for (int n = 0; n < kTile; ++n)
        decays_[i * kTile + n] = static_cast<T>(std::exp(args_.decay_rates[i] * n));
    maximum_ = -std::numeric_limits<T>::infinity();
    ForSeen([&](int begin, int end) { Score(begin, end); });
    T sum = 0;
    ForSeen([&](int begin, int end) { AddValues(begin, end, sum); });
    if (args_.squared_relu) sum = static_cast<T>(args_.NumSeen(item.row));
    const T inverse = sum == T(0) ? T(0) : 1 / sum;
    const RowsOf out = RowsOfHead(args_.out, token, item.head);
    WithStorage<T>(out.dtype, [&](auto sample) {
      using S = decltype(sample);
      for (int j = 0; j < args_.head_dim_v; ++j) out.Row<S>(0)[j] = Narrow<S>(out_[j] * inverse);
    });
  }

 private:
  void Load(const TensorView& view, const ChunkEntry& token, T* to) {
    const Panels<T> row = {to, kPanel};
    LoadRows(RowsOfHead(view, token, item_->head), 1, 1, args_.head_dim,
             static_cast<T>(args_.scale), row);
  }
  // Calls function(begin, end) for the keys that the query sees, at most a tile at a time.
  template <typename Function>
  void ForSeen(Function function) {
    const int first = args_.first[item_->row], end = args_.end[item_->row];
    const auto range = [&](int from, int to) {
      for (; from < to; from += kTile) function(from, std::min(from + kTile, to));
    };
    if (args_.num_sinks > 0) {
      const int sinks = args_.sinks[item_->row];
      range(std::max(sinks, 0), std::min(sinks + args_.num_sinks, first));
    }
    range(first, end);
  }
  void LoadTile(const TensorView& view, int begin, int end, int width) {
    const ChunkEntry tokens = {
        .token = begin, .row = item_->row, .length = end - begin, .flags = 0, .padding = 0};
    LoadRows(RowsOfHead(view, tokens, kv_head_), end - begin, end - begin, width, T(1), rows_);
  }

  void Score(int begin, int end) {
    const int far_end =
        args_.has_far() ? std::clamp(args_.num_past - args_.far_from + 1, begin, end) : begin;
    if (begin < far_end) {
      LoadTile(!args_.own_far_keys ? args_.k : args_.far_k, begin, far_end, args_.head_dim);
      for (int key = begin; key < far_end; ++key) scores_[key] = Dot(far_q_, key - begin);
    }
    if (far_end < end) {
      LoadTile(args_.k, far_end, end, args_.head_dim);
      const T* const q = args_.decay_rates == nullptr ? q_ : Decay(far_end, end);
      for (int key = far_end; key < end; ++key) scores_[key] = Dot(q, key - far_end);
    }
    const auto* bias = static_cast<const T*>(args_.bias);
    const T bias_scale =
        args_.bias_scale == nullptr ? T(1) : static_cast<const T*>(args_.bias_scale)[item_->row];
    for (int key = begin; key < end; ++key) {
      if (bias != nullptr)
        scores_[key] +=
            bias_scale *
            bias[item_->head * args_.bias_stride + args_.bias_zero - (args_.num_past - key)];
      if (scores_[key] > maximum_) maximum_ = scores_[key];
    }
  }
  // Multiplies the current keys by their decay up to the last of them, and the query by the
  // remaining decay.
  const T* Decay(int begin, int end) {
    for (int i = 0; i < args_.head_dim; ++i) {
      const double rate = args_.decay_rates[i];
      met_q_[i] = q_[i] * static_cast<T>(std::exp(rate * (args_.num_past - (end - 1))));
      for (int key = begin; key < end; ++key)
        *rows_.Row(key - begin, i) *= decays_[i * kTile + end - 1 - key];
    }
    return met_q_;
  }
  T Dot(const T* q, int row) const {
    Vec<T> sum = {};
    for (int column = 0; column < args_.head_dim; column += kLanes<T>)
      sum += At(q + column) * At(rows_.Row(row, column));
    return Sum<T>(sum);
  }
  static T Square(T x) { return x * x; }
  void AddValues(int begin, int end, T& sum) {
    LoadTile(args_.v, begin, end, args_.head_dim_v);
    for (int key = begin; key < end; ++key) {
      const T weight = args_.squared_relu ? Square(std::max(scores_[key], T(0)))
                                          : std::exp(scores_[key] - maximum_);
      sum += weight;
      for (int column = 0; column < args_.head_dim_v; column += kLanes<T>)
        At(out_ + column) += weight * At(rows_.Row(key - begin, column));
    }
  }

  const SoftmaxAttentionArgs& args_;
  const Item* item_ = nullptr;
  int kv_head_ = 0;
  T maximum_ = 0;
  Panels<T> rows_;       // [tile, d or V]
  T* decays_ = nullptr;  // [d, tile]: decay by distance
  T *scores_ = nullptr, *q_ = nullptr, *far_q_ = nullptr, *met_q_ = nullptr, *out_ = nullptr;
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention
