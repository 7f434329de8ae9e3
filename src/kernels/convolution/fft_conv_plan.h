// What the long convolution's kernels are given beside tensors, how their work lies on a GPU, and
// what it borrows there. Pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/convolution/fft_conv_args.h"

namespace halflife::kernels {

// FftConvFilter's length and tables of rows of seq_len tokens.
int64_t FftConvLength(int64_t seq_len);
std::vector<fft::Complex> FftConvTables(int64_t length);

// Blocks of `channels` channels, a power of two, in x; in y `splits` blocks of rows, each with its
// partial sums of the filter's gradient. Follows from shapes alone, and with it the bits.
struct FftConvLayout {
  int channels = 1, log2_channels = 0, splits = 1;
  int64_t rows_per_split = 0;
};
// `transforms`: that a block holds at a time.
FftConvLayout LayoutOf(const FftConvFilter& filter, int64_t batch, int transforms);

// Shared memory of the transforms of one channel.
constexpr int64_t TransformBytes(int64_t length, int transforms) {
  return length * transforms * static_cast<int64_t>(sizeof(fft::Complex));
}

}  // namespace halflife::kernels
