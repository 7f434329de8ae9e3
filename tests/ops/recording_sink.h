// A gradient sink for tests. It records where it was written, whether values were added, and how
// often.
//
//   RecordingSink::Log log(weight, /*before=*/0);
//   log.Attach(weight);
//   loss.backward();
//   EXPECT_EQ(log.written, 1);
#pragma once

#include <ATen/ops/full.h>

#include <memory>
#include <utility>

#include "ops/torch/gradient_sink.h"

namespace halflife::test {

class RecordingSink : public ops::GradientSink {
 public:
  struct Log {
    // An fp32 sum with the shape of `leaf`, filled with `before`.
    Log(const at::Tensor& leaf, double before)
        : sum(at::full(leaf.sizes(), before,
                       leaf.options().dtype(at::kFloat).requires_grad(false))) {}
    // Sums into `place`, which may be a view, for sums that are adjacent.
    explicit Log(at::Tensor place) : sum(std::move(place)) {}
    // The log must outlive the sink.
    void Attach(const at::Tensor& leaf) {
      ops::SetGradientSink(leaf, std::make_unique<RecordingSink>(*this));
    }
    at::Tensor sum;
    bool added = false;
    int asked = 0, written = 0;
  };
  explicit RecordingSink(Log& log) : log_(log) {}
  Target Next() override {
    ++log_.asked;
    return {.sum = log_.sum, .added = log_.added};
  }
  void Written() override { ++log_.written; }

 private:
  Log& log_;
};

}  // namespace halflife::test
