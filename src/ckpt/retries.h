// Repeats an action that reads from storage, because a stalled mount may come back.
#pragma once

#include <chrono>
#include <thread>

#include "core/error.h"
#include "core/log.h"

namespace halflife::ckpt {

// Returns the result of `action`. If it throws Error kCheckpointIo, tries up to three times. What
// it reads is verified in any case.
template <typename Action>
auto WithRetries(const Action& action) {
  constexpr int kAttempts = 3;
  for (int attempt = 1;; ++attempt) {
    try {
      return action();
    } catch (const Error& error) {
      if (error.code() != ExitCode::kCheckpointIo || attempt == kAttempts) throw;
      HL_WARN("ckpt", "reading failed, attempt ", attempt, " of ", kAttempts, ": ", error.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(100 << attempt));
    }
  }
}

}  // namespace halflife::ckpt
