#include "ops/rows/rotary.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/sin.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/error.h"
#include "kernels/rows/rotary_args.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/side_by_side.h"
#include "ops/torch/tensor_checks.h"

namespace halflife::ops {
namespace {

// Returns x with dense heads per token and a constant token stride; copies it if necessary.
at::Tensor TokensOf(const at::Tensor& x) {
  return RowStride(x, /*inner=*/2).has_value() ? x : x.contiguous();
}

template <typename T>
kernels::RotaryHeads<T> HeadsOf(const at::Tensor& x, const at::Tensor& out) {
  return {.x = Elements<T>(x),
          .x_stride = RowStride(x, /*inner=*/2).value(),
          .out = MutableElements<T>(out),
          .out_stride = RowStride(out, /*inner=*/2).value(),
          .num_heads = x.size(2)};
}

struct RotaryOp {
  struct Inputs {
    Tensors heads;  // one tensor [B, T, heads, d] or two
  };
  using Outputs = Inputs;
  using Saved = RotaryTable;
};

// Rotates one tensor or two into buffers of `places`, one for each.
Tensors RotateFused(const Tensors& given, const std::vector<ColumnSlice>& places,
                    const RotaryTable& table, float direction) {
  Tensors in, out;
  for (size_t i = 0; i < given.size(); ++i) {
    in.push_back(TokensOf(given[i]));
    out.push_back(places[i].EmptyLike(given[i]));
  }
  const at::Tensor& first = in[0];
  WithStorage(first, [&]<typename T>() {
    kernels::RotaryTokens<T> tokens = {.cos = table.cos.const_data_ptr<float>(),
                                       .sin = table.sin.const_data_ptr<float>(),
                                       .rows = table.rows.const_data_ptr<int64_t>(),
                                       .num_tokens = first.size(0) * first.size(1),
                                       .half = table.cos.size(1),
                                       .head_dim = first.size(3),
                                       .direction = direction};
    for (size_t i = 0; i < in.size(); ++i) tokens.heads[i] = HeadsOf<T>(in[i], out[i]);
    RunRows(
        first, {.count = tokens.num_tokens, .per_task = 64},
        [&](int64_t begin, int64_t end) { kernels::cpu::Rotate(tokens, begin, end); },
        [&](auto stream) { kernels::cuda::Rotate(tokens, stream); });
  });
  return out;
}

// `gradients` has a place for the gradient of each input.
Tensors FusedRotary(const Tensors& inputs, const std::vector<ColumnSlice>& gradients,
                    const RotaryTable& table) {
  const auto backward = [gradients](const BackwardOf<RotaryOp>& call) -> RotaryOp::Inputs {
    return {.heads = RotateFused(call.grads.heads, gradients, call.saved, -1.0f)};
  };
  const auto forward = [&]() -> ForwardOf<RotaryOp> {
    const std::vector<ColumnSlice> dense(inputs.size());
    return {.outputs = {.heads = RotateFused(inputs, dense, table, 1.0f)},
            .saved = table,
            .backward = backward};
  };
  return Apply<RotaryOp>({.name = "ApplyRotary", .inputs = {.heads = inputs}, .forward = forward})
      .heads;
}

// In LibTorch calls: for fp64.
at::Tensor RotateComposed(const at::Tensor& x, const RotaryTable& table) {
  const at::ScalarType compute = ComputeType(x);
  const int64_t half = table.cos.size(1), rest = x.size(3) - 2 * half;
  const auto pick = [&](const at::Tensor& values) {  // [B, T, 1, r/2]
    return values.index_select(0, table.rows.flatten())
        .to(compute)
        .view({x.size(0), x.size(1), 1, half});
  };
  const at::Tensor cos = pick(table.cos), sin = pick(table.sin);
  const at::Tensor a = x.narrow(3, 0, half).to(compute), b = x.narrow(3, half, half).to(compute);
  const at::Tensor rotated = at::cat({a * cos - b * sin, b * cos + a * sin}, 3);
  if (rest == 0) return rotated.to(x.scalar_type());
  return at::cat({rotated.to(x.scalar_type()), x.narrow(3, 2 * half, rest)}, 3);
}

// Returns the minimum and maximum of a CPU tensor; (0, -1) if it is empty.
std::pair<int64_t, int64_t> Bounds(const at::Tensor& x_in) {
  if (x_in.numel() == 0) return {0, -1};
  const at::Tensor x = x_in.contiguous();
  const int64_t* begin = x.const_data_ptr<int64_t>();
  const auto [low, high] = std::minmax_element(begin, begin + x.numel());
  return {*low, *high};
}

template <typename T>
RotaryTable CpuTableOf(const at::Tensor& positions, std::span<const double> frequencies,
                       double factor) {
  const auto [low, high] = Bounds(positions);
  const int64_t first = low, num_rows = high - low + 1,
                half = static_cast<int64_t>(frequencies.size());
  const auto options = positions.options().dtype(c10::CppTypeToScalarType<T>());
  RotaryTable table = {.cos = at::empty({num_rows, half}, options),
                       .sin = at::empty({num_rows, half}, options),
                       .rows = positions - first};
  T* cos = table.cos.template mutable_data_ptr<T>();
  T* sin = table.sin.template mutable_data_ptr<T>();
  at::parallel_for(0, num_rows, 256, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t j = 0; j < half; ++j) {
        const double angle = static_cast<double>(first + row) * frequencies[static_cast<size_t>(j)];
        cos[row * half + j] = static_cast<T>(factor * std::cos(angle));
        sin[row * half + j] = static_cast<T>(factor * std::sin(angle));
      }
    }
  });
  return table;
}
RotaryTable CpuTable(const at::Tensor& positions, std::span<const double> frequencies,
                     double factor, at::ScalarType dtype) {
  return dtype == at::kDouble ? CpuTableOf<double>(positions, frequencies, factor)
                              : CpuTableOf<float>(positions, frequencies, factor);
}

// For devices whose values the host must not read: one table row per token.
RotaryTable DeviceTable(const at::Tensor& positions, const at::Tensor& frequencies, double factor,
                        at::ScalarType dtype) {
  const at::Tensor angles = positions.flatten().to(at::kDouble).unsqueeze(1) * frequencies;
  return {.cos = (at::cos(angles) * factor).to(dtype),
          .sin = (at::sin(angles) * factor).to(dtype),
          .rows = at::arange(positions.numel(), positions.options()).view_as(positions)};
}

void CheckTableOf(const at::Tensor& positions, int64_t dim) {
  HL_CHECK(positions.scalar_type() == at::kLong && dim >= 2 && dim % 2 == 0,
           "rotary table of positions ", Describe(positions), " for heads of ", dim,
           ". Use int64 and an even head_dim.");
}

bool HasTableDtype(const at::Tensor& values, const at::Tensor& x) {
  return values.scalar_type() == at::kFloat ||
         (values.scalar_type() == at::kDouble && x.scalar_type() == at::kDouble);
}

void CheckTable(const at::Tensor& x, const RotaryTable& table) {
  const at::Tensor &cos = table.cos, &sin = table.sin, &rows = table.rows;
  HL_CHECK(
      x.defined() && x.dim() == 4 && cos.defined() && cos.dim() == 2 && cos.size(1) >= 1 &&
          2 * cos.size(1) <= x.size(3) && FitsWith(x, cos, cos.sizes()) &&
          FitsWith(x, sin, cos.sizes()) && HasTableDtype(cos, x) &&
          sin.scalar_type() == cos.scalar_type() && FitsWith(x, rows, {x.size(0), x.size(1)}) &&
          rows.scalar_type() == at::kLong,
      "ApplyRotary to x ", Describe(x), " with cos ", Describe(cos), ", sin ", Describe(sin),
      ", rows ", Describe(rows),
      ". Use x [B, T, H, d], cos and sin [R, r/2] with r <= d, fp32 (or fp64 for x of fp64), rows "
      "[B, T] int64, on one device.");
  if (!rows.is_cpu()) return;
  const auto [low, high] = Bounds(rows);
  HL_CHECK(low >= 0 && high < cos.size(0), "ApplyRotary: a token's row is ", low < 0 ? low : high,
           " in a table of ", cos.size(0), " rows. Use the table made for these positions.");
}

}  // namespace

std::vector<double> RotaryFrequencies(int64_t dim, double base) {
  std::vector<double> frequencies;
  for (int64_t j = 0; j < (dim + 1) / 2; ++j)
    frequencies.push_back(std::pow(base, -2.0 * static_cast<double>(j) / static_cast<double>(dim)));
  return frequencies;
}

RotaryTable MakeRotaryTable(const at::Tensor& positions, int64_t dim, double base,
                            at::ScalarType dtype) {
  CheckTableOf(positions, dim);
  if (positions.is_cpu()) return CpuTable(positions, RotaryFrequencies(dim, base), 1, dtype);
  const auto options = positions.options().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(dim / 2, options) * (-2.0 / static_cast<double>(dim));
  return DeviceTable(positions, at::pow(base, exponents), 1, dtype);
}

RotaryTable MakeRotaryTable(const at::Tensor& positions, std::span<const double> frequencies,
                            double factor, at::ScalarType dtype) {
  CheckTableOf(positions, 2 * static_cast<int64_t>(frequencies.size()));
  if (positions.is_cpu()) return CpuTable(positions, frequencies, factor, dtype);
  return DeviceTable(positions, ConstantsOn(positions.device(), frequencies), factor, dtype);
}

template <typename Make>
RotaryTable RotaryTables::Find(const at::Tensor& positions, std::vector<double> key,
                               const Make& make) {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (entry.positions.is_same(positions) && entry.key == key) return entry.table;
  return entries_.emplace_back(positions, std::move(key), make()).table;
}

RotaryTable RotaryTables::Of(const at::Tensor& positions, int64_t dim, double base,
                             at::ScalarType dtype) {
  // The key has three numbers; tables given by frequencies have at least four.
  return Find(positions, {static_cast<double>(dim), base, static_cast<double>(dtype)},
              [&] { return MakeRotaryTable(positions, dim, base, dtype); });
}

RotaryTable RotaryTables::Of(const at::Tensor& positions, std::span<const double> frequencies,
                             double factor, at::ScalarType dtype) {
  std::vector<double> key(frequencies.begin(), frequencies.end());
  key.insert(key.end(), {factor, 0.0, static_cast<double>(dtype)});
  return Find(positions, std::move(key),
              [&] { return MakeRotaryTable(positions, frequencies, factor, dtype); });
}

namespace {

RotaryTable Contiguous(const RotaryTable& table) {
  return {.cos = table.cos.contiguous(),
          .sin = table.sin.contiguous(),
          .rows = table.rows.contiguous()};
}

}  // namespace

at::Tensor ApplyRotary(const at::Tensor& x, const RotaryTable& table) {
  CheckDTypes("ApplyRotary", {x});
  CheckTable(x, table);
  return IsFused(x) ? FusedRotary({x}, {ColumnSlice()}, Contiguous(table))[0]
                    : RotateComposed(x, table);
}

RotatedPair ApplyRotary(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table,
                        const RotaryGradients& gradients) {
  CheckDTypes("ApplyRotary", {q, k});
  CheckTable(q, table);
  HL_CHECK(k.defined() && k.dim() == 4 && k.scalar_type() == q.scalar_type() &&
               FitsWith(q, k, {q.size(0), q.size(1), k.size(2), q.size(3)}),
           "ApplyRotary to q ", Describe(q), " and k ", Describe(k),
           ". Use [B, T, H, d] and [B, T, Hk, d] of one dtype and device.");
  if (!IsFused(q)) return {.q = RotateComposed(q, table), .k = RotateComposed(k, table)};
  const Tensors rotated = FusedRotary({q, k}, {gradients.q, gradients.k}, Contiguous(table));
  return {.q = rotated[0], .k = rotated[1]};
}

}  // namespace halflife::ops
