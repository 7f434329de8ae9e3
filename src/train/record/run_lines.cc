#include "train/record/run_lines.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/human.h"
#include "core/log.h"

namespace halflife::train {
namespace fs = std::filesystem;

RunLines::RunLines(const fs::path& path) : path_(path), file_(path, ExitCode::kEnvironment) {}

void RunLines::Append(const nlohmann::ordered_json& line) {
  try {
    // The previous write may have failed as well.
    if (whole_) CutBack();
    std::error_code gone;
    if (const uintmax_t size = fs::file_size(path_, gone); !gone) whole_ = size;
    file_.Append(line);
    whole_.reset();
  } catch (const Error& error) {
    if (num_lost_++ == 0) {
      HL_WARN("train", "lines of ", path_.filename().string(),
              " are lost, training goes on: ", error.message());
    }
    try {
      if (whole_) CutBack();
    } catch (const Error&) {
      // The file remains as it is. The next line is only written after a complete line.
    }
    return;
  }
  if (num_lost_ > 0) {
    HL_WARN("train", path_.filename().string(), " takes lines again; ", Counted(num_lost_, "line"),
            num_lost_ == 1 ? " is" : " are", " missing");
  }
  num_lost_ = 0;
}

// Readers of a running run never see an incomplete line.
void RunLines::CutBack() const {
  std::error_code error;
  fs::resize_file(path_, *whole_, error);
  HL_CHECK_AS(ExitCode::kEnvironment, !error, "cannot cut ", path_.string(),
              " back to its last whole line: ", error.message());
}

}  // namespace halflife::train
