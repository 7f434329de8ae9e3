// HDF5 behind small move-only handles, one lock and our errors. HDF5 is not built thread-safe here,
// so every call, closing included, happens while an Hdf5Lock is held; handles close themselves
// under it.
//
//   const Hdf5Lock lock;
//   const Hdf5Handle file = CheckHdf5(H5Fopen(path.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT),
//                                     &H5Fclose, [&] { return Concat("cannot open ", path); });
#pragma once

#include <cstdint>
#include <mutex>
#include <string>
#include <utility>

#include "core/error.h"

namespace halflife::data {

// Recursive, so that a handle may close itself inside and outside of a locked region.
class Hdf5Lock {
 public:
  Hdf5Lock();

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

// HDF5's hid_t and a close function (H5Fclose, H5Dclose, H5Sclose, H5Pclose). The destructor logs a
// failure.
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
  // False where HDF5 refused: for a file being written this is where a full disk shows.
  bool CloseNow();

 private:
  int64_t id_ = -1;
  Close close_ = nullptr;
};

// Why the last call failed: the system's reason if HDF5 quotes one ("No space left on device"),
// else "HDF5: " with its innermost message and the outermost. Call under the lock.
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
