// Counts the operations that make the host wait for a GPU, and the kernel launches. Waits are:
// reads of values, copies that are not between the device and pinned memory, and operations whose
// result size depends on values. On the CPU nothing waits; there the class counts the operations
// that would wait. It sees the code paths of the CPU only, not those that a GPU would take.
//
//   HostWaits waits;  // observes this thread and the backward passes that start on it
//   waits.EnterPhase("forward");
//   const at::Tensor sum = RmsNorm(x, weight, 1e-6).sum();
//   waits.EnterPhase("backward");
//   sum.backward();
//   for (const auto& [phase, counts] : waits.Take()) Print(phase, counts.num_waits());
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace halflife::ops {

struct HostCounts {
  std::map<std::string, int64_t> waits;  // by operation, such as aten::_local_scalar_dense
  // By operation; all of the project's kernels share one name.
  std::map<std::string, int64_t> kernels;
  int64_t uploads = 0, read_backs = 0;  // calls of host_transfer.h; read backs are not in `waits`
  int64_t num_waits() const;
  int64_t num_kernels() const;
};

class HostWaits {
 public:
  // Only one instance per thread may exist at a time. On a GPU it enables LibTorch's sync debug
  // mode for the whole process while it exists.
  HostWaits();
  ~HostWaits();
  HostWaits(const HostWaits&) = delete;
  HostWaits& operator=(const HostWaits&) = delete;

  // Attributes all following operations to this phase. The phase before the first call is "".
  void EnterPhase(const std::string& phase);
  // Returns the counts of each phase that has any, and resets them.
  std::map<std::string, HostCounts> Take();

 private:
  class Counter;
  class Observation;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<Observation> observation_;
};

// Called where one of the project's kernels is started. It counts as one launch, although the CUDA
// implementation may need several.
void NoteKernel();

// Names of the profiler scopes that host_transfer.h's functions and kernels run in.
constexpr const char* kUploadScope = "halflife::Upload";
constexpr const char* kReadBackScope = "halflife::ReadBack";
constexpr const char* kKernelScope = "halflife::kernel";

}  // namespace halflife::ops
