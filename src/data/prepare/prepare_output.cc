#include "data/prepare/prepare_output.h"

#include "core/error.h"
#include "core/host.h"
#include "data/shard_layout.h"

namespace halflife::data {

void PrepareOutput::Check() const {
  HL_CHECK_AS(ExitCode::kUsage, !out.empty(), "--out names no folder. Use --out DIR.");
  HL_CHECK_AS(ExitCode::kUsage, threads >= 0 && threads <= 1024, "--threads ", threads,
              " is not in [0, 1024]; 0 uses all cores");
  HL_CHECK_AS(ExitCode::kUsage, shard_tokens >= kBlockTokens && shard_tokens <= kMostShardTokens,
              "--shard-tokens ", shard_tokens, " is not in [", kBlockTokens, ", ", kMostShardTokens,
              "]");
}

int PrepareOutput::NumThreads() const { return threads == 0 ? NumUsableCores() : threads; }

void PrepareOutput::RequireGoingOn() const {
  HL_CHECK_AS(ExitCode::kInterrupted, stop == nullptr || !stop->load(),
              "stopped by a signal; nothing was written to ", out.string());
}

void PrepareOutput::Report(const PrepareProgress& progress) const {
  if (on_progress) on_progress(progress);
}

}  // namespace halflife::data
