// Verified reads from the shard files of one step: the caller only receives bytes whose block has
// the right hash. Files are opened on first use, at most kMaxOpenFiles at a time, relative to one
// folder handle. If a step is deleted meanwhile, this is noticed, and bytes of two steps are never
// mixed. Thread-safe. DamageError names file, block and tensor. Error kCheckpointIo is an error of
// the system.
#pragma once

#include <atomic>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/manifest.h"
#include "core/files.h"

namespace halflife::ckpt {

// Maximum number of files that are open at a time, for a step of any number of ranks. By default a
// process may have 1,024 descriptors.
constexpr size_t kMaxOpenFiles = 128;

class StepFiles {
 public:
  // Borrows the manifest.
  StepFiles(std::filesystem::path step_dir, const Manifest& manifest);

  // Compares the sizes of all files with the manifest, without reading the files.
  void CheckSizes() const;
  // Reads and hashes [0, data_offset) of a file.
  void CheckHeader(int file) const;
  // Reads and verifies block `block` of a fragment into `out` (at most Manifest::block_bytes).
  // Returns its bytes.
  uint64_t ReadBlock(const TensorEntry& tensor, const StoredFragment& fragment, uint64_t block,
                     char* out) const;
  // Verifies every byte of a file: size, header, each block, then the hash of the whole.
  void CheckWholeFile(int file) const;
  const Manifest& manifest() const { return manifest_; }
  uint64_t bytes_read() const { return bytes_read_; }  // so far
  // Drops the file's clean pages from the page cache, so that the next read accesses the disk.
  void ForgetCached(int file) const;

 private:
  std::string ReadHeader(int file) const;
  std::string ReadTable(int file) const;
  Hash128 BlockHash(const StoredFragment& fragment, uint64_t block) const;
  std::shared_ptr<const Fd> Open(int file) const;
  void ReadAt(int file, uint64_t offset, char* out, uint64_t bytes) const;

  std::filesystem::path dir_;
  const Manifest& manifest_;
  Fd dir_fd_;
  mutable std::atomic<uint64_t> bytes_read_ = 0;
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const Fd>> fds_;  // By file index.
  mutable std::deque<int> open_;                        // In the order in which files were opened.
  mutable std::map<int, std::shared_ptr<const std::string>> tables_;  // By file; of those in use.
};

// Copies element ranges out of blocks. The last block is kept for the next range.
class BlockCursor {
 public:
  explicit BlockCursor(const StepFiles& files);
  void Copy(const TensorEntry& tensor, const StoredFragment& fragment, int64_t begin, int64_t end,
            void* out);

 private:
  const StepFiles& files_;
  const uint64_t block_bytes_;
  std::unique_ptr<char[]> buffer_;  // block_bytes_
  const StoredFragment* fragment_ = nullptr;
  uint64_t block_ = 0;
};

// A fragment of a file. FragmentsOfFile returns all of them in the order of their bytes.
struct FileFragment {
  const TensorEntry* tensor;
  const StoredFragment* fragment;
};
std::vector<FileFragment> FragmentsOfFile(const Manifest& manifest, int file);

}  // namespace halflife::ckpt
