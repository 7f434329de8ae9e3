// Reads JSON files that other programs may have written, with limits that are checked before
// parsing; prints JSON; and appends to files of JSON lines.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "core/files.h"

namespace halflife {

inline constexpr uint64_t kMaxJsonBytes = 64 << 20;
// Parsers, printers and destructors of JSON values recurse once per nested bracket.
inline constexpr int kMaxJsonNesting = 64;

// Returns the maximum nesting depth of brackets; brackets within strings do not count.
int JsonNesting(std::string_view text);

// Returns the content of a file, which may still be invalid JSON. Throws Error kData if it has more
// than `max_bytes` or is nested deeper than kMaxJsonNesting.
std::string ReadJsonText(const std::filesystem::path& path, uint64_t max_bytes = kMaxJsonBytes);

// Returns the JSON as text. Bytes that are not valid UTF-8 (in paths, or in parts of characters)
// are written as U+FFFD. An indent of -1 writes one line.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

// A file of JSON lines. Each line is appended with one write(2): readers never see half a line of a
// running job, and after a crash at most the last line is missing or torn.
//
//   JsonlWriter metrics(run / "metrics.jsonl", ExitCode::kEnvironment);
//   metrics.Append({{"step", 3}, {"loss", 2.5}});
class JsonlWriter {
 public:
  // Creates the file or appends to it. If a writer crashed within the last line, that line is first
  // ended with a newline.
  JsonlWriter(const std::filesystem::path& path, ExitCode code);
  // Appends a line. NaN and infinities are written as null, because JSON cannot represent them.
  void Append(const nlohmann::ordered_json& line);

 private:
  std::filesystem::path path_;
  ExitCode code_;
  Fd fd_;
};

}  // namespace halflife
