// Reserves address space that reads as zeros and uses no memory until a page is written. Use it to
// test offsets that do not fit into 32 bits.
//
//   const SparseMemory memory(size_t{1} << 40);
//   static_cast<float*>(memory.data())[int64_t{1} << 33] = 1;
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

#include "core/error.h"

namespace halflife::test {

class SparseMemory {
 public:
  SparseMemory() = default;
  explicit SparseMemory(size_t bytes) : bytes_(bytes) {
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    HL_CHECK_AS(ExitCode::kEnvironment, data_ != MAP_FAILED, "no address space for ", bytes,
                " bytes. Set vm.overcommit_memory to 0 or 1 and remove ulimit -v");
  }
  ~SparseMemory() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  SparseMemory(SparseMemory&& other) noexcept { *this = std::move(other); }
  SparseMemory& operator=(SparseMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace halflife::test
