#include "data/small_datasets.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <fstream>

#include "core/concat.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/philox.h"

namespace halflife::data::test {

namespace fs = std::filesystem;

void WriteText(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

std::string ReadText(const fs::path& path) { return ReadFile(path, ExitCode::kInternal); }

std::string Gzip(const std::string& text) {
  z_stream stream{};
  HL_CHECK(::deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
  std::string out(::deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  HL_CHECK(::deflate(&stream, Z_FINISH) == Z_STREAM_END);
  out.resize(stream.total_out);
  ::deflateEnd(&stream);
  return out;
}

std::string Zstd(const std::string& text) {
  std::string out(::ZSTD_compressBound(text.size()), '\0');
  out.resize(::ZSTD_compress(out.data(), out.size(), text.data(), text.size(), 3));
  return out;
}

std::vector<std::string> RandomDocuments(int count, uint64_t seed) {
  const std::vector<std::string> words = {"state",  "decays",  "by",      "half",  "über",
                                          "κλίμα",  "半減期",  "🙂",    "of",    "the",
                                          "memory", "stays\n", "life.\n", "x = 1", "\t"};
  const RandomKey key = MakeRandomKey(seed, RandomPurpose::kTest, 0);
  std::vector<std::string> documents;
  for (int i = 0; i < count; ++i) {
    std::string text = Concat("document ", i);
    const uint32_t length = Draw(key, static_cast<uint64_t>(i), 0, 0).x[0] % 40;
    for (uint32_t w = 0; w < length; ++w) {
      const std::string& word =
          words[Draw(key, static_cast<uint64_t>(i), w + 1, 0).x[0] % words.size()];
      const bool after_newline = text.back() == '\n';
      if (after_newline && (word == "\t" || word.back() == '\n')) continue;  // No blank line.
      text += after_newline ? word : " " + word;
    }
    while (text.back() == '\n') text.pop_back();
    documents.push_back(text);
  }
  return documents;
}

std::string JoinByBlankLines(const std::vector<std::string>& documents) {
  std::string text;
  for (const std::string& document : documents) text += document + "\n\n";
  return text;
}

PrepareConfig ByteConfig(const fs::path& input, const fs::path& out) {
  PrepareConfig config;
  config.input.paths = {input.string()};
  config.input.tokenizer = "bytes";
  config.documents = DocumentMode::kBlankLines;
  config.output.out = out;
  config.input.validation_fraction = 0;
  config.output.threads = 1;
  return config;
}

std::vector<int32_t> ReadAll(const Dataset& dataset, Split split) {
  std::vector<int32_t> ids(static_cast<size_t>(dataset.split(split).num_tokens));
  dataset.Read(split, 0, ids);
  return ids;
}

std::vector<std::string> ReadDocuments(const Dataset& dataset, Split split) {
  const std::unique_ptr<Tokenizer> tokenizer = dataset.LoadTokenizer();
  std::vector<std::string> documents;
  std::vector<int32_t> open;
  for (const int32_t id : ReadAll(dataset, split)) {
    open.push_back(id);
    if (id != dataset.info().eos_id) continue;
    documents.push_back(tokenizer->Decode(open));
    open.clear();
  }
  HL_CHECK(open.empty(), "the last document has no eos");
  return documents;
}

std::vector<std::string> Names(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string FolderFingerprint(const fs::path& folder) {
  std::string text;
  for (const std::string& name : Names(folder)) {
    const fs::path path = folder / name;
    text += fs::is_directory(path) ? Concat(name, "/\n", FolderFingerprint(path))
                                   : Concat(name, " ", ToHex(HashBytes(ReadText(path))), "\n");
  }
  return text;
}

}  // namespace halflife::data::test
