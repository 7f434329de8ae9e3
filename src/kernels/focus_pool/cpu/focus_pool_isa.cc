// Forward and backward for heads of one run. Compiled per instruction set.
#include "kernels/focus_pool/cpu/kernels.h"

#include "kernels/common/cpu/isa_target.h"

#include "kernels/focus_pool/cpu/window_scan.h"

namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE {

template <typename T>
FocusHeadScratch<T>& ScratchOf(const FocusItem<T>& item, int64_t head) {
  return item.scratch.heads[head - item.first_head];
}

// The source of a forward scan: the tokens, preceded by those of the tail.
template <typename T>
class Tokens {
 public:
  using Payload = T;
  using Compute = FocusCompute<T>;
  int64_t halo, count;

  Tokens(const FocusItem<T>& item, int64_t head)
      : halo(item.run.sequence >= 0 && item.shape.tail_log_weight != nullptr ? item.shape.window - 1
                                                                             : 0),
        count(halo + item.run.length),
        item_(item),
        scratch_(ScratchOf(item, head)),
        first_((item.run.row * item.shape.seq_len + item.run.begin) * item.shape.num_heads + head),
        first_of_tail_(item.run.sequence * halo * item.shape.num_heads + head) {}

  void Fill(int64_t begin, int64_t end) {
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      scratch_.key[leaf] = leaf < halo ? item_.shape.tail_log_weight[InTail(leaf)]
                                       : item_.shape.log_weight[InRow(leaf)];
      scratch_.mass[leaf] = scratch_.scale[leaf] = 1;
    }
  }
  HL_INLINE const T* Row(int64_t leaf) const {
    return leaf < halo ? item_.shape.tail_u + InTail(leaf) * item_.shape.dim
                       : item_.shape.u + InRow(leaf) * item_.shape.dim;
  }
  HL_INLINE void Fetch(int64_t leaf) const {
    FetchRow<0>(Row(leaf), item_.shape.dim);
    FetchRow<1>(item_.results.out + InRow(leaf) * item_.shape.dim, item_.shape.dim);
  }
  void Finish(int64_t begin, int64_t n, const Compute* max, const Compute* mass, Compute* factor) {
    const auto eps = static_cast<Compute>(item_.shape.eps);
    // eps at the scale of the sums. It is left out without one, because exp(-max) could be
    // infinite, times 0.
    for (int64_t i = 0; i < n; ++i) factor[i] = eps > 0 ? -max[i] : kNothing<Compute>;
    ExpAll(factor, n);
    for (int64_t i = 0; i < n; ++i) {
      const bool nothing = max[i] == kNothing<Compute>;
      const Compute sum = nothing ? Compute{0} : mass[i] + eps * factor[i];
      const int64_t at = InRow(begin + i);
      item_.results.row_max[at] = max[i];
      item_.results.row_sum[at] = sum;
      factor[i] = nothing ? Compute{0} : 1 / sum;
    }
  }
  template <typename SumAt>
  HL_INLINE void Store(int64_t leaf, const SumAt& sum) {
    const int64_t dim = item_.shape.dim;
    T* __restrict out = item_.results.out + InRow(leaf) * dim;
#pragma omp simd
    for (int64_t p = 0; p < dim; ++p) out[p] = NarrowTo<T>(sum(p));
  }

 private:
  HL_INLINE int64_t InRow(int64_t leaf) const {
    return first_ + (leaf - halo) * item_.shape.num_heads;
  }
  HL_INLINE int64_t InTail(int64_t leaf) const {
    return first_of_tail_ + leaf * item_.shape.num_heads;
  }

  const FocusItem<T>& item_;
  FocusHeadScratch<T>& scratch_;
  // Offset of the run's first token and of the tail's, for this head.
  int64_t first_, first_of_tail_;
};

// The source of a backward scan. Row t adds dout_t to the gradients of the tokens that it saw,
// which come before it. So in reversed time a token sums over its own row and the previous ones. A
// leaf is (-max, delta / sum, dout / sum) with delta = dout . out. The sums (m', rho, r) give du =
// exp(l + m') r and dl = u . du - exp(l + m') rho. The tokens of the tail come last; their rows
// contribute nothing.
template <typename T>
class Readers {
 public:
  using Payload = T;
  using Compute = FocusCompute<T>;
  static constexpr int64_t halo = 0;
  int64_t count;

  Readers(const FocusItem<T>& item, const FocusPoolGrads<T>& grads, int64_t head)
      : count(item.run.length + (item.run.sequence >= 0 && grads.dtail_log_weight != nullptr
                                     ? item.shape.window - 1
                                     : 0)),
        item_(item),
        grads_(grads),
        scratch_(ScratchOf(item, head)),
        last_((item.run.row * item.shape.seq_len + item.run.begin + item.run.length - 1) *
                  item.shape.num_heads +
              head),
        last_of_tail_((item.run.sequence * (item.shape.window - 1) + item.shape.window - 2) *
                          item.shape.num_heads +
                      head) {}

  void Fill(int64_t begin, int64_t end) {
    for (int64_t leaf = begin; leaf < end; ++leaf) {
      const Compute max =
          leaf < item_.run.length ? item_.results.row_max[InRow(leaf)] : kNothing<Compute>;
      const bool nothing = max == kNothing<Compute>;
      scratch_.key[leaf] = nothing ? kNothing<Compute> : -max;
      scratch_.scale[leaf] = nothing ? Compute{0} : 1 / item_.results.row_sum[InRow(leaf)];
      scratch_.mass[leaf] = nothing ? Compute{0} : Delta(leaf) * scratch_.scale[leaf];
    }
  }
  HL_INLINE const T* Row(int64_t leaf) const { return grads_.dout + InRow(leaf) * item_.shape.dim; }
  HL_INLINE void Fetch(int64_t leaf) const {
    if (leaf >= item_.run.length) return;
    const int64_t dim = item_.shape.dim, at = InRow(leaf) * dim;
    FetchRow<0>(item_.results.out + at, dim);
    FetchRow<0>(grads_.dout + at, dim);
    FetchRow<0>(item_.shape.u + at, dim);
    FetchRow<1>(grads_.du + at, dim);
  }
  void Finish(int64_t begin, int64_t n, const Compute* max, const Compute* mass, Compute* factor) {
    begin_ = begin;
    for (int64_t i = 0; i < n; ++i) {
      const Compute log_weight = LogWeight(begin + i);
      const bool nothing = log_weight == kNothing<Compute> || max[i] == kNothing<Compute>;
      factor[i] = nothing ? kNothing<Compute> : log_weight + max[i];
    }
    ExpAll(factor, n);
    for (int64_t i = 0; i < n; ++i) rho_[i] = factor[i] * mass[i];
  }
  template <typename SumAt>
  HL_INLINE void Store(int64_t leaf, const SumAt& sum) {
    const bool own = leaf < item_.run.length;
    const int64_t at = own ? InRow(leaf) : InTail(leaf), dim = item_.shape.dim;
    const T* __restrict u = (own ? item_.shape.u : item_.shape.tail_u) + at * dim;
    T* __restrict du = (own ? grads_.du : grads_.dtail_u) + at * dim;
    Compute* const dlog_weight = (own ? grads_.dlog_weight : grads_.dtail_log_weight) + at;
    if (LogWeight(leaf) == kNothing<Compute>) {  // u of a masked token is not read
      for (int64_t p = 0; p < dim; ++p) {
        sum(p);
        du[p] = T{};
      }
      *dlog_weight = 0;
      return;
    }
    Compute dot = 0;
#pragma omp simd reduction(+ : dot)
    for (int64_t p = 0; p < dim; ++p) {
      const Compute x = sum(p);
      dot += x * WidenTo(u[p]);
      du[p] = NarrowTo<T>(x);
    }
    *dlog_weight = dot - rho_[leaf - begin_];
  }

 private:
  HL_INLINE int64_t InRow(int64_t leaf) const { return last_ - leaf * item_.shape.num_heads; }
  HL_INLINE int64_t InTail(int64_t leaf) const {
    return last_of_tail_ - (leaf - item_.run.length) * item_.shape.num_heads;
  }
  HL_INLINE Compute LogWeight(int64_t leaf) const {
    return leaf < item_.run.length ? item_.shape.log_weight[InRow(leaf)]
                                   : item_.shape.tail_log_weight[InTail(leaf)];
  }
  Compute Delta(int64_t leaf) const {
    const int64_t dim = item_.shape.dim, at = InRow(leaf) * dim;
    const T* __restrict out = item_.results.out + at;
    const T* __restrict dout = grads_.dout + at;
    Compute sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t p = 0; p < dim; ++p) sum += WidenTo(out[p]) * WidenTo(dout[p]);
    return sum;
  }

  const FocusItem<T>& item_;
  const FocusPoolGrads<T>& grads_;
  FocusHeadScratch<T>& scratch_;
  int64_t last_, last_of_tail_;  // offset of the run's last token and of the tail's, for this head
  int64_t begin_ = 0;            // beginning of the current chunk
  Compute rho_[kFocusChunk];
};

template <typename T>
using ForwardScan = WindowScan<Tokens<T>>;
template <typename T>
using BackwardScan = WindowScan<Readers<T>>;

// Scans all heads chunk by chunk. The heads of a token are adjacent in memory, so scanning a long
// row once per head would load it from memory once per head.
template <typename Scan>
void RunTogether(std::vector<Scan>& heads) {
  while (!heads.front().done())
    for (Scan& scan : heads) scan.Advance();
}

// Sets the initial sums of the scan.
template <typename T>
void TakeInitial(const FocusItem<T>& item, int64_t head, Element<FocusCompute<T>>& carry) {
  const FocusPoolShape<T>& shape = item.shape;
  if (item.run.sequence < 0 || shape.log_scale == nullptr) return;
  const int64_t before = item.run.sequence * shape.num_heads + head, dim = shape.dim;
  if (shape.mass[before] == 0) return;
  carry.log_scale = shape.log_scale[before], carry.mass = shape.mass[before];
  for (int64_t p = 0; p < dim; ++p) carry.sum[p] = shape.sum[before * dim + p];
}
template <typename T>
void GiveFinal(const FocusItem<T>& item, int64_t head, const Element<FocusCompute<T>>& carry) {
  using A = FocusCompute<T>;
  if (item.run.final_state < 0 || item.results.log_scale == nullptr) return;
  const int64_t after = item.run.final_state * item.shape.num_heads + head, dim = item.shape.dim;
  const bool nothing = carry.log_scale == kNothing<A>;
  item.results.log_scale[after] = nothing ? A{0} : carry.log_scale;
  item.results.mass[after] = carry.mass;
  for (int64_t p = 0; p < dim; ++p) item.results.sum[after * dim + p] = carry.sum[p];
}

template <typename T>
void Forward(const FocusItem<T>& item) {
  const FocusPoolShape<T>& shape = item.shape;
  std::vector<ForwardScan<T>> scans;
  scans.reserve(item.end_head - item.first_head);
  for (int64_t head = item.first_head; head < item.end_head; ++head) {
    scans.emplace_back(Tokens<T>(item, head), shape.window, shape.dim, ScratchOf(item, head),
                       item.scratch.chunk);
    TakeInitial(item, head, scans.back().carry());
  }
  RunTogether(scans);
  for (int64_t head = item.first_head; head < item.end_head; ++head)
    GiveFinal(item, head, scans[head - item.first_head].carry());
}

// Adds the gradients through the final state, which reads all tokens like a row with the log weight
// -log_scale.
template <typename T>
void TakeFinal(const FocusItem<T>& item, const FocusPoolGrads<T>& grads, int64_t head,
               Element<FocusCompute<T>>& carry) {
  if (item.run.final_state < 0 || grads.dsum == nullptr) return;
  const int64_t after = item.run.final_state * item.shape.num_heads + head, dim = item.shape.dim;
  if (item.results.mass[after] == 0) return;
  carry.log_scale = -item.results.log_scale[after];
  carry.mass = -grads.dmass[after];
  for (int64_t p = 0; p < dim; ++p) carry.sum[p] = grads.dsum[after * dim + p];
}
template <typename T>
void GiveInitial(const FocusItem<T>& item, const FocusPoolGrads<T>& grads, int64_t head,
                 const Element<FocusCompute<T>>& carry) {
  using A = FocusCompute<T>;
  if (item.run.sequence < 0 || grads.dinitial_sum == nullptr) return;
  const FocusPoolShape<T>& shape = item.shape;
  const int64_t before = item.run.sequence * shape.num_heads + head, dim = shape.dim;
  const bool nothing = shape.mass[before] == 0 || carry.log_scale == kNothing<A>;
  const A weight = nothing ? A{0} : ExpOf(shape.log_scale[before] + carry.log_scale);
  grads.dinitial_mass[before] = -weight * carry.mass;
  for (int64_t p = 0; p < dim; ++p) grads.dinitial_sum[before * dim + p] = weight * carry.sum[p];
}

template <typename T>
void Backward(const FocusItem<T>& item, const FocusPoolGrads<T>& grads) {
  const FocusPoolShape<T>& shape = item.shape;
  std::vector<BackwardScan<T>> scans;
  scans.reserve(item.end_head - item.first_head);
  for (int64_t head = item.first_head; head < item.end_head; ++head) {
    scans.emplace_back(Readers<T>(item, grads, head), shape.window, shape.dim,
                       ScratchOf(item, head), item.scratch.chunk);
    TakeFinal(item, grads, head, scans.back().carry());
  }
  RunTogether(scans);
  for (int64_t head = item.first_head; head < item.end_head; ++head)
    GiveInitial(item, grads, head, scans[head - item.first_head].carry());
}

constexpr AllFocusKernels kFocusKernels = {{Forward<float>, Backward<float>},
                                           {Forward<Bf16>, Backward<Bf16>},
                                           {Forward<double>, Backward<double>}};

}  // namespace halflife::kernels::cpu::HL_SIMD_NAMESPACE
