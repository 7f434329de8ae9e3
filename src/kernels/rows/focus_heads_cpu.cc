#include <cmath>

#include "kernels/common/cpu/vectorised.h"
#include "kernels/rows/focus_heads_args.h"

namespace halflife::kernels::cpu {
namespace {

// The channels of a head of a token, optionally standardized.
struct Channels {
  alignas(64) float y[kFocusHeadDim];
  float factor = 1, slope = 0;
  bool norm = false;
};

// `sum` is the sum of the channels.
HL_INLINE void Standardise(int64_t dim, float eps, float sum, Channels& c) {
  float squares = 0;
  const float mean = sum / static_cast<float>(dim);
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < dim; ++i) squares += (c.y[i] - mean) * (c.y[i] - mean);
  const RealNormScale scale = RealNormScale::Of(squares, dim, eps);
  c.factor = scale.factor, c.slope = scale.slope;
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) c.y[i] = (c.y[i] - mean) * scale.factor;
}

template <typename T>
HL_INLINE void LoadChannels(const T* __restrict x, int64_t dim, bool norm, float eps, Channels& c) {
  c.norm = norm;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < dim; ++i) {
    const float y = Widen(x[i]);
    c.y[i] = y;
    sum += y;
  }
  if (norm) Standardise(dim, eps, sum, c);
}
template <typename T>
HL_INLINE void LoadProduct(const T* __restrict x, const T* __restrict times, int64_t dim, bool norm,
                           float eps, Channels& c) {
  c.norm = norm;
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < dim; ++i) {
    const float y = Widen(x[i]) * Widen(times[i]);
    c.y[i] = y;
    sum += y;
  }
  if (norm) Standardise(dim, eps, sum, c);
}

HL_INLINE float Dot(const float* __restrict a, const float* __restrict b, int64_t dim) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < dim; ++i) sum += a[i] * b[i];
  return sum;
}

// Replaces d, the gradient of the channels, by the gradient of the channels before standardization.
HL_INLINE void Unstandardise(const Channels& c, int64_t dim, float* __restrict d) {
  if (!c.norm) return;
  const float* __restrict y = c.y;
  float sum = 0, dot = 0;
#pragma omp simd reduction(+ : sum, dot)
  for (int64_t i = 0; i < dim; ++i) sum += d[i], dot += d[i] * y[i];
  const float mean = sum / static_cast<float>(dim), along = dot * c.slope, factor = c.factor;
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) d[i] = factor * (d[i] - mean - y[i] * along);
}

template <typename T>
HL_INLINE void StoreChannels(const float* __restrict from, T* __restrict to, int64_t dim) {
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) to[i] = Narrow<T>(from[i]);
}

template <typename T>
HL_INLINE const T* Of(const FocusRows<const T>& rows, int64_t token, int64_t channel) {
  return rows.data + token * rows.stride + channel;
}
template <typename T>
HL_INLINE T* To(const FocusRows<T>& rows, int64_t token, int64_t channel) {
  return rows.data + token * rows.stride + channel;
}

// k^ and f^ of a token's head.
template <typename T>
struct Leaf {
  Channels k, f;

  HL_INLINE void Load(const FocusLeavesShape<T>& shape, int64_t token, int64_t head) {
    const int64_t dim = shape.dim, channel = head * dim;
    const T* const x = Of(shape.x, token, channel);
    if (shape.times.data == nullptr) {
      LoadChannels(x, dim, shape.norm, shape.eps, k);
    } else {
      LoadProduct(x, Of(shape.times, token, channel), dim, shape.norm, shape.eps, k);
    }
    if (shape.direction.data != nullptr)
      LoadChannels(Of(shape.direction, token, channel), dim, shape.norm, shape.eps, f);
  }
  // Loads the direction that all tokens share.
  HL_INLINE void LoadVector(const FocusLeavesShape<T>& shape, int64_t head) {
    if (shape.direction.data == nullptr)
      LoadChannels(shape.vector + head * shape.dim, shape.dim, shape.norm, shape.eps, f);
  }
};

// Calls body(leaf, token, head) for the heads of tokens [begin, end): token by token, as rows are
// stored, or with one direction per head, tile by tile, so that the direction is standardized once
// per tile.
template <typename T, typename Body>
HL_INLINE void EachLeaf(const FocusLeavesShape<T>& shape, int64_t begin, int64_t end,
                        const Body& body) {
  const int64_t tile = shape.direction.data != nullptr ? 1 : 16;
  Leaf<T> leaf;
  for (int64_t first = begin; first < end; first += tile) {
    const int64_t last = first + tile < end ? first + tile : end;
    for (int64_t head = 0; head < shape.num_heads; ++head) {
      leaf.LoadVector(shape, head);
      for (int64_t token = first; token < last; ++token) {
        leaf.Load(shape, token, head);
        body(leaf, token, head);
      }
    }
  }
}

template <typename T>
HL_INLINE void LeavesForward(const FocusLeavesShape<T>& shape, const FocusLeavesResults<T>& results,
                             int64_t begin, int64_t end) {
  const int64_t dim = shape.dim, heads = shape.num_heads, width = shape.payload();
  Channels v;
  EachLeaf(shape, begin, end,
           [&](const Leaf<T>& leaf, int64_t token, int64_t head) HL_LAMBDA_INLINE {
             const float l = shape.scale * Dot(leaf.k.y, leaf.f.y, dim);
             results.log_weight[token * heads + head] = shape.elu && l > 0 ? std::log1p(l) : l;
             T* const payload = results.payload + (token * heads + head) * width;
             if (shape.pool_x) StoreChannels(leaf.k.y, payload, dim);
             if (shape.value.data == nullptr) return;
             LoadChannels(Of(shape.value, token, head * dim), dim, shape.norm_value, shape.eps, v);
             StoreChannels(v.y, payload + shape.before_value(), dim);
           });
}

// Computes dk and df (or the contribution to the vector's gradient) of a token's head from dl and
// dpayload.
template <typename T>
HL_INLINE void LeafBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                            const Leaf<T>& leaf, int64_t token, int64_t head,
                            float* __restrict dstandardised) {
  const int64_t dim = shape.dim, heads = shape.num_heads, channel = head * dim;
  const float l = shape.elu ? shape.scale * Dot(leaf.k.y, leaf.f.y, dim) : 0.0f;
  const float dl = shape.scale * grads.dlog_weight[token * heads + head] * FocusSlope(shape.elu, l);
  const T* __restrict dpayload = grads.dpayload + (token * heads + head) * shape.payload();
  alignas(64) float dk[kFocusHeadDim], df[kFocusHeadDim];
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) {
    dk[i] = dl * leaf.f.y[i];
    df[i] = dl * leaf.k.y[i];
  }
  if (shape.pool_x) {
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) dk[i] += Widen(dpayload[i]);
  }
  Unstandardise(leaf.k, dim, dk);
  T* __restrict dx = To(grads.dx, token, channel);
  if (shape.times.data == nullptr) {
    StoreChannels(dk, dx, dim);
  } else {
    const T* __restrict x = Of(shape.x, token, channel);
    const T* __restrict times = Of(shape.times, token, channel);
    T* __restrict dtimes = To(grads.dtimes, token, channel);
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) {
      dx[i] = Narrow<T>(dk[i] * Widen(times[i]));
      dtimes[i] = Narrow<T>(dk[i] * Widen(x[i]));
    }
  }
  if (shape.direction.data != nullptr) {
    Unstandardise(leaf.f, dim, df);
    StoreChannels(df, To(grads.ddirection, token, channel), dim);
  } else {
    float* __restrict sums = dstandardised + channel;
#pragma omp simd
    for (int64_t i = 0; i < dim; ++i) sums[i] += df[i];
  }
}

template <typename T>
HL_INLINE void ValueBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                             int64_t token, int64_t head) {
  const int64_t dim = shape.dim;
  Channels v, d;
  LoadChannels(Of(shape.value, token, head * dim), dim, shape.norm_value, shape.eps, v);
  const T* const dpayload = grads.dpayload + (token * shape.num_heads + head) * shape.payload();
  LoadChannels(dpayload + shape.before_value(), dim, false, 0, d);
  Unstandardise(v, dim, d.y);
  StoreChannels(d.y, To(grads.dvalue, token, head * dim), dim);
}

template <typename T>
HL_INLINE void LeavesBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                              int64_t begin, int64_t end, float* dstandardised) {
  EachLeaf(shape, begin, end,
           [&](const Leaf<T>& leaf, int64_t token, int64_t head) HL_LAMBDA_INLINE {
             LeafBackward(shape, grads, leaf, token, head, dstandardised);
             if (shape.value.data != nullptr) ValueBackward(shape, grads, token, head);
           });
}

template <typename T>
HL_INLINE void VectorBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                              const float* dstandardised) {
  const int64_t dim = shape.dim;
  Leaf<T> leaf;
  Channels d;
  for (int64_t head = 0; head < shape.num_heads; ++head) {
    leaf.LoadVector(shape, head);
    LoadChannels(dstandardised + head * dim, dim, false, 0, d);
    Unstandardise(leaf.f, dim, d.y);
    float* __restrict to = grads.dvector + head * dim;
    for (int64_t i = 0; i < dim; ++i) to[i] = d.y[i] + (grads.vector_added ? to[i] : 0.0f);
  }
}

// q^ of a token's head, the channels that enter the gate, and the gate.
template <typename T>
struct Gate {
  Channels q, seen;
  float value = 0;

  HL_INLINE void Load(const FocusGateShape<T>& shape, int64_t token, int64_t head) {
    const int64_t dim = shape.dim;
    LoadChannels(Of(shape.query, token, head * dim), dim, shape.norm, shape.eps, q);
    LoadChannels(shape.pooled + (token * shape.num_heads + head) * shape.width, dim, false, 0,
                 seen);
    value = Sigmoid(shape.scale * Dot(q.y, seen.y, dim));
  }
};

template <typename T>
HL_INLINE void GateForward(const FocusGateShape<T>& shape, T* to, int64_t begin, int64_t end) {
  const int64_t dim = shape.dim, heads = shape.num_heads;
  Gate<T> gate;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t row = token * heads + head;
      gate.Load(shape, token, head);
      const T* __restrict pass = shape.pooled + (row + 1) * shape.width - dim;
      T* __restrict out = to + row * dim;
      const float value = gate.value;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) out[i] = Narrow<T>(value * Widen(pass[i]));
    }
  }
}

template <typename T>
HL_INLINE void GateBackward(const FocusGateShape<T>& shape, const FocusGateGrads<T>& grads,
                            int64_t begin, int64_t end) {
  const int64_t dim = shape.dim, heads = shape.num_heads;
  const bool apart = shape.width > dim;
  Gate<T> gate;
  Channels dout, pass;
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t row = token * heads + head;
      gate.Load(shape, token, head);
      LoadChannels(grads.dout + row * dim, dim, false, 0, dout);
      LoadChannels(shape.pooled + (row + 1) * shape.width - dim, dim, false, 0, pass);
      const float g = gate.value;
      const float dl = shape.scale * g * (1.0f - g) * Dot(dout.y, pass.y, dim);
      T* __restrict dseen = grads.dpooled + row * shape.width;
      T* __restrict dpass = dseen + shape.width - dim;
      alignas(64) float dq[kFocusHeadDim];
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) {
        dq[i] = dl * gate.seen.y[i];
        const float seen = dl * gate.q.y[i];
        dout.y[i] = g * dout.y[i] + (apart ? 0.0f : seen);
        pass.y[i] = seen;
      }
      StoreChannels(dout.y, dpass, dim);
      if (apart) StoreChannels(pass.y, dseen, dim);
      Unstandardise(gate.q, dim, dq);
      StoreChannels(dq, To(grads.dquery, token, head * dim), dim);
    }
  }
}

// Calls body(shape) with a constant head size for the most common sizes, so that its loops have a
// known length: there are about twenty short loops per head of a token.
template <typename Shape, typename Body>
HL_INLINE void WithDim(const Shape& shape, const Body& body) {
  if (shape.dim == 64) {
    Shape fixed = shape;
    fixed.dim = 64;
    body(fixed);
  } else {
    body(shape);
  }
}

}  // namespace

template <typename T>
void FocusLeavesForward(const FocusLeavesShape<T>& shape, const FocusLeavesResults<T>& results,
                        int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    WithDim(shape, [&](const auto& s) HL_LAMBDA_INLINE { LeavesForward(s, results, begin, end); });
  });
}
template <typename T>
void FocusLeavesBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         int64_t begin, int64_t end, float* dstandardised) {
  RunVectorised([&]()
                    HL_LAMBDA_INLINE { LeavesBackward(shape, grads, begin, end, dstandardised); });
}
template <typename T>
void FocusVectorBackward(const FocusLeavesShape<T>& shape, const FocusLeavesGrads<T>& grads,
                         const float* dstandardised) {
  RunVectorised([&]() HL_LAMBDA_INLINE { VectorBackward(shape, grads, dstandardised); });
}
template <typename T>
void FocusGateForward(const FocusGateShape<T>& shape, T* out, int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    WithDim(shape, [&](const auto& s) HL_LAMBDA_INLINE { GateForward(s, out, begin, end); });
  });
}
template <typename T>
void FocusGateBackward(const FocusGateShape<T>& shape, const FocusGateGrads<T>& grads,
                       int64_t begin, int64_t end) {
  RunVectorised([&]() HL_LAMBDA_INLINE {
    WithDim(shape, [&](const auto& s) HL_LAMBDA_INLINE { GateBackward(s, grads, begin, end); });
  });
}

template void FocusLeavesForward(const FocusLeavesShape<float>&, const FocusLeavesResults<float>&,
                                 int64_t, int64_t);
template void FocusLeavesForward(const FocusLeavesShape<Bf16>&, const FocusLeavesResults<Bf16>&,
                                 int64_t, int64_t);
template void FocusLeavesBackward(const FocusLeavesShape<float>&, const FocusLeavesGrads<float>&,
                                  int64_t, int64_t, float*);
template void FocusLeavesBackward(const FocusLeavesShape<Bf16>&, const FocusLeavesGrads<Bf16>&,
                                  int64_t, int64_t, float*);
template void FocusVectorBackward(const FocusLeavesShape<float>&, const FocusLeavesGrads<float>&,
                                  const float*);
template void FocusVectorBackward(const FocusLeavesShape<Bf16>&, const FocusLeavesGrads<Bf16>&,
                                  const float*);
template void FocusGateForward(const FocusGateShape<float>&, float*, int64_t, int64_t);
template void FocusGateForward(const FocusGateShape<Bf16>&, Bf16*, int64_t, int64_t);
template void FocusGateBackward(const FocusGateShape<float>&, const FocusGateGrads<float>&, int64_t,
                                int64_t);
template void FocusGateBackward(const FocusGateShape<Bf16>&, const FocusGateGrads<Bf16>&, int64_t,
                                int64_t);

}  // namespace halflife::kernels::cpu
