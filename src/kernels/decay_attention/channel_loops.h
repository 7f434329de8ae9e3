// Inner header: fused fp32 loops of one chunk under channel decay. No LibTorch in here.
#pragma once

#include <cstdint>

namespace halflife::kernels::internal {

// Rows are `dim` channels; a chunk is num_tiles * kTile rows.
struct ChannelFactorRows {
  const float* log_decay;
  int64_t num_tiles;
  int64_t dim;
  float scale;
  float* in_tile;     // scale * exp(sum from the tile's entry to r)
  float* incoming;    // scale * exp(sum from the chunk's entry to r)
  float* outgoing;    // exp(sum after s to the chunk's end)
  float* transition;  // [dim]: exp(sum over the chunk)
  float* const* to_tile;  // [num_tiles], entry i >= 1: 16 i rows, exp(sum after s to the entry of tile i)
};
void FillChannelFactors(const ChannelFactorRows& rows);

// Arrays over all chunks. On entry dq and dk hold the pairs s < r alone.
struct ChannelFinish {
  const float* q;
  const float* k;
  const float* dscores;   // [.., C, C]
  const float* q_state;
  const float* k_state;
  const float* incoming;
  const float* outgoing;
  const float* transition;
  const float* through;   // null: no gradient of the decay
  float* dq;
  float* dk;
  float* dlog_decay;
  int64_t chunk, dim;
  float scale;
};
// Chunk `index`; sums is scratch of `dim` floats.
void FinishChannelChunk(const ChannelFinish& all, int64_t index, float* sums);

}  // namespace halflife::kernels::internal
