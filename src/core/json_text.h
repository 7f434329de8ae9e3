// JSON files that others may have made, before anything parses them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace halflife {

inline constexpr uint64_t kMaxJsonBytes = 64 << 20;
// What copies, prints or destroys a value calls itself as often as brackets are nested.
inline constexpr int kMaxJsonNesting = 64;

// How deep brackets are nested, those in strings left out.
int JsonNesting(std::string_view text);

// A file's bytes, which may still be no JSON. Error kData: more than `max_bytes`, or nested deeper
// than kMaxJsonNesting.
std::string ReadJsonText(const std::filesystem::path& path, uint64_t max_bytes = kMaxJsonBytes);

}  // namespace halflife
