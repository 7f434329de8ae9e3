#pragma once

#include <c10/util/Exception.h>

#include <string>

namespace halflife::ops {

// Returns true if memory on a device or on the CPU could not be allocated. The CPU allocator's
// error has no type of its own, so its text is searched.
inline bool IsOutOfMemory(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         text.find("DefaultCPUAllocator") != std::string::npos;
}

}  // namespace halflife::ops
