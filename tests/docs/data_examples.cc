// The examples of src/data's headers. The parameters of a function are the variables that its
// example uses.
#include <hdf5.h>

#include "core/files.h"
#include "data/blend.h"
#include "data/bpe/merger.h"
#include "data/bpe/special_tokens.h"
#include "data/chat/chat_template.h"
#include "data/chat/chat_tokens.h"
#include "data/dataset.h"
#include "data/examples/prepare_examples.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/ordered_pipeline.h"
#include "data/prepare/prepare.h"
#include "data/prepare/publish_dataset.h"
#include "data/prepare/shard_writer.h"
#include "data/random_words.h"
#include "data/row_positions.h"
#include "data/sample_order.h"
#include "data/sentencepiece_bridge.h"
#include "data/shard_reader.h"
#include "data/synthetic/mqar.h"
#include "data/text_tokens.h"
#include "data/token_source.h"
#include "data/tokenizer.h"
#include "data/tokenizer_folder.h"

namespace halflife::data {

using Path = std::filesystem::path;

void AddedTokensExample(const std::vector<AddedToken>& tokens, std::string_view text) {
#include "examples/data/bpe/special_tokens.h"
}

void MergerExample(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges,
                   std::vector<int32_t>& ids) {
#include "examples/data/bpe/merger.h"
}

void BlendExample() {
#include "examples/data/blend.h"
}

void ChatTemplatesExample() {
#include "examples/data/tokenizer.h.2"
}

void ChatTemplateExample(const std::unique_ptr<Tokenizer>& tokenizer) {
#include "examples/data/chat/chat_template.h"
}

void ChatTokensExample(const std::unique_ptr<Tokenizer>& tokenizer, const ChatTemplate& chat,
                       GenerationPrompt prompt) {
#include "examples/data/chat/chat_tokens.h"
}

void DatasetExample(const Path& path, int64_t begin, std::span<int32_t> ids,
                    std::span<int32_t> labels) {
#include "examples/data/dataset.h"
}

void PrepareExamplesExample() {
#include "examples/data/examples/prepare_examples.h"
}

void OrderedPipelineExample(int threads, TextChunker& chunker, const DocumentEncoder& encoder,
                            ShardWriter& writer) {
#include "examples/data/prepare/ordered_pipeline.h"
}

void PrepareExample() {
#include "examples/data/prepare/prepare.h"
}

namespace publish_dataset_header {
struct Run {
  explicit Run(const PrepareConfig& config);
  Manifest WriteFiles(const Path& folder);
  PrepareSummary Summarise(const Manifest& manifest) const;
};
PrepareSummary PublishDatasetExample(const PrepareConfig& config) {
#include "examples/data/prepare/publish_dataset.h"
}
}  // namespace publish_dataset_header

void RandomWordsExample(uint64_t seed, uint64_t example) {
#include "examples/data/random_words.h"
}

void RowPositionsExample(const RandomWords& words) {
#include "examples/data/row_positions.h"
}

void SampleOrderExample() {
#include "examples/data/sample_order.h"
}

void SentencePieceBridgeExample(std::string_view bytes) {
#include "examples/data/sentencepiece_bridge.h"
}

void ShardReaderExample(const Path& folder, const ShardRecord& record, int vocab_size,
                        int num_labels) {
#include "examples/data/shard_reader.h"
}

void MqarExample() {
#include "examples/data/synthetic/mqar.h"
}

void PrepareMqarExample() {
#include "examples/data/synthetic/mqar.h.2"
}

void TextTokensExample(const std::unique_ptr<Tokenizer>& tokenizer, int64_t seq_len) {
#include "examples/data/text_tokens.h"
}

struct Cursor {
  uint64_t next_sample;
};
void TokenSourceExample(const Dataset& dataset, const Cursor& cursor) {
#include "examples/data/token_source.h"
}

void TokenizerExample(const Path& run) {
#include "examples/data/tokenizer.h"
}

void TokenizerFolderExample() {
#include "examples/data/tokenizer_folder.h"
}

}  // namespace halflife::data
