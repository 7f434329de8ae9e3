// What `halflife inspect` says of a prepared dataset.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace halflife::cli {

// Counts, splits, shards, tokenizer and hash; as one JSON object with `json`. Error kData for a
// damaged dataset.
void PrintDataset(const std::filesystem::path& folder, bool json, std::ostream& out);

}  // namespace halflife::cli
