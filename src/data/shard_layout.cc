#include "data/shard_layout.h"

#include <cstring>
#include <string_view>

#include "core/error.h"
#include "core/files.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexMagic("HLINDEX\x01", 8);
constexpr size_t kBlockRecordBytes = 24;

class IndexWriter {
 public:
  void Word(uint64_t word) { bytes_.append(reinterpret_cast<const char*>(&word), sizeof word); }
  void Hash(Hash128 hash) {
    Word(hash.hi);
    Word(hash.lo);
  }
  void Blocks(const std::vector<BlockRecord>& blocks) {
    for (const BlockRecord& block : blocks) {
      Word(block.offset);
      Hash(block.hash);
    }
  }
  std::string bytes_ = std::string(kIndexMagic);
};

// The size of the text was checked before.
class IndexParser {
 public:
  explicit IndexParser(std::string_view bytes) : rest_(bytes.substr(kIndexMagic.size())) {}
  uint64_t Word() {
    uint64_t word = 0;
    std::memcpy(&word, rest_.data(), sizeof word);
    rest_.remove_prefix(sizeof word);
    return word;
  }
  Hash128 Hash() {
    const uint64_t hi = Word();
    return {hi, Word()};
  }
  std::vector<BlockRecord> Blocks(int64_t count) {
    std::vector<BlockRecord> blocks(static_cast<size_t>(count));
    for (BlockRecord& block : blocks) {
      block.offset = Word();
      block.hash = Hash();
    }
    return blocks;
  }

 private:
  std::string_view rest_;
};

}  // namespace

std::string IndexName(const std::string& shard_name) {
  return shard_name.substr(0, shard_name.rfind('.')) + ".index";
}

std::string EncodeIndex(const ShardIndex& index) {
  IndexWriter writer;
  writer.Word(index.header_bytes);
  writer.Hash(index.header_hash);
  writer.Blocks(index.tokens);
  writer.Blocks(index.labels);
  writer.Blocks(index.starts);
  for (const int64_t start : index.first_starts) writer.Word(static_cast<uint64_t>(start));
  return std::move(writer.bytes_);
}

std::shared_ptr<const ShardIndex> ReadIndex(const fs::path& folder, const ShardRecord& record,
                                            bool has_labels) {
  if (record.index) return record.index;
  const fs::path path = folder / IndexName(record.file.name);
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::exists(path, ignored), path.string(),
              ", the index of the token shard ", record.file.name, ", is missing; ", kDamageRemedy);
  const std::string bytes = ReadFile(path, ExitCode::kData);
  const int64_t token_blocks = NumBlocks(record.num_tokens, kBlockTokens);
  const int64_t label_blocks = has_labels ? token_blocks : 0;
  const int64_t start_blocks = NumBlocks(record.num_documents, kBlockStarts);
  const size_t size = kIndexMagic.size() + kBlockRecordBytes +
                      kBlockRecordBytes * static_cast<size_t>(token_blocks + label_blocks) +
                      (kBlockRecordBytes + 8) * static_cast<size_t>(start_blocks);
  HL_CHECK_AS(ExitCode::kData, bytes.size() == size && HashBytes(bytes) == record.index_hash,
              path.string(), ", the index of the token shard ", record.file.name,
              ", does not have the hash of the manifest: it is damaged; ", kDamageRemedy);
  IndexParser parser(bytes);
  auto index = std::make_shared<ShardIndex>();
  index->header_bytes = parser.Word();
  index->header_hash = parser.Hash();
  index->tokens = parser.Blocks(token_blocks);
  index->labels = parser.Blocks(label_blocks);
  index->starts = parser.Blocks(start_blocks);
  for (int64_t i = 0; i < start_blocks; ++i)
    index->first_starts.push_back(static_cast<int64_t>(parser.Word()));
  return index;
}

}  // namespace halflife::data
