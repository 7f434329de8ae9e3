// Verified reads from the shard files of one step: bytes reach the caller only after their block's
// hash agreed. Files are opened on first use, at most kMostOpenFiles at a time, below one folder
// handle, so that a step deleted meanwhile is noticed and never mixed. Thread-safe. DamageError
// names file, block and tensor; Error kCheckpointIo is the system's own failure.
//
//   const StepFiles files(step_dir, manifest);
//   BlockCursor cursor(files);
//   // Elements of the tensor, inside the fragment.
//   cursor.Copy(tensor, fragment, begin, end, out);
#pragma once

#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "core/files.h"

namespace halflife::ckpt {

// The number of files that are open at a time, of a step from any number of ranks. A process has
// 1,024 descriptors by default.
constexpr size_t kMostOpenFiles = 128;

class StepFiles {
 public:
  // Borrows the manifest.
  StepFiles(std::filesystem::path step_dir, const Manifest& manifest);

  // Sizes of all files against the manifest, without reading them.
  void CheckSizes() const;
  // Reads and hashes [0, data_offset) of a file.
  void CheckHeader(int file) const;
  // Block `block` of a fragment into `out` (at most kBlockBytes), verified. Returns its bytes.
  uint64_t ReadBlock(const TensorEntry& tensor, const StoredFragment& fragment, uint64_t block,
                     char* out) const;
  // Every byte of a file: size, header, each block, then the hash of the whole.
  void CheckWholeFile(int file) const;
  // Drops the file's clean pages from the page cache, so that the next read asks the disk.
  void ForgetCached(int file) const;

 private:
  std::string ReadHeader(int file) const;
  std::shared_ptr<const Fd> Open(int file) const;
  void ReadAt(int file, uint64_t offset, char* out, uint64_t bytes) const;

  std::filesystem::path dir_;
  const Manifest& manifest_;
  Fd dir_fd_;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Fd>> fds_;  // by file index
  mutable std::deque<int> open_;                        // the file opened first, first
};

// Copies element ranges out of blocks, keeping the last block for the next range.
class BlockCursor {
 public:
  explicit BlockCursor(const StepFiles& files);
  void Copy(const TensorEntry& tensor, const StoredFragment& fragment, int64_t begin, int64_t end,
            void* out);

 private:
  const StepFiles& files_;
  std::unique_ptr<char[]> buffer_;  // kBlockBytes
  const StoredFragment* fragment_ = nullptr;
  uint64_t block_ = 0;
};

// All fragments of a file in the order of their bytes.
struct FileFragment {
  const TensorEntry* tensor;
  const StoredFragment* fragment;
};
std::vector<FileFragment> FragmentsOfFile(const Manifest& manifest, int file);

}  // namespace halflife::ckpt
