#include "ckpt/direct_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/fault.h"
#include "core/human.h"
#include "core/threads.h"

namespace halflife::ckpt {
namespace {

using internal::ErrnoText;
namespace fs = std::filesystem;

constexpr size_t kBlock = size_t{4} << 20;  // Large enough for the full speed of a disk.
constexpr size_t kNumBlocks = 4;
// Alignment of memory, offsets and sizes. Every disk accepts it for O_DIRECT.
constexpr size_t kAlignment = 4096;

// Reserves the blocks, so that a full disk is noticed before anything is written. Uses the system
// call, because glibc's posix_fallocate would write every block on file systems without support.
void Reserve(int fd, uint64_t bytes, const fs::path& path) {
  if (bytes == 0) return;
  int result = 0;
  do {
    result = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes));
  } while (result != 0 && errno == EINTR);
  if (result == 0 || errno == EOPNOTSUPP || errno == ENOSYS) return;
  const int error = errno;
  HL_FAIL(ExitCode::kCheckpointIo, "cannot reserve ", HumanBytes(bytes), " for ", path.string(),
          ": ", ErrnoText(error), "; ",
          HumanBytes(FreeBytes(path.parent_path(), ExitCode::kCheckpointIo)), " are free");
}

// Returns whether the file system accepts the flag. The writes themselves may still be rejected.
bool SetDirect(int fd, bool on) {
  const int flags = ::fcntl(fd, F_GETFL);
  return flags >= 0 && ::fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

}  // namespace

struct DirectWriter::Block {
  char* data;
  size_t used;
  uint64_t at;  // Offset in the file.
};

void DirectWriter::FreeMemory::operator()(char* memory) const {
  ::munmap(memory, kNumBlocks * kBlock);
}

DirectWriter::DirectWriter(const fs::path& path, uint64_t num_bytes)
    : path_(path), fd_(OpenFile(path, O_WRONLY | O_CREAT | O_EXCL, ExitCode::kCheckpointIo)) {
  Reserve(fd_.get(), num_bytes, path_);
  direct_ = SetDirect(fd_.get(), true);
  void* const memory = ::mmap(nullptr, kNumBlocks * kBlock, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  memory_.reset(static_cast<char*>(memory));
  for (size_t i = 0; i < kNumBlocks; ++i) free_.push_back(memory_.get() + i * kBlock);
  thread_ = StartThread([this] { Run(); });
}

DirectWriter::~DirectWriter() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    full_.clear();
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DirectWriter::Append(const void* data, size_t num_bytes) {
  const auto* from = static_cast<const char*>(data);
  bytes_ += num_bytes;
  while (num_bytes > 0) {
    if (filling_ == nullptr) filling_ = TakeFree();
    const size_t count = std::min(num_bytes, kBlock - filled_);
    std::memcpy(filling_ + filled_, from, count);
    from += count;
    num_bytes -= count;
    filled_ += count;
    if (filled_ == kBlock) HandOver(kBlock);
  }
}

char* DirectWriter::TakeFree() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !free_.empty() || failure_; });
  if (failure_) std::rethrow_exception(failure_);
  char* const block = free_.front();
  free_.pop_front();
  return block;
}

void DirectWriter::HandOver(size_t used) {
  {
    const std::lock_guard lock(mutex_);
    full_.push_back({filling_, used, handed_over_});
  }
  changed_.notify_all();
  handed_over_ += used;
  filling_ = nullptr;
  filled_ = 0;
}

void DirectWriter::Finish() {
  if (filled_ > 0) HandOver(filled_);
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  // The last direct write ended with a whole sector.
  if (::ftruncate(fd_.get(), static_cast<off_t>(bytes_)) != 0) {
    const int error = errno;
    HL_FAIL(ExitCode::kCheckpointIo, "cannot end ", path_.string(), ": ", ErrnoText(error));
  }
  HL_FAULT_POINT("ckpt.p1.fsync", ExitCode::kCheckpointIo);
  Fsync(fd_.get(), path_, ExitCode::kCheckpointIo);
  fd_.Close(path_, ExitCode::kCheckpointIo);
}

void DirectWriter::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return !full_.empty() || closing_; });
    if (full_.empty()) return;
    const Block block = full_.front();
    full_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      Write(block);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    free_.push_back(block.data);
    if (failure && !failure_) failure_ = failure;
    changed_.notify_all();
    if (failure_) return;
  }
}

void DirectWriter::Write(const Block& block) {
  const size_t sectors = (block.used + kAlignment - 1) / kAlignment * kAlignment;
  for (size_t done = 0; done < block.used;) {
    // Direct writes have whole sectors. Finish truncates the zeros after the end.
    if (direct_) std::memset(block.data + block.used, 0, sectors - block.used);
    const size_t count = (direct_ ? sectors : block.used) - done;
    const ssize_t written =
        ::pwrite(fd_.get(), block.data + done, count, static_cast<off_t>(block.at + done));
    if (written > 0) {
      done += static_cast<size_t>(written);
      if (done % kAlignment != 0 && direct_) direct_ = !SetDirect(fd_.get(), false);
      continue;
    }
    const int error = errno;
    if (written < 0 && error == EINTR) continue;
    // The file system accepted the flag, but rejects the write.
    if (written < 0 && error == EINVAL && direct_) {
      direct_ = !SetDirect(fd_.get(), false);
      if (!direct_) continue;
    }
    HL_FAIL(ExitCode::kCheckpointIo, "cannot write ", path_.string(), ": ",
            ErrnoText(written < 0 ? error : ENOSPC));
  }
  // Otherwise the kernel would collect all data, and fsync would wait for it. This is a hint, so
  // errors are ignored.
  if (!direct_) {
    ::sync_file_range(fd_.get(), static_cast<off_t>(block.at), static_cast<off_t>(block.used),
                      SYNC_FILE_RANGE_WRITE);
  }
}

}  // namespace halflife::ckpt
