#include "dist/request.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <vector>

#include "core/bfloat16.h"
#include "core/error.h"

namespace halflife::dist {
namespace {

constexpr int64_t kBlock = 1024;  // elements; the accumulators fit the second-level cache

float Load(Bf16 x) { return Widen(x); }
template <typename T>
T Load(T x) {
  return x;
}

void Store(float value, Bf16* out) { *out = RoundToBf16(value); }
template <typename T>
void Store(T value, T* out) {
  *out = value;
}

template <ReduceOp kOp, typename A>
A Combine(A a, A b) {
  if constexpr (kOp == ReduceOp::kSum) {
    if constexpr (std::is_integral_v<A>) {
      using Unsigned = std::make_unsigned_t<A>;  // signed overflow is undefined
      return static_cast<A>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b));
    } else {
      return a + b;
    }
  } else if constexpr (kOp == ReduceOp::kMax) {
    return b > a || b != b ? b : a;
  } else {
    return b < a || b != b ? b : a;
  }
}

template <typename T>
using Accumulator = decltype(Load(T{}));

// sum[0, n) = the tree over in[..][begin, begin + n). `scratch` holds kBlock elements per level of
// the tree.
template <ReduceOp kOp, typename T>
void ReduceTree(std::span<const void* const> in, int64_t begin, int64_t n, Accumulator<T>* sum,
                Accumulator<T>* scratch) {
  if (in.size() == 1) {
    const T* source = static_cast<const T*>(in[0]) + begin;
    for (int64_t i = 0; i < n; ++i) sum[i] = Load(source[i]);
    return;
  }
  const size_t left = std::bit_floor(in.size() - 1);  // the largest full subtree
  ReduceTree<kOp, T>(in.first(left), begin, n, sum, scratch);
  ReduceTree<kOp, T>(in.subspan(left), begin, n, scratch, scratch + kBlock);
  for (int64_t i = 0; i < n; ++i) sum[i] = Combine<kOp>(sum[i], scratch[i]);
}

template <ReduceOp kOp, typename T>
void ReduceTyped(std::span<const void* const> in, void* out, int64_t count) {
  std::vector<Accumulator<T>> scratch((1 + std::bit_width(in.size())) * kBlock);
  Accumulator<T>* sum = scratch.data();
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t n = std::min(kBlock, count - begin);
    ReduceTree<kOp, T>(in, begin, n, sum, sum + kBlock);
    T* to = static_cast<T*>(out) + begin;
    for (int64_t i = 0; i < n; ++i) Store(sum[i], &to[i]);
  }
}

template <typename T>
void ReduceByOp(ReduceOp op, std::span<const void* const> in, void* out, int64_t count) {
  switch (op) {
    case ReduceOp::kSum:
      return ReduceTyped<ReduceOp::kSum, T>(in, out, count);
    case ReduceOp::kMax:
      return ReduceTyped<ReduceOp::kMax, T>(in, out, count);
    case ReduceOp::kMin:
      return ReduceTyped<ReduceOp::kMin, T>(in, out, count);
  }
}

}  // namespace

void OrderedReduce(DType dtype, ReduceOp op, std::span<const void* const> in, void* out,
                   int64_t count) {
  HL_CHECK(!in.empty(), "nothing to reduce");
  switch (dtype) {
    case DType::kF32:
      return ReduceByOp<float>(op, in, out, count);
    case DType::kF64:
      return ReduceByOp<double>(op, in, out, count);
    case DType::kBF16:
      return ReduceByOp<Bf16>(op, in, out, count);
    case DType::kI32:
      return ReduceByOp<int32_t>(op, in, out, count);
    case DType::kI64:
      return ReduceByOp<int64_t>(op, in, out, count);
    case DType::kU8:
      return ReduceByOp<uint8_t>(op, in, out, count);
  }
}

}  // namespace halflife::dist
