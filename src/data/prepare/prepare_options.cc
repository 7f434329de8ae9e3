#include "data/prepare/prepare_options.h"

#include "core/error.h"
#include "core/host.h"
#include "data/shard_layout.h"

namespace halflife::data {

void PrepareInput::Check() const {
  const double fraction = FractionOrUsual();
  HL_CHECK_AS(ExitCode::kUsage, fraction >= 0 && fraction < 1, "--validation-fraction ", fraction,
              " is not in [0, 1). Use for example 0.05, or 0 for no validation split.");
  const double tail = validation_tail.value_or(0.1);
  HL_CHECK_AS(ExitCode::kUsage, tail > 0 && tail < 1, "--validation-tail ", tail,
              " is not a share of a text. Use a number above 0 and below 1, such as 0.1, or "
              "--validation-fraction 0 for no validation split.");
  HL_CHECK_AS(ExitCode::kUsage,
              !validation_tail || (validation_paths.empty() && !validation_fraction),
              "--validation-tail, --validation-fraction and --validation-input exclude each other. "
              "Use one of them.");
  HL_CHECK_AS(ExitCode::kUsage, max_document_bytes > 0, "--max-document-bytes ", max_document_bytes,
              " is not positive. Use for example ", PrepareInput().max_document_bytes, ".");
}

void PrepareOutput::Check() const {
  HL_CHECK_AS(ExitCode::kUsage, !out.empty(), "--out names no folder. Use --out DIR.");
  HL_CHECK_AS(ExitCode::kUsage, threads >= 0 && threads <= 1024, "--threads ", threads,
              " is not in [0, 1024]. Use 0 for all cores.");
  HL_CHECK_AS(ExitCode::kUsage, shard_tokens >= kBlockTokens && shard_tokens <= kMaxShardTokens,
              "--shard-tokens ", shard_tokens, " is out of range. Use ", kBlockTokens, " to ",
              kMaxShardTokens, ".");
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
