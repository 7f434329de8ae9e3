// Reads JSON files that other programs may have written, with limits that are checked before
// parsing, and prints JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace halflife {

inline constexpr uint64_t kMaxJsonBytes = 64 << 20;
// Parsers, printers and destructors of JSON values recurse once per nested bracket.
inline constexpr int kMaxJsonNesting = 64;

// The maximum nesting depth of brackets; brackets within strings do not count.
int JsonNesting(std::string_view text);

// Returns the content of a file, which may still be invalid JSON. Throws Error kData if it has more
// than `max_bytes` or is nested deeper than kMaxJsonNesting.
std::string ReadJsonText(const std::filesystem::path& path, uint64_t max_bytes = kMaxJsonBytes);

// Bytes that are not valid UTF-8 (in paths, or in parts of characters) are written as U+FFFD. An
// indent of -1 writes one line.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace halflife
