// Softmax over tiles of keys with a running maximum (Milakov and Gimelshein, 2018; Dao et al.,
// 2022). The weights of a row are relative to its largest score so far, and the sums are rescaled
// when a larger one appears.
#pragma once

#include "kernels/softmax_attention/cpu/tile_pair.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention {

template <typename T>
class Forward {
 public:
  Forward(const SoftmaxAttentionArgs& args, ScratchSpace& space) : args_(args), pair_(args, space) {
    values_ = space.Matrix<T>(pair_.num_tiles() * kTile, args.head_dim_v);
    values_.panel = kTile * kPanel;
    out_ = space.Matrix<T>(kTile, args.head_dim_v);
    maxima_ = space.Array<T>(kTile);
    factors_ = space.Array<T>(kTile);
    sums_ = space.Array<T>(kTile);
    loaded_ = space.Array<bool>(pair_.num_tiles());
  }

  void Run(const Item& item) {
    for (int tile = 0; tile < pair_.num_tiles(); ++tile) loaded_[tile] = false;
    pair_.FillDecays();
    for (int tile = item.first_tile; tile < item.end_tile; ++tile) {
      pair_.LoadQueries(item.row, item.head, tile);
      Clear(out_, kTile, args_.head_dim_v);
      for (int r = 0; r < kTile; ++r) {
        maxima_[r] = -std::numeric_limits<T>::infinity();
        sums_[r] = 0;
      }
      for (int met = 0; met < pair_.num_tiles(); ++met)
        if (pair_.Meets(met)) Attend(item, met);
      Finish(item, tile);
    }
  }

 private:
  Panels<T> ValuesOf(int tile) const {
    const int64_t size = int64_t{1} * kTile * RoundUp(args_.head_dim_v, kPanel);
    return {values_.data + tile * size, kTile * kPanel};
  }
  void Load(const Item& item, int tile) {
    loaded_[tile] = true;
    const ChunkEntry tokens = TileOfTokens(item.row, tile, args_.num_keys);
    const int head = SharedHead(item.head, args_.num_kv_heads, args_.num_heads);
    pair_.LoadKeys(tokens, head, tile);
    LoadRows(RowsOfHead(args_.v, tokens, head), tokens.length, kTile, args_.head_dim_v, T(1),
             ValuesOf(tile));
  }
  void Attend(const Item& item, int met) {
    if (!loaded_[met]) Load(item, met);
    pair_.ComputeScores(met);
    if (!args_.squared_relu) RaiseMaxima();
    for (int r = 0; r < pair_.num_rows(); ++r) {
      if (pair_.span(r).empty()) continue;
      if (args_.squared_relu) {
        Square(r);
      } else {
        Weigh(r);
      }
    }
    if (args_.dropout.drops()) {
      pair_.DrawKept(met);
      pair_.DropWeights();
    }
    pair_.AddSeen(pair_.scores(), ValuesOf(met), args_.head_dim_v, out_);
  }
  // Updates the maxima with this tile's scores, and the factors that rescale the sums so far.
  void RaiseMaxima() {
    for (int r = 0; r < kTile; ++r) {
      T maximum = maxima_[r];
      if (r < pair_.num_rows() && !pair_.span(r).empty()) {
        Vec<T> most = Vec<T>{} + maximum;
        for (int j = 0; j < kTile; j += kLanes<T>) {
          const Vec<T> x = At(pair_.scores().Row(r, j));
          most = x > most ? x : most;
        }
        for (int i = 0; i < kLanes<T>; ++i) maximum = most[i] > maximum ? most[i] : maximum;
      }
      // No score is finite so far, so the weights are 0 for any subtracted value.
      const bool none = maximum == -std::numeric_limits<T>::infinity();
      factors_[r] = none ? T(0) : maxima_[r] - maximum;
      maxima_[r] = maximum;
    }
    for (int r = 0; r < kTile; r += kLanes<T>) At(factors_ + r) = Exp(At(factors_ + r));
  }
  HL_INLINE void Square(int r) {
    for (int j = 0; j < kTile; j += kLanes<T>) {
      T* const place = pair_.scores().Row(r, j);
      const Vec<T> x = At(place);
      At(place) = x > T(0) ? x * x : Vec<T>{};
    }
  }
  HL_INLINE void Weigh(int r) {
    const T maximum = maxima_[r] == -std::numeric_limits<T>::infinity() ? T(0) : maxima_[r];
    Vec<T> sum = {};
    for (int j = 0; j < kTile; j += kLanes<T>) {
      T* const place = pair_.scores().Row(r, j);
      const Vec<T> weight = Exp(At(place) - maximum);
      sum += weight;
      At(place) = weight;
    }
    sums_[r] = sums_[r] * factors_[r] + Sum<T>(sum);
    if (factors_[r] == T(1)) return;
    for (int column = 0; column < args_.head_dim_v; column += kLanes<T>)
      At(out_.Row(r, column)) *= factors_[r];
  }
  void Finish(const Item& item, int tile) {
    const ChunkEntry tokens = TileOfTokens(item.row, tile, args_.num_queries);
    for (int r = 0; r < tokens.length; ++r) {
      const int64_t token = int64_t{1} * item.row * args_.num_queries + tokens.token + r;
      const T sum = args_.squared_relu ? static_cast<T>(args_.NumSeen(token)) : sums_[r];
      const T inverse = sum == T(0) ? T(0) : 1 / sum;  // a query that sees no key gets zeros
      for (int column = 0; column < args_.head_dim_v; column += kLanes<T>)
        At(out_.Row(r, column)) *= inverse;
      if (args_.log_sum == nullptr) continue;
      static_cast<T*>(args_.log_sum)[token * args_.num_heads + item.head] =
          maxima_[r] + std::log(sums_[r]);
    }
    StoreRows(out_, RowsOfHead(args_.out, tokens, item.head), 0, tokens.length, 0,
              args_.head_dim_v);
  }

  const SoftmaxAttentionArgs& args_;
  TilePair<T> pair_;
  Panels<T> values_, out_;                                      // [tiles][tile, V], [tile, V]
  T *maxima_ = nullptr, *factors_ = nullptr, *sums_ = nullptr;  // [tile], per query
  bool* loaded_ = nullptr;                                      // [tiles of keys]
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE::softmax_attention
