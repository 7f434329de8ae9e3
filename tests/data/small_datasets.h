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
std::string Gzip(const std::string& text);  // One member.
std::string Zstd(const std::string& text);  // One frame.

// Returns `count` documents of 0 to 40 random words, some with characters of 2, 3 and 4 bytes. None
// is blank.
std::vector<std::string> RandomDocuments(int count, uint64_t seed);
std::string JoinByBlankLines(const std::vector<std::string>& documents);

// Returns a config with the bytes tokenizer and documents between blank lines, all in the training
// split unless the fraction is changed.
PrepareConfig ByteConfig(const std::filesystem::path& input, const std::filesystem::path& out);

std::vector<int32_t> ReadAll(const Dataset& dataset, Split split);
// Returns the documents of a split as text, in order.
std::vector<std::string> ReadDocuments(const Dataset& dataset, Split split);

// Returns the name and content of every file below a folder. Equal strings mean equal folders.
std::string FolderFingerprint(const std::filesystem::path& folder);
// Returns the sorted names in `folder`.
std::vector<std::string> Names(const std::filesystem::path& folder);

}  // namespace halflife::data::test
