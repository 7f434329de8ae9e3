// Distinguishes damage from other errors. DamageError means that a step's bytes are not those that
// were saved, so a load may skip the step. An I/O error (Error kCheckpointIo) or a newer format
// (Error kNoUsableCheckpoint) is not evidence of damage.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "core/concat.h"
#include "core/error.h"

namespace halflife::ckpt {

class DamageError : public Error {
 public:
  // `tensor` and `offset` (of the damaged block, in its file) are given if they are known.
  explicit DamageError(std::string message, std::string tensor = "", uint64_t offset = 0)
      : Error(ExitCode::kNoUsableCheckpoint, "", std::move(message)),
        tensor_(std::move(tensor)),
        offset_(offset) {}

  const std::string& tensor() const { return tensor_; }
  uint64_t offset() const { return offset_; }

 private:
  std::string tensor_;
  uint64_t offset_;
};

// CheckDamage(size == expected, file, ": ", size, " bytes, the manifest says ", expected);
template <typename... Pieces>
void CheckDamage(bool good, const Pieces&... pieces) {
  if (!good) [[unlikely]]
    throw DamageError(Concat(pieces...));
}

}  // namespace halflife::ckpt
