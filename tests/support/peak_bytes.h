// Counts the bytes of tensors that this thread allocates during the object's lifetime: those that
// are alive now, and the peak.
//
//   const PeakBytes bytes;
//   Forward(x);
//   EXPECT_LT(bytes.peak(), 1e6);
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <memory>

namespace halflife::test {

class PeakBytes {
 public:
  PeakBytes() {
    counter_ = std::make_shared<Counter>();
    c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::PROFILER_STATE, counter_);
  }
  ~PeakBytes() { c10::ThreadLocalDebugInfo::_pop(c10::DebugInfoKind::PROFILER_STATE); }
  double now() const { return static_cast<double>(counter_->now); }
  double peak() const { return static_cast<double>(counter_->peak); }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    int64_t now = 0, peak = 0;
    void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
      now += size;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }
  };
  std::shared_ptr<Counter> counter_;
};

}  // namespace halflife::test
