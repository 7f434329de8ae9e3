#include "kernels/rms_norm/rms_norm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "kernels/cpu_math.h"
#include "kernels/dispatch.h"

namespace halflife::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Rows per partial sum of the weight's gradient: fixed, so that the sum does not depend on the number of threads.
constexpr int64_t kRowsPerBlock = 128;

struct NormRows {
  const float* x;
  const float* gate;  // null: no gate
  const float* weight;
  float* out;
  float* inverse_rms;  // [rows]
  int64_t dim;
  float eps;
};

HL_VECTORISED void ForwardRows(const NormRows& rows, int64_t begin, int64_t end) {
  const int64_t dim = rows.dim;
  const float* weight = rows.weight;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = rows.x + row * dim;
    float* out = rows.out + row * dim;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
    const float inverse_rms = 1.0f / std::sqrt(sum / static_cast<float>(dim) + rows.eps);
    rows.inverse_rms[row] = inverse_rms;
    if (rows.gate == nullptr) {
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i) out[i] = x[i] * inverse_rms * weight[i];
    } else {
      const float* gate = rows.gate + row * dim;
#pragma omp simd
      for (int64_t i = 0; i < dim; ++i)
        out[i] = x[i] * inverse_rms * weight[i] * (gate[i] * Sigmoid(gate[i]));
    }
  }
}

struct NormGradRows {
  const float* x;
  const float* gate;
  const float* weight;
  const float* inverse_rms;
  const float* dout;
  float* dx;
  float* dgate;
  float* dweight;  // [blocks, dim], zero at first
  int64_t dim;
};

// With n = x / rms, m = dout silu(gate): dx = (m w - n mean(m w n)) / rms, dweight = sum of m n over rows.
HL_VECTORISED void BackwardRow(const NormGradRows& rows, int64_t row, float* dweight) {
  const int64_t dim = rows.dim;
  const float* x = rows.x + row * dim;
  const float* dout = rows.dout + row * dim;
  const float* weight = rows.weight;
  const float inverse_rms = rows.inverse_rms[row];
  float* dx = rows.dx + row * dim;
  float dot = 0;
  if (rows.gate == nullptr) {
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < dim; ++i) {
      dx[i] = dout[i] * weight[i];
      dweight[i] += dout[i] * x[i] * inverse_rms;
      dot += dx[i] * x[i];
    }
  } else {
    const float* gate = rows.gate + row * dim;
    float* dgate = rows.dgate + row * dim;
#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < dim; ++i) {
      const float sigmoid = Sigmoid(gate[i]);
      const float normed = x[i] * inverse_rms;
      const float m = dout[i] * (gate[i] * sigmoid);
      dgate[i] = dout[i] * normed * weight[i] * (sigmoid * (1.0f + gate[i] * (1.0f - sigmoid)));
      dweight[i] += m * normed;
      dx[i] = m * weight[i];
      dot += dx[i] * x[i];
    }
  }
  const float slope = dot * inverse_rms * inverse_rms * inverse_rms / static_cast<float>(dim);
#pragma omp simd
  for (int64_t i = 0; i < dim; ++i) dx[i] = dx[i] * inverse_rms - x[i] * slope;
}

void BackwardRows(const NormGradRows& rows, int64_t num_rows, float* dweight) {
  const int64_t num_blocks = (num_rows + kRowsPerBlock - 1) / kRowsPerBlock;
  at::parallel_for(0, num_blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      float* partial = rows.dweight + block * rows.dim;
      std::fill(partial, partial + rows.dim, 0.0f);
      const int64_t last = std::min(num_rows, (block + 1) * kRowsPerBlock);
      for (int64_t row = block * kRowsPerBlock; row < last; ++row) BackwardRow(rows, row, partial);
    }
  });
  std::fill(dweight, dweight + rows.dim, 0.0f);
  for (int64_t block = 0; block < num_blocks; ++block)
    for (int64_t i = 0; i < rows.dim; ++i) dweight[i] += rows.dweight[block * rows.dim + i];
}

at::Tensor ForwardFused(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                        double eps, at::Tensor* inverse_rms) {
  const int64_t dim = x.size(-1);
  const int64_t num_rows = x.numel() / dim;
  at::Tensor out = at::empty_like(x);
  *inverse_rms = at::empty({num_rows}, x.options());
  const NormRows rows = {.x = x.const_data_ptr<float>(),
                         .gate = gate.defined() ? gate.const_data_ptr<float>() : nullptr,
                         .weight = weight.const_data_ptr<float>(),
                         .out = out.mutable_data_ptr<float>(),
                         .inverse_rms = inverse_rms->mutable_data_ptr<float>(),
                         .dim = dim,
                         .eps = static_cast<float>(eps)};
  at::parallel_for(0, num_rows, kRowsPerBlock,
                   [&](int64_t begin, int64_t end) { ForwardRows(rows, begin, end); });
  return out;
}

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x_in,
                            const std::optional<at::Tensor>& gate_in, const at::Tensor& weight,
                            double eps) {
    const at::Tensor x = x_in.contiguous();
    const at::Tensor gate = gate_in ? gate_in->contiguous() : at::Tensor();
    at::Tensor inverse_rms;
    at::Tensor out = ForwardFused(x, gate, weight, eps, &inverse_rms);
    context->save_for_backward({x, gate, weight, inverse_rms});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor& gate = saved[1];
    const at::Tensor& weight = saved[2];
    const at::Tensor dout = grads[0].contiguous();
    const int64_t dim = x.size(-1);
    const int64_t num_rows = x.numel() / dim;
    at::Tensor dx = at::empty_like(x);
    at::Tensor dgate = gate.defined() ? at::empty_like(gate) : at::Tensor();
    at::Tensor dweight = at::empty_like(weight);
    at::Tensor partial =
        at::empty({(num_rows + kRowsPerBlock - 1) / kRowsPerBlock, dim}, x.options());
    BackwardRows({.x = x.const_data_ptr<float>(),
                  .gate = gate.defined() ? gate.const_data_ptr<float>() : nullptr,
                  .weight = weight.const_data_ptr<float>(),
                  .inverse_rms = saved[3].const_data_ptr<float>(),
                  .dout = dout.const_data_ptr<float>(),
                  .dx = dx.mutable_data_ptr<float>(),
                  .dgate = gate.defined() ? dgate.mutable_data_ptr<float>() : nullptr,
                  .dweight = partial.mutable_data_ptr<float>(),
                  .dim = dim},
                 num_rows, dweight.mutable_data_ptr<float>());
    return {dx, dgate, dweight, at::Tensor()};
  }
};

// The same in LibTorch calls, differentiated by its tape.
at::Tensor Composed(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                    double eps) {
  const at::ScalarType compute = ComputeType(x);
  const at::Tensor wide = x.to(compute);
  at::Tensor y = wide * at::rsqrt(wide.square().mean(-1, true) + eps) * weight.to(compute);
  if (gate.defined()) y = y * at::silu(gate.to(compute));
  return y.to(x.scalar_type());
}

}  // namespace

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps) {
  if (AllCpuFloat({x, weight})) return RmsNormFunction::apply(x, std::nullopt, weight, eps);
  return Composed(x, at::Tensor(), weight, eps);
}

at::Tensor GatedRmsNorm(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& weight,
                        double eps) {
  if (AllCpuFloat({x, gate, weight})) return RmsNormFunction::apply(x, gate, weight, eps);
  return Composed(x, gate, weight, eps);
}

}  // namespace halflife::kernels
