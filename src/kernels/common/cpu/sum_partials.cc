#include "kernels/common/sum_partials.h"

#include <algorithm>

namespace halflife::kernels::cpu {
namespace {

// Number of columns that are summed at a time: their sums stay in the L1 cache.
constexpr int64_t kColumns = 1024;
// With fewer columns, starting threads costs more time than they save.
constexpr int64_t kColumnsOfOneThread = 4 * kColumns;

// Sums columns [begin, begin + width) of a destination whose first column is partials[0, 0]. The
// rows of `partials` are `stride` elements apart.
template <typename C>
void SumTile(const C* partials, int64_t count, int64_t stride, const SumPlace<C>& to, int64_t begin,
             int64_t width) {
  const int64_t of_row = to.size / to.rows;
  const auto place_of = [&](int64_t column) {
    return to.rows == 1 ? column : column % of_row * to.rows + column / of_row;
  };
  C sums[kColumns] = {};
  for (int64_t i = 0; to.added && i < width; ++i) sums[i] = to.out[place_of(begin + i)];
  for (int64_t p = 0; p < count; ++p) {
    const C* const partial = partials + p * stride + begin;
    for (int64_t i = 0; i < width; ++i) sums[i] += partial[i];
  }
  for (int64_t i = 0; i < width; ++i) to.out[place_of(begin + i)] = sums[i];
}

}  // namespace

template <typename C>
void SumPartials(const C* partials, int64_t count, const SumPlaces<C>& to) {
  int64_t stride = 0;
  for (const SumPlace<C>& place : to) stride += place.size;
  for (const SumPlace<C>& place : to) {
    const int64_t tiles = place.out == nullptr ? 0 : (place.size + kColumns - 1) / kColumns;
#pragma omp parallel for schedule(static) if (place.size > kColumnsOfOneThread)
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t begin = tile * kColumns;
      SumTile(partials, count, stride, place, begin, std::min(kColumns, place.size - begin));
    }
    partials += place.size;
  }
}

template <typename C>
void SumPartials(const C* partials, int64_t count, int64_t size, C* out, bool added) {
  SumPartials(partials, count, {{.out = out, .size = size, .added = added}});
}

template void SumPartials(const float*, int64_t, const SumPlaces<float>&);
template void SumPartials(const double*, int64_t, const SumPlaces<double>&);
template void SumPartials(const float*, int64_t, int64_t, float*, bool);
template void SumPartials(const double*, int64_t, int64_t, double*, bool);

}  // namespace halflife::kernels::cpu
