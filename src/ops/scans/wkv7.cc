#include "ops/scans/wkv7.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/linalg_solve_triangular.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>

#include "core/error.h"
#include "ops/sequence/segment_scan.h"
#include "ops/torch/dispatch.h"

namespace halflife::ops {
namespace {

// e^(-w) over a chunk is at most e^32 for log decays from -1 on, which fits fp32.
constexpr int64_t kWkv7Chunk = 32;

// The inputs of the scan with the heads outermost, in the compute type: [B, H, T, K or V].
struct Wkv7Rows {
  at::Tensor r, w, k, v, a, b;
  at::Tensor starts;  // [B, T] bool, or undefined

  Wkv7Rows Narrow(int64_t first, int64_t count) const {
    const auto part = [&](const at::Tensor& x) { return x.narrow(2, first, count); };
    return {part(r),
            part(w),
            part(k),
            part(v),
            part(a),
            part(b),
            starts.defined() ? starts.narrow(1, first, count) : starts};
  }
};

// Which pairs of tokens of a chunk belong to one document, and which tokens belong to the document
// before the chunk or after it. All are bool, and undefined if no document starts in the rows.
struct Wkv7Documents {
  at::Tensor other;      // [B, 1, c, c]: the tokens are of different documents
  at::Tensor is_new;     // [B, 1, c, 1]: a document started in the chunk, up to this token
  at::Tensor is_ended;   // [B, 1, c, 1]: a document starts in the chunk after this token
  at::Tensor has_start;  // [B, 1, 1, 1]

  explicit Wkv7Documents(const at::Tensor& starts) {
    if (!starts.defined()) return;
    const at::Tensor numbers = starts.to(at::kInt).cumsum(1);  // [B, c]
    const at::Tensor last = numbers.narrow(1, numbers.size(1) - 1, 1);
    other = numbers.unsqueeze(2).ne(numbers.unsqueeze(1)).unsqueeze(1);
    is_new = numbers.gt(0).unsqueeze(1).unsqueeze(3);
    is_ended = numbers.lt(last).unsqueeze(1).unsqueeze(3);
    has_start = last.gt(0).unsqueeze(1).unsqueeze(3);
  }
};

// Zeros where `mask` is true. Selects rather than multiplies by 0, which would pass a NaN on.
at::Tensor Without(const at::Tensor& x, const at::Tensor& mask) {
  return mask.defined() ? x.masked_fill(mask, 0) : x;
}

// Returns products of the rows of `reads` and `writes`, [B, H, c, c], for writes up to the
// `diagonal` of a read in its own document.
at::Tensor PairProducts(const at::Tensor& reads, const at::Tensor& writes, int64_t diagonal,
                        const Wkv7Documents& documents) {
  return Without(at::matmul(reads, writes.transpose(2, 3)).tril(diagonal), documents.other);
}

// Returns the outputs of a chunk [B, H, c, V], and replaces the state before it [B, H, K, V] by the
// state after it. With P_t = e^(w_1 + .. + w_t), token t reads r P_t and a P_{t-1} of the state
// before the chunk, and of the writes k_s / P_s and b_s / P_s within it. The reads u = a S form a
// triangular system, because each depends on the earlier ones.
at::Tensor RunChunk(const Wkv7Rows& x, at::Tensor& state) {
  const Wkv7Documents documents(x.starts);
  const at::Tensor sums = x.w.cumsum(2), decay = sums.exp(), growth = sums.neg().exp();
  const at::Tensor r = x.r * decay, a = x.a * (sums - x.w).exp();
  const at::Tensor k = x.k * growth, b = x.b * growth;
  const at::Tensor known = at::matmul(PairProducts(a, k, -1, documents), x.v) +
                           at::matmul(Without(a, documents.is_new), state);
  const at::Tensor system =
      at::eye(x.w.size(2), x.w.options().requires_grad(false)) - PairProducts(a, b, -1, documents);
  const at::Tensor u = at::linalg_solve_triangular(system, known, /*upper=*/false, /*left=*/true,
                                                   /*unitriangular=*/true);
  const at::Tensor o = at::matmul(Without(r, documents.is_new), state) +
                       at::matmul(PairProducts(r, k, 0, documents), x.v) +
                       at::matmul(PairProducts(r, b, 0, documents), u);
  const at::Tensor total = sums.narrow(2, sums.size(2) - 1, 1);
  const at::Tensor rest = Without((total - sums).exp(), documents.is_ended);
  state = Without(total.exp().transpose(2, 3) * state, documents.has_start) +
          at::matmul((x.k * rest).transpose(2, 3), Without(x.v, documents.is_ended)) +
          at::matmul((x.b * rest).transpose(2, 3), Without(u, documents.is_ended));
  return o;
}

struct Wkv7Scanned {
  at::Tensor o;      // [B, H, T, V]
  at::Tensor state;  // [B, H, K, V]
};
Wkv7Scanned RunRows(const Wkv7Rows& x, at::Tensor state) {
  const int64_t seq_len = x.w.size(2);
  Tensors outputs = {x.v.narrow(2, 0, 0)};
  for (int64_t first = 0; first < seq_len; first += kWkv7Chunk)
    outputs.push_back(RunChunk(x.Narrow(first, std::min(kWkv7Chunk, seq_len - first)), state));
  return {.o = at::cat(outputs, 2), .state = state};
}

Wkv7Rows RowsOf(const Tensors& inputs, const at::Tensor& starts) {
  const auto rows = [](const at::Tensor& x) { return x.to(ComputeType(x)).transpose(1, 2); };
  return {rows(inputs[0]), rows(inputs[1]), rows(inputs[2]), rows(inputs[3]),
          rows(inputs[4]), rows(inputs[5]), starts};
}

at::Tensor ZeroWkv7State(const Wkv7Rows& x, int64_t columns) {
  return at::zeros({x.w.size(0), x.w.size(1), x.w.size(3), columns},
                   x.w.options().requires_grad(false));
}

// Returns the state after the rows from zero, and the matrix by which the rows multiply a state
// before them. Called without gradients.
SegmentSummary Summarise(const Wkv7Rows& x, const RowSegment& row) {
  const int64_t dim_k = x.w.size(3);
  Wkv7Rows columns = x;
  columns.k = at::zeros_like(x.k);
  columns.v = at::zeros_like(x.w);
  columns.starts = at::Tensor();
  const at::Tensor unit =
      at::eye(dim_k, x.w.options()).expand({x.w.size(0), x.w.size(1), dim_k, dim_k});
  return {.own = {.values = {RunRows(x, ZeroWkv7State(x, x.v.size(3))).state}},
          .transition_matrix = CutMatrixByStarts(RunRows(columns, unit).state.contiguous(), row)};
}

Wkv7Output RunWkv7Segment(const Wkv7Inputs& inputs, const Tensors& tensors) {
  HL_CHECK(
      !inputs.initial.defined(),
      "wkv7: a segment with an initial state. Pass no state: it comes from the previous rank.");
  const RowSegment& row = *inputs.segment;
  const at::Tensor starts = inputs.starts;
  const auto run = [starts](const Tensors& x, const SegmentState& before) -> ScannedSegment {
    const Wkv7Rows rows = RowsOf(x, starts);
    const auto [o, state] = RunRows(
        rows, before.values.empty() ? ZeroWkv7State(rows, rows.v.size(3)) : before.values[0]);
    return {.outputs = {o}, .after = {.values = {state}}};
  };
  const auto nothing = [&]() -> SegmentSummary {
    const Wkv7Rows rows = RowsOf(tensors, {});
    return {.own = {.values = {ZeroWkv7State(rows, rows.v.size(3))}},
            .transition_matrix = ZeroWkv7State(rows, rows.w.size(3))};
  };
  const at::Tensor o =
      RunSegment({.name = "Wkv7Segment",
                  .inputs = tensors,
                  .run = run,
                  .summarise = [&] { return Summarise(RowsOf(tensors, starts), row); },
                  .nothing = nothing},
                 row)[0];
  return {.o = o.transpose(1, 2).to(inputs.v.scalar_type()), .final_state = {}};
}

}  // namespace

Wkv7Output Wkv7(const Wkv7Inputs& inputs) {
  const Tensors tensors = {inputs.r, inputs.log_decay, inputs.k, inputs.v, inputs.a, inputs.b};
  if (inputs.segment != nullptr) return RunWkv7Segment(inputs, tensors);
  const Wkv7Rows rows = RowsOf(tensors, inputs.starts);
  const auto [o, state] = RunRows(
      rows, inputs.initial.defined() ? inputs.initial : ZeroWkv7State(rows, rows.v.size(3)));
  return {.o = o.transpose(1, 2).to(inputs.v.scalar_type()), .final_state = state};
}

at::Tensor Wkv7Step(const Wkv7Inputs& inputs, at::Tensor& state) {
  const auto wide = [&](const at::Tensor& x) { return x.to(state.scalar_type()); };
  const at::Tensor u = at::matmul(wide(inputs.a).unsqueeze(2), state);  // [B, H, 1, V]
  const at::Tensor after = wide(inputs.log_decay).exp().unsqueeze(3) * state +
                           wide(inputs.b).unsqueeze(3) * u +
                           wide(inputs.k).unsqueeze(3) * wide(inputs.v).unsqueeze(2);
  state.copy_(after);
  return at::matmul(wide(inputs.r).unsqueeze(2), state).squeeze(2).to(inputs.v.scalar_type());
}

}  // namespace halflife::ops
