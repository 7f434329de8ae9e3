// The length and tables of the long convolution's transforms, the division of its work on a GPU,
// and its workspace. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/convolution/fft_conv_args.h"

namespace halflife::kernels {

// Return FftConvFilter's length and tables for rows of seq_len tokens.
int64_t FftConvLength(int64_t seq_len);
std::vector<fft::Complex> FftConvTables(int64_t length);

// The grid has blocks of `channels` channels, a power of two, in x, and `splits` blocks of rows in
// y, each with its own partial sums of the filter's gradient. It depends only on shapes, and so do
// the bits of the result.
struct FftConvLayout {
  int channels = 1, log2_channels = 0, splits = 1;
  int64_t rows_per_split = 0;
};
// `transforms` is the number of transforms that a block holds at a time.
FftConvLayout LayoutOf(const FftConvFilter& filter, int64_t batch, int transforms);

// Returns the bytes of shared memory for the transforms of one channel.
constexpr int64_t TransformBytes(int64_t length, int transforms) {
  return length * transforms * static_cast<int64_t>(sizeof(fft::Complex));
}

}  // namespace halflife::kernels
