// Wraps HDF5 in move-only handles, one lock and the project's errors. HDF5 is not built
// thread-safe, so every call, including closing, requires an Hdf5Lock. Handles acquire it when they
// close.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace halflife::data {

// Recursive, so that a handle can close itself inside and outside of a locked region.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

// Owns an HDF5 hid_t with its close function (H5Fclose, H5Dclose, H5Sclose, H5Pclose). The
// destructor logs a failure.
class Hdf5Handle {
 public:
  using Close = int (*)(int64_t);
  Hdf5Handle() = default;
  Hdf5Handle(int64_t id, Close close) : id_(id), close_(close) {}
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }
  ~Hdf5Handle();
  int64_t get() const { return id_; }
  explicit operator bool() const { return id_ >= 0; }
  // Returns false if HDF5 fails to close. For a file that was written, this is where a full disk is
  // detected.
  bool CloseNow();

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

// Returns the reason why the last call failed: the system's error text if HDF5 quotes one ("No
// space left on device"), otherwise "HDF5: " with its innermost and outermost message. Call under
// the lock.
std::string Hdf5ErrorText();

template <typename Result, typename Describe>
Result CheckHdf5(Result result, const Describe& describe) {
  if (result < 0) {
    const std::string words = Hdf5ErrorText();
    HL_FAIL(ExitCode::kData, describe(), ": ", words);
  }
  return result;
}

template <typename Describe>
Hdf5Handle CheckHdf5(int64_t id, Hdf5Handle::Close close, const Describe& describe) {
  return Hdf5Handle(CheckHdf5(id, describe), close);
}

}  // namespace halflife::data
