// Small texts and datasets for the tests of src/data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "data/prepare/prepare.h"

namespace halflife::data::test {

void WriteText(const std::filesystem::path& path, const std::string& text);
std::string ReadText(const std::filesystem::path& path);
std::string Gzip(const std::string& text);  // one member
std::string Zstd(const std::string& text);  // one frame

// `count` documents of random words, 0 to 40 of them, some with characters of 2, 3 and 4 bytes;
// none blank.
std::vector<std::string> RandomDocuments(int count, uint64_t seed);
std::string JoinByBlankLines(const std::vector<std::string>& documents);

// Bytes tokenizer, documents between blank lines, all in the training split unless the fraction
// says otherwise.
PrepareConfig ByteConfig(const std::filesystem::path& input, const std::filesystem::path& out);

std::vector<int32_t> ReadAll(const Dataset& dataset, Split split);
// The documents of a split as text, in order.
std::vector<std::string> ReadDocuments(const Dataset& dataset, Split split);

// Name and content of every file below a folder: equal strings, equal folders.
std::string FolderFingerprint(const std::filesystem::path& folder);
// Names in `folder`, sorted.
std::vector<std::string> Names(const std::filesystem::path& folder);

}  // namespace halflife::data::test
