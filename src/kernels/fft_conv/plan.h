// How the long convolution's work lies on a GPU, and what it borrows there. Pure functions.
#pragma once

#include <cstdint>

#include "kernels/fft_conv/args.h"

namespace halflife::kernels {

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
