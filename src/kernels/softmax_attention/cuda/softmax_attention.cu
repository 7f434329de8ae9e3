// Softmax attention on CUDA: converts its calls to those of the kernels on pairs of tiles.
#include "core/error.h"
#include "kernels/common/cuda/pair_attention/launch.h"
#include "kernels/softmax_attention/softmax_attention_args.h"

namespace halflife::kernels::cuda {
namespace {

pairs::PairAttentionArgs PairsOf(const SoftmaxAttentionArgs& args) {
  HL_CHECK(!args.has_far() && args.decay_rates == nullptr,
           "softmax attention on CUDA supports no far pairs and no decay. Use neither.");
  pairs::PairAttentionArgs to;
  to.batch = args.batch;
  to.num_queries = args.num_queries, to.num_keys = args.num_keys, to.num_past = args.num_past;
  to.num_heads = args.num_heads, to.num_kv_heads = args.num_kv_heads;
  to.head_dim = args.head_dim, to.head_dim_v = args.head_dim_v;
  to.scale = static_cast<float>(args.scale);
  to.weight = args.squared_relu ? pairs::Weight::kSquaredRelu : pairs::Weight::kSoftmax;
  to.q = args.q, to.k = args.k, to.v = args.v, to.out = args.out;
  to.first = args.first, to.end = args.end, to.sinks = args.sinks, to.num_sinks = args.num_sinks;
  to.bias = static_cast<const float*>(args.bias);
  to.bias_stride = args.bias_stride, to.bias_zero = args.bias_zero;
  to.bias_scale = static_cast<const float*>(args.bias_scale);
  to.dropout = args.dropout;
  to.normaliser = static_cast<float*>(args.log_sum);
  return to;
}
pairs::PairAttentionGradArgs PairsOf(const SoftmaxAttentionGradArgs& grads) {
  pairs::PairAttentionGradArgs to;
  to.forward = PairsOf(grads.forward);
  to.dout = grads.dout, to.dq = grads.dq, to.dk = grads.dk, to.dv = grads.dv;
  to.dbias = static_cast<float*>(grads.dbias);
  to.workspace = grads.workspace;
  return to;
}

}  // namespace

size_t WorkspaceBytes(const SoftmaxAttentionGradArgs& grads) {
  return pairs::WorkspaceBytes(PairsOf(grads));
}
void Forward(const SoftmaxAttentionArgs& args, cudaStream_t stream) {
  pairs::Forward(PairsOf(args), stream);
}
void Backward(const SoftmaxAttentionGradArgs& grads, cudaStream_t stream) {
  pairs::Backward(PairsOf(grads), stream);
}

}  // namespace halflife::kernels::cuda
