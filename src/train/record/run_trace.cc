#include "train/record/run_trace.h"

#include "ckpt/collective.h"
#include "core/error.h"
#include "core/files.h"
#include "core/log.h"

namespace halflife::train {

RunTrace::RunTrace(const TraceConfig& config, dist::RankContext& context)
    : config_(config), context_(context), trace_(context.rank()), steps_left_(config.steps) {
  if (config.file.empty()) return;
  ckpt::OnRankZero(context.control(), {"trace_file", 0}, [&] {
    RequireWritable(config.file, ExitCode::kEnvironment);  // An existing file remains until then.
    return std::string();
  });
  context.flight().TraceInto(&trace_);
  open_ = true;
}

RunTrace::~RunTrace() { context_.flight().TraceInto(nullptr); }

void RunTrace::Read(int64_t begin_us, int64_t end_us) {
  if (open_) trace_.Slice("loader", "read", begin_us, end_us);
}

void RunTrace::Save(int64_t step, int64_t begin_us, int64_t end_us) {
  if (open_) trace_.Slice("saves", Concat("save of step ", step), begin_us, end_us);
}

void RunTrace::Step(int64_t step, int64_t begin_us, int64_t end_us) {
  if (!open_) return;
  trace_.Slice("steps", Concat("step ", step), begin_us, end_us);
  if (--steps_left_ == 0) Finish();
}

void RunTrace::Finish() {
  if (!open_) return;
  open_ = false;
  context_.flight().TraceInto(nullptr);
  const auto events = dist::AllGatherBytes(context_.control(), trace_.Events(), {"trace", 0});
  ckpt::OnRankZero(context_.control(), {"trace_file", 1}, [&] {
    try {
      WriteOutput(config_.file, TraceFile(events), ExitCode::kEnvironment);
      HL_INFO("train", "wrote ", config_.file.string(), ": open it in ui.perfetto.dev");
    } catch (const Error& error) {  // Losing the trace is not a reason to lose the training.
      HL_WARN("train", "no trace: ", error.message());
    }
    return std::string();
  });
}

}  // namespace halflife::train
