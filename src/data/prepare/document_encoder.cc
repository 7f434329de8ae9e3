#include "data/prepare/document_encoder.h"

#include <algorithm>

#include "core/error.h"
#include "core/human.h"
#include "core/philox.h"
#include "data/records.h"

namespace halflife::data {
namespace {

void CheckLength(const TextChunk& chunk, int64_t line, std::string_view text,
                 const DocumentRules& rules) {
  HL_CHECK_AS(ExitCode::kData, static_cast<int64_t>(text.size()) <= rules.max_document_bytes,
              chunk.file->path.string(), ":", line, ": a document of ", text.size(),
              " bytes is longer than --max-document-bytes ", rules.max_document_bytes,
              ". Raise --max-document-bytes, or cut the text into shorter documents.");
}

int64_t ForEachRecord(const TextChunk& chunk, const DocumentRules& rules,
                      const std::function<void(const Document&)>& visit) {
  int64_t num_empty = 0;
  const std::vector<RecordField> fields = {{rules.field, "--field"}};
  ForEachJsonRecord(chunk, fields, [&](const Record& record) {
    const std::string& text = record.values[0];
    CheckLength(chunk, record.line, text, rules);
    if (text.empty()) {
      ++num_empty;
    } else {
      visit({.text = text});
    }
  });
  return num_empty;
}

// Visits single lines, or blocks of lines that are not blank. A block extends from its first line
// to the end of its last line, without the last newline. Returns the number of blank lines if each
// line is a document, otherwise 0.
int64_t ForEachBlock(const TextChunk& chunk, const DocumentRules& rules,
                     const std::function<void(const Document&)>& visit) {
  const std::string_view text = chunk.text;
  const bool single_lines = chunk.documents == DocumentMode::kLine;
  int64_t num_empty = 0;
  bool open = chunk.continues, first = true;
  size_t begin = 0, end = 0;  // range of the open block
  int64_t line_number = chunk.first_line, begin_line = line_number;
  const auto close = [&](bool ends) {
    const std::string_view block = text.substr(begin, end - begin);
    if (!rules.allow_pieces) CheckLength(chunk, begin_line, block, rules);
    visit({.text = block, .begins = !(chunk.continues && first), .ends = ends});
    first = false;
    open = false;
  };
  for (size_t at = 0; at < text.size(); ++line_number) {
    const size_t newline = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, newline - at);
    const bool rest_of_line = at == 0 && chunk.continues;
    if (rest_of_line || line.find_first_not_of(kBlanks) != std::string_view::npos) {
      if (!open) {
        begin = at;
        begin_line = line_number;
      }
      open = true;
      end = newline - (line.ends_with('\r') ? 1 : 0);
      if (single_lines && newline < text.size()) close(true);
    } else if (open) {
      close(true);
    } else if (single_lines) {
      ++num_empty;
    }
    at = newline + 1;
  }
  if (open) close(!chunk.leaves_open);
  return num_empty;
}

int64_t ForEachFile(const TextChunk& chunk, const DocumentRules& rules,
                    const std::function<void(const Document&)>& visit) {
  if (!chunk.continues && !chunk.leaves_open && chunk.text.empty()) return 1;
  if (!rules.allow_pieces) CheckLength(chunk, 1, chunk.text, rules);
  visit({.text = chunk.text, .begins = !chunk.continues, .ends = !chunk.leaves_open});
  return 0;
}

}  // namespace

DocumentRules DocumentRules::Of(const TextChunk& chunk) const {
  DocumentRules rules = *this;
  if (chunk.split) rules.split = chunk.split;
  return rules;
}

int64_t ForEachDocument(TextChunk chunk, const DocumentRules& rules,
                        const std::function<void(const Document&)>& visit) {
  RequireUtf8(chunk, rules.replace_invalid_utf8);
  switch (chunk.documents) {
    case DocumentMode::kRecord:
      return ForEachRecord(chunk, rules, visit);
    case DocumentMode::kFile:
      return ForEachFile(chunk, rules, visit);
    case DocumentMode::kLine:
    case DocumentMode::kBlankLines:
      return ForEachBlock(chunk, rules, visit);
  }
  return 0;
}

Hash128 ContentHash(std::string_view text) { return HashBytes(text.substr(0, kSplitHashBytes)); }

Split ChooseSplit(Hash128 content, const DocumentRules& rules) {
  if (rules.split) return *rules.split;
  const uint64_t mixed = SplitMix64(content.lo ^ SplitMix64(rules.split_seed));
  const double uniform =
      ToUniform(static_cast<uint32_t>(mixed >> 32), static_cast<uint32_t>(mixed));
  return uniform < rules.validation_fraction ? Split::kValidation : Split::kTrain;
}

EncodedChunk DocumentEncoder::Encode(TextChunk chunk) const {
  EncodedChunk encoded{.file = chunk.file,
                       .ids = {},
                       .documents = {},
                       .special_names = {},
                       .num_empty = 0,
                       .disk_bytes = chunk.disk_bytes};
  const DocumentRules rules = rules_.Of(chunk);
  encoded.num_empty = ForEachDocument(std::move(chunk), rules, [&](const Document& document) {
    const size_t old_size = encoded.ids.size();
    const Hash128 content = document.begins ? ContentHash(document.text) : Hash128{};
    // In a dataset of text, eos is at the end of each document and nowhere else.
    if (document.begins) {
      tokenizer_.AppendText(document.text, SpecialTokens::kPlain, encoded.ids);
    } else {
      tokenizer_.EncodeAppend(document.text, SpecialTokens::kPlain, encoded.ids);
    }
    tokenizer_.CountSpecialNames(document.text, encoded.special_names);
    if (document.ends) encoded.ids.push_back(tokenizer_.eos_id());
    encoded.documents.push_back(
        {.split = document.begins ? ChooseSplit(content, rules) : Split::kTrain,
         .content = content,
         .whole = rules.hash_whole ? HashBytes(document.text) : Hash128{},
         .begins = document.begins,
         .num_ids = static_cast<int64_t>(encoded.ids.size() - old_size),
         .num_bytes = static_cast<int64_t>(document.text.size())});
  });
  return encoded;
}

}  // namespace halflife::data
