#include "kernels/short_conv/short_conv.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "kernels/dispatch.h"

namespace halflife::kernels {
namespace {

// x with the W-1 tokens before it: [B, W-1+T, D].
at::Tensor WithTail(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2);
  const at::Tensor tail =
      inputs.tail.defined()
          ? inputs.tail.to(inputs.x.scalar_type())
          : at::zeros({inputs.x.size(0), taps - 1, inputs.x.size(2)}, inputs.x.options());
  return at::cat({tail, inputs.x}, 1);
}

// Document of each token of WithTail. The tail belongs to the slice's first document unless one starts right there.
at::Tensor DocumentsWithTail(const ShortConvInputs& inputs) {
  const at::Tensor first = inputs.documents.narrow(1, 0, 1);
  const at::Tensor before = at::where(inputs.starts.narrow(1, 0, 1), first - 1, first);
  return at::cat({before.expand({first.size(0), inputs.weight.size(2) - 1}), inputs.documents}, 1);
}

}  // namespace

at::Tensor ShortConv(const ShortConvInputs& inputs) {
  const int64_t taps = inputs.weight.size(2), seq_len = inputs.x.size(1);
  const at::ScalarType compute = ComputeType(inputs.x);
  const at::Tensor extended = WithTail(inputs).to(compute);
  const at::Tensor weight = inputs.weight.to(compute);
  const at::Tensor documents =
      inputs.documents.defined() ? DocumentsWithTail(inputs) : at::Tensor();
  at::Tensor sum;
  for (int64_t tap = 0; tap < taps; ++tap) {
    at::Tensor term = extended.narrow(1, tap, seq_len);
    if (documents.defined() && tap + 1 < taps) {
      const at::Tensor same = documents.narrow(1, tap, seq_len) == inputs.documents;
      term = term * same.unsqueeze(2).to(compute);
    }
    term = term * weight.select(2, tap).select(1, 0);
    sum = sum.defined() ? sum + term : term;
  }
  return at::silu(sum).to(inputs.x.scalar_type());
}

at::Tensor ShortConvTail(const ShortConvInputs& inputs) {
  const int64_t length = inputs.weight.size(2) - 1, seq_len = inputs.x.size(1);
  const at::Tensor tail = WithTail(inputs).narrow(1, seq_len, length);
  if (!inputs.documents.defined()) return tail;
  const at::Tensor documents = DocumentsWithTail(inputs).narrow(1, seq_len, length);
  const at::Tensor same = documents == inputs.documents.narrow(1, seq_len - 1, 1);
  return tail * same.unsqueeze(2).to(tail.scalar_type());
}

}  // namespace halflife::kernels
