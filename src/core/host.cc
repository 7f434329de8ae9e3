#include "core/host.h"

#include <unistd.h>

namespace halflife {

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace halflife
