#include "data/tokenizer.h"

#include "core/error.h"
#include "core/files.h"
#include "data/tokenizer_files.h"
#include "data/utf8.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

class ByteTokenizer : public Tokenizer {
 public:
  static constexpr int kNumSpecial = 3;  // pad, eos, unk

  const std::string& kind() const override { return kind_; }
  int vocab_size() const override { return kNumSpecial + 256; }
  SpecialIds special_ids() const override { return {.bos = -1, .eos = 1, .pad = 0, .unk = 2}; }
  bool keeps_invalid_bytes() const override { return true; }

  std::vector<int32_t> Encode(std::string_view text) const override {
    std::vector<int32_t> ids;
    EncodeAppend(text, ids);
    return ids;
  }

  void EncodeAppend(std::string_view text, std::vector<int32_t>& ids) const override {
    const size_t old_size = ids.size();
    ids.resize(old_size + text.size());
    for (size_t i = 0; i < text.size(); ++i) {
      ids[old_size + i] = static_cast<uint8_t>(text[i]) + kNumSpecial;
    }
  }

  std::string Decode(const std::vector<int32_t>& ids) const override {
    std::string bytes;
    for (const int32_t id : ids) AppendBytes(id, false, bytes);
    return bytes;
  }

  bool AppendBytes(int32_t id, bool, std::string& bytes) const override {
    HL_CHECK(id >= 0 && id < vocab_size(), "token id ", id, " of a vocabulary of ", vocab_size());
    if (id < kNumSpecial) return false;
    bytes += static_cast<char>(id - kNumSpecial);
    return true;
  }

  std::map<std::string, std::string> Files() const override { return {}; }

 private:
  const std::string kind_ = kBytesKind;
};

}  // namespace

void Tokenizer::Save(const fs::path& folder) const {
  for (const auto& [name, bytes] : Files()) {
    AtomicWriteFile(folder / name, bytes, ExitCode::kData);
  }
  AtomicWriteFile(folder / kTokenizerKindFile, kind() + "\n", ExitCode::kData);
}

std::string StreamDecoder::Push(int32_t id) {
  if (tokenizer_.AppendBytes(id, at_start_, pending_)) at_start_ = false;
  std::string text = std::move(pending_);
  const size_t tail = IncompleteUtf8Tail(text);
  pending_ = text.substr(text.size() - tail);
  text.resize(text.size() - tail);
  return tokenizer_.keeps_invalid_bytes() ? text : ReplaceInvalidUtf8(text);
}

std::string StreamDecoder::Finish() {
  const std::string text = std::move(pending_);
  pending_.clear();
  at_start_ = true;
  return tokenizer_.keeps_invalid_bytes() ? text : ReplaceInvalidUtf8(text);
}

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

std::unique_ptr<Tokenizer> LoadTokenizer(const fs::path& folder) {
  const fs::path path = folder / kTokenizerKindFile;
  std::error_code ignored;
  HL_CHECK_AS(ExitCode::kData, fs::exists(path, ignored), "there is no tokenizer in ",
              folder.string(), ": ", path.string(),
              " is missing; name a folder that `halflife "
              "prepare` or a run has written");
  std::string kind = ReadFile(path, ExitCode::kData);
  while (!kind.empty() && kind.back() == '\n') kind.pop_back();
  const auto read = [&](const char* name) { return ReadFile(folder / name, ExitCode::kData); };
  if (kind == kBytesKind) return MakeByteTokenizer();
  if (kind == kSentencePieceKind) return MakeSentencePieceTokenizer(read(kSentencePieceFile));
  if (kind == kBpeKind) {
    return MakeBpeTokenizer({{kTokenizerJsonFile, read(kTokenizerJsonFile)},
                             {kTokenizerConfigFile, read(kTokenizerConfigFile)}},
                            (folder / kTokenizerJsonFile).string());
  }
  HL_FAIL(ExitCode::kData, path.string(), " names the kind '", kind, "'; this program knows ",
          kBytesKind, ", ", kSentencePieceKind, " and ", kBpeKind);
}

}  // namespace halflife::data
