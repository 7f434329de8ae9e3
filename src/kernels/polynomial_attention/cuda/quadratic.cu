#include "kernels/polynomial_attention/cuda/launch.h"

#include "kernels/common/cuda/device.h"
#include "kernels/common/cuda/pair_attention/args.h"

namespace halflife::kernels::polynomial {
namespace {

constexpr int kSpanThreads = 128;

// Computes the keys [first, end) of each token, [B, T], from the chunks of its sequence: those of
// its document up to the token. A block has a sequence.
__global__ void __launch_bounds__(kSpanThreads)
    KeysOfTokensKernel(const HL_GRID_CONSTANT PolynomialAttentionArgs args, int32_t* first,
                       int32_t* end) {
  const int begin = args.sequence_begin[blockIdx.x], stop = args.sequence_begin[blockIdx.x + 1];
  int64_t start = 0;
  for (int n = begin; n < stop; ++n) {
    const ChunkEntry chunk = args.chunks[n];
    if (n == begin || (chunk.flags & kChunkResets) != 0) start = chunk.token;
    for (int i = static_cast<int>(threadIdx.x); i < chunk.length; i += kSpanThreads) {
      const int64_t token = chunk.token + i;
      const int64_t at = int64_t{1} * chunk.row * args.seq_len + token;
      first[at] = static_cast<int32_t>(start);
      end[at] = static_cast<int32_t>(token + 1);
    }
  }
}

size_t SpanBytes(const PolynomialAttentionArgs& args) {
  return (size_t{1} * args.batch * args.seq_len * sizeof(int32_t) + 15) / 16 * 16;
}
int32_t* FirstOf(const PolynomialAttentionArgs& args) {
  return static_cast<int32_t*>(args.workspace);
}
int32_t* EndOf(const PolynomialAttentionArgs& args) {
  return reinterpret_cast<int32_t*>(static_cast<char*>(args.workspace) + SpanBytes(args));
}

pairs::PairAttentionArgs PairsOf(const PolynomialAttentionArgs& args) {
  pairs::PairAttentionArgs to;
  to.batch = args.batch;
  to.num_queries = to.num_keys = args.seq_len;
  to.num_heads = to.num_kv_heads = args.num_heads;
  to.head_dim = args.head_dim, to.head_dim_v = args.head_dim_v;
  to.scale = static_cast<float>(args.scale);
  to.weight = pairs::Weight::kPolynomial;
  to.a0 = static_cast<float>(args.weights.a0);
  to.a1 = static_cast<float>(args.weights.a1);
  to.a2 = static_cast<float>(args.weights.a2);
  to.normalise = args.normalise;
  to.norm_eps = static_cast<float>(args.norm_eps);
  to.q = args.q, to.k = args.k, to.v = args.v, to.out = args.out;
  to.first = to.sinks = FirstOf(args), to.end = EndOf(args);
  to.normaliser = static_cast<float*>(args.norm_denom);
  return to;
}
pairs::PairAttentionGradArgs PairsOf(const PolynomialAttentionGradArgs& grads) {
  pairs::PairAttentionGradArgs to;
  to.forward = PairsOf(grads.forward);
  to.dout = grads.dout, to.dq = grads.dq, to.dk = grads.dk, to.dv = grads.dv;
  to.workspace = static_cast<char*>(grads.forward.workspace) + 2 * SpanBytes(grads.forward);
  return to;
}

void FindKeys(const PolynomialAttentionArgs& args, cudaStream_t stream) {
  HL_CHECK(args.workspace != nullptr, "polynomial attention: the quadratic form on CUDA needs ",
           QuadraticForwardBytes(args), " bytes of workspace, got none. Pass a workspace.");
  Launch({dim3(GridBlocks(args.num_sequences, "keys of tokens")), dim3(kSpanThreads), 0,
          "keys of tokens"},
         stream, KeysOfTokensKernel, args, FirstOf(args), EndOf(args));
}

}  // namespace

size_t QuadraticForwardBytes(const PolynomialAttentionArgs& args) { return 2 * SpanBytes(args); }
size_t QuadraticBackwardBytes(const PolynomialAttentionArgs& args) {
  PolynomialAttentionGradArgs grads;
  grads.forward = args;
  return 2 * SpanBytes(args) + pairs::WorkspaceBytes(PairsOf(grads));
}

void QuadraticForward(const PolynomialAttentionArgs& args, cudaStream_t stream) {
  if (args.num_chunks == 0) return;
  FindKeys(args, stream);
  pairs::Forward(PairsOf(args), stream);
}

void QuadraticBackward(const PolynomialAttentionGradArgs& grads, cudaStream_t stream) {
  if (grads.forward.num_chunks == 0) return;
  FindKeys(grads.forward, stream);
  pairs::Backward(PairsOf(grads), stream);
}

}  // namespace halflife::kernels::polynomial
