// Tokenizers, possibly from untrusted sources. The size of a file is checked before it is read.
#include "data/tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "cli/inspect/artifact.h"
#include "core/error.h"
#include "core/hash.h"
#include "data/bpe/special_tokens.h"
#include "data/tokenizer_folder.h"

namespace halflife::cli::inspect {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using data::Tokenizer;

constexpr uint64_t kMaxFileBytes = 128 << 20;
// A folder that contains any of these files is recognised as a tokenizer.
constexpr const char* kSigns[] = {data::kTokenizerKindFile, data::kTokenizerJsonFile,
                                  data::kHfSentencePieceFile, data::kTokenizerConfigFile};

bool IsFile(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

void CheckSize(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return;
  HL_CHECK_AS(ExitCode::kData, IsFile(path), path.string(),
              " is not a regular file. Replace it by one.");
  const uint64_t bytes = fs::file_size(path, error);
  HL_CHECK_AS(ExitCode::kData, !error && bytes <= kMaxFileBytes, path.string(), " has ", bytes,
              " bytes. Use a tokenizer whose files have at most ", kMaxFileBytes, " bytes.");
}

// Checks the sizes of all files that data::OpenTokenizer may read.
void CheckSizes(const fs::path& path) {
  const bool is_folder = fs::is_directory(path);
  if (!is_folder) CheckSize(path);
  const fs::path folder = is_folder ? path : path.parent_path();
  for (const char* name : kSigns) CheckSize(folder / name);
  for (const char* name : data::kSpecialTokenFiles) CheckSize(folder / name);
  CheckSize(folder / data::kSentencePieceFile);
}

std::unique_ptr<Tokenizer> Open(const fs::path& path) {
  CheckSizes(path);
  if (!fs::is_directory(path)) return data::OpenTokenizer(path.string());
  std::unique_ptr<Tokenizer> tokenizer = data::FindTokenizer(path);
  HL_CHECK_AS(ExitCode::kData, tokenizer != nullptr, path.string(), " has a ",
              data::kTokenizerConfigFile, " that is not ByT5's, and no ", data::kTokenizerJsonFile,
              " or ", data::kHfSentencePieceFile, ". Add one of these two files.");
  return tokenizer;
}

std::string HashOf(const Tokenizer& tokenizer) {
  StreamHash hash;
  // The length in front of each piece keeps neighbouring pieces apart.
  const auto add = [&](const std::string& piece) {
    const std::string length = Concat(piece.size(), " ");
    hash.Update(length.data(), length.size());
    hash.Update(piece.data(), piece.size());
  };
  add(tokenizer.kind());
  for (const auto& [name, bytes] : tokenizer.Files()) {
    add(name);
    add(bytes);
  }
  return ToHex(hash.Digest());
}

Json IdOrNull(int id) { return id < 0 ? Json() : Json(id); }

}  // namespace

bool IsTokenizer(const fs::path& path) {
  if (IsFile(path)) {
    return path.filename() == data::kTokenizerJsonFile || path.extension() == ".model";
  }
  return std::any_of(std::begin(kSigns), std::end(kSigns),
                     [&](const char* name) { return IsFile(path / name); });
}

Json DescribeTokenizer(const fs::path& path) {
  const std::unique_ptr<Tokenizer> tokenizer = Open(path);
  size_t num_text = 0, longest = 0;
  for (int id = 0; id < tokenizer->vocab_size(); ++id) {
    std::string text;
    if (tokenizer->AppendBytes(id, /*at_start=*/false, text)) ++num_text;
    longest = std::max(longest, text.size());
  }
  Json files = Json::array();
  for (const auto& [name, bytes] : tokenizer->Files()) {
    files.push_back({{"file", name}, {"bytes", bytes.size()}});
  }
  const data::SpecialIds ids = tokenizer->special_ids();
  return {
      {"tokenizer", tokenizer->kind()}, {"vocab_size", tokenizer->vocab_size()},
      {"text_ids", num_text},           {"longest_text_bytes", longest},
      {"bos_id", IdOrNull(ids.bos)},    {"begins_with_bos", tokenizer->begins_with_bos()},
      {"eos_id", IdOrNull(ids.eos)},    {"pad_id", IdOrNull(ids.pad)},
      {"unk_id", IdOrNull(ids.unk)},    {"keeps_invalid_bytes", tokenizer->keeps_invalid_bytes()},
      {"hash", HashOf(*tokenizer)},     {"files", std::move(files)}};
}

}  // namespace halflife::cli::inspect
