// Writes a new file from front to back while its bytes are still being produced: a separate thread
// writes one block while the caller fills the next. Writes bypass the page cache (O_DIRECT) if the
// file system supports it. They then run at the speed of the disk and evict no cached data.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>

#include "core/files.h"

namespace halflife::ckpt {

class DirectWriter {
 public:
  // `path` must not exist. The constructor throws Error kCheckpointIo, and so do all functions
  // below, for errors of the thread.
  DirectWriter(const std::filesystem::path& path, uint64_t num_bytes);
  ~DirectWriter();  // Discards bytes that are not written yet.
  DirectWriter(const DirectWriter&) = delete;
  DirectWriter& operator=(const DirectWriter&) = delete;

  void Append(const void* data, size_t num_bytes);
  // Writes the rest, fsyncs and closes.
  void Finish();

  uint64_t bytes() const { return bytes_; }

 private:
  struct Block;
  struct FreeMemory {
    void operator()(char* memory) const;
  };

  void Run();
  void Write(const Block& block);
  char* TakeFree();
  void HandOver(size_t used);

  const std::filesystem::path path_;
  Fd fd_;
  bool direct_ = false;
  uint64_t bytes_ = 0, handed_over_ = 0;
  std::unique_ptr<char, FreeMemory> memory_;
  char* filling_ = nullptr;  // The caller's block.
  size_t filled_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<char*> free_;
  std::deque<Block> full_;
  std::exception_ptr failure_;  // The error of the thread, if it failed.
  bool closing_ = false;        // No block follows.
  std::thread thread_;
};

}  // namespace halflife::ckpt
