#include "kernels/decay_attention/chunks.h"

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/cpu_math.h"
#include "kernels/dispatch.h"

namespace halflife::kernels::internal {

bool IsConstantDecay(const DecayAttentionInputs& inputs) { return inputs.log_decay.dim() == 1; }
bool IsChannelDecay(const DecayAttentionInputs& inputs) { return inputs.log_decay.dim() == 4; }

namespace {

void CheckShape(const char* name, const at::Tensor& x, at::IntArrayRef want) {
  HL_CHECK(x.sizes() == want, "decay attention: ", name, " is ", x.sizes(), ", not ", want);
}

void CheckInputs(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  HL_CHECK(inputs.q.dim() == 4 && inputs.v.dim() == 4,
           "decay attention: q and v are [B, T, H, *], got ", inputs.q.sizes(), " and ",
           inputs.v.sizes());
  const int64_t batch = inputs.q.size(0), seq_len = inputs.q.size(1), heads = inputs.q.size(2);
  const int64_t dim_k = inputs.q.size(3), dim_v = inputs.v.size(3);
  HL_CHECK(seq_len >= 1 && config.chunk_size >= 1, "decay attention over ", seq_len,
           " tokens in chunks of ", config.chunk_size);
  CheckShape("k", inputs.k, {batch, seq_len, heads, dim_k});
  CheckShape("v", inputs.v, {batch, seq_len, heads, dim_v});
  const at::Tensor& g = inputs.log_decay;
  if (g.dim() == 1) {
    CheckShape("log_decay", g, {heads});
  } else if (g.dim() == 3) {
    CheckShape("log_decay", g, {batch, seq_len, heads});
  } else {
    CheckShape("log_decay", g, {batch, seq_len, heads, dim_k});
  }
  if (inputs.initial_state.defined())
    CheckShape("initial_state", inputs.initial_state, {batch, heads, dim_k, dim_v});
  HL_CHECK(inputs.documents.defined() == inputs.starts.defined(),
           "decay attention: documents and starts come together");
  if (inputs.starts.defined()) CheckShape("starts", inputs.starts, {batch, seq_len});
}

int64_t RoundUp(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

}  // namespace

ChunkShape MakeChunkShape(const DecayAttentionInputs& inputs, const DecayAttentionConfig& config) {
  CheckInputs(inputs, config);
  const int64_t seq_len = inputs.q.size(1);
  int64_t chunk = std::min(config.chunk_size, seq_len);
  if (IsChannelDecay(inputs)) chunk = RoundUp(chunk, kTile);
  return {.batch = inputs.q.size(0),
          .seq_len = seq_len,
          .num_heads = inputs.q.size(2),
          .head_dim_k = inputs.q.size(3),
          .head_dim_v = inputs.v.size(3),
          .chunk = chunk,
          .num_chunks = (seq_len + chunk - 1) / chunk,
          .compute = ComputeType(inputs.q)};
}

at::Tensor Pack(const at::Tensor& x, const ChunkShape& shape) {
  const int64_t heads = x.size(2), dim = x.size(3),
                padding = shape.num_chunks * shape.chunk - shape.seq_len;
  const at::Tensor padded = padding == 0 ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, padding}, 0);
  at::Tensor out = at::empty({x.size(0), heads, shape.num_chunks, shape.chunk, dim},
                             x.options().dtype(shape.compute));
  out.permute({0, 2, 3, 1, 4}).copy_(padded.unflatten(1, {shape.num_chunks, shape.chunk}));
  return out;
}

at::Tensor Unpack(const at::Tensor& x, const ChunkShape& shape, at::ScalarType dtype) {
  const int64_t batch = x.size(0), heads = x.size(1), dim = x.size(4);
  const at::Tensor rows = x.view({batch, heads, -1, dim}).narrow(2, 0, shape.seq_len);
  at::Tensor out = at::empty({batch, shape.seq_len, heads, dim}, x.options().dtype(dtype));
  out.copy_(rows.transpose(1, 2));
  return out;
}

at::Tensor PackLogDecay(const DecayAttentionInputs& inputs, const ChunkShape& shape) {
  constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();
  at::Tensor g = inputs.log_decay.detach().to(shape.compute);
  if (IsConstantDecay(inputs)) {
    if (!inputs.starts.defined() && shape.seq_len % shape.chunk == 0)
      return g.view({1, -1, 1, 1}).expand({1, shape.num_heads, 1, shape.chunk}).contiguous();
    const int64_t batch = inputs.starts.defined() ? shape.batch : 1;
    g = g.view({1, 1, -1}).expand({batch, shape.seq_len, shape.num_heads});
  }
  const bool per_channel = IsChannelDecay(inputs);
  if (!per_channel) g = g.unsqueeze(3);
  if (inputs.starts.defined())
    g = g.masked_fill(inputs.starts.unsqueeze(2).unsqueeze(3), kMinusInfinity);
  const at::Tensor packed = Pack(g, shape);
  return per_channel ? packed : packed.squeeze(4);
}

namespace {

struct ScanRows {
  float* terms;             // [B, H, N, K, V]
  const float* transition;  // [Bg, H, Ng, K or 1]
  float* state;             // [B, H, K, V]
  int64_t num_heads, num_chunks, dim_k, dim_v;
  int64_t stride_b, stride_h, stride_n, stride_k;  // of transition, 0 where it is shared
  bool reverse;
};

HL_VECTORISED void ScanHead(const ScanRows& scan, int64_t row) {
  const int64_t size = scan.dim_k * scan.dim_v;
  float* state = scan.state + row * size;
  for (int64_t step = 0; step < scan.num_chunks; ++step) {
    const int64_t n = scan.reverse ? scan.num_chunks - 1 - step : step;
    float* term = scan.terms + (row * scan.num_chunks + n) * size;
    const float* decay = scan.transition + row / scan.num_heads * scan.stride_b +
                         row % scan.num_heads * scan.stride_h + n * scan.stride_n;
    for (int64_t i = 0; i < scan.dim_k; ++i) {
      const float a = decay[i * scan.stride_k];
      float* s = state + i * scan.dim_v;
      float* t = term + i * scan.dim_v;
#pragma omp simd
      for (int64_t j = 0; j < scan.dim_v; ++j) {
        const float before = s[j];
        s[j] = a * before + t[j];
        t[j] = before;
      }
    }
  }
}

int64_t SharedStride(const at::Tensor& x, int64_t dim) {
  return x.size(dim) == 1 ? 0 : x.stride(dim);
}

void ScanFused(at::Tensor& terms, const at::Tensor& transition, at::Tensor& state, bool reverse) {
  const ScanRows scan = {.terms = terms.mutable_data_ptr<float>(),
                         .transition = transition.const_data_ptr<float>(),
                         .state = state.mutable_data_ptr<float>(),
                         .num_heads = terms.size(1),
                         .num_chunks = terms.size(2),
                         .dim_k = terms.size(3),
                         .dim_v = terms.size(4),
                         .stride_b = SharedStride(transition, 0),
                         .stride_h = SharedStride(transition, 1),
                         .stride_n = SharedStride(transition, 2),
                         .stride_k = SharedStride(transition, 3),
                         .reverse = reverse};
  at::parallel_for(0, terms.size(0) * terms.size(1), 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) ScanHead(scan, row);
  });
}

}  // namespace

at::Tensor ScanStates(at::Tensor& terms, const at::Tensor& transition,
                      const at::Tensor& first_state, bool reverse) {
  const int64_t num_chunks = terms.size(2);
  at::Tensor state =
      first_state.defined()
          ? first_state.detach().to(terms.scalar_type()).clone(at::MemoryFormat::Contiguous)
          : at::zeros({terms.size(0), terms.size(1), terms.size(3), terms.size(4)},
                      terms.options());
  if (IsCpuFloat(terms)) {
    ScanFused(terms, transition, state, reverse);
    return state;
  }
  for (int64_t step = 0; step < num_chunks; ++step) {
    const int64_t n = reverse ? num_chunks - 1 - step : step;
    const at::Tensor decay = transition.select(2, transition.size(2) == 1 ? 0 : n).unsqueeze(3);
    at::Tensor slot = terms.select(2, n);
    const at::Tensor next = state * decay + slot;
    slot.copy_(state);
    state = next;
  }
  return state;
}

at::Tensor SumDecayGradient(const at::Tensor& after, const at::Tensor& before,
                            const at::Tensor& all, int64_t token_dim) {
  const at::Tensor from_here = after.flip({token_dim}).cumsum(token_dim).flip({token_dim});
  const at::Tensor until_here = before.cumsum(token_dim);
  const int64_t length = after.size(token_dim);
  at::Tensor sum = from_here + all.unsqueeze(token_dim);
  sum.narrow(token_dim, 1, length - 1).add_(until_here.narrow(token_dim, 0, length - 1));
  return sum;
}

at::Tensor Bmm(const at::Tensor& a, const at::Tensor& b) {
  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end() - 1);
  sizes.push_back(b.size(-1));
  return at::bmm(a.flatten(0, -3), b.flatten(0, -3)).view(sizes);
}

}  // namespace halflife::kernels::internal
