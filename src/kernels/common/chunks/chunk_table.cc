#include "kernels/common/chunks/chunk_table.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace halflife::kernels {
namespace {

void CheckLimits(const ChunkTableConfig& config) {
  HL_CHECK(config.batch >= 0 && config.seq_len >= 0 && config.chunk_size >= 1,
           "chunk table: batch ", config.batch, " and seq_len ", config.seq_len,
           " must not be negative, and chunk_size ", config.chunk_size, " must be at least 1");
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();  // the kernels count in 32 bits
  HL_CHECK_AS(ExitCode::kUsage, config.batch <= kMax && config.seq_len <= kMax,
              "chunk table: a batch of ", config.batch, " rows of ", config.seq_len,
              " tokens exceeds 32-bit counts. Use at most ", kMax, " rows, and tokens per row.");
  const int64_t chunks_of_row = (config.seq_len + config.chunk_size - 1) / config.chunk_size;
  const auto cuts = static_cast<int64_t>(config.document_starts.size() + config.cu_seqlens.size());
  HL_CHECK_AS(ExitCode::kUsage, config.batch * chunks_of_row + cuts <= kMax,
              "chunk table: a batch of ", config.batch, " rows of ", config.seq_len,
              " tokens makes up to ", config.batch * chunks_of_row + cuts, " chunks of ",
              config.chunk_size, ", above the limit of ", kMax, ". Split the batch.");
  HL_CHECK(config.batch * config.seq_len <= std::numeric_limits<int32_t>::max() ||
               (config.cu_seqlens.empty() && config.document_starts.empty()),
           "chunk table: positions of ", config.batch * config.seq_len,
           " tokens do not fit the 32 bits of document_starts and cu_seqlens. Split the batch.");
  const int64_t num_tokens = config.batch * config.seq_len;
  const auto starts = config.document_starts;
  for (size_t i = 0; i < starts.size(); ++i) {
    HL_CHECK_AS(ExitCode::kData, starts[i] >= 0 && starts[i] <= num_tokens, "document_starts[", i,
                "] is ", starts[i], ", outside 0 .. ", num_tokens, " (batch x seq_len)");
    HL_CHECK_AS(ExitCode::kData, i == 0 || starts[i - 1] <= starts[i], "document_starts[", i,
                "] is ", starts[i], ", below the ", starts[i - 1], " before it. Sort them.");
  }
  const auto limits = config.cu_seqlens;
  if (limits.empty()) return;
  HL_CHECK_AS(ExitCode::kData, config.batch == 1, "cu_seqlens packs sequences into one row, but ",
              "the batch has ", config.batch, " rows");
  HL_CHECK_AS(ExitCode::kData, limits.front() == 0, "cu_seqlens[0] is ", limits.front(), ", not 0");
  HL_CHECK_AS(ExitCode::kData, limits.back() == config.seq_len, "cu_seqlens[", limits.size() - 1,
              "], its last, is ", limits.back(), ", not seq_len ", config.seq_len);
  for (size_t i = 1; i < limits.size(); ++i)
    HL_CHECK_AS(ExitCode::kData, limits[i - 1] <= limits[i], "cu_seqlens[", i, "] is ", limits[i],
                ", below the ", limits[i - 1], " before it");
}

// Cuts tokens [begin, end) of a row at the document starts inside it. Advances `next_start` past
// them.
void CutSequence(const ChunkTableConfig& config, int32_t row, int64_t begin, int64_t end,
                 size_t& next_start, std::vector<ChunkEntry>& chunks) {
  const auto starts = config.document_starts;
  const int64_t offset = row * config.seq_len;
  for (int64_t token = begin; token < end;) {
    bool resets = false;
    for (; next_start < starts.size() && starts[next_start] <= offset + token; ++next_start)
      resets |= starts[next_start] == offset + token;
    int64_t limit = std::min(end, token + config.chunk_size);
    if (next_start < starts.size()) limit = std::min<int64_t>(limit, starts[next_start] - offset);
    chunks.push_back({.token = token,
                      .row = row,
                      .length = static_cast<int32_t>(limit - token),
                      .flags = resets ? kChunkResets : 0u,
                      .padding = 0});
    token = limit;
  }
}

}  // namespace

ChunkTable MakeChunkTable(const ChunkTableConfig& config) {
  CheckLimits(config);
  const bool packed = !config.cu_seqlens.empty();
  const int64_t num_sequences =
      packed ? static_cast<int64_t>(config.cu_seqlens.size()) - 1 : config.batch;
  ChunkTable table;
  table.sequence_begin.push_back(0);
  size_t next_start = 0;
  for (int64_t n = 0; n < num_sequences; ++n) {
    const int64_t begin = packed ? config.cu_seqlens[n] : 0;
    const int64_t end = packed ? config.cu_seqlens[n + 1] : config.seq_len;
    CutSequence(config, packed ? 0 : static_cast<int32_t>(n), begin, end, next_start, table.chunks);
    table.sequence_begin.push_back(static_cast<int32_t>(table.chunks.size()));
  }
  if (config.capacity == 0) return table;
  const auto num_chunks = static_cast<int64_t>(table.chunks.size());
  HL_CHECK(num_chunks <= config.capacity, "chunk table: ", num_chunks,
           " chunks do not fit a capacity of ", config.capacity,
           ". Use the capacity of MaxNumChunks().");
  table.chunks.resize(static_cast<size_t>(config.capacity), ChunkEntry{});
  return table;
}

}  // namespace halflife::kernels
