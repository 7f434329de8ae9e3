// The CPU kernel and the emulated CUDA kernel of AdamW equal the formula in fp64.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/adamw/adamw_args.h"
#include "support/sparse_memory.h"

namespace halflife::kernels {
namespace {

constexpr AdamWConfig kConfig = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
// Elements of the first segment: more than a block of the CPU kernel. The emulator is slow.
#if HL_EMULATE
constexpr int64_t kDecayed = 1503;
#else
constexpr int64_t kDecayed = 17003;
#endif
constexpr double kLr = 1e-2, kFactor = 0.25;

void Update(const AdamWArgs& args) {
#if HL_EMULATE
  cuda::AdamW(args, nullptr);
#else
  cpu::AdamW(args);
#endif
}

// Three segments with a gap and an odd length. The second has no weight decay, the last no copy and
// a learning rate of its own.
struct Arrays {
  explicit Arrays(int64_t shift = 0) : size(shift + kDecayed + 2997) {
    for (std::vector<float>* x : {&main, &grads, &m, &v}) x->assign(size, 0);
    copy.assign(size, 0xffff);
    segments = {{shift, shift + kDecayed, 0.1f, 1},
                {shift + kDecayed + 7, shift + kDecayed + 8, 0, 1},
                {.begin = shift + kDecayed + 17,
                 .end = shift + kDecayed + 2996,
                 .weight_decay = 0.1f,
                 .has_copy = 0,
                 .lr_scale = 0.25f}};
    for (const AdamWSegment& segment : segments)
      for (int64_t i = segment.begin; i < segment.end; ++i)
        main[i] = static_cast<float>(std::sin(0.1 * static_cast<double>(i - shift)));
  }
  void FillGrads(int64_t shift, int step) {
    for (int64_t i = 0; i < size; ++i)
      grads[i] = static_cast<float>(std::cos(0.3 * static_cast<double>(i - shift) + step));
  }
  AdamWArgs Args(uint64_t num_updates) {
    return {.main = main.data(),
            .grads = grads.data(),
            .m = m.data(),
            .v = v.data(),
            .copy = copy.data(),
            .segments = segments.data(),
            .num_segments = static_cast<int>(segments.size()),
            .max_segment = kDecayed,
            .factors = MakeAdamWFactors(kConfig, kLr, kFactor, num_updates)};
  }
  int64_t size;
  std::vector<float> main, grads, m, v;
  std::vector<uint16_t> copy;
  std::vector<AdamWSegment> segments;
};

TEST(AdamWKernel, EqualsTheFormulaInFp64) {
  Arrays arrays;
  std::vector<double> w(arrays.main.begin(), arrays.main.end()), m(arrays.size), v(arrays.size);
  for (int t = 1; t <= 5; ++t) {
    arrays.FillGrads(0, t);
    Update(arrays.Args(t));
    for (const AdamWSegment& segment : arrays.segments) {
      for (int64_t i = segment.begin; i < segment.end; ++i) {
        const double g = arrays.grads[i] * kFactor;
        m[i] = kConfig.beta1 * m[i] + (1 - kConfig.beta1) * g;
        v[i] = kConfig.beta2 * v[i] + (1 - kConfig.beta2) * g * g;
        const double m_hat = m[i] / (1 - std::pow(kConfig.beta1, t));
        const double v_hat = v[i] / (1 - std::pow(kConfig.beta2, t));
        const double lr = kLr * segment.lr_scale;
        w[i] -= lr * (m_hat / (std::sqrt(v_hat) + kConfig.eps) + segment.weight_decay * w[i]);
      }
    }
  }
  // Five updates of lr with about eight roundings each (2^-24) of values up to 1.
  for (int64_t i = 0; i < arrays.size; ++i) ASSERT_NEAR(arrays.main[i], w[i], 5 * 8 * 0x1p-24) << i;
}

TEST(AdamWKernel, DoesNotChangeElementsOutsideTheSegments) {
  Arrays arrays;
  arrays.FillGrads(0, 1);
  Update(arrays.Args(1));
  for (const int64_t i : {kDecayed, kDecayed + 6, kDecayed + 8, kDecayed + 16, kDecayed + 2996}) {
    EXPECT_EQ(arrays.main[i], 0) << i;
    EXPECT_EQ(arrays.m[i], 0) << i;
    EXPECT_EQ(arrays.copy[i], 0xffff) << i;
  }
  for (const int64_t i : {kDecayed + 17, kDecayed + 2995})
    EXPECT_EQ(arrays.copy[i], 0xffff) << "no copy of " << i;
}

TEST(AdamWKernel, CopyIsRoundedToNearestEven) {
  Arrays arrays;
  arrays.main[3] = std::numeric_limits<float>::quiet_NaN();
  arrays.FillGrads(0, 1);
  Update(arrays.Args(1));
  for (int64_t i = 0; i < kDecayed; ++i) {
    const float w = arrays.main[i];
    const float rounded = std::bit_cast<float>(static_cast<uint32_t>(arrays.copy[i]) << 16);
    if (i == 3) {
      EXPECT_TRUE(std::isnan(rounded));
      continue;
    }
    // Half a unit of the eighth bit. A tie, which does not occur here, would round to even.
    ASSERT_LE(std::abs(rounded - w), std::ldexp(1.0, std::ilogb(w) - 8)) << i;
  }
}

// The bits do not depend on where arrays begin, and equal those of single-element updates.
TEST(AdamWKernel, ElementsAreIndependent) {
  Arrays whole, shifted(5), single;
  whole.FillGrads(0, 1);
  shifted.FillGrads(5, 1);
  single.FillGrads(0, 1);
  Update(whole.Args(1));
  Update(shifted.Args(1));
  AdamWArgs args = single.Args(1);
  for (const int64_t i : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{15}, int64_t{16},
                          kDecayed / 2, kDecayed - 2, kDecayed - 1}) {
    const AdamWSegment one = {i, i + 1, 0.1f, 1};
    args.segments = &one;
    args.num_segments = 1;
    args.max_segment = 1;
    Update(args);
    EXPECT_EQ(single.main[i], whole.main[i]) << i;
    EXPECT_EQ(single.copy[i], whole.copy[i]) << i;
  }
  for (int64_t i = 0; i < kDecayed + 2996; ++i) ASSERT_EQ(whole.main[i], shifted.main[i + 5]) << i;
}

// The memory of one array: element 0 is `misaligned` elements after a multiple of 16 bytes.
template <typename T>
class Misaligned {
 public:
  Misaligned(int64_t size, int misaligned) : elements_(size + 16), first_(misaligned) {
    while (reinterpret_cast<uintptr_t>(elements_.data() + first_ - misaligned) % 16 != 0) ++first_;
  }
  T* data() { return elements_.data() + first_; }

 private:
  std::vector<T> elements_;
  int64_t first_;
};

// Where a segment begins and ends, and how far its arrays are from a multiple of 16 bytes.
struct Alignment {
  int64_t begin, count;
  int main, grads, moments, copy;  // in elements
  int64_t main_shift, grads_shift, moments_shift;
};

// Updates `alignment.count` elements once and returns their weights, moments and copies.
std::vector<float> UpdatedAt(const Alignment& at, bool has_copy) {
  const int64_t size = at.begin + at.count + 16;
  Misaligned<float> main(size, at.main), grads(size, at.grads), m(size, at.moments),
      v(size, at.moments);
  Misaligned<uint16_t> copy(size, at.copy);
  const AdamWSegment segment = {.begin = at.begin,
                                .end = at.begin + at.count,
                                .weight_decay = 0.1f,
                                .has_copy = has_copy ? 1 : 0,
                                .main_shift = at.main_shift,
                                .grads_shift = at.grads_shift,
                                .moments_shift = at.moments_shift};
  const auto element = [&](float* array, int64_t shift) { return array + at.begin + shift; };
  for (int64_t i = 0; i < at.count; ++i) {
    const auto x = static_cast<double>(i);
    element(main.data(), at.main_shift)[i] = static_cast<float>(std::sin(0.1 * x));
    element(grads.data(), at.grads_shift)[i] = static_cast<float>(std::cos(0.3 * x));
    element(m.data(), at.moments_shift)[i] = static_cast<float>(0.1 * std::sin(x));
    element(v.data(), at.moments_shift)[i] = static_cast<float>(0.1 + 0.1 * std::cos(x));
  }
  Update({.main = main.data(),
          .grads = grads.data(),
          .m = m.data(),
          .v = v.data(),
          .copy = copy.data(),
          .segments = &segment,
          .num_segments = 1,
          .max_segment = at.count,
          .factors = MakeAdamWFactors(kConfig, kLr, kFactor, 3)});
  std::vector<float> result;
  const auto add = [&](const float* x) { result.insert(result.end(), x, x + at.count); };
  add(element(main.data(), at.main_shift));
  add(element(m.data(), at.moments_shift));
  add(element(v.data(), at.moments_shift));
  result.insert(result.end(), copy.data() + at.begin, copy.data() + at.begin + at.count);
  // Elements next to the segment keep their zeros.
  for (const auto& [array, shift] : {std::pair(main.data(), at.main_shift),
                                     {m.data(), at.moments_shift},
                                     {v.data(), at.moments_shift}})
    for (int64_t i = 1; i <= 4; ++i) {
      if (at.begin + shift >= i) {
        EXPECT_EQ(element(array, shift)[-i], 0);
      }
      EXPECT_EQ(element(array, shift)[at.count + i - 1], 0);
    }
  for (int64_t i = 1; i <= 4; ++i) {
    if (at.begin >= i) {
      EXPECT_EQ(copy.data()[at.begin - i], 0);
    }
    EXPECT_EQ(copy.data()[at.begin + at.count + i - 1], 0);
  }
  return result;
}

// The kernel reads 16 bytes at once where all arrays of a segment allow it. The bits are those of
// single elements for every begin, length, shift and address.
TEST(AdamWKernel, AlignmentChangesNoBits) {
  constexpr Alignment kPlaces[] = {
      {0, 0, 0, 0, 0, 0, 0, 0, 0},   // everything aligned
      {1, 0, 0, 0, 0, 0, 0, 0, 0},   // aligned from element 3 of the segment on
      {6, 0, 2, 2, 2, 2, 0, 0, 0},   // aligned from the first element, at odd addresses
      {7, 0, 1, 1, 1, 1, 0, 0, 0},   // aligned from the first element of the arrays on
      {8, 0, 0, 0, 0, 0, 4, -8, 0},  // aligned, with shifts
      {5, 0, 3, 2, 1, 0, 1, 2, 3},   // addresses and shifts cancel
      {4, 0, 1, 0, 0, 0, 0, 0, 0},   // main is not aligned like the others
      {4, 0, 0, 0, 0, 0, 0, 1, 0},   // gradients are shifted by one
      {4, 0, 0, 0, 2, 0, 0, 0, 0},   // moments are not aligned
      {4, 0, 0, 0, 0, 3, 0, 0, 0},   // the copy is not aligned
  };
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 8, 13, 1024, 2049, 4099}) {
    for (const bool has_copy : {false, true}) {
      const std::vector<float> want =
          UpdatedAt({.begin = 3, .count = count, .grads_shift = 1}, has_copy);
      for (Alignment at : kPlaces) {
        at.count = count;
        ASSERT_EQ(UpdatedAt(at, has_copy), want) << "begin " << at.begin << ", count " << count;
      }
    }
  }
}

// An element's bits do not depend on its index, also beyond 2^31 elements.
TEST(AdamWKernel, OffsetsBeyond32Bits) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "indices are no races, and the thread sanitizer's address space is small";
#endif
  constexpr int64_t kFar = (int64_t{1} << 31) + 12345, kCount = 700;
  const auto update = [](int64_t first) {
    const size_t elements = first + kCount;
    const halflife::test::SparseMemory main(4 * elements), grads(4 * elements), m(4 * elements),
        v(4 * elements), copy(2 * elements);
    const AdamWSegment segment = {first, first + kCount, 0.1f, 1};
    const AdamWArgs args = {.main = static_cast<float*>(main.data()),
                            .grads = static_cast<const float*>(grads.data()),
                            .m = static_cast<float*>(m.data()),
                            .v = static_cast<float*>(v.data()),
                            .copy = static_cast<uint16_t*>(copy.data()),
                            .segments = &segment,
                            .num_segments = 1,
                            .max_segment = kCount,
                            .factors = MakeAdamWFactors(kConfig, kLr, kFactor, 1)};
    for (int64_t i = 0; i < kCount; ++i) {
      args.main[first + i] = static_cast<float>(std::sin(0.1 * static_cast<double>(i)));
      static_cast<float*>(grads.data())[first + i] =
          static_cast<float>(std::cos(0.3 * static_cast<double>(i)));
    }
    Update(args);
    std::vector<float> result;
    for (const float* x : {args.main, args.m, args.v})
      result.insert(result.end(), x + first, x + first + kCount);
    result.insert(result.end(), args.copy + first, args.copy + first + kCount);
    return result;
  };
  const std::vector<float> near = update(0), far = update(kFar);
  EXPECT_EQ(near, far);
  EXPECT_NE(near[0], 0);  // sin(0) changed.
}

}  // namespace
}  // namespace halflife::kernels
