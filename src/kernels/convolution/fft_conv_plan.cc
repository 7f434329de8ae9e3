#include "kernels/convolution/fft_conv_args.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

namespace halflife::kernels {
namespace {

// Maximum channels of a block: 32 bytes of fp32, which is a memory sector.
constexpr int kMaxChannels = 8;
// Target for a block's shared memory, so that several blocks fit on a multiprocessor. A single
// channel may use more.
constexpr int64_t kBytesOfBlock = 64 * 1024;
// If the channels give fewer blocks than this, the rows are divided among blocks too.
constexpr int64_t kBlocksWanted = 256;
constexpr int64_t kMaxSplits = 64;
// Shared memory of a block in addition to its transforms.
constexpr int64_t kOtherBytes = 8 * 1024;

}  // namespace

int64_t FftConvLength(int64_t seq_len) {
  return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(seq_len)));
}

std::vector<fft::Complex> FftConvTables(int64_t length) {
  std::vector<fft::Complex> tables;
  const auto append = [&](double angle) {
    tables.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
  };
  const auto points = static_cast<double>(length);
  for (int64_t n = 0; n < length; ++n)
    append(std::numbers::pi / 2 * static_cast<double>(n) / points);
  for (int64_t n = 0; n < length; ++n)
    append(-2 * std::numbers::pi * static_cast<double>(n) / points);
  return tables;
}

FftConvLayout LayoutOf(const FftConvFilter& filter, int64_t batch, int transforms) {
  FftConvLayout layout;
  while (layout.channels < kMaxChannels && layout.channels < filter.dim &&
         2 * layout.channels * TransformBytes(filter.length, transforms) <= kBytesOfBlock)
    layout.channels *= 2, ++layout.log2_channels;
  const int64_t blocks = (filter.dim + layout.channels - 1) / layout.channels;
  const int64_t splits =
      std::min({(kBlocksWanted + blocks - 1) / blocks, std::max<int64_t>(1, batch), kMaxSplits});
  layout.rows_per_split = (batch + splits - 1) / splits;
  layout.splits = static_cast<int>((batch + layout.rows_per_split - 1) / layout.rows_per_split);
  return layout;
}

namespace cuda {

bool FftConvFits(int64_t length, int64_t shared_memory_bytes) {
  return TransformBytes(length, /*transforms=*/2) + kOtherBytes <= shared_memory_bytes;
}

int64_t FftConvWorkspaceBytes(const FftConvFilter& filter, int64_t batch, bool backward) {
  const int64_t spectrum = filter.length * filter.dim * static_cast<int64_t>(sizeof(fft::Complex));
  if (!backward) return spectrum;
  const int64_t splits = LayoutOf(filter, batch, /*transforms=*/2).splits;
  return (1 + splits) * spectrum + splits * filter.dim * static_cast<int64_t>(sizeof(float));
}

}  // namespace cuda
}  // namespace halflife::kernels
