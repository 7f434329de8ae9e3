// The table that divides rows and documents into chunks.
#include "kernels/common/chunks/chunk_table.h"

#include <gtest/gtest.h>

#include <string>

#include "core/error.h"
#include "support/expect_error.h"

namespace halflife::kernels {
namespace {

std::string Text(const ChunkTable& table) {
  std::string text;
  for (size_t n = 0; n + 1 < table.sequence_begin.size(); ++n) {
    text += "(";
    for (int i = table.sequence_begin[n]; i < table.sequence_begin[n + 1]; ++i) {
      const ChunkEntry& chunk = table.chunks[i];
      text += std::to_string(chunk.row) + ":" + std::to_string(chunk.token) + "+" +
              std::to_string(chunk.length) + (chunk.flags & kChunkResets ? "R " : " ");
    }
    text += ")";
  }
  return text;
}
std::string Message(const ChunkTableConfig& config) {
  try {
    MakeChunkTable(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    return error.message();
  }
  return "no error";
}

TEST(ChunkTable, CutsRowsIntoChunks) {
  EXPECT_EQ(Text(MakeChunkTable({.batch = 2, .seq_len = 130, .chunk_size = 64})),
            "(0:0+64 0:64+64 0:128+2 )(1:0+64 1:64+64 1:128+2 )");
  EXPECT_EQ(Text(MakeChunkTable({.batch = 1, .seq_len = 0, .chunk_size = 64})), "()");
}

TEST(ChunkTable, NoChunkSpansTwoDocuments) {
  // Row 0 has starts at 0 and 10. Row 1 continues from its initial state up to 70. Duplicates and
  // the end are ignored.
  const std::vector<int32_t> starts = {0, 10, 10, 170, 200};
  EXPECT_EQ(Text(MakeChunkTable(
                {.batch = 2, .seq_len = 100, .chunk_size = 64, .document_starts = starts})),
            "(0:0+10R 0:10+64R 0:74+26 )(1:0+64 1:64+6 1:70+30R )");
}

TEST(ChunkTable, EntriesBeyondTheChunksBelongToNoSequence) {
  const std::vector<int32_t> starts = {0, 10, 100, 170};
  ChunkTableConfig config = {
      .batch = 2, .seq_len = 100, .chunk_size = 64, .document_starts = starts};
  const ChunkTable exact = MakeChunkTable(config);
  EXPECT_EQ(exact.chunks.size(), 6u);
  EXPECT_EQ(MaxNumChunks(2, 100, 64, /*num_documents=*/4), 6);
  config.capacity = 9;
  const ChunkTable padded = MakeChunkTable(config);
  EXPECT_EQ(Text(padded), Text(exact));
  EXPECT_EQ(padded.sequence_begin, exact.sequence_begin);
  ASSERT_EQ(padded.chunks.size(), 9u);
  for (size_t i = 6; i < 9; ++i) {
    EXPECT_EQ(padded.chunks[i].length, 0);
    EXPECT_EQ(padded.chunks[i].flags, 0u);
  }
  config.capacity = 5;
  EXPECT_HL_ERROR(MakeChunkTable(config), ExitCode::kInternal, "6 chunks do not fit");
}

TEST(ChunkTable, PackedSequencesEachHaveTheirOwn) {
  const std::vector<int32_t> limits = {0, 0, 1, 64, 64, 129}, starts = {70};
  EXPECT_EQ(Text(MakeChunkTable({.batch = 1,
                                 .seq_len = 129,
                                 .chunk_size = 64,
                                 .document_starts = starts,
                                 .cu_seqlens = limits})),
            "()(0:0+1 )(0:1+63 )()(0:64+6 0:70+59R )");
}

TEST(ChunkTable, NamesWhatIsOutOfOrder) {
  const std::vector<int32_t> falling = {5, 4}, outside = {5, 21}, negative = {-1};
  EXPECT_NE(Message({.batch = 2, .seq_len = 10, .chunk_size = 64, .document_starts = falling})
                .find("document_starts[1] is 4, below the 5"),
            std::string::npos);
  EXPECT_NE(Message({.batch = 2, .seq_len = 10, .chunk_size = 64, .document_starts = outside})
                .find("document_starts[1] is 21, outside 0 .. 20"),
            std::string::npos);
  EXPECT_NE(Message({.batch = 2, .seq_len = 10, .chunk_size = 64, .document_starts = negative})
                .find("document_starts[0] is -1"),
            std::string::npos);
  const std::vector<int32_t> short_end = {0, 9}, late = {1, 10}, back = {0, 7, 6, 10},
                             whole = {0, 10};
  EXPECT_NE(Message({.batch = 1, .seq_len = 10, .chunk_size = 64, .cu_seqlens = short_end})
                .find("is 9, not seq_len"),
            std::string::npos);
  EXPECT_NE(Message({.batch = 1, .seq_len = 10, .chunk_size = 64, .cu_seqlens = late})
                .find("cu_seqlens[0] is 1"),
            std::string::npos);
  EXPECT_NE(Message({.batch = 1, .seq_len = 10, .chunk_size = 64, .cu_seqlens = back})
                .find("cu_seqlens[2] is 6"),
            std::string::npos);
  EXPECT_NE(
      Message({.batch = 2, .seq_len = 10, .chunk_size = 64, .cu_seqlens = whole}).find("2 rows"),
      std::string::npos);
}

// Counts that do not fit into the kernels' 32 bits are refused before the table is allocated.
TEST(ChunkTable, MoreThan32BitsOfCounts) {
  const auto make = [](ChunkTableConfig config) { return [=] { MakeChunkTable(config); }; };
  EXPECT_HL_ERROR(make({.batch = 1, .seq_len = (int64_t{1} << 32) + 5, .chunk_size = 64})(),
                  ExitCode::kUsage, "1 rows of 4294967301 tokens", "2147483647");
  EXPECT_HL_ERROR(make({.batch = int64_t{1} << 31, .seq_len = 1, .chunk_size = 64})(),
                  ExitCode::kUsage, "2147483648 rows");
  EXPECT_HL_ERROR(make({.batch = 1 << 16, .seq_len = 1 << 22, .chunk_size = 64})(),
                  ExitCode::kUsage, "4294967296 chunks of 64", "Split the batch");
}

}  // namespace
}  // namespace halflife::kernels
