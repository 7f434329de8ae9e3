#include "core/fault.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace halflife::fault {
namespace {

struct Action {
  std::string_view name;
  void (*act)(std::string_view point, ExitCode code);
};
constexpr Action kActions[] = {
    {"kill", [](std::string_view, ExitCode) { ::kill(::getpid(), SIGKILL); }},
    {"exit", [](std::string_view, ExitCode) { ::_exit(3); }},
    {"stall",
     [](std::string_view, ExitCode) {
       while (true) ::pause();
     }},
    {"delay",
     [](std::string_view, ExitCode) { std::this_thread::sleep_for(std::chrono::seconds(2)); }},
    {"stop", [](std::string_view, ExitCode) { ::kill(::getpid(), SIGSTOP); }},
    {"throw",
     [](std::string_view point, ExitCode) { HL_FAIL(ExitCode::kInternal, "injected at ", point); }},
    {"enospc",
     [](std::string_view point, ExitCode code) {
       HL_FAIL(code, "injected at ", point, ": ", internal::ErrnoText(ENOSPC));
     }},
    {"eio",
     [](std::string_view point, ExitCode code) {
       HL_FAIL(code, "injected at ", point, ": ", internal::ErrnoText(EIO));
     }},
};
const Action* Find(std::string_view name) {
  for (const Action& action : kActions) {
    if (action.name == name) return &action;
  }
  return nullptr;
}
struct Armed {
  std::string point;
  const Action* action = nullptr;
  int countdown = 0;
};

// There is one fault per process, because it imitates an accident of the whole process.
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
              "HL_FAULT is set, but this build has no fault points. Configure with "
              "-DHALFLIFE_FAULT_POINTS=ON.");
  const std::vector<std::string> parts = Split(spec);
  const Action* action = parts.size() == 3 || parts.size() == 4 ? Find(parts[1]) : nullptr;
  const int nth = action == nullptr ? 0 : std::atoi(parts[2].c_str());
  HL_CHECK_AS(ExitCode::kUsage, nth >= 1, "HL_FAULT='", spec,
              "' is not point:action:nth[:rank]. Use one of these actions: ",
              Join(kActions, ", ", [](const Action& known) { return known.name; }));
  if (parts.size() == 4 && std::atoi(parts[3].c_str()) != rank) return;
  armed = {parts[0], action, nth};
  any_armed = true;
}

void Hit(std::string_view point, ExitCode code) {
  if (!any_armed.load(std::memory_order_relaxed)) return;
  const Action* action = nullptr;
  {
    const std::lock_guard lock(mutex);
    if (armed.point != point || --armed.countdown != 0) return;
    action = armed.action;
  }
  HL_WARN("fault", "point ", point, ": ", action->name);
  log::Flush();
  action->act(point, code);
}

}  // namespace halflife::fault
