#include "kernels/short_conv/short_conv.h"

#include <ATen/Parallel.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/short_conv/loops.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

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

// How many tokens back each token reads, see ConvShape.
std::vector<uint8_t> Reach(const at::Tensor& documents_in, const at::Tensor& starts_in,
                           bool has_tail, const at::Tensor& x, int64_t taps) {
  const int64_t batch = x.size(0), seq_len = x.size(1), most = taps - 1;
  const at::Tensor documents = documents_in.defined() ? documents_in.contiguous() : at::Tensor();
  const at::Tensor starts =
      documents.defined() ? starts_in.narrow(1, 0, 1).contiguous() : at::Tensor();  // [B, 1]
  const auto* const document = Elements<int64_t>(documents);
  const auto* const starts_at_0 = Elements<bool>(starts);
  std::vector<uint8_t> reach(batch * seq_len);
  for (int64_t row = 0; row < batch; ++row) {
    const bool cut = !has_tail || (starts_at_0 != nullptr && starts_at_0[row]);
    int64_t count = cut ? 0 : most;
    for (int64_t place = row * seq_len; place < (row + 1) * seq_len; ++place) {
      const bool first = place == row * seq_len;
      if (!first) count = std::min(most, count + 1);
      if (!first && document != nullptr && document[place] != document[place - 1]) count = 0;
      reach[place] = static_cast<uint8_t>(count);
    }
  }
  return reach;
}

// What forward and backward hand to the loops; owns nothing but the reach and the transposed weight.
template <typename T>
class Problem {
 public:
  Problem(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& tail,
          const at::Tensor& documents, const at::Tensor& starts)
      : reach_(Reach(documents, starts, tail.defined(), x, weight.size(2))),
        weight_(weight.select(1, 0).t().to(at::kFloat).contiguous()),
        shape_{.x = Elements<T>(x),
               .tail = Elements<T>(tail),
               .weight = Elements<float>(weight_),
               .reach = reach_.data(),
               .seq_len = x.size(1),
               .dim = x.size(2),
               .taps = weight.size(2)},
        num_blocks_(x.size(0) * shape_.blocks_per_row()) {}

  const internal::ConvShape<T>& shape() const { return shape_; }
  int64_t num_blocks() const { return num_blocks_; }

 private:
  std::vector<uint8_t> reach_;
  at::Tensor weight_;  // [W, D] fp32
  internal::ConvShape<T> shape_;
  int64_t num_blocks_;
};

struct ShortConvFunction : torch::autograd::Function<ShortConvFunction> {
  using Optional = std::optional<at::Tensor>;

  // `tail` has the dtype of x.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_in,
                            const at::Tensor& weight, const Optional& tail_in,
                            const Optional& documents, const Optional& starts) {
    const at::Tensor x = x_in.contiguous();
    const at::Tensor tail = tail_in ? tail_in->contiguous() : at::Tensor();
    at::Tensor out = at::empty_like(x);
    WithStorage(x, [&]<typename T>() {
      const Problem<T> problem(x, weight, tail, documents.value_or(at::Tensor()),
                               starts.value_or(at::Tensor()));
      at::parallel_for(0, problem.num_blocks(), 1, [&](int64_t begin, int64_t end) {
        for (int64_t block = begin; block < end; ++block)
          internal::ConvForward(problem.shape(), block, MutableElements<T>(out));
      });
    });
    context->save_for_backward(
        {x, weight, tail, documents.value_or(at::Tensor()), starts.value_or(at::Tensor())});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &tail = saved[2];
    const at::Tensor dout = grads[0].contiguous();
    const int64_t dim = x.size(2), taps = weight.size(2);
    const at::Tensor dx = at::empty_like(x);
    const at::Tensor dtail = tail.defined() ? at::empty_like(tail) : at::Tensor();
    const at::Tensor dweight = at::zeros({taps, dim}, x.options().dtype(at::kFloat));
    WithStorage(x, [&]<typename T>() {
      const Problem<T> problem(x, weight, tail, saved[3], saved[4]);
      std::vector<float> partial(problem.num_blocks() * taps * dim);
      const internal::ConvGrads<T> results = {.dout = Elements<T>(dout),
                                              .dx = MutableElements<T>(dx),
                                              .dtail = MutableElements<T>(dtail),
                                              .dweight = partial.data()};
      at::parallel_for(0, problem.num_blocks(), 1, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch((internal::kConvTokensPerBlock + internal::kConvMaxTaps) * dim);
        for (int64_t block = begin; block < end; ++block)
          internal::ConvBackward(problem.shape(), results, block, scratch.data());
      });
      auto* const sum = MutableElements<float>(dweight);
      for (size_t i = 0; i < partial.size(); ++i) sum[i % (taps * dim)] += partial[i];
    });
    return {dx, dweight.t().unsqueeze(1).to(weight.scalar_type()), dtail, at::Tensor(),
            at::Tensor()};
  }
};

at::Tensor Composed(const ShortConvInputs& inputs) {
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

}  // namespace

at::Tensor ShortConv(const ShortConvInputs& inputs) {
  const bool fits = inputs.weight.size(2) <= internal::kConvMaxTaps && inputs.x.numel() > 0;
  if (!IsCpuStorage(inputs.x) || !IsCpuStorage(inputs.weight) || !fits) return Composed(inputs);
  const auto optional = [](const at::Tensor& x) {
    return x.defined() ? std::optional<at::Tensor>(x) : std::nullopt;
  };
  return ShortConvFunction::apply(
      inputs.x, inputs.weight,
      optional(inputs.tail.defined() ? inputs.tail.to(inputs.x.scalar_type()) : inputs.tail),
      optional(inputs.documents), optional(inputs.starts));
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
