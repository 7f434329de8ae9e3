#include "support/temp_dir.h"

#include "core/files.h"

namespace halflife::test {

TempDir::TempDir()
    : path_(std::filesystem::temp_directory_path() / ("halflife-test-" + RandomHex(12))) {
  std::filesystem::create_directories(path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace halflife::test
