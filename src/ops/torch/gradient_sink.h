// Where a parameter's gradients are added up by its owner, who keeps no `.grad`: fp32 whatever the
// parameter's dtype. A backward that can write there itself does so, which saves the gradient's own
// memory, its rounding to the parameter's dtype and a pass over it; what comes by autograd is
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
  struct Place {
    at::Tensor sum;      // fp32, contiguous, the parameter's shape
    bool added = false;  // to what `sum` holds; else it is overwritten
    // A gradient that was computed elsewhere, of any dtype.
    void Take(const at::Tensor& gradient) const;
  };
  virtual ~GradientSink() = default;
  // Of the next gradient of the backward under way; Written() follows once it is there. Both on the
  // thread and the stream of that backward.
  virtual Place Next() = 0;
  virtual void Written() = 0;
};

// `leaf` requires a gradient; null takes the sink off. From now on the backward of a loss adds to
// the sink alone; gradients by Differentiate() of the leaf itself have no meaning.
void SetGradientSink(const at::Tensor& leaf, std::unique_ptr<GradientSink> sink);
// The sink of that leaf, for the backward of a kernel that had it as an input. Null: the gradient
// is to be returned, as there is no sink or the backward is differentiated itself.
GradientSink* GradientSinkOf(const at::Tensor& x);

// The place of one gradient while a backward computes it: its sink's, else memory of its own.
//
//   GradientPlace place(weight, /*wanted=*/call.wanted[1]);
//   place.added() ? place.sum().add_(dweight) : place.sum().copy_(dweight);
//   return {dx, place.Finish()};
class GradientPlace {
 public:
  // A leaf or any other input; nobody's gradient goes to no sink, nor one that is not summed in
  // fp32.
  GradientPlace(const at::Tensor& input, bool wanted, at::ScalarType sum_dtype = at::kFloat);
  const at::Tensor& sum() const { return place_.sum; }  // contiguous, the input's shape
  bool added() const { return place_.added; }           // to what it holds
  // Once it is written: what the backward returns for the input.
  at::Tensor Finish();

 private:
  GradientSink* sink_;
  GradientSink::Place place_;
  at::ScalarType dtype_;
};

}  // namespace halflife::ops
