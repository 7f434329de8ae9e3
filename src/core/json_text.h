// JSON as text: files that others may have made, before anything parses them, and what is printed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
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

// What is no UTF-8 (a path's bytes, pieces of characters) is written as U+FFFD. With an indent of
// -1 it is one line.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace halflife
