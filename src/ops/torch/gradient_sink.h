// A gradient sink accumulates the gradients of one parameter in fp32, independently of the
// parameter's dtype, in memory of the sink's owner; the parameter then has no `.grad`. A backward
// function that can write to the sink directly does so. This saves a separate gradient tensor, its
// rounding to the parameter's dtype and a pass over it. Gradients that arrive through autograd are
// copied or added.
//
//   SetGradientSink(weight, std::make_unique<MySink>());   // by the owner; in a backward:
//   if (GradientSink* const sink = GradientSinkOf(weight)) {
//     sink->Next().Take(dweight);
//     sink->Written();
//     return at::Tensor();  // autograd gets nothing
//   }
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace halflife::ops {

class GradientSink {
 public:
  struct Target {
    at::Tensor sum;      // fp32, contiguous, the parameter's shape
    bool added = false;  // true: add to the contents of `sum`; false: overwrite them
    // Stores or adds a gradient of any dtype that was computed elsewhere.
    void Take(const at::Tensor& gradient) const;
  };
  virtual ~GradientSink() = default;
  // Next() returns the target of the next gradient of the current backward. Call Written() once the
  // gradient is there. Both are called on the thread and stream of that backward.
  virtual Target Next() = 0;
  virtual void Written() = 0;
};

// Attaches a sink to `leaf`, which requires a gradient; null removes it. From then on the backward
// of a loss adds only to the sink, and Differentiate() must not be called for the leaf itself.
void SetGradientSink(const at::Tensor& leaf, std::unique_ptr<GradientSink> sink);
// Returns the sink of a leaf that a kernel had as an input, for use in the kernel's backward.
// Returns null if the gradient must be returned to autograd: there is no sink, or the backward is
// itself being differentiated.
GradientSink* GradientSinkOf(const at::Tensor& x);

// The buffer of one gradient while a backward computes it: the sink's memory if there is a sink,
// else new memory.
//
//   GradientBuffer buffer(weight, call.Wants(&Op::Inputs::weight));
//   buffer.added() ? buffer.sum().add_(dweight) : buffer.sum().copy_(dweight);
//   return {.x = dx, .weight = buffer.Finish()};
class GradientBuffer {
 public:
  // `input` is a leaf or any other input. A gradient that is not computed, or that is not summed in
  // fp32, never goes to a sink.
  GradientBuffer(const at::Tensor& input, bool wanted, at::ScalarType sum_dtype = at::kFloat);
  const at::Tensor& sum() const { return target_.sum; }  // contiguous, the input's shape
  bool added() const { return target_.added; }           // true: add to the contents of sum()
  // Call once the gradient is written. Returns what the backward must return for the input.
  at::Tensor Finish();

 private:
  GradientSink* sink_;
  GradientSink::Target target_;
  at::ScalarType dtype_;
};

}  // namespace halflife::ops
