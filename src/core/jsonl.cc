#include "core/jsonl.h"

#include <fcntl.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace halflife {

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
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
  WriteAll(fd_.get(), text.data(), text.size(), path_, code_);
}

}  // namespace halflife
