#include "ops/torch/host_waits.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#ifdef HALFLIFE_WITH_CUDA
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/Exception.h>
#endif

namespace halflife::ops {
namespace {

enum class Kind {
  kNothing,   // a view, an allocation, or a composite of other operations
  kLaunch,    // launches a kernel
  kWait,      // reads values on the host
  kCopy,      // a kernel or a wait, depending on where its tensors are
  kUpload,    // host_transfer.h's Upload
  kReadBack,  // host_transfer.h's ReadBack; waits inside it are not counted again
};

// Operations whose result size or control flow depends on values.
constexpr std::array kWaits = {"aten::_local_scalar_dense",
                               "aten::nonzero",
                               "aten::masked_select",
                               "aten::_unique2",
                               "aten::unique_dim",
                               "aten::unique_consecutive",
                               "aten::equal",
                               "aten::bincount",
                               "aten::repeat_interleave",
                               "aten::nonzero_numpy",
                               "aten::argwhere",
                               "aten::_assert_async"};
// Operations that launch nothing although their schema has no alias annotation.
constexpr std::array kFree = {
    "aten::empty",        "aten::empty_like",        "aten::empty_strided",
    "aten::new_empty",    "aten::new_empty_strided", "aten::resize_",
    "aten::set_",         "aten::detach_",           "aten::requires_grad_",
    "aten::_unsafe_view", "aten::_reshape_alias",    "aten::result_type",
    "aten::is_pinned",    "aten::record_stream",     "aten::unsafe_split_with_sizes"};

template <size_t kCount>
bool Contains(const std::array<const char*, kCount>& names, const std::string& name) {
  return std::ranges::any_of(names, [&](const char* one) { return name == one; });
}

bool IsView(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.returns(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

Kind KindOf(const at::RecordFunction& function) {
  const std::string name = function.name();
  if (name == kUploadScope) return Kind::kUpload;
  if (name == kReadBackScope) return Kind::kReadBack;
  if (name == kKernelScope) return Kind::kLaunch;
  const std::optional<c10::OperatorName> op = function.operator_name();
  if (!op) return Kind::kNothing;  // a profiler scope
  if (name == "aten::copy_") return Kind::kCopy;
  if (Contains(kWaits, name)) return Kind::kWait;
  if (Contains(kFree, name)) return Kind::kNothing;
  const auto handle = c10::Dispatcher::singleton().findSchema(*op);
  if (!handle || IsView(handle->schema())) return Kind::kNothing;
  const bool composed =
      handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  return composed ? Kind::kNothing : Kind::kLaunch;
}

// Returns true if a copy between the host and a device uses pageable host memory or was requested
// as blocking. The inputs are copy_(self, src, non_blocking).
bool CopyWaits(c10::ArrayRef<const c10::IValue> inputs) {
  if (inputs.size() < 3 || !inputs[0].isTensor() || !inputs[1].isTensor()) return false;
  const at::Tensor &to = inputs[0].toTensor(), &from = inputs[1].toTensor();
  if (to.is_cpu() == from.is_cpu()) return false;
  if (!inputs[2].toBool()) return true;
  return !(to.is_cpu() ? to : from).is_pinned();
}

// repeat_interleave.Tensor(repeats, output_size) reads the repeats on the host unless output_size
// is given.
bool IsToldItsSize(const at::RecordFunction& function) {
  const auto inputs = function.inputs();
  if (std::string(function.name()) != "aten::repeat_interleave") return false;
  const auto op = function.operator_name();
  return op->overload_name == "self_int" || (inputs.size() >= 2 && !inputs.back().isNone());
}

struct Frame : at::ObserverContext {
  std::string name;
  Kind kind = Kind::kNothing;
  bool launched = false;  // set if an operation inside this one launched a kernel
};

}  // namespace

// Observers find the counter through LibTorch's thread-local state, which is propagated to the
// threads that run a backward pass.
class HostWaits::Counter : public c10::DebugInfoBase {
 public:
  static constexpr c10::DebugInfoKind kKey = c10::DebugInfoKind::PRODUCER_INFO;
  static Counter* Current() { return static_cast<Counter*>(c10::ThreadLocalDebugInfo::get(kKey)); }

  std::unique_ptr<Frame> Begin(const at::RecordFunction& function) {
    // An operation that this function itself runs would re-enter it and deadlock on the lock.
    const at::DisableRecordFunctionGuard unobserved;
    const std::lock_guard lock(mutex_);
    auto frame = std::make_unique<Frame>();
    frame->name = function.name();
    frame->kind = FindKind(function);
    if (frame->kind == Kind::kWait && IsToldItsSize(function)) frame->kind = Kind::kNothing;
    if (frame->kind == Kind::kCopy)
      frame->kind = CopyWaits(function.inputs()) ? Kind::kWait : Kind::kLaunch;
    if (frame->kind == Kind::kWait && !WaitsOutside()) ++counts().waits[frame->name];
    if (frame->kind == Kind::kUpload) ++counts().uploads;
    if (frame->kind == Kind::kReadBack) ++counts().read_backs;
    frames().push_back(frame.get());
    return frame;
  }

  void End(const Frame& frame) {
    const std::lock_guard lock(mutex_);
    std::vector<Frame*>& open = frames();
    if (open.empty() || open.back() != &frame) return;  // started before the counter existed
    open.pop_back();
    const bool launches = frame.kind == Kind::kLaunch && !frame.launched;
    if (launches) ++counts().kernels[frame.name];
    if (!open.empty()) open.back()->launched |= launches || frame.launched;
  }

  // Called for a warning of LibTorch's sync debug mode on a GPU. It covers waits that no operation
  // name reveals.
  void NoteCudaWait() {
    const std::lock_guard lock(mutex_);
    if (WaitsOutside()) return;
    ++counts().waits[frames().empty() ? "a call of CUDA" : frames().back()->name + ", within"];
  }

  void EnterPhase(const std::string& phase) {
    const std::lock_guard lock(mutex_);
    phase_ = phase;
  }
  std::map<std::string, HostCounts> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(by_phase_, {});
  }

 private:
  HostCounts& counts() { return by_phase_[phase_]; }
  std::vector<Frame*>& frames() { return open_[std::this_thread::get_id()]; }
  bool WaitsOutside() {
    return std::ranges::any_of(frames(), [](const Frame* frame) {
      return frame->kind == Kind::kWait || frame->kind == Kind::kReadBack;
    });
  }
  // Classifies an operation. The result is cached, because looking up a schema is expensive.
  Kind FindKind(const at::RecordFunction& function) {
    const auto op = function.operator_name();
    const std::string key = op ? c10::toString(*op) : std::string(function.name());
    const auto found = kinds_.find(key);
    return found != kinds_.end() ? found->second : kinds_[key] = KindOf(function);
  }

  std::mutex mutex_;
  std::string phase_;
  std::map<std::string, HostCounts> by_phase_;
  std::map<std::string, Kind> kinds_;
  std::map<std::thread::id, std::vector<Frame*>> open_;
};

#ifdef HALFLIFE_WITH_CUDA
namespace {

// Calls `note` for LibTorch's warnings about synchronization and forwards all others.
class WaitWarnings : public c10::WarningHandler {
 public:
  explicit WaitWarnings(std::function<void()> note) : note_(std::move(note)) {}
  void process(const c10::Warning& warning) override {
    if (warning.msg().find("synchronizing CUDA operation") == std::string::npos) {
      c10::WarningHandler::process(warning);
    } else {
      note_();
    }
  }

 private:
  std::function<void()> note_;
};

class SyncDebugMode {
 public:
  explicit SyncDebugMode(std::function<void()> note)
      : before_(c10::cuda::warning_state().get_sync_debug_mode()),
        warnings_(std::move(note)),
        guard_(&warnings_) {
    c10::cuda::warning_state().set_sync_debug_mode(c10::cuda::SyncDebugMode::L_WARN);
  }
  ~SyncDebugMode() { c10::cuda::warning_state().set_sync_debug_mode(before_); }

 private:
  c10::cuda::SyncDebugMode before_;
  WaitWarnings warnings_;
  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace
#endif

class HostWaits::Observation {
 public:
  explicit Observation(const std::shared_ptr<Counter>& counter)
      : info_(Counter::kKey, counter), handle_(at::addThreadLocalCallback(Callback())) {}
  ~Observation() { at::removeCallback(handle_); }

 private:
  static at::RecordFunctionCallback Callback() {
    const auto begin =
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
      Counter* const counter = Counter::Current();
      return counter == nullptr ? nullptr : counter->Begin(function);
    };
    const auto end = [](const at::RecordFunction&, at::ObserverContext* frame) {
      Counter* const counter = Counter::Current();
      if (counter != nullptr && frame != nullptr) counter->End(*static_cast<Frame*>(frame));
    };
    return at::RecordFunctionCallback(begin, end)
        .needsInputs(true)
        .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  }

  c10::DebugInfoGuard info_;
  at::CallbackHandle handle_;
#ifdef HALFLIFE_WITH_CUDA
  SyncDebugMode mode_{[] {
    if (Counter* counter = Counter::Current()) counter->NoteCudaWait();
  }};
#endif
};

HostWaits::HostWaits()
    : counter_(std::make_shared<Counter>()),
      observation_(std::make_unique<Observation>(counter_)) {}
HostWaits::~HostWaits() = default;

void HostWaits::EnterPhase(const std::string& phase) { counter_->EnterPhase(phase); }
std::map<std::string, HostCounts> HostWaits::Take() { return counter_->Take(); }

namespace {
int64_t Sum(const std::map<std::string, int64_t>& counts) {
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}
}  // namespace
int64_t HostCounts::num_waits() const { return Sum(waits); }
int64_t HostCounts::num_kernels() const { return Sum(kernels); }

void NoteKernel() { RECORD_USER_SCOPE(kKernelScope); }

}  // namespace halflife::ops
