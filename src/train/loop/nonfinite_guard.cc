#include "train/loop/nonfinite_guard.h"

#include "core/error.h"

namespace halflife::train {

void GuardNonFinite(const RunConfig& config, uint64_t step, const StepResult& result,
                    ckpt::GuardState& guard) {
  if (!result.skipped) {
    guard.consecutive_skips = 0;
    return;
  }
  ++guard.skipped;
  if (result.nonfinite.empty()) return;  // No row had a target, which TargetGuard handles.
  ++guard.consecutive_skips;
  const bool stop = config.train.on_nonfinite == "stop" ||
                    guard.consecutive_skips > static_cast<uint32_t>(config.train.max_skips);
  HL_CHECK_AS(ExitCode::kNonFinite, !stop, "step ", step, ": ", result.nonfinite,
              " is not finite (", guard.consecutive_skips, " in a row; train.on_nonfinite is '",
              config.train.on_nonfinite, "', train.max_skips ", config.train.max_skips,
              "). No checkpoint of this step was written. Use a lower optimizer.lr or ",
              config.optimizer.clip_norm > 0
                  ? "a smaller optimizer.clip_norm."
                  : "clip the gradient (optimizer.clip_norm is 0, off; 1 is usual).");
}

}  // namespace halflife::train
