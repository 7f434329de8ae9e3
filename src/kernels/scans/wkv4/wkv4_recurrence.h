// One token of one channel of RWKV-4's time mixing, forward and in reverse, with the same source
// for CPU and device. C is a number, or a vector with one channel per lane. M provides what differs
// between them: M::Exp, and M::Of(x), which is x in every channel.
//
// A sum of exponentials is stored as a number and the logarithm of its scale. Terms are added in
// the larger of the two scales, so no exponential exceeds 1, and one exponential per sum is enough.
// The scale of a state follows its largest key. A decay multiplies the number, which is rescaled to
// order 1 by a power of 2 from time to time. If the decay were added to the scale at each token
// instead, the rounding at a scale of 60 would act like a decay that is off by 3e-4. Strong decays
// do change the scale, because their factor may underflow fp32; they are forgotten before their
// rounding errors accumulate.
#pragma once

#ifdef __CUDACC__
#define HL_WKV_INLINE __host__ __device__ __forceinline__
#else
#define HL_WKV_INLINE __attribute__((always_inline)) inline
#endif

namespace halflife::kernels::wkv {

// The scale of an empty sum: below that of any term, but finite, because differences of infinities
// would be NaN.
inline constexpr double kNothing = -1e30;

// e^w = factor e^shift.
template <typename C>
struct Decay {
  C factor, shift;
};
template <typename M, typename C>
HL_WKV_INLINE Decay<C> MakeDecay(C log_decay) {
  const C strongest = M::Of(-10);  // stronger decays change the scale instead of the numbers
  return {log_decay < strongest ? M::Of(1) : M::Exp(log_decay),
          log_decay < strongest ? log_decay : C{}};
}

// The factors of two terms in the larger scale, `top`.
template <typename C>
struct Weights {
  C first, second, top;
};
template <typename M, typename C>
HL_WKV_INLINE Weights<C> Weigh(C first, C second) {
  const C above = second - first;
  const C less = M::Exp(above > C{} ? -above : above);
  return {above > C{} ? less : M::Of(1), above > C{} ? M::Of(1) : less,
          above > C{} ? second : first};
}

// The factor that rescales the numbers of a scale, and its logarithm, for a sum that has decayed
// below 2^-40. One token changes the sum by at most e^-10.
template <typename C>
struct Lift {
  C factor, log;
};
template <typename M, typename C>
HL_WKV_INLINE Lift<C> LiftOf(C sum) {
  const C least = M::Of(0x1p-40);
  return {sum < least ? M::Of(0x1p40) : M::Of(1),
          sum < least ? M::Of(27.725887222397812) : C{}};  // 40 ln 2
}

// A = p e^o, B = q e^o. Empty if q is 0.
template <typename C>
struct Memory {
  C p, q, o;
};
template <typename M, typename C>
HL_WKV_INLINE C ScaleOf(const Memory<C>& memory) {
  return memory.q == C{} ? M::Of(kNothing) : memory.o;
}

template <typename M, typename C>
HL_WKV_INLINE Memory<C> Advance(const Decay<C>& decay, C k, C v, const Memory<C>& before) {
  const Weights<C> weights = Weigh<M, C>(ScaleOf<M>(before) + decay.shift, k);
  const C past = weights.first * decay.factor, now = weights.second;
  const C p = past * before.p + now * v, q = past * before.q + now;
  const Lift<C> lift = LiftOf<M>(q);
  return {p * lift.factor, q * lift.factor, weights.top - lift.log};
}

// The terms of a token's output. `top` is the scale of the sums that it divides.
template <typename C>
struct Output {
  C out, inverse, now, top;
};
template <typename M, typename C>
HL_WKV_INLINE Output<C> Read(C bonus, C k, C v, const Memory<C>& before) {
  const Weights<C> weights = Weigh<M, C>(ScaleOf<M>(before), bonus + k);
  const C inverse = M::Of(1) / (weights.first * before.q + weights.second);
  const C out = (weights.first * before.p + weights.second * v) * inverse;
  return {out, inverse, weights.second, weights.top};
}

// dL/dA = a e^c and dL/dB = b e^c. r is the same sum with 1 in place of gradients: it is 0 if there
// was no term, and shows when the numbers have decayed.
template <typename C>
struct Adjoint {
  C a, b, r, c;
};
template <typename M, typename C>
HL_WKV_INLINE C ScaleOf(const Adjoint<C>& adjoint) {
  return adjoint.r == C{} ? M::Of(kNothing) : adjoint.c;
}

template <typename C>
struct TokenGrads {
  C dk, dv, dbonus, dlog_decay;
};

// Returns a token's gradients, given dL/d(state after the token) and its dout.
template <typename M, typename C>
HL_WKV_INLINE TokenGrads<C> GradsOf(C log_decay, C k, C v, C dout, const Memory<C>& before,
                                    const Output<C>& read, const Adjoint<C>& after) {
  const C through_out = dout * read.inverse * read.now;
  const C slope = through_out * (v - read.out);
  const C scale = ScaleOf<M>(after);
  const C own = M::Exp(k + scale);
  const C kept = M::Exp(log_decay + scale + ScaleOf<M>(before));
  return {slope + own * (after.a * v + after.b), through_out + own * after.a, slope,
          kept * (after.a * before.p + after.b * before.q)};
}

// Returns dL/d(state before a token).
template <typename M, typename C>
HL_WKV_INLINE Adjoint<C> Retreat(const Decay<C>& decay, C dout, const Output<C>& read,
                                 const Adjoint<C>& after) {
  const Weights<C> weights = Weigh<M, C>(ScaleOf<M>(after) + decay.shift, -read.top);
  const C past = weights.first * decay.factor, now = weights.second;
  const C h = now * dout * read.inverse, r = past * after.r + now;
  const Lift<C> lift = LiftOf<M>(r);
  return {(past * after.a + h) * lift.factor, (past * after.b - h * read.out) * lift.factor,
          r * lift.factor, weights.top - lift.log};
}

// Joins the sums of two runs of tokens. `decay` is the sum of log decays over the later one.
template <typename M, typename C>
HL_WKV_INLINE Memory<C> Join(const Memory<C>& earlier, C decay, const Memory<C>& later) {
  const Weights<C> weights = Weigh<M, C>(ScaleOf<M>(earlier) + decay, ScaleOf<M>(later));
  const C p = weights.first * earlier.p + weights.second * later.p;
  const C q = weights.first * earlier.q + weights.second * later.q;
  const Lift<C> lift = LiftOf<M>(q);
  return {p * lift.factor, q * lift.factor, weights.top - lift.log};
}
// Joins the adjoints of two runs. `decay` is the sum over the earlier one.
template <typename M, typename C>
HL_WKV_INLINE Adjoint<C> Join(const Adjoint<C>& later, C decay, const Adjoint<C>& earlier) {
  const Weights<C> weights = Weigh<M, C>(ScaleOf<M>(later) + decay, ScaleOf<M>(earlier));
  const C a = weights.first * later.a + weights.second * earlier.a;
  const C b = weights.first * later.b + weights.second * earlier.b;
  const C r = weights.first * later.r + weights.second * earlier.r;
  const Lift<C> lift = LiftOf<M>(r);
  return {a * lift.factor, b * lift.factor, r * lift.factor, weights.top - lift.log};
}

}  // namespace halflife::kernels::wkv
