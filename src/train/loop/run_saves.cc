#include "train/loop/run_saves.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "core/concat.h"
#include "core/error.h"
#include "core/log.h"
#include "core/threads.h"
#include "train/step/arena_optimizer.h"

#ifdef HALFLIFE_WITH_CUDA
#endif

namespace halflife::train {

void HostSlices::Allocate() {
  const int64_t held = arena_.layout().num_held(arena_.layout().num_elements());
  while (arrays_.size() < arena_.stored_arrays().size())
    arrays_.push_back(
        at::zeros({held}, at::TensorOptions(at::kFloat).pinned_memory(arena_.main().is_cuda())));
}

ckpt::ArenaView HostSlices::View() {
  ckpt::ArenaView view = {.layout = &arena_.layout(), .arrays = {}};
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  for (size_t i = 0; i < stored.size(); ++i)
    view.arrays.push_back({.name = stored[i].name,
                           .data = arrays_.empty() ? nullptr : arrays_[i].mutable_data_ptr<float>(),
                           .sliced_end = arena_.layout().num_elements()});
  return view;
}

template <typename Copy>
void HostSlices::ForEachPart(const Copy& copy) {
  const dist::ParameterLayout& layout = arena_.layout();
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  for (size_t i = 0; i < arrays_.size(); ++i) {
    for (const dist::Bucket& bucket : layout.buckets()) {
      const auto range = layout.SliceOf(bucket, slice_);
      const at::Tensor host = arrays_[i].narrow(0, range.slice_begin, range.count);
      const ParameterArena::StoredArray& from = stored[i];
      if (from.trained && bucket.frozen) continue;
      const int64_t place =
          from.trained
              ? layout.PlaceOf(range.arena_begin, arena_.states_division())
              : layout.PlaceOf({.arena_begin = range.arena_begin, .slice_begin = range.slice_begin},
                               from.sliced_end);
      copy(host, from.tensor->narrow(0, place, range.count));
    }
  }
}

void HostSlices::ForEachFrozenPart(
    const std::function<void(std::span<float>, std::span<const float>)>& visit) {
  const dist::ParameterLayout& layout = arena_.layout();
  const std::vector<ParameterArena::StoredArray> stored = arena_.stored_arrays();
  const auto average = std::ranges::find(stored, std::string_view(ckpt::kAverageArray),
                                         &ParameterArena::StoredArray::name);
  if (average == stored.end() || !average->trained) return;
  const at::Tensor& averages = arrays_[static_cast<size_t>(average - stored.begin())];
  for (const dist::Bucket& bucket : layout.buckets()) {
    if (!bucket.frozen) continue;
    const auto range = layout.SliceOf(bucket, slice_);
    const auto count = static_cast<size_t>(range.count);
    visit({averages.mutable_data_ptr<float>() + range.slice_begin, count},
          {arrays_[0].const_data_ptr<float>() + range.slice_begin, count});  // main comes first
  }
}

namespace {

// Moves averages towards weights that stay, by one update after another, so the bits do not depend
// on the updates after which steps are saved. The factors never rise: an update that changes no
// average is followed by none that does.
void MoveTowards(const at::Tensor& weights, std::span<const float> factors,
                 const at::Tensor& averages) {
  for (const float factor : factors) {
    const at::Tensor moved = averages + (weights - averages).mul_(factor);
    if (moved.equal(averages)) return;
    averages.copy_(moved);
  }
}

at::Tensor BorrowedTensor(std::span<const float> values) {
  return at::from_blob(const_cast<float*>(values.data()), {std::ssize(values)}, at::kFloat);
}

}  // namespace

void HostSlices::WriteFrozenAverage(double ema_decay, uint64_t num_updates,
                                    FrozenAverage& average) {
  constexpr size_t kBlock = 1 << 16;  // elements that stay in the cache over all updates
  std::vector<float> factors;
  for (uint64_t update = average.num_updates + 1; update <= num_updates; ++update)
    factors.push_back(1.0f - static_cast<float>(AverageDecay(ema_decay, update)));
  average.num_updates = num_updates;
  auto values = std::span(average.values);
  ForEachFrozenPart([&](std::span<float> out, std::span<const float> weights) {
    if (average.values.empty()) {
      std::ranges::copy(weights, out.begin());
      return;
    }
    for (size_t begin = 0; begin < out.size(); begin += kBlock) {
      const size_t count = std::min(kBlock, out.size() - begin);
      MoveTowards(BorrowedTensor(weights.subspan(begin, count)), factors,
                  BorrowedTensor(values.subspan(begin, count)));
    }
    std::ranges::copy(values.first(out.size()), out.begin());
    values = values.subspan(out.size());
  });
}

std::vector<float> HostSlices::LoadedFrozenAverage() {
  std::vector<float> values;
  ForEachFrozenPart([&](std::span<float> average, std::span<const float>) {
    values.insert(values.end(), average.begin(), average.end());
  });
  return values;
}

void HostSlices::CopyFromArena() {
  ForEachPart([](at::Tensor host, const at::Tensor& in_arena) {
    if (in_arena.is_cuda()) {
      host.copy_(in_arena, /*non_blocking=*/true);
    } else {  // Does not use LibTorch's threads, which belong to the step.
      std::memcpy(host.mutable_data_ptr<float>(), in_arena.const_data_ptr<float>(), host.nbytes());
    }
  });
}

void HostSlices::CopyToArena() {
  ForEachPart([](const at::Tensor& host, at::Tensor in_arena) { in_arena.copy_(host); });
}

int64_t HostSlices::bytes() const {
  int64_t bytes = 0;
  for (const at::Tensor& array : arrays_) bytes += static_cast<int64_t>(array.nbytes());
  return bytes;
}

namespace {

constexpr char kBest[] = "best_", kLoss[] = "loss";

}  // namespace

SavePolicy::SavePolicy(const SaveConfig& config)
    : every_(config.every),
      on_error_(config.on_error),
      metric_(config.keeps_best_validation() ? config.store.retention.keep_best : ""),
      keeps_lowest_loss_(config.store.retention.keep_best == kLoss) {}

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
  const auto loss = metrics.find(kLoss);
  if (keeps_lowest_loss_ && loss != metrics.end())
    metrics[std::string(kBest) + kLoss] = loss->second;
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

// Copies CUDA arrays on a stream of their own, concurrently with the next forward and backward.
// The thread of the save waits for the event after them.
class BackgroundSave::DeviceCopy {
 public:
#ifdef HALFLIFE_WITH_CUDA
  explicit DeviceCopy(at::Device device)
      : stream_(c10::cuda::getStreamFromPool(/*isHighPriority=*/false, device.index())) {
    Check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming));
    Check(cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming));
  }
  ~DeviceCopy() {
    cudaEventDestroy(ready_);
    cudaEventDestroy(copied_);
  }
  // The copies begin after the work that the current stream has now.
  void Run(HostSlices& slices) {
    Check(cudaEventRecord(ready_, c10::cuda::getCurrentCUDAStream(stream_.device_index())));
    Check(cudaStreamWaitEvent(stream_, ready_, 0));
    const c10::cuda::CUDAStreamGuard guard(stream_);
    slices.CopyFromArena();
    Check(cudaEventRecord(copied_, stream_));
  }
  void HoldBackCurrentStream() {
    Check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(stream_.device_index()), copied_, 0));
  }
  // The caller is a separate thread whose current device is the first GPU. Waiting there would open
  // a context on it, which takes half a GiB per rank.
  void Await() {
    Check(cudaSetDevice(stream_.device_index()));
    Check(cudaEventSynchronize(copied_));
  }

 private:
  static void Check(cudaError_t error) {
    HL_CHECK_AS(ExitCode::kEnvironment, error == cudaSuccess,
                "copying a step to the host: ", cudaGetErrorString(error));
  }
  const c10::cuda::CUDAStream stream_;
  cudaEvent_t ready_ = nullptr, copied_ = nullptr;
#else
  explicit DeviceCopy(at::Device) {}
  void Run(HostSlices&) {}
  void HoldBackCurrentStream() {}
  void Await() {}
#endif
};

BackgroundSave::BackgroundSave(ckpt::CheckpointStore& store, dist::Communicator& comm,
                               ParameterArena& arena, double ema_decay, FrozenAverage& average)
    : store_(store),
      comm_(comm),
      ema_decay_(ema_decay),
      average_(average),
      exceptions_(std::uncaught_exceptions()),
      slices_(arena, comm.rank()) {
  if (arena.main().is_cuda()) device_copy_ = std::make_unique<DeviceCopy>(arena.main().device());
}

BackgroundSave::~BackgroundSave() {
  if (!under_way()) return;
  if (comm_.size() > 1 && std::uncaught_exceptions() > exceptions_)
    comm_.Abort("this rank failed while a step was saved");
  thread_.join();
}

void BackgroundSave::Begin(ckpt::StepState state) {
  HL_CHECK(!under_way(), "a save is already in progress");
  clock_.Restart();
  state_ = std::move(state);
  report_ = {.step = static_cast<int64_t>(state_.step), .begin_us = UnixMicroseconds()};
  failure_ = nullptr;
  ended_ = false;
  is_copied_ = false;
  slices_.Allocate();
  if (device_copy_) {
    device_copy_->Run(slices_);
    is_copied_ = true;
  }
  thread_ = StartThread([this, rank = log::RankOfThisThread()] {
    log::SpeakAsRank(rank);
    Run();
  });
  report_.blocked_seconds = clock_.Seconds();
}

void BackgroundSave::Run() {
  try {
    if (device_copy_) {
      device_copy_->Await();
    } else {
      slices_.CopyFromArena();
      const std::lock_guard lock(mutex_);
      is_copied_ = true;
    }
    copied_.notify_all();
    if (ema_decay_ > 0) slices_.WriteFrozenAverage(ema_decay_, state_.num_updates, average_);
    report_.save = store_.Save(slices_.View(), state_);
    report_.save.seconds = clock_.Seconds();
  } catch (...) {
    failure_ = std::current_exception();
    const std::lock_guard lock(mutex_);
    is_copied_ = true;  // there is nothing to wait for
    copied_.notify_all();
  }
  ended_ = true;
}

void BackgroundSave::AwaitCopy() {
  if (device_copy_ && under_way()) return device_copy_->HoldBackCurrentStream();
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
