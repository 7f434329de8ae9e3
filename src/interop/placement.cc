#include "interop/placement.h"

#include <algorithm>
#include <utility>

#include "ckpt/safetensors.h"
#include "core/error.h"

namespace halflife::interop {
namespace {

constexpr int64_t kBandElements = 1 << 20;

struct Matrix {
  RangeReader read;
  int64_t rows = 0, columns = 0;
};

// Reads elements [begin, end) of the flattened transpose, [columns, rows]. The matrix is read in
// bands of whole rows, because a checkpoint verifies a whole block for every read.
void ReadTransposed(const Matrix& matrix, int64_t begin, int64_t end, float* out) {
  if (begin == end) return;
  const int64_t rows = matrix.rows, columns = matrix.columns;
  const int64_t first = begin / rows, last = (end - 1) / rows;  // The columns to read.
  const int64_t rows_of_band = std::max<int64_t>(1, kBandElements / columns);
  std::vector<float> band;
  for (int64_t row = 0; row < rows; row += rows_of_band) {
    const int64_t num_rows = std::min(rows_of_band, rows - row);
    const int64_t from = row * columns + first, to = (row + num_rows - 1) * columns + last + 1;
    band.resize(static_cast<size_t>(to - from));
    matrix.read(from, to, band.data());
    for (int64_t column = first; column <= last; ++column) {
      const int64_t to_out = column * rows + row - begin;  // Output index of the band's first row.
      const int64_t stop = std::min(num_rows, end - begin - to_out);
      for (int64_t i = std::max<int64_t>(0, -to_out); i < stop; ++i)
        out[to_out + i] = band[static_cast<size_t>(i * columns + column - first)];
    }
  }
}

RangeReader Transposed(RangeReader read, int64_t rows, int64_t columns) {
  return [matrix = Matrix{std::move(read), rows, columns}](int64_t begin, int64_t end, float* out) {
    ReadTransposed(matrix, begin, end, out);
  };
}

// Concatenates the parts, which have `count` elements each.
RangeReader Stacked(std::vector<RangeReader> parts, int64_t count) {
  return [parts = std::move(parts), count](int64_t begin, int64_t end, float* out) {
    while (begin < end) {
      const int64_t part = begin / count, first = part * count;
      const int64_t stop = std::min(end, first + count);
      parts[static_cast<size_t>(part)](begin - first, stop - first, out);
      out += stop - begin;
      begin = stop;
    }
  };
}

// Reorders each group of `num_rows` rows of `width` elements: rows 0, 2, 4, ... and then rows 1, 3,
// 5, ... The rows of half a group are read together with their neighbours in one range, because a
// transposed tensor is read completely for every range.
RangeReader EvenThenOdd(RangeReader read, int64_t num_rows, int64_t width) {
  return [read = std::move(read), num_rows, width](int64_t begin, int64_t end, float* out) {
    const int64_t half = num_rows / 2 * width;
    std::vector<float> both;  // Alternating even and odd rows.
    while (begin < end) {
      const int64_t group = begin / (2 * half) * 2 * half, odd = (begin - group) / half;
      const int64_t base = group + odd * half, stop = std::min(end, base + half);
      const int64_t first = (begin - base) / width, last = (stop - base - 1) / width;
      const int64_t from = group + (2 * first + odd) * width;
      both.resize(static_cast<size_t>((2 * (last - first) + 1) * width));
      read(from, from + static_cast<int64_t>(both.size()), both.data());
      for (int64_t row = first; row <= last; ++row) {
        const int64_t here = base + row * width;  // Start of the row.
        const int64_t skip = std::max<int64_t>(0, begin - here);
        const int64_t count = std::min(stop - here, width) - skip;
        std::copy_n(both.begin() + 2 * (row - first) * width + skip, count, out);
        out += count;
      }
      begin = stop;
    }
  };
}

bool IsWhole(const Placement& placement) {
  return placement.num_rows == 0 && placement.pair_rows == 0;
}

}  // namespace

std::vector<int64_t> TensorShape(const Placement& placement, std::vector<int64_t> shape) {
  shape.front() = placement.num_rows > 0 ? placement.num_rows : shape.front() * placement.num_parts;
  shape.insert(shape.begin(), static_cast<size_t>(placement.leading_ones), 1);
  if (!placement.transposed) return shape;
  HL_CHECK(shape.size() == 2, "only matrices can be transposed, but the tensor has ", shape.size(),
           " dimensions");
  return {shape[1], shape[0]};
}

RangeReader ParameterReader(const Placement& placement, const std::vector<int64_t>& shape,
                            RangeReader tensor) {
  if (placement.transposed) {
    const std::vector<int64_t> theirs = TensorShape(placement, shape);
    tensor = Transposed(std::move(tensor), theirs[0], theirs[1]);
  }
  const int64_t count = ckpt::CountElements(shape), width = count / std::max<int64_t>(1, shape[0]);
  if (const int64_t first = placement.part * count + placement.first_row * width; first > 0) {
    tensor = [tensor = std::move(tensor), first](int64_t begin, int64_t end, float* out) {
      tensor(first + begin, first + end, out);
    };
  }
  if (placement.pair_rows == 0) return tensor;
  HL_CHECK(placement.pair_rows % 2 == 0 && shape[0] % placement.pair_rows == 0, shape[0],
           " rows cannot be split into groups of an even number of rows, ", placement.pair_rows);
  return EvenThenOdd(std::move(tensor), placement.pair_rows, width);
}

RangeReader TensorReader(const Placement& placement, const std::vector<int64_t>& shape,
                         std::vector<RangeReader> parts) {
  HL_CHECK(static_cast<int64_t>(parts.size()) == placement.num_parts && IsWhole(placement),
           parts.size(), " parts are given for ", placement.num_parts,
           ", or the placement has selected or paired rows");
  RangeReader stacked = parts.size() == 1 ? std::move(parts.front())
                                          : Stacked(std::move(parts), ckpt::CountElements(shape));
  if (!placement.transposed) return stacked;
  const std::vector<int64_t> theirs = TensorShape(placement, shape);
  return Transposed(std::move(stacked), theirs[1], theirs[0]);
}

}  // namespace halflife::interop
