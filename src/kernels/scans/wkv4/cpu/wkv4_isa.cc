// The loops of RWKV-4's time mixing. Compiled per instruction set. A work item scans the tokens of
// one sequence in tiles, for a block of channels. The rows of a tile are copied to dense arrays in
// the cache, where the vectors of channels are processed, one token after another.
#include "kernels/scans/wkv4/cpu/kernels.h"

#include <cstddef>
#include <type_traits>
#include <utility>

#include "kernels/common/cpu/isa_target.h"

#include "kernels/common/cpu/block_rows.h"
#include "kernels/common/cpu/microkernel.h"
#include "kernels/scans/wkv4/wkv4_recurrence.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

constexpr int kWkvTile = kWkvTokensPerState;

// Arithmetic on a vector of channels.
template <typename C>
struct Lanes {
  HL_INLINE static Vec<C> Exp(const Vec<C>& x) { return HL_SIMD_NAMESPACE::Exp(x); }
  HL_INLINE static Vec<C> Of(double x) { return Vec<C>{} + static_cast<C>(x); }
};

// One value for each channel of the block; 0 for channels that do not exist.
template <typename C>
struct alignas(64) WkvChannels {
  C x[kWkvChannels];

  HL_INLINE void Clear() { __builtin_memset(x, 0, sizeof(x)); }
  HL_INLINE Vec<C>& At(int c) { return HL_SIMD_NAMESPACE::At(x + c); }
  HL_INLINE const Vec<C>& At(int c) const { return HL_SIMD_NAMESPACE::At(x + c); }
};

template <typename C>
struct Memories {
  WkvChannels<C> p, q, o;

  HL_INLINE wkv::Memory<Vec<C>> At(int c) const { return {p.At(c), q.At(c), o.At(c)}; }
  HL_INLINE void Set(int c, const wkv::Memory<Vec<C>>& memory) {
    p.At(c) = memory.p, q.At(c) = memory.q, o.At(c) = memory.o;
  }
  HL_INLINE void Clear() { p.Clear(), q.Clear(), o.Clear(); }
};

template <typename C>
struct Adjoints {
  WkvChannels<C> a, b, r, c;

  HL_INLINE wkv::Adjoint<Vec<C>> At(int i) const { return {a.At(i), b.At(i), r.At(i), c.At(i)}; }
  HL_INLINE void Clear() { a.Clear(), b.Clear(), r.Clear(), c.Clear(); }
};

// The position of a work item, and the values of its channels that all tokens share.
template <typename T, typename C>
struct WkvBlock {
  HL_INLINE WkvBlock(const WkvShape<T, C>& of, int64_t item) : shape(of) {
    const int64_t blocks = WkvBlocks(shape.dim);
    sequence = item / blocks;
    channel = item % blocks * kWkvChannels;
    const int64_t rest = shape.dim - channel;
    count = static_cast<int>(rest < kWkvChannels ? rest : kWkvChannels);
    Load(shape.log_decay + channel, log_decay);
    Load(shape.bonus + channel, bonus);
    for (int c = 0; c < count; c += kLanes<C>) {
      if (shape.negative_exp) log_decay.At(c) = -Lanes<C>::Exp(log_decay.At(c));
      const auto decay = wkv::MakeDecay<Lanes<C>>(log_decay.At(c));
      factor.At(c) = decay.factor, shift.At(c) = decay.shift;
    }
  }
  template <typename S>
  HL_INLINE void Load(const S* row, WkvChannels<C>& to) const {
    LoadRow(row, count, kWkvChannels, to.x);
  }
  template <typename S>
  HL_INLINE void Store(const WkvChannels<C>& from, S* row) const {
    StoreRow(from.x, count, row);
  }
  HL_INLINE void Load(const C* p, const C* q, const C* o, Memories<C>& to) const {
    Load(p, to.p), Load(q, to.q), Load(o, to.o);
  }
  HL_INLINE void Store(const Memories<C>& from, C* p, C* q, C* o) const {
    Store(from.p, p), Store(from.q, q), Store(from.o, o);
  }
  HL_INLINE int64_t At(int64_t token) const {
    return (sequence * shape.seq_len + token) * shape.dim + channel;
  }
  HL_INLINE int64_t OfState() const { return sequence * shape.dim + channel; }
  HL_INLINE int64_t OfKept(int64_t tile) const {
    return (sequence * WkvTiles(shape.seq_len) + tile) * 3 * shape.dim + channel;
  }
  HL_INLINE bool Starts(int64_t token) const {
    return shape.starts != nullptr && shape.starts[sequence * shape.seq_len + token];
  }
  HL_INLINE wkv::Decay<Vec<C>> DecayAt(int c) const { return {factor.At(c), shift.At(c)}; }

  const WkvShape<T, C>& shape;
  int64_t sequence, channel;
  int count;  // number of its channels that exist
  WkvChannels<C> log_decay, bonus, factor, shift;
};

// The values of a tile's tokens.
template <typename C>
struct WkvTile {
  template <typename T>
  HL_INLINE void Load(const WkvBlock<T, C>& block, int64_t tile) {
    begin = tile * kWkvTile;
    const int64_t rest = block.shape.seq_len - begin;
    length = static_cast<int>(rest < kWkvTile ? rest : kWkvTile);
    for (int i = 0; i < length; ++i) {
      block.Load(block.shape.k + block.At(begin + i), k[i]);
      block.Load(block.shape.v + block.At(begin + i), v[i]);
    }
  }
  int64_t begin;
  int length;
  WkvChannels<C> k[kWkvTile], v[kWkvTile];
};

template <typename T, typename C>
void WkvForwardItem(const WkvShape<T, C>& shape, const WkvResults<T, C>& results, int64_t item) {
  using M = Lanes<C>;
  const WkvBlock<T, C> block(shape, item);
  const int64_t of_state = block.OfState();
  Memories<C> memory;
  memory.Clear();
  if (const auto& initial = shape.initial; initial.numerator != nullptr)
    block.Load(initial.numerator + of_state, initial.denominator + of_state,
               initial.log_scale + of_state, memory);
  WkvTile<C> tile;
  WkvChannels<C> out[kWkvTile];
  for (int64_t n = 0; n < WkvTiles(shape.seq_len); ++n) {
    if (block.Starts(n * kWkvTile)) memory.Clear();
    if (results.kept != nullptr) {
      C* kept = results.kept + block.OfKept(n);
      block.Store(memory, kept, kept + shape.dim, kept + 2 * shape.dim);
    }
    tile.Load(block, n);
    for (int i = 0; i < tile.length; ++i) {
      if (block.Starts(tile.begin + i)) memory.Clear();
      for (int c = 0; c < block.count; c += kLanes<C>) {
        const auto before = memory.At(c);
        const Vec<C> k = tile.k[i].At(c), v = tile.v[i].At(c);
        out[i].At(c) = wkv::Read<M>(block.bonus.At(c), k, v, before).out;
        memory.Set(c, wkv::Advance<M>(block.DecayAt(c), k, v, before));
      }
      block.Store(out[i], results.out + block.At(tile.begin + i));
    }
  }
  if (const auto& final = results.final; final.numerator != nullptr)
    block.Store(memory, final.numerator + of_state, final.denominator + of_state,
                final.log_scale + of_state);
}

// The reverse pass of one block.
template <typename T, typename C>
class WkvReverse {
 public:
  HL_INLINE WkvReverse(const WkvShape<T, C>& shape, const WkvGrads<T, C>& grads, int64_t item)
      : block_(shape, item), grads_(grads) {
    Begin();
    dlog_decay_.Clear(), dbonus_.Clear();
  }
  HL_INLINE void Run(C* dlog_decay, C* dbonus) {
    for (int64_t n = WkvTiles(block_.shape.seq_len) - 1; n >= 0; --n) {
      tile_.Load(block_, n);
      StatesOfTile(n);
      for (int i = tile_.length - 1; i >= 0; --i) {
        Token(i);
        if (block_.Starts(tile_.begin + i)) adjoint_.Clear();
      }
    }
    End();
    for (int c = 0; block_.shape.negative_exp && c < block_.count; c += kLanes<C>)
      dlog_decay_.At(c) *= block_.log_decay.At(c);
    block_.Store(dlog_decay_, dlog_decay + block_.OfState());
    block_.Store(dbonus_, dbonus + block_.OfState());
  }

 private:
  using M = Lanes<C>;

  HL_INLINE void Begin() {
    adjoint_.Clear();
    if (grads_.dfinal.numerator == nullptr) return;
    const int64_t at = block_.OfState();
    block_.Load(grads_.dfinal.numerator + at, adjoint_.a);
    block_.Load(grads_.dfinal.denominator + at, adjoint_.b);
    block_.Load(grads_.final.log_scale + at, adjoint_.c);
    for (int c = 0; c < block_.count; c += kLanes<C>) {
      adjoint_.r.At(c) = M::Of(1);
      adjoint_.c.At(c) = -adjoint_.c.At(c);
    }
  }
  // Recomputes the states before each token of the tile from the one that the forward kept.
  HL_INLINE void StatesOfTile(int64_t n) {
    const C* kept = grads_.kept + block_.OfKept(n);
    const int64_t dim = block_.shape.dim;
    block_.Load(kept, kept + dim, kept + 2 * dim, before_[0]);
    for (int i = 1; i < tile_.length; ++i) {
      for (int c = 0; c < block_.count; c += kLanes<C>)
        before_[i].Set(c, wkv::Advance<M>(block_.DecayAt(c), tile_.k[i - 1].At(c),
                                          tile_.v[i - 1].At(c), before_[i - 1].At(c)));
      if (block_.Starts(tile_.begin + i)) before_[i].Clear();
    }
  }
  HL_INLINE void Token(int i) {
    const int64_t at = block_.At(tile_.begin + i);
    WkvChannels<C> dout, dk, dv;
    block_.Load(grads_.dout + at, dout);
    for (int c = 0; c < block_.count; c += kLanes<C>) {
      const Vec<C> k = tile_.k[i].At(c), v = tile_.v[i].At(c);
      const auto before = before_[i].At(c);
      const auto read = wkv::Read<M>(block_.bonus.At(c), k, v, before);
      const auto after = adjoint_.At(c);
      const auto grads =
          wkv::GradsOf<M>(block_.log_decay.At(c), k, v, dout.At(c), before, read, after);
      const auto adjoint = wkv::Retreat<M>(block_.DecayAt(c), dout.At(c), read, after);
      adjoint_.a.At(c) = adjoint.a, adjoint_.b.At(c) = adjoint.b;
      adjoint_.r.At(c) = adjoint.r, adjoint_.c.At(c) = adjoint.c;
      dk.At(c) = grads.dk, dv.At(c) = grads.dv;
      dlog_decay_.At(c) += grads.dlog_decay;
      dbonus_.At(c) += grads.dbonus;
    }
    block_.Store(dk, grads_.dk + at);
    block_.Store(dv, grads_.dv + at);
  }
  HL_INLINE void End() {
    if (grads_.dinitial.numerator == nullptr) return;
    const int64_t at = block_.OfState();
    Memories<C> initial;
    const auto& from = block_.shape.initial;
    block_.Load(from.numerator + at, from.denominator + at, from.log_scale + at, initial);
    for (int c = 0; c < block_.count; c += kLanes<C>) {
      const Vec<C> weight =
          M::Exp(wkv::ScaleOf<M>(adjoint_.At(c)) + wkv::ScaleOf<M>(initial.At(c)));
      adjoint_.a.At(c) *= weight;
      adjoint_.b.At(c) *= weight;
    }
    block_.Store(adjoint_.a, grads_.dinitial.numerator + at);
    block_.Store(adjoint_.b, grads_.dinitial.denominator + at);
  }

  WkvBlock<T, C> block_;
  const WkvGrads<T, C>& grads_;
  WkvTile<C> tile_;
  Memories<C> before_[kWkvTile];
  Adjoints<C> adjoint_;
  WkvChannels<C> dlog_decay_, dbonus_;
};

template <typename T, typename C>
void WkvBackwardItem(const WkvShape<T, C>& shape, const WkvGrads<T, C>& grads, C* dlog_decay,
                     C* dbonus, int64_t item) {
  WkvReverse<T, C>(shape, grads, item).Run(dlog_decay, dbonus);
}

constexpr WkvKernels kWkvKernels = {
    WkvLoops<float, float>{WkvForwardItem<float, float>, WkvBackwardItem<float, float>},
    WkvLoops<Bf16, float>{WkvForwardItem<Bf16, float>, WkvBackwardItem<Bf16, float>},
    WkvLoops<double, double>{WkvForwardItem<double, double>, WkvBackwardItem<double, double>}};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
