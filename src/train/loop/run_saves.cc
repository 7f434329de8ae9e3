#include "train/loop/run_saves.h"

#include <ATen/ops/empty.h>

#ifdef HALFLIFE_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

#include <cstring>

#include "core/concat.h"
#include "core/error.h"
#include "core/log.h"
#include "core/threads.h"
#include "ops/torch/tensor_ref.h"

namespace halflife::train {
namespace {

constexpr char kBest[] = "best_";

}  // namespace

SavePolicy::SavePolicy(const SaveConfig& config)
    : every_(config.every),
      on_error_(config.on_error),
      metric_(config.keeps_best_validation() ? config.store.retention.keep_best : "") {}

bool SavePolicy::IsDue(int64_t step, bool requested) const {
  return requested || step == best_step_ || (every_ > 0 && step % every_ == 0);
}

void SavePolicy::NoteValidation(int64_t step, const std::map<std::string, double>& metrics) {
  const auto found = metrics.find(metric_);
  if (found == metrics.end() || !(found->second < best_)) return;
  best_ = found->second;
  best_step_ = step;
}

void SavePolicy::AddBest(std::map<std::string, double>& metrics) const {
  if (best_ < kNone) metrics[kBest + metric_] = best_;
}

void SavePolicy::TakeBest(std::map<std::string, double>& metrics, bool own) {
  const auto found = metrics.find(kBest + metric_);
  if (own && found != metrics.end()) best_ = saved_best_ = found->second;
  std::erase_if(metrics, [](const auto& metric) { return metric.first.starts_with(kBest); });
}

void SavePolicy::NoteSaved(int64_t step) {
  saved_step_ = step;
  failed_in_a_row_ = 0;
  if (step == best_step_) saved_best_ = best_;
}

bool SavePolicy::GoesOnAfter(ExitCode failure) {
  ++failed_in_a_row_;
  // A later validation only has to be better than the best saved one.
  best_ = saved_best_;
  return failure == ExitCode::kCheckpointIo && on_error_ != "stop" && failed_in_a_row_ < 2;
}

// The copies of CUDA arrays run on the compute stream, so an update behind them need not wait. The
// thread waits for the event after them.
class BackgroundSave::DeviceCopy {
 public:
#ifdef HALFLIFE_WITH_CUDA
  explicit DeviceCopy(at::Device device) : device_(device.index()) {
    Check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~DeviceCopy() { cudaEventDestroy(event_); }
  void Mark(const at::Tensor& on_device) {
    Check(cudaEventRecord(event_, ops::CurrentStream(ops::RefOf(on_device).device)));
  }
  // The caller is a separate thread whose current device is the first GPU. Waiting there would open
  // a context on it, which takes half a GiB per rank.
  void Await() {
    Check(cudaSetDevice(device_));
    Check(cudaEventSynchronize(event_));
  }

 private:
  static void Check(cudaError_t error) {
    HL_CHECK_AS(ExitCode::kEnvironment, error == cudaSuccess,
                "copying a step to the host: ", cudaGetErrorString(error));
  }
  int device_;
  cudaEvent_t event_ = nullptr;
#else
  explicit DeviceCopy(at::Device) {}
  void Mark(const at::Tensor&) {}
  void Await() {}
#endif
};

BackgroundSave::BackgroundSave(ckpt::CheckpointStore& store, dist::Communicator& comm,
                               ParameterArena& arena)
    : store_(store), comm_(comm), arena_(arena), exceptions_(std::uncaught_exceptions()) {
  if (arena.main().is_cuda()) device_copy_ = std::make_unique<DeviceCopy>(arena_.main().device());
}

BackgroundSave::~BackgroundSave() {
  if (!under_way()) return;
  if (comm_.size() > 1 && std::uncaught_exceptions() > exceptions_)
    comm_.Abort("this rank failed while a step was saved");
  thread_.join();
}

ckpt::ArenaView BackgroundSave::View() {
  ckpt::ArenaView view = {.layout = &arena_.layout(), .arrays = {}};
  const std::vector<ParameterArena::StoredArray> arrays = arena_.stored_arrays();
  for (size_t i = 0; i < arrays.size(); ++i)
    view.arrays.push_back({.name = arrays[i].name,
                           .data = copies_[i].mutable_data_ptr<float>(),
                           .sliced_end = arena_.layout().num_elements()});
  return view;
}

void BackgroundSave::Begin(ckpt::StepState state) {
  HL_CHECK(!under_way(), "a save is already in progress");
  clock_.Restart();
  state_ = std::move(state);
  report_ = {.step = static_cast<int64_t>(state_.step), .begin_us = UnixMicroseconds()};
  failure_ = nullptr;
  ended_ = false;
  is_copied_ = false;
  copies_.resize(arena_.stored_arrays().size());
  for (at::Tensor& copy : copies_) {
    if (copy.defined()) continue;
    const int64_t held = arena_.layout().num_held(arena_.layout().num_elements());
    copy = at::empty({held}, at::TensorOptions(at::kFloat).pinned_memory(device_copy_ != nullptr));
  }
  if (device_copy_) {
    CopyOwnSlices();
    device_copy_->Mark(arena_.main());
    is_copied_ = true;
  }
  thread_ = StartThread([this, rank = log::RankOfThisThread()] {
    log::SpeakAsRank(rank);
    Run();
  });
  report_.blocked_seconds = clock_.Seconds();
}

// Copies this rank's slice of each bucket, wherever an array stores it.
void BackgroundSave::CopyOwnSlices() {
  const dist::ParameterLayout& layout = arena_.layout();
  const std::vector<ParameterArena::StoredArray> arrays = arena_.stored_arrays();
  for (size_t i = 0; i < copies_.size(); ++i) {
    const auto& [name, array, sliced_end] = arrays[i];
    for (const dist::Bucket& bucket : layout.buckets()) {
      const auto range = layout.SliceOf(bucket, comm_.rank());
      const int64_t from = layout.PlaceOf(
          {.arena_begin = range.arena_begin, .slice_begin = range.slice_begin}, sliced_end);
      if (device_copy_) {
        copies_[i]
            .narrow(0, range.slice_begin, range.count)
            .copy_(array->narrow(0, from, range.count), /*non_blocking=*/true);
      } else {  // Does not use LibTorch, whose threads belong to the step.
        std::memcpy(copies_[i].mutable_data_ptr<float>() + range.slice_begin,
                    array->const_data_ptr<float>() + from, range.count * sizeof(float));
      }
    }
  }
}

void BackgroundSave::Run() {
  try {
    if (device_copy_) {
      device_copy_->Await();
    } else {
      CopyOwnSlices();
      const std::lock_guard lock(mutex_);
      is_copied_ = true;
    }
    copied_.notify_all();
    report_.save = store_.Save(View(), state_);
    report_.save.seconds = clock_.Seconds();
  } catch (...) {
    failure_ = std::current_exception();
  }
  ended_ = true;
}

void BackgroundSave::AwaitCopy() {
  const Stopwatch watch;
  std::unique_lock lock(mutex_);
  if (is_copied_) return;
  copied_.wait(lock, [&] { return is_copied_; });
  report_.blocked_seconds += watch.Seconds();
}

BackgroundSave::Report BackgroundSave::Finish() {
  const Stopwatch watch;
  thread_.join();
  report_.blocked_seconds += watch.Seconds();
  if (failure_) std::rethrow_exception(failure_);
  return report_;
}

}  // namespace halflife::train
