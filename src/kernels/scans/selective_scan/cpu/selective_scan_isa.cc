// The loops of the selective scan. Compiled per instruction set. A work item scans the tokens of
// one sequence in tiles, for a block of channels. The tile's rows are copied to dense arrays in the
// cache; then each vector of channels processes the tile with 8 of its states in registers. States
// are padded to groups of 8, with zeros in b and c.
#include "kernels/scans/selective_scan/cpu/kernels.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/isa_target.h"

#include "kernels/common/cpu/block_rows.h"
#include "kernels/scans/selective_scan/cpu/decay.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

constexpr int kGroup = 8;  // number of states in a group
constexpr int kWidth = kScanChannels;

// One value for each channel of the block; 0 for channels that do not exist.
template <typename C>
struct alignas(64) ScanChannels {
  C x[kWidth];

  HL_INLINE void Clear() { __builtin_memset(x, 0, sizeof(x)); }
  HL_INLINE Vec<C>& At(int i) { return HL_SIMD_NAMESPACE::At(x + i); }
  HL_INLINE const Vec<C>& At(int i) const { return HL_SIMD_NAMESPACE::At(x + i); }
};
// One value for each state of a group, for a vector of channels.
template <typename C>
struct Group {
  Vec<C> x[kGroup];
};

// An item's arrays, placed in the memory that the caller provides.
template <typename C>
struct ScanArrays {
  ScanArrays(void* memory, int64_t num_states)
      : next(reinterpret_cast<uintptr_t>(memory)),
        states(static_cast<int>((num_states + kGroup - 1) / kGroup * kGroup)) {
    for (ScanChannels<C>** per_state : {&a, &state, &da})
      *per_state = Take<ScanChannels<C>>(states);
    for (ScanChannels<C>** row : {&x, &step, &slope, &input, &y, &dstep, &dinput})
      *row = Take<ScanChannels<C>>(kScanTile);
    for (C** row : {&b, &c}) *row = Take<C>(kScanTile * states);
    for (Group<C>** group : {&decays, &db, &dc}) *group = Take<Group<C>>(kScanTile);
    history = Take<Group<C>>(kScanTile + 1);
  }
  template <typename Object>
  Object* Take(int64_t count) {
    const uintptr_t taken = next;
    next += (static_cast<uintptr_t>(count) * sizeof(Object) + 63) / 64 * 64;
    return reinterpret_cast<Object*>(taken);
  }

  uintptr_t next;
  int states;  // N, padded
  // [N] each; `a` is multiplied by kDecayBase. In the backward, `state` is dL/dstate from the later
  // tokens.
  ScanChannels<C>*a, *state, *da;
  ScanChannels<C>*x, *step, *slope;  // [tile]; `slope` is that of the softplus
  ScanChannels<C>* input;            // [tile] step x
  ScanChannels<C>* y;                // [tile]; dy in the backward
  // [tile]; dstep only includes the path through the decays, times kDecayBase.
  ScanChannels<C>*dstep, *dinput;
  C *b, *c;  // [tile, N]
  // For a vector's pass over the tile: the states before the first token and after each token, and
  // e^{step a}. db and dc are summed over the block's vectors, with separate lanes.
  Group<C>*history, *decays, *db, *dc;
  bool resets[kScanTile];  // a document starts at the token
  ScanChannels<C> bias, skip, dbias, dskip;
};

inline int64_t ScanScratch(int64_t states, bool wide) {
  return static_cast<int64_t>(wide ? ScanArrays<double>(nullptr, states).next
                                   : ScanArrays<float>(nullptr, states).next);
}

template <typename T, typename C>
class ScanItem {
 public:
  ScanItem(const ScanShape<T, C>& shape, int64_t item, void* scratch)
      : shape_(shape), arrays_(scratch, shape.states) {
    const int64_t blocks = ScanBlocks(shape.channels);
    sequence_ = item / blocks, block_ = item % blocks;
    channel_ = block_ * kWidth;
    const int64_t rest = shape.channels - channel_;
    count_ = static_cast<int>(rest < kWidth ? rest : kWidth);
    LoadRow(shape.delta_bias + channel_, count_, kWidth, arrays_.bias.x);
    LoadRow(shape.skip + channel_, count_, kWidth, arrays_.skip.x);
    const int64_t states = shape.states;
    const C* const from = shape.a + channel_ * states;
    for (int n = 0; n < arrays_.states; ++n) {
      arrays_.a[n].Clear();
      for (int i = 0; i < count_ && n < states; ++i) arrays_.a[n].x[i] = from[i * states + n];
      for (int i = 0; i < count_ && n < states; i += kLanes<C>) {
        const Vec<C> given = arrays_.a[n].At(i);
        arrays_.a[n].At(i) = kDecayBase<C> * (shape.negative_exp ? -Exp(given) : given);
      }
    }
  }

  void Forward(const ScanResults<T, C>& results) {
    LoadState(shape_.initial);
    for (int64_t tile = 0; tile < num_tiles(); ++tile) {
      if (results.kept != nullptr) KeepState(results.kept, tile);
      LoadTile(tile);
      for (int t = 0; t < length_; ++t)
        for (int i = 0; i < count_; i += kLanes<C>)
          arrays_.y[t].At(i) = arrays_.skip.At(i) * arrays_.x[t].At(i);
      for (int i = 0; i < count_; i += kLanes<C>)
        for (int n = 0; n < arrays_.states; n += kGroup) ForwardGroup(i, n);
      for (int t = 0; t < length_; ++t)
        StoreRow(arrays_.y[t].x, count_, results.y + At(begin_ + t, results.y_stride));
    }
    if (results.final != nullptr) StoreState(results.final);
  }

  void Backward(const ScanGrads<T, C>& grads, const ScanPartials<C>& partials) {
    LoadState(grads.dfinal);
    for (int n = 0; n < arrays_.states; ++n) arrays_.da[n].Clear();
    arrays_.dbias.Clear(), arrays_.dskip.Clear();
    for (int64_t tile = num_tiles() - 1; tile >= 0; --tile) {
      LoadTile(tile);
      for (int t = 0; t < length_; ++t) {
        LoadRow(grads.dy + At(begin_ + t, grads.dy_stride), count_, kWidth, arrays_.y[t].x);
        arrays_.dstep[t].Clear(), arrays_.dinput[t].Clear();
      }
      for (int n = 0; n < arrays_.states; n += kGroup) {
        ClearSums();
        for (int i = 0; i < count_; i += kLanes<C>) {
          StatesOfTile(grads.kept, tile, i, n);
          BackwardGroup(i, n);
        }
        StoreSums(partials, n);
      }
      StoreTile(grads);
    }
    if (grads.dinitial != nullptr) StoreState(grads.dinitial);
    StoreRow(arrays_.dskip.x, count_, partials.dskip + sequence_ * shape_.channels + channel_);
    StoreRow(arrays_.dbias.x, count_,
             partials.ddelta_bias + sequence_ * shape_.channels + channel_);
    for (int n = 0; shape_.negative_exp && n < arrays_.states; ++n)
      for (int i = 0; i < count_; i += kLanes<C>)
        arrays_.da[n].At(i) *= arrays_.a[n].At(i) * (1 / kDecayBase<C>);
    for (int64_t n = 0; n < shape_.states; ++n)
      StoreRow(arrays_.da[n].x, count_,
               partials.da + (sequence_ * shape_.states + n) * shape_.channels + channel_);
  }

 private:
  int64_t num_tiles() const { return ScanTiles(shape_.seq_len, kScanTile); }
  int64_t At(int64_t token, int64_t stride) const {
    return (sequence_ * shape_.seq_len + token) * stride + channel_;
  }
  // Returns the offset, in [B, tiles, N, I], of state n before the tile.
  int64_t OfKept(int64_t tile, int64_t n) const {
    return ((sequence_ * num_tiles() + tile) * shape_.states + n) * shape_.channels + channel_;
  }

  // Convert between [B, I, N] and [N][channels].
  void LoadState(const C* from) {
    for (int n = 0; n < arrays_.states; ++n) arrays_.state[n].Clear();
    if (from == nullptr) return;
    const C* const rows = from + (sequence_ * shape_.channels + channel_) * shape_.states;
    for (int i = 0; i < count_; ++i)
      for (int64_t n = 0; n < shape_.states; ++n)
        arrays_.state[n].x[i] = rows[i * shape_.states + n];
  }
  void StoreState(C* to) const {
    C* const rows = to + (sequence_ * shape_.channels + channel_) * shape_.states;
    for (int i = 0; i < count_; ++i)
      for (int64_t n = 0; n < shape_.states; ++n)
        rows[i * shape_.states + n] = arrays_.state[n].x[i];
  }
  void KeepState(C* kept, int64_t tile) const {
    for (int64_t n = 0; n < shape_.states; ++n)
      StoreRow(arrays_.state[n].x, count_, kept + OfKept(tile, n));
  }

  void LoadTile(int64_t tile) {
    begin_ = tile * kScanTile;
    const int64_t rest = shape_.seq_len - begin_;
    length_ = static_cast<int>(rest < kScanTile ? rest : kScanTile);
    for (int t = 0; t < length_; ++t) {
      const int64_t token = sequence_ * shape_.seq_len + begin_ + t;
      arrays_.resets[t] = shape_.starts != nullptr && shape_.starts[token];
      const auto states = static_cast<int>(shape_.states);
      const int64_t of_token = token * shape_.token_stride;
      LoadRow(shape_.b + of_token, states, arrays_.states, arrays_.b + t * arrays_.states);
      LoadRow(shape_.c + of_token, states, arrays_.states, arrays_.c + t * arrays_.states);
      LoadRow(shape_.x + At(begin_ + t, shape_.x_stride), count_, kWidth, arrays_.x[t].x);
      LoadRow(shape_.delta + At(begin_ + t, shape_.delta_stride), count_, kWidth,
              arrays_.step[t].x);
      for (int i = 0; i < count_; i += kLanes<C>) {
        const Softplus<C> softplus(arrays_.step[t].At(i) + arrays_.bias.At(i));
        arrays_.step[t].At(i) = softplus.value;
        arrays_.slope[t].At(i) = softplus.slope;
        arrays_.input[t].At(i) = softplus.value * arrays_.x[t].At(i);
      }
    }
  }

  HL_INLINE static Group<C> LoadGroup(const ScanChannels<C>* rows, int i, int n) {
    Group<C> group;
#pragma GCC unroll 8
    for (int j = 0; j < kGroup; ++j) group.x[j] = rows[n + j].At(i);
    return group;
  }
  HL_INLINE static void StoreGroup(const Group<C>& group, int i, int n, ScanChannels<C>* rows) {
#pragma GCC unroll 8
    for (int j = 0; j < kGroup; ++j) rows[n + j].At(i) = group.x[j];
  }

  // Processes channels i .. of the block and states n .. of the group.
  HL_INLINE void ForwardGroup(int i, int n) {
    const Group<C> a = LoadGroup(arrays_.a, i, n);
    Group<C> h = LoadGroup(arrays_.state, i, n);
    for (int t = 0; t < length_; ++t) {
      if (arrays_.resets[t]) h = {};
      const Vec<C> step = arrays_.step[t].At(i), input = arrays_.input[t].At(i);
      const C* const b = arrays_.b + t * arrays_.states + n;
      const C* const c = arrays_.c + t * arrays_.states + n;
      Vec<C> y = arrays_.y[t].At(i);
#pragma GCC unroll 8
      for (int j = 0; j < kGroup; ++j) {
        h.x[j] = Decay(step * a.x[j]) * h.x[j] + input * b[j];
        y += h.x[j] * c[j];
      }
      arrays_.y[t].At(i) = y;
    }
    StoreGroup(h, i, n, arrays_.state);
  }

  // Recomputes the tile's states from the one that the forward kept.
  HL_INLINE void StatesOfTile(const C* kept, int64_t tile, int i, int n) {
    const Group<C> a = LoadGroup(arrays_.a, i, n);
    Group<C> h = {};
    const int rest = count_ - i;
    const int lanes = rest < kLanes<C> ? rest : kLanes<C>;
#pragma GCC unroll 8
    for (int j = 0; j < kGroup; ++j) {
      if (n + j >= shape_.states) break;
      const C* const row = kept + OfKept(tile, n + j) + i;
      if (lanes == kLanes<C>) {
        h.x[j] = LoadUnaligned(row);
      } else {
        for (int lane = 0; lane < lanes; ++lane) h.x[j][lane] = row[lane];
      }
    }
    arrays_.history[0] = h;
    for (int t = 0; t < length_; ++t) {
      if (arrays_.resets[t]) h = {};
      const Vec<C> step = arrays_.step[t].At(i), input = arrays_.input[t].At(i);
      const C* const b = arrays_.b + t * arrays_.states + n;
#pragma GCC unroll 8
      for (int j = 0; j < kGroup; ++j) {
        const Vec<C> decay = Decay(step * a.x[j]);
        h.x[j] = decay * h.x[j] + input * b[j];
        arrays_.decays[t].x[j] = decay;
        arrays_.history[t + 1].x[j] = h.x[j];
      }
    }
  }

  HL_INLINE void BackwardGroup(int i, int n) {
    const Group<C> a = LoadGroup(arrays_.a, i, n);
    Group<C> later = LoadGroup(arrays_.state, i, n);  // dL/dh from the later tokens
    Group<C> da = LoadGroup(arrays_.da, i, n);
    for (int t = length_ - 1; t >= 0; --t) {
      const Vec<C> step = arrays_.step[t].At(i), input = arrays_.input[t].At(i),
                   dy = arrays_.y[t].At(i);
      const C* const b = arrays_.b + t * arrays_.states + n;
      const C* const c = arrays_.c + t * arrays_.states + n;
      const Group<C>& before = arrays_.history[t];
      Vec<C> dstep = arrays_.dstep[t].At(i), dinput = arrays_.dinput[t].At(i);
      const bool resets = arrays_.resets[t];
#pragma GCC unroll 8
      for (int j = 0; j < kGroup; ++j) {
        const Vec<C> dh = later.x[j] + dy * c[j];
        arrays_.dc[t].x[j] += dy * arrays_.history[t + 1].x[j];
        arrays_.db[t].x[j] += dh * input;
        dinput += dh * b[j];
        later.x[j] = arrays_.decays[t].x[j] * dh;
        if (resets) continue;
        const Vec<C> dlog = later.x[j] * before.x[j];  // gradient of step a
        dstep += dlog * a.x[j];
        da.x[j] += dlog * step;
      }
      if (resets) later = {};
      arrays_.dstep[t].At(i) = dstep;
      arrays_.dinput[t].At(i) = dinput;
    }
    StoreGroup(later, i, n, arrays_.state);
    StoreGroup(da, i, n, arrays_.da);
  }

  void ClearSums() {
    for (int t = 0; t < length_; ++t) arrays_.db[t] = {}, arrays_.dc[t] = {};
  }
  // Stores the sums over the block's channels for the group of states from n on.
  void StoreSums(const ScanPartials<C>& partials, int n) const {
    for (int t = 0; t < length_; ++t) {
      const int64_t token = (block_ * shape_.batch + sequence_) * shape_.seq_len + begin_ + t;
      for (int j = 0; j < kGroup && n + j < shape_.states; ++j) {
        partials.db[token * shape_.states + n + j] = Sum<C>(arrays_.db[t].x[j]);
        partials.dc[token * shape_.states + n + j] = Sum<C>(arrays_.dc[t].x[j]);
      }
    }
  }
  // Stores dx and ddelta of the tile, and adds its contribution to dskip and dbias.
  void StoreTile(const ScanGrads<T, C>& grads) {
    for (int t = 0; t < length_; ++t) {
      for (int i = 0; i < count_; i += kLanes<C>) {
        const Vec<C> dy = arrays_.y[t].At(i), x = arrays_.x[t].At(i);
        const Vec<C> dinput = arrays_.dinput[t].At(i);
        const Vec<C> dstep = arrays_.dstep[t].At(i) * (1 / kDecayBase<C>)+dinput * x;
        const Vec<C> ddelta = dstep * arrays_.slope[t].At(i);
        arrays_.dskip.At(i) += dy * x;
        arrays_.dbias.At(i) += ddelta;
        arrays_.dinput[t].At(i) = dinput * arrays_.step[t].At(i) + arrays_.skip.At(i) * dy;
        arrays_.dstep[t].At(i) = ddelta;
      }
      StoreRow(arrays_.dinput[t].x, count_, grads.dx + At(begin_ + t, grads.dx_stride));
      StoreRow(arrays_.dstep[t].x, count_, grads.ddelta + At(begin_ + t, grads.ddelta_stride));
    }
  }

  const ScanShape<T, C>& shape_;
  ScanArrays<C> arrays_;
  int64_t sequence_, block_, channel_;
  int count_;  // number of the block's channels that exist
  int64_t begin_ = 0;
  int length_ = 0;  // tokens of the tile
};

template <typename T, typename C>
void ScanForwardItem(const ScanShape<T, C>& shape, const ScanResults<T, C>& results, int64_t item,
                     void* scratch) {
  ScanItem<T, C>(shape, item, scratch).Forward(results);
}
template <typename T, typename C>
void ScanBackwardItem(const ScanShape<T, C>& shape, const ScanGrads<T, C>& grads,
                      const ScanPartials<C>& partials, int64_t item, void* scratch) {
  ScanItem<T, C>(shape, item, scratch).Backward(grads, partials);
}

constexpr ScanKernels kScanKernels = {
    .scratch_bytes = ScanScratch,
    .loops = {
        ScanLoops<float, float>{ScanForwardItem<float, float>, ScanBackwardItem<float, float>},
        ScanLoops<Bf16, float>{ScanForwardItem<Bf16, float>, ScanBackwardItem<Bf16, float>},
        ScanLoops<double, double>{ScanForwardItem<double, double>,
                                  ScanBackwardItem<double, double>}}};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
