#include "core/json_text.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>

#include "core/error.h"
#include "core/files.h"

namespace halflife {

int JsonNesting(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return deepest;
}

std::string ReadJsonText(const std::filesystem::path& path, uint64_t max_bytes) {
  std::error_code error;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  HL_CHECK_AS(ExitCode::kData, !error, "cannot read ", path.string(), ": ", error.message());
  HL_CHECK_AS(ExitCode::kData, bytes <= max_bytes, path.string(), " has ", bytes,
              " bytes, more than the limit of ", max_bytes, " bytes");
  std::string text = ReadFile(path, ExitCode::kData);
  const int nesting = JsonNesting(text);
  HL_CHECK_AS(ExitCode::kData, nesting <= kMaxJsonNesting, path.string(), " is nested ", nesting,
              " deep, more than the limit of ", kMaxJsonNesting, " levels");
  return text;
}

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

JsonlWriter::JsonlWriter(const std::filesystem::path& path, ExitCode code)
    : path_(path), code_(code) {
  RequireAppendable(path, code);
  fd_ = OpenFile(path, O_RDWR | O_CREAT | O_APPEND, code);
  const off_t size = ::lseek(fd_.get(), 0, SEEK_END);
  char last = '\n';
  if (size > 0 && ::pread(fd_.get(), &last, 1, size - 1) == 1 && last != '\n') {
    WriteAll(fd_.get(), "\n", 1, path_, code_);
  }
}

void JsonlWriter::Append(const nlohmann::ordered_json& line) {
  const std::string text = JsonText(line) + "\n";
  WriteAll(fd_.get(), text.data(), text.size(), path_, code_);
}

}  // namespace halflife
