#include "core/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace halflife::fault {
namespace {

struct Armed {
  std::string point;
  std::string action;
  int countdown = 0;
};

// One process-wide fault: it imitates an accident of the process, which has no owner either.
std::atomic<bool> any_armed{false};
std::mutex mutex;
Armed armed;

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ':') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void Act(const std::string& action, std::string_view point, ExitCode code) {
  HL_WARN("fault", "point ", point, ": ", action);
  log::Flush();
  if (action == "kill") ::kill(::getpid(), SIGKILL);
  if (action == "stall") {
    while (true) ::pause();
  }
  if (action == "enospc") HL_FAIL(code, "injected at ", point, ": ", internal::ErrnoText(ENOSPC));
  if (action == "eio") HL_FAIL(code, "injected at ", point, ": ", internal::ErrnoText(EIO));
  HL_FAIL(ExitCode::kInternal, "injected at ", point);
}

}  // namespace

bool CompiledIn() {
#ifdef HALFLIFE_FAULT_POINTS
  return true;
#else
  return false;
#endif
}

void Arm(std::string_view spec, int rank) {
  const std::lock_guard lock(mutex);
  any_armed = false;
  if (spec.empty()) return;
  HL_CHECK_AS(ExitCode::kUsage, CompiledIn(),
              "HL_FAULT is set, but this build has no fault points; configure with "
              "-DHALFLIFE_FAULT_POINTS=ON");
  const std::vector<std::string> parts = Split(spec);
  const bool known = parts.size() >= 3 && parts.size() <= 4 &&
                     (parts[1] == "kill" || parts[1] == "stall" || parts[1] == "throw" ||
                      parts[1] == "enospc" || parts[1] == "eio");
  const int nth = known ? std::atoi(parts[2].c_str()) : 0;
  HL_CHECK_AS(ExitCode::kUsage, known && nth >= 1, "HL_FAULT='", spec,
              "' is not point:action:nth[:rank] with action kill, stall, throw, enospc or eio");
  if (parts.size() == 4 && std::atoi(parts[3].c_str()) != rank) return;
  armed = {parts[0], parts[1], nth};
  any_armed = true;
}

void Hit(std::string_view point, ExitCode code) {
  if (!any_armed.load(std::memory_order_relaxed)) return;
  std::string action;
  {
    const std::lock_guard lock(mutex);
    if (armed.point != point || --armed.countdown != 0) return;
    action = armed.action;
  }
  Act(action, point, code);
}

}  // namespace halflife::fault
