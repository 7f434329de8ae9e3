// Counts what makes the host wait for a GPU, and what it launches there: reads of values, copies
// that are not between the device and pinned memory, operations whose result's size depends on
// values. On the CPU, where nothing waits, what is counted is what would; there the forms of the
// CPU are seen, and what a GPU's would do differently is not.
//
//   HostWaits waits;  // of this thread and the backward passes that begin on it
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
  std::map<std::string, int64_t> waits;    // by what waited: aten::_local_scalar_dense
  std::map<std::string, int64_t> kernels;  // by what launched; those of ours under one name
  int64_t uploads = 0, read_backs = 0;     // host_transfer.h's; a read back is no wait of the above
  int64_t num_waits() const;
  int64_t num_kernels() const;
};

class HostWaits {
 public:
  // One on a thread at a time. On a GPU LibTorch's own sync debug mode is on while it lives, for
  // the whole process.
  HostWaits();
  ~HostWaits();
  HostWaits(const HostWaits&) = delete;
  HostWaits& operator=(const HostWaits&) = delete;

  // What follows counts as this phase's; "" before the first call.
  void EnterPhase(const std::string& phase);
  // By phase, of those that counted anything; begins anew.
  std::map<std::string, HostCounts> Take();

 private:
  class Counter;
  class Observation;
  std::shared_ptr<Counter> counter_;
  std::unique_ptr<Observation> observation_;
};

// Called where one of the project's kernels is started: it counts as one, though its CUDA form may
// be several launches.
void NoteKernel();

// Names of the scopes in which host_transfer.h's functions run.
constexpr const char* kUploadScope = "halflife::Upload";
constexpr const char* kReadBackScope = "halflife::ReadBack";
constexpr const char* kKernelScope = "halflife::kernel";

}  // namespace halflife::ops
