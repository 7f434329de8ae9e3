#include "data/text_tokens.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "core/error.h"
#include "data/prepare/document_encoder.h"
#include "data/prepare/shard_writer.h"
#include "data/prepare/text_chunker.h"
#include "data/tokenizer_folder.h"

namespace halflife::data {

TextTokens EncodeFiles(const std::vector<std::string>& names, const Tokenizer& tokenizer) {
  std::vector<InputFile> files;
  for (const std::string& name : names) files.push_back(PlainTextFile(name));
  // All ids are in memory at once, so a limit on the length of one document would have no effect.
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 4;
  const bool bytes = tokenizer.kind() == kBytesKind;
  TextChunker chunker(
      files,
      {.documents = DocumentMode::kFile, .allow_pieces = bytes, .max_document_bytes = kNoLimit});
  const DocumentRules rules{
      .max_document_bytes = kNoLimit, .allow_pieces = bytes, .split = Split::kValidation};
  const DocumentEncoder encoder(tokenizer, rules);
  TextTokens text{.ids = {}, .info = {}, .eos_id = tokenizer.eos_id()};
  SourceList sources;
  const InputFile* file = nullptr;
  while (std::optional<TextChunk> chunk = chunker.Next()) {
    if (chunk->file != file) sources.Begin((file = chunk->file)->name);
    const EncodedChunk encoded = encoder.Encode(*std::move(chunk));
    text.ids.insert(text.ids.end(), encoded.ids.begin(), encoded.ids.end());
    for (const auto& [name, count] : encoded.special_names) text.special_names[name] += count;
    for (const EncodedDocument& document : encoded.documents) {
      text.info.num_documents += document.begins ? 1 : 0;
      sources.Count(document.num_ids, document.begins ? 1 : 0);
      text.info.num_bytes += document.num_bytes;
    }
  }
  text.info.num_tokens = static_cast<int64_t>(text.ids.size());
  text.info.sources = sources.Take();
  HL_CHECK_AS(ExitCode::kData, text.info.num_documents > 0, "there is no text in ",
              Join(names, ", "), ". Use files with text.");
  return text;
}

TokenView ViewOf(const TextTokens& text, bool reset_at_documents) {
  return {.name = "the text",
          .info = text.info,
          .eos_id = text.eos_id,
          .read =
              [&text](int64_t begin, std::span<int32_t> ids) {
                const auto end = begin + static_cast<int64_t>(ids.size());
                HL_CHECK(begin >= 0 && end <= text.info.num_tokens, "tokens [", begin, ", ", end,
                         ") of a text of ", text.info.num_tokens);
                std::copy_n(text.ids.begin() + begin, ids.size(), ids.begin());
              },
          .reset_at_documents = reset_at_documents};
}

}  // namespace halflife::data
