// Inner header: fused fp32 loops over the chunks of channel decay. No LibTorch in here.
#pragma once

#include <cstdint>

namespace halflife::kernels::internal {

// Arrays of one chunk: rows of `dim` channels, num_tiles * kTile of them. Every sum runs over exactly the range of its
// weight, so none is positive and -inf needs no case of its own.
struct ChannelFactorRows {
  const float* log_decay;
  int64_t num_tiles;
  int64_t dim;
  float scale;
  float* in_tile;     // scale * exp(sum from the tile's entry to r)
  float* incoming;    // scale * exp(sum from the chunk's entry to r)
  float* outgoing;    // exp(sum after s to the chunk's end)
  float* transition;  // [dim]: exp(sum over the chunk)
  float* const*
      to_tile;  // [num_tiles]; entry i >= 1: 16 i rows, exp(sum after s to the entry of tile i)
  float* sums;  // [dim]: scratch
};
void FillChannelFactors(const ChannelFactorRows& rows);

// Arrays over all chunks. On entry dq and dk hold what the pairs s < r give; the finish adds the paths through the states
// and the pairs (r, r), and forms the gradient of the decay on the way (the pairs (r, r) have no decay).
struct ChannelFinish {
  const float* q;
  const float* k;
  const float* dscores;  // [.., C, C]
  const float* q_state;
  const float* k_state;
  const float* incoming;
  const float* outgoing;
  const float* transition;  // [.., K]
  const float* through;     // [.., K]; null: no gradient of the decay
  float* dq;
  float* dk;
  float* dlog_decay;
  int64_t chunk, dim;
  float scale;
};
void FinishChannelChunk(const ChannelFinish& all, int64_t index, float* sums);

}  // namespace halflife::kernels::internal
