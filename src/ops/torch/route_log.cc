#include "ops/torch/route_log.h"

#include <mutex>
#include <set>

#include "core/log.h"

namespace halflife::ops {

void LogRoute(const char* family, const std::string& route) {
  static std::mutex mutex;
  static std::set<std::string> said;
  const std::string line = std::string(family) + ": " + route;
  const std::lock_guard lock(mutex);
  if (said.insert(line).second) HL_DEBUG("kernels", line);
}

}  // namespace halflife::ops
