// Sums over windows of one run and head, in the direction of time in which the source reads. The
// source provides leaves (log weight `key`, `mass`, payload row times `scale`). The scan calls it
// with the sums over each leaf's window, row by row, one chunk per call. Compiled per instruction
// set: see kernels/common/cpu/isa_target.h.
//
//   class Source {
//     using Payload = ...;                                 // storage of rows
//     int64_t halo, count;                                 // leaves before the first window; all
//     void Fill(int64_t begin, int64_t end);               // key, mass, scale of these leaves
//     const Payload* Row(int64_t leaf);                    // what it weights
//     void Finish(int64_t begin, int64_t n, const Compute* max, const Compute* mass,
//                 Compute* factor);                        // what a row's sum is multiplied by
//     void Fetch(int64_t leaf);                            // what Fill and Store will touch
//     template <typename SumAt> void Store(int64_t leaf, SumAt sum);  // sum(channel), once each
//   };
#pragma once

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

// Overloads for the two compute types.
HL_INLINE float ExpOf(float x) { return Exp(x); }
HL_INLINE double ExpOf(double x) { return __builtin_exp(x); }
HL_INLINE float WidenTo(float x) { return x; }
HL_INLINE float WidenTo(Bf16 x) { return Widen(x); }
HL_INLINE double WidenTo(double x) { return x; }
template <typename T, typename A>
HL_INLINE T NarrowTo(A x) {
  if constexpr (std::is_same_v<T, A>) {
    return x;
  } else {
    return Narrow<T>(x);
  }
}

template <typename A>
constexpr A kNothing = -std::numeric_limits<A>::infinity();  // log weight of an absent leaf

// Returns the larger; NaN if either is NaN.
template <typename A>
HL_INLINE A Larger(A a, A b) {
  return b <= a || a != a ? a : b;
}
// Returns the value that is subtracted from exponents, because -inf - -inf is NaN.
template <typename A>
HL_INLINE A Reference(A max) {
  return max == kNothing<A> ? A{0} : max;
}
template <typename A>
HL_INLINE void ExpAll(A* x, int64_t n) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = ExpOf(x[i]);
}

// Prefetches a row. The rows of one head are short and the width of all heads apart, which hardware
// prefetchers do not predict. kWrites is 1 if the row will be written.
template <int kWrites, typename T>
HL_INLINE void FetchRow(const T* row, int64_t dim) {
  const auto* const bytes = reinterpret_cast<const char*>(row);
  for (int64_t i = 0; i < dim * static_cast<int64_t>(sizeof(T)); i += 64)
    __builtin_prefetch(bytes + i, kWrites, 2);
}

// Computes to = keep to + add row.
template <typename A, typename T>
HL_INLINE void Accumulate(A keep, A add, const T* __restrict row, A* __restrict to, int64_t dim) {
#pragma omp simd
  for (int64_t p = 0; p < dim; ++p) to[p] = keep * to[p] + add * WidenTo(row[p]);
}
// Computes to = a x + b y.
template <typename A>
HL_INLINE void Mix(A a, const A* x, A b, const A* y, A* to, int64_t dim) {
#pragma omp simd
  for (int64_t p = 0; p < dim; ++p) to[p] = a * x[p] + b * y[p];
}

// An element of the monoid, in scratch memory.
template <typename A>
struct Element {
  A log_scale = kNothing<A>, mass = 0;
  A* sum = nullptr;

  HL_INLINE void Clear(int64_t dim) {
    log_scale = kNothing<A>, mass = 0;
    for (int64_t p = 0; p < dim; ++p) sum[p] = 0;
  }
  // Combines a and b in `to`. `to.sum` may be one of theirs.
  static HL_INLINE void Combine(const Element& a, const Element& b, Element& to, int64_t dim) {
    const A max = Larger(a.log_scale, b.log_scale);
    const A left = ExpOf(a.log_scale - Reference(max)), right = ExpOf(b.log_scale - Reference(max));
    to.mass = left * a.mass + right * b.mass;
    Mix(left, a.sum, right, b.sum, to.sum, dim);
    to.log_scale = max;
  }
};

// Running sums of up to a chunk of leaves. Element i combines the leaves up to the i-th.
template <typename A>
struct Running {
  // sum_i = keep[i] sum_{i-1} + add[i] row_i
  A max[kFocusChunk + 1], mass[kFocusChunk + 1], keep[kFocusChunk + 1], add[kFocusChunk + 1];

  // Scans n leaves: first, first + step, ...
  HL_INLINE void Scan(const A* key, const A* leaf_mass, const A* scale, int64_t first, int64_t step,
                      int64_t n) {
    A running = kNothing<A>;
    for (int64_t i = 0; i < n; ++i) {
      const A x = key[first + i * step], before = running;
      running = Larger(running, x);
      max[i] = running;
      keep[i] = before - Reference(running), add[i] = x - Reference(running);
    }
    ExpAll(keep, n);
    ExpAll(add, n);
    A sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      sum = keep[i] * sum + add[i] * leaf_mass[first + i * step];
      mass[i] = sum;
      add[i] *= scale[first + i * step];
    }
  }
};

template <typename Source>
class WindowScan {
  using A = typename Source::Compute;
  using T = typename Source::Payload;

 public:
  WindowScan(const Source& source, int64_t window, int64_t dim, FocusHeadScratch<T>& scratch,
             FocusChunkScratch<T>& chunk_scratch)
      : source_(source),
        window_(window),
        dim_(dim),
        scratch_(scratch),
        chunk_(chunk_scratch),
        first_(source.halo),
        block_(source.halo),
        follows_(source.halo > 0) {
    carry_.sum = scratch.carry.data();
    carry_.Clear(dim);
    source_.Fill(0, source_.halo);
    if (follows_ && !IsNarrow(window)) SumHalo();
  }

  // Without a window: the sums that the scan starts from, and those that it ends with.
  Element<A>& carry() { return carry_; }

  bool done() const { return first_ == source_.count; }

  // Processes the next chunk.
  void Advance() {
    const bool narrow = IsNarrow(window_);
    const bool goes_on = !narrow && window_ > 0 && block_ + window_ < source_.count;
    const int64_t end = goes_on ? block_ + window_ : source_.count;
    const int64_t n = end - first_ < kFocusChunk ? end - first_ : kFocusChunk;
    if (narrow) {
      RunNarrow(first_, n);
    } else {
      if (window_ > 0 && first_ == block_) carry_.Clear(dim_);
      RunChunk(first_, n, (first_ - block_) / kFocusChunk, goes_on);
    }
    first_ += n;
    if (!goes_on || first_ < end) return;
    EndBlock();
    block_ = first_, follows_ = true;
  }

 private:
  Element<A> Total(int side, int64_t chunk) {
    auto& totals = scratch_.blocks[side];
    return {totals.log_scale[chunk], totals.mass[chunk], totals.sum.data() + chunk * dim_};
  }
  void Keep(int side, int64_t chunk, const Element<A>& total) {
    scratch_.blocks[side].log_scale[chunk] = total.log_scale;
    scratch_.blocks[side].mass[chunk] = total.mass;
  }
  const T* RowOf(int64_t leaf) const {
    return scratch_.key[leaf] == kNothing<A> ? chunk_.none.data() : source_.Row(leaf);
  }

  // Computes the totals of the tail's chunks. The tail acts as the block before the first, without
  // the first leaf of that block, which no window reaches.
  void SumHalo() {
    const int64_t before = source_.halo - window_;
    for (int64_t chunk = 1; chunk * kFocusChunk < window_; ++chunk) {
      const int64_t first = before + chunk * kFocusChunk;
      const int64_t n = source_.halo - first < kFocusChunk ? source_.halo - first : kFocusChunk;
      Element<A> total = Total(1, chunk);
      total.Clear(dim_);
      running_.Scan(scratch_.key.data(), scratch_.mass.data(), scratch_.scale.data(), first, 1, n);
      for (int64_t i = 0; i < n; ++i)
        Accumulate(running_.keep[i], running_.add[i], RowOf(first + i), total.sum, dim_);
      total.log_scale = running_.max[n - 1], total.mass = running_.mass[n - 1];
      Keep(1, chunk, total);
    }
    EndBlock();
  }

  // Turns the totals of the current block into sums up to its end. It is then the previous block.
  void EndBlock() {
    const int64_t chunks = FocusChunks(window_);
    Element<A> none = Total(1, chunks);
    none.Clear(dim_);
    Keep(1, chunks, none);
    for (int64_t chunk = chunks - 1; chunk > 1; --chunk) {
      Element<A> left = Total(1, chunk - 1);
      Element<A>::Combine(left, Total(1, chunk), left, dim_);
      Keep(1, chunk - 1, left);
    }
    std::swap(scratch_.blocks[0], scratch_.blocks[1]);
  }

  // Processes chunk `chunk` of its block: leaves [first, first + n).
  void RunChunk(int64_t first, int64_t n, int64_t chunk, bool goes_on) {
    source_.Fill(first, first + n);
    Element<A> outer = carry_;
    if (follows_) {
      SumSuffixes(first, n, chunk);
      outer.sum = chunk_.outer.data();
      Element<A>::Combine(carry_, Total(0, chunk + 1), outer, dim_);
    }
    running_.Scan(scratch_.key.data(), scratch_.mass.data(), scratch_.scale.data(), first, 1, n);
    Element<A> prefix = {.sum = chunk_.prefix.data()};
    prefix.Clear(dim_);
    Weigh(first, n, outer);
    if (follows_) {
      EmitRows<true>(first, n, outer);
    } else {
      EmitRows<false>(first, n, outer);
    }
    prefix.log_scale = running_.max[n - 1], prefix.mass = running_.mass[n - 1];
    if (goes_on) {
      Element<A> total = Total(1, chunk);
      for (int64_t p = 0; p < dim_; ++p) total.sum[p] = prefix.sum[p];
      total.log_scale = prefix.log_scale, total.mass = prefix.mass;
      Keep(1, chunk, total);
    }
    Element<A>::Combine(carry_, prefix, carry_, dim_);
  }

  // Computes the sums of the previous block, from leaf i of the chunk at the same position to the
  // end of that chunk, in row i of scratch.suffix. i is 1 to n, as the windows of n leaves begin
  // there.
  void SumSuffixes(int64_t first, int64_t n, int64_t chunk) {
    const int64_t rest = window_ - chunk * kFocusChunk;
    const int64_t length = rest < kFocusChunk ? rest : kFocusChunk;
    const int64_t last = first - window_ + length - 1;
    A* row = chunk_.suffix.data() + length * dim_;
    for (int64_t p = 0; p < dim_; ++p) row[p] = 0;
    suffix_.Scan(scratch_.key.data(), scratch_.mass.data(), scratch_.scale.data(), last, -1,
                 length - 1);
    for (int64_t i = 0; i < length - 1; ++i) {
      const T* const leaf = RowOf(last - i);
      A* const next = row - dim_;
      Extend(suffix_.keep[i], row, suffix_.add[i], leaf, next, dim_);
      row = next;
    }
    // Indexed by a leaf of the current chunk: entry i is the suffix from i + 1 on.
    for (int64_t i = 0; i < n; ++i) {
      const int64_t leaves = length - 1 - i;
      suffix_max_[i] = leaves > 0 ? suffix_.max[leaves - 1] : kNothing<A>;
      suffix_mass_[i] = leaves > 0 ? suffix_.mass[leaves - 1] : A{0};
    }
  }
  static HL_INLINE void Extend(A keep, const A* __restrict from, A add, const T* __restrict row,
                               A* __restrict to, int64_t dim) {
#pragma omp simd
    for (int64_t p = 0; p < dim; ++p) to[p] = keep * from[p] + add * WidenTo(row[p]);
  }

  // Computes the factors of the three sums of each window, including the source's factor.
  void Weigh(int64_t first, int64_t n, const Element<A>& outer) {
    A max[kFocusChunk], mass[kFocusChunk], factor[kFocusChunk];
    for (int64_t i = 0; i < n; ++i) {
      if (!follows_) suffix_max_[i] = kNothing<A>, suffix_mass_[i] = 0;
      max[i] = Larger(Larger(outer.log_scale, suffix_max_[i]), running_.max[i]);
      const A reference = Reference(max[i]);
      of_prefix_[i] = running_.max[i] - reference;
      of_outer_[i] = outer.log_scale - reference;
      of_suffix_[i] = suffix_max_[i] - reference;
    }
    ExpAll(of_prefix_, n);
    ExpAll(of_outer_, n);
    ExpAll(of_suffix_, n);
    for (int64_t i = 0; i < n; ++i)
      mass[i] = of_prefix_[i] * running_.mass[i] + of_outer_[i] * outer.mass +
                of_suffix_[i] * suffix_mass_[i];
    source_.Finish(first, n, max, mass, factor);
    for (int64_t i = 0; i < n; ++i)
      of_prefix_[i] *= factor[i], of_outer_[i] *= factor[i], of_suffix_[i] *= factor[i];
  }

  template <bool kFollows>
  void EmitRows(int64_t first, int64_t n, const Element<A>& outer) {
    for (int64_t i = 0; i < n; ++i) {
      if (const int64_t next = first + i + kFocusChunk; next < source_.count) source_.Fetch(next);
      const A keep = running_.keep[i], add = running_.add[i];
      const A of_prefix = of_prefix_[i], of_outer = of_outer_[i], of_suffix = of_suffix_[i];
      const T* __restrict row = RowOf(first + i);
      A* __restrict prefix = chunk_.prefix.data();
      const A* __restrict far = outer.sum;
      const A* __restrict near = chunk_.suffix.data() + (i + 1) * dim_;
      source_.Store(first + i, [=](int64_t p) HL_LAMBDA_INLINE {
        const A sum = keep * prefix[p] + add * WidenTo(row[p]);
        prefix[p] = sum;
        A total = of_prefix * sum + of_outer * far[p];
        if constexpr (kFollows) total += of_suffix * near[p];
        return total;
      });
    }
  }

  // Sums each window directly.
  void RunNarrow(int64_t first, int64_t n) {
    A max[kFocusChunk], mass[kFocusChunk], factor[kFocusChunk];
    A weights[kFocusNarrow][kFocusChunk];
    source_.Fill(first, first + n);
    WeighNarrow(first, n, max, mass, weights);
    source_.Finish(first, n, max, mass, factor);
    for (int64_t i = 0; i < n; ++i) {
      if (const int64_t next = first + i + kFocusChunk; next < source_.count) source_.Fetch(next);
      EmitNarrow(first + i, factor[i], weights, i);
    }
  }
  // Always reads kFocusNarrow rows; absent ones have the weight 0.
  HL_INLINE void EmitNarrow(int64_t leaf, A factor, const A (*weights)[kFocusChunk], int64_t i) {
    const T* rows[kFocusNarrow];
    A weight[kFocusNarrow];
    for (int64_t back = 0; back < kFocusNarrow; ++back) {
      const bool exists = back < window_ && back <= leaf;
      rows[back] = exists ? RowOf(leaf - back) : chunk_.none.data();
      weight[back] = exists ? weights[back][i] * factor : A{0};
    }
    const T *row0 = rows[0], *row1 = rows[1], *row2 = rows[2], *row3 = rows[3];
    const A weight0 = weight[0], weight1 = weight[1], weight2 = weight[2], weight3 = weight[3];
    static_assert(kFocusNarrow == 4);
    source_.Store(leaf, [=](int64_t p) HL_LAMBDA_INLINE {
      return weight0 * WidenTo(row0[p]) + weight1 * WidenTo(row1[p]) +
             (weight2 * WidenTo(row2[p]) + weight3 * WidenTo(row3[p]));
    });
  }
  // weights[d][i] is the weight of the leaf d before leaf first + i.
  void WeighNarrow(int64_t first, int64_t n, A* max, A* mass, A (*weights)[kFocusChunk]) {
    const A* const key = scratch_.key.data();
    for (int64_t i = 0; i < n; ++i) max[i] = kNothing<A>, mass[i] = 0;
    const auto first_of = [&](int64_t back) { return first < back ? back - first : 0; };
    for (int64_t back = 0; back < window_; ++back)
      for (int64_t i = first_of(back); i < n; ++i) max[i] = Larger(max[i], key[first + i - back]);
    for (int64_t back = 0; back < window_; ++back) {
      for (int64_t i = 0; i < n; ++i)
        weights[back][i] =
            i < first_of(back) ? kNothing<A> : key[first + i - back] - Reference(max[i]);
      ExpAll(weights[back], n);
      for (int64_t i = first_of(back); i < n; ++i) {
        mass[i] += weights[back][i] * scratch_.mass[first + i - back];
        weights[back][i] *= scratch_.scale[first + i - back];
      }
    }
  }

  Source source_;
  int64_t window_, dim_;
  FocusHeadScratch<T>& scratch_;
  FocusChunkScratch<T>& chunk_;
  int64_t first_, block_;  // the next leaf, and the first of its block
  bool follows_;           // there is another block
  Element<A> carry_;
  Running<A> running_, suffix_;
  A suffix_max_[kFocusChunk], suffix_mass_[kFocusChunk];
  A of_prefix_[kFocusChunk], of_outer_[kFocusChunk], of_suffix_[kFocusChunk];
};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
