// Writes a new file from front to back while its bytes are still being produced: a separate thread
// writes one block while the caller fills the next. Writes bypass the page cache (O_DIRECT) if the
// file system supports it. They then run at the speed of the disk and evict no cached data.
//
//   DirectWriter file(path, num_bytes);  // reserves them: a full disk shows here
//   file.Append(data, count);
//   file.Finish();                       // all of it is on the disk
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
  // `path` must not exist. Error kCheckpointIo here, and from all below what the thread met.
  DirectWriter(const std::filesystem::path& path, uint64_t num_bytes);
  ~DirectWriter();  // gives up what is not written
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
  char* filling_ = nullptr;  // of the caller's block
  size_t filled_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<char*> free_;
  std::deque<Block> full_;
  std::exception_ptr failure_;  // of the thread
  bool closing_ = false;        // no block follows
  std::thread thread_;
};

}  // namespace halflife::ckpt
