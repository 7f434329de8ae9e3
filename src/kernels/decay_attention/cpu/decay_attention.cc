// Decay attention on the CPU: the schedule of the scans and the sums after them. The scans are in
// decay_attention_isa.cc, which is compiled once per instruction set.
//
// A work item is one head in one segment of one sequence. For long items, a thread advances several
// heads in turn, one block of chunks at a time, because the heads' rows are adjacent in memory.
// With several segments, each segment first computes its own state (`state`), a scan over segments
// converts these into the states between segments, and then all segments are scanned in parallel.
// The result does not depend on the number of threads: gradients of shared heads and of constant
// decays are kept apart and summed in the order of their index.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/common/cpu/head_groups.h"
#include "kernels/common/cpu/instruction_set.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/decay_attention/cpu/kernels.h"
#include "kernels/decay_attention/cpu/sums.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/decay_attention/decay_attention_call_checks.h"
#include "kernels/decay_attention/decay_attention_partition.h"

namespace halflife::kernels::cpu {

const Kernels& KernelsInUse() { return HL_FOR_INSTRUCTION_SET_IN_USE(kKernels); }

CheckpointAddress FindCheckpoint(const ScanItem& item, const CheckpointLayout& layout, int chunk) {
  const DecayAttentionArgs& args = *item.args;
  const int64_t slot =
      CheckpointSlot(item.sequence, item.first_chunk, chunk, item.plan->checkpoint_every);
  const int64_t piece = slot * args.num_heads + item.head;
  auto* base = static_cast<std::byte*>(args.checkpoints);
  const size_t row = ComputeBytes(args) * args.head_dim_k;
  return {.state = base + piece * row * args.head_dim_v,
          .norm = args.norm_kind == NormKind::kNone ? nullptr : base + layout.norms + piece * row};
}

namespace {

constexpr const char* kKernel = "decay attention";

// ---- checks ----

// Checks of a call, in addition to the shape checks of MakePlan. A failure is a bug of the caller
// and is reported as an internal error.
constexpr PlanLimits kPlanLimits = {.device = "the CPU",
                                    .min_chunk_size = 1,
                                    .max_chunk_size = kMaxChunkSize,
                                    .max_checkpoint_every = kMaxCheckpointEvery};

void CheckPlan(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
               size_t workspace_bytes) {
  CheckPlanAndTable(args, plan, kPlanLimits, workspace_bytes);
  const int used = args.num_sequences > 0 ? args.sequence_begin[args.num_sequences] : 0;
  for (int i = 0; i < used; ++i) {
    const ChunkEntry& chunk = args.chunks[i];
    HL_CHECK(chunk.length >= 1 && chunk.length <= plan.chunk_size && chunk.row >= 0 &&
                 chunk.row < args.batch && chunk.token >= 0 &&
                 chunk.token + chunk.length <= args.seq_len,
             "decay attention: chunk ", i, " is row ", chunk.row, ", tokens ", chunk.token, " + ",
             chunk.length, ", but the batch is [", args.batch, ", ", args.seq_len,
             "] in chunks of ", plan.chunk_size);
  }
}

void CheckCall(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  CheckPlan(args, plan, ForwardWorkspaceBytes(args, plan));
  CheckForwardTensors(args);
}

void CheckCall(const DecayAttentionGradArgs& args, const DecayAttentionPlan& plan) {
  CheckPlan(args.forward, plan, BackwardWorkspaceBytes(args.forward, plan));
  CheckGradientTensors(args);
  HL_CHECK(args.forward.num_chunks == 0 || args.forward.checkpoints != nullptr,
           "decay attention: a backward without the forward's checkpoints");
}

void CheckCall(const DecaySegmentArgs& args, const DecayAttentionPlan& plan, bool reverse) {
  CheckPlan(args.forward, plan, ForwardWorkspaceBytes(args.forward, plan));
  CheckSummary(args, reverse);
  if (args.forward.num_chunks == 0) return;
  if (reverse) {
    CheckRead("q", args.forward.q);
    CheckRead("dout", args.dout);
  } else {
    CheckRead("k", args.forward.k);
    CheckRead("v", args.forward.v);
  }
}

// ---- the schedule ----

// The work items of a call, indexed [num_sequences, H, num_segments]. Its states are
// [num_sequences, H].
class Schedule {
 public:
  Schedule(const DecayAttentionArgs& args, const DecayAttentionPlan& plan)
      : args_(args), plan_(plan), segments_(std::max(1, plan.num_segments)) {}

  int64_t num_states() const { return int64_t{1} * args_.num_sequences * args_.num_heads; }
  int64_t num_items() const { return num_states() * segments_; }
  int segments() const { return segments_; }
  int64_t keys() const { return args_.head_dim_k; }
  int64_t decays() const { return IsPerChannel(args_.decay_kind) ? keys() : 1; }

  // Heads are interleaved if items are longer than a block of chunks.
  HeadGroups Groups() const {
    const int64_t of_a_head = num_items() / args_.num_heads;
    return {{.num_heads = args_.num_heads, .num_items = num_items(), .kinds = segments_},
            plan_.block_chunks,
            args_.num_chunks > of_a_head * plan_.block_chunks};
  }

  // Returns the item of a piece. The items of a state are consecutive: piece = state x segments +
  // segment.
  ScanItem Item(int64_t piece, void* scratch) const {
    const int segment = static_cast<int>(piece % segments_);
    const int64_t state = piece / segments_;
    ScanItem item = {.args = &args_, .plan = &plan_, .scratch = scratch};
    item.sequence = static_cast<int>(state / args_.num_heads);
    item.head = static_cast<int>(state % args_.num_heads);
    const int first = args_.sequence_begin[item.sequence];
    const int last = args_.sequence_begin[item.sequence + 1];
    const auto [begin, end] =
        ChunksOfSegment(first, last, segment, segments_, plan_.checkpoint_every);
    item.first_chunk = first;
    item.begin = begin;
    item.end = end;
    return item;
  }

 private:
  const DecayAttentionArgs& args_;
  const DecayAttentionPlan& plan_;
  const int segments_;
};

std::byte* Offset(const void* base, int64_t elements, size_t bytes) {
  if (base == nullptr) return nullptr;
  return static_cast<std::byte*>(const_cast<void*>(base)) + elements * static_cast<int64_t>(bytes);
}

// The states that the segments of a head pass to each other, in the workspace.
struct SegmentStates {
  const Schedule& schedule;
  std::byte* workspace;
  SegmentLayout layout;
  size_t bytes;
  int64_t keys, values;
  bool normalised;

  SegmentStates(const Schedule& the_schedule, const DecayAttentionArgs& args,
                const SegmentLayout& the_layout)
      : schedule(the_schedule),
        workspace(static_cast<std::byte*>(args.workspace)),
        layout(the_layout),
        bytes(ComputeBytes(args)),
        keys(args.head_dim_k),
        values(args.head_dim_v),
        normalised(args.norm_kind != NormKind::kNone) {}

  std::byte* State(int64_t piece) const {
    return Offset(workspace + layout.states, piece * keys * values, bytes);
  }
  std::byte* Norm(int64_t piece) const {
    return normalised ? Offset(workspace + layout.norms, piece * keys, bytes) : nullptr;
  }
  std::byte* LogTransition(int64_t piece) const {
    return Offset(workspace + layout.log_transition, piece * schedule.decays(), bytes);
  }

  // state[piece] += exp(log_transition[piece]) state[from]
  template <typename T>
  void Compose(int64_t piece, int64_t from) const {
    const auto* logs = reinterpret_cast<const T*>(LogTransition(piece));
    auto* state = reinterpret_cast<T*>(State(piece));
    auto* norm = reinterpret_cast<T*>(Norm(piece));
    const auto* from_state = reinterpret_cast<const T*>(State(from));
    const auto* from_norm = reinterpret_cast<const T*>(Norm(from));
    for (int64_t i = 0; i < keys; ++i) {
      const T log_decay = logs[schedule.decays() == 1 ? 0 : i];
      if (log_decay == -std::numeric_limits<T>::infinity())
        continue;  // also drops a NaN of an earlier document
      const T decay = std::exp(log_decay);
      for (int64_t j = 0; j < values; ++j)
        state[i * values + j] += decay * from_state[i * values + j];
      if (normalised) norm[i] += decay * from_norm[i];
    }
  }
  // Converts the segments' own states into states of the sequence, from the first segment forwards
  // or from the last backwards.
  void Scan(bool reverse) const {
    const int segments = schedule.segments();
    Parallel(kKernel, schedule.num_states(), 0, [&](int64_t state, void*) {
      for (int i = 1; i < segments; ++i) {
        const int64_t piece = state * segments + (reverse ? segments - 1 - i : i);
        const int64_t from = reverse ? piece + 1 : piece - 1;
        bytes == 8 ? Compose<double>(piece, from) : Compose<float>(piece, from);
      }
    });
  }
};

// Returns the address of one head's state or norm in the caller's [num_sequences, H, K, V] or
// [num_sequences, H, K].
std::byte* StateAt(const DecayAttentionArgs& args, const void* states, int64_t state) {
  return Offset(states, state * args.head_dim_k * args.head_dim_v, ComputeBytes(args));
}
std::byte* NormAt(const DecayAttentionArgs& args, const void* norms, int64_t state) {
  return Offset(norms, state * args.head_dim_k, ComputeBytes(args));
}

// Computes the states after every segment (reverse: the gradients before each) in the workspace.
template <typename Run>
void SegmentPass(const Schedule& schedule, const SegmentStates& states, size_t scratch_bytes,
                 const void* first_state, const void* first_norm, bool reverse, Run run) {
  const int segments = schedule.segments();
  Parallel(kKernel, schedule.num_items(), scratch_bytes, [&](int64_t i, void* scratch) {
    ScanItem item = schedule.Item(i, scratch);
    if (i % segments == (reverse ? segments - 1 : 0)) {
      item.entry_state = StateAt(*item.args, first_state, i / segments);
      item.entry_norm = NormAt(*item.args, first_norm, i / segments);
    }
    item.exit_state = states.State(i);
    item.exit_norm = states.Norm(i);
    item.log_transition = states.LogTransition(i);
    run(item);
  });
  states.Scan(reverse);
}

ScanItem& ScanOf(ScanItem& item) { return item; }
ScanItem& ScanOf(ReverseItem& item) { return item.scan; }

// Scans every work item of the call: run(item) for item = make(piece, scratch).
template <bool kReverse, typename Make, typename Run>
void ScanPieces(const DecayAttentionArgs& args, const DecayAttentionPlan& plan,
                size_t scratch_bytes, const Make& make, const Run& run) {
  const HeadGroups groups = Schedule(args, plan).Groups();
  const size_t row_bytes = ComputeBytes(args) * args.head_dim_k;
  const Carries carries(scratch_bytes, row_bytes * args.head_dim_v,
                        args.norm_kind == NormKind::kNone ? 0 : row_bytes);
  Parallel(kKernel, groups.count(), carries.bytes(groups.heads_per_group()),
           [&](int64_t group, void* scratch) {
             std::vector<decltype(make(group, scratch))> items;
             for (int i = 0; i < groups.heads_per_group(); ++i)
               items.push_back(make(groups.Item(group, i), scratch));
             const auto [begin, end] = std::pair(ScanOf(items[0]).begin, ScanOf(items[0]).end);
             for (const ChunkBlock& part : groups.Blocks(begin, end, kReverse)) {
               for (int i = 0; i < groups.heads_per_group(); ++i) {
                 auto item = items[static_cast<size_t>(i)];
                 ScanItem& scan = ScanOf(item);
                 scan.begin = part.begin;
                 scan.end = part.end;
                 if (!part.first) {
                   scan.entry_state = carries.State(scratch, i);
                   scan.entry_norm = carries.Norm(scratch, i);
                 }
                 if (!part.last) {
                   scan.exit_state = carries.State(scratch, i);
                   scan.exit_norm = carries.Norm(scratch, i);
                 }
                 run(item);
               }
             }
           });
}

ReverseItem MakeReverseItem(const ScanItem& scan, const TensorView& dout) {
  ReverseItem item;
  item.scan = scan;
  item.dout = dout;
  return item;
}

}  // namespace

void Forward(const DecayAttentionArgs& args, const DecayAttentionPlan& plan) {
  CheckCall(args, plan);
  const Kernels& kernels = KernelsInUse();
  const Schedule schedule(args, plan);
  const int segments = schedule.segments();
  const size_t scratch_bytes = kernels.scratch_bytes(args, plan, false);
  const SegmentStates states(schedule, args, MakeForwardLayout(args, plan).segments);
  if (segments > 1)
    SegmentPass(schedule, states, scratch_bytes, args.initial_state, args.initial_norm, false,
                kernels.state);
  const auto make = [&](int64_t i, void* scratch) {
    ScanItem item = schedule.Item(i, scratch);
    const int64_t state = i / segments;
    const bool first = i % segments == 0;
    item.entry_state = first ? StateAt(args, args.initial_state, state) : states.State(i - 1);
    item.entry_norm = first ? NormAt(args, args.initial_norm, state) : states.Norm(i - 1);
    if (i % segments == segments - 1) {
      item.exit_state = StateAt(args, args.final_state, state);
      item.exit_norm = NormAt(args, args.final_norm, state);
    }
    return item;
  };
  ScanPieces<false>(args, plan, scratch_bytes, make, kernels.forward);
}

void Backward(const DecayAttentionGradArgs& grads, const DecayAttentionPlan& plan) {
  CheckCall(grads, plan);
  const Kernels& kernels = KernelsInUse();
  const DecayAttentionArgs& args = grads.forward;
  const Schedule schedule(args, plan);
  const int segments = schedule.segments();
  const size_t scratch_bytes = kernels.scratch_bytes(args, plan, true);
  const BackwardLayout layout = MakeBackwardLayout(args, plan);
  const SegmentStates states(schedule, args, layout.segments);
  if (segments > 1)
    SegmentPass(
        schedule, states, scratch_bytes, grads.dfinal_state, grads.dfinal_norm, true,
        [&](const ScanItem& item) { kernels.reverse_state(MakeReverseItem(item, grads.dout)); });
  const SharedSums sums(grads, layout);
  const auto make = [&](int64_t i, void* scratch) {
    ReverseItem item = MakeReverseItem(schedule.Item(i, scratch), grads.dout);
    sums.Direct(item, i % segments, segments);
    const int64_t state = i / segments;
    const bool last = i % segments == segments - 1;
    item.scan.entry_state = last ? StateAt(args, grads.dfinal_state, state) : states.State(i + 1);
    item.scan.entry_norm = last ? NormAt(args, grads.dfinal_norm, state) : states.Norm(i + 1);
    if (i % segments == 0) {
      item.scan.exit_state = StateAt(args, grads.dinitial_state, state);
      item.scan.exit_norm = NormAt(args, grads.dinitial_norm, state);
    }
    return item;
  };
  ScanPieces<true>(args, plan, scratch_bytes, make, kernels.backward);
  sums.Reduce(segments);
}

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

// Computes the state of a whole sequence that starts from zero, and its transition.
template <typename Run>
void SummariseBy(const DecaySegmentArgs& segment, const DecayAttentionPlan& plan,
                 const SegmentLayout& layout, size_t scratch_bytes, bool reverse, Run run) {
  const DecayAttentionArgs& args = segment.forward;
  const Schedule schedule(args, plan);
  const int segments = schedule.segments();
  const int64_t decays = schedule.decays();
  const size_t bytes = ComputeBytes(args);
  const SegmentStates states(schedule, args, layout);
  if (segments == 1) {
    Parallel(kKernel, schedule.num_items(), scratch_bytes, [&](int64_t i, void* scratch) {
      ScanItem item = schedule.Item(i, scratch);
      item.exit_state = StateAt(args, segment.state, i);
      item.exit_norm = NormAt(args, segment.norm, i);
      item.log_transition = Offset(segment.log_transition, i * decays, bytes);
      run(item);
    });
    return;
  }
  SegmentPass(schedule, states, scratch_bytes, nullptr, nullptr, reverse, run);
  for (int64_t state = 0; state < schedule.num_states(); ++state) {
    const int64_t from = state * segments + (reverse ? 0 : segments - 1);
    std::copy_n(states.State(from), bytes * schedule.keys() * args.head_dim_v,
                StateAt(args, segment.state, state));
    if (args.norm_kind != NormKind::kNone)
      std::copy_n(states.Norm(from), bytes * schedule.keys(), NormAt(args, segment.norm, state));
    for (int64_t c = 0; segment.log_transition != nullptr && c < decays; ++c) {
      double sum = 0;
      for (int i = 0; i < segments && sum != kNever; ++i) {
        const std::byte* at = Offset(states.LogTransition(state * segments + i), c, bytes);
        const double log =
            bytes == 8 ? *reinterpret_cast<const double*>(at) : *reinterpret_cast<const float*>(at);
        sum = log == kNever ? log : sum + log;  // also drops an earlier NaN
      }
      std::byte* to = Offset(segment.log_transition, state * decays + c, bytes);
      if (bytes == 8) {
        *reinterpret_cast<double*>(to) = sum;
      } else {
        *reinterpret_cast<float*>(to) = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace

void Summarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan) {
  CheckCall(args, plan, false);
  const Kernels& kernels = KernelsInUse();
  SummariseBy(args, plan, MakeForwardLayout(args.forward, plan).segments,
              kernels.scratch_bytes(args.forward, plan, false), false, kernels.state);
}

void BackwardSummarise(const DecaySegmentArgs& args, const DecayAttentionPlan& plan) {
  CheckCall(args, plan, true);
  const Kernels& kernels = KernelsInUse();
  SummariseBy(args, plan, MakeForwardLayout(args.forward, plan).segments,
              kernels.scratch_bytes(args.forward, plan, true), true, [&](const ScanItem& item) {
                kernels.reverse_state(MakeReverseItem(item, args.dout));
              });
}

void Step(const DecayAttentionStepArgs& args) {
  CheckStep(args, /*is_cuda=*/false);
  const Kernels& kernels = KernelsInUse();
  Parallel(kKernel, int64_t{1} * args.batch * args.num_heads, 0, [&](int64_t i, void*) {
    kernels.step(args, static_cast<int>(i / args.num_heads), static_cast<int>(i % args.num_heads));
  });
}

}  // namespace halflife::kernels::cpu
