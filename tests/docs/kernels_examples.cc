// The examples of the headers of src/kernels that a host compiles. The parameters of a function are
// the variables that its example uses.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include <cmath>
#include <cstdlib>

#include "core/error.h"
#include "core/philox.h"
#include "kernels/adamw/adamw_args.h"
#include "kernels/common/chunks/chunk_table.h"
#include "kernels/common/cpu/head_groups.h"
#include "kernels/common/cpu/parallel.h"
#include "kernels/common/cpu/vectorised.h"
#include "kernels/common/cuda/launch_check.h"
#include "kernels/common/dropout_draws.h"
#include "kernels/common/sum_partials.h"
#include "kernels/decay_attention/cuda/route.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "kernels/linear/linear_products.h"
#include "kernels/polynomial_attention/features.h"
#include "kernels/polynomial_attention/polynomial_attention_args.h"
#include "ops/convolution/fft_conv.h"
#include "ops/cross_entropy/linear_cross_entropy.h"
#include "ops/decay_attention/decay_attention.h"
#include "ops/focus_pool/focus_pool.h"
#include "ops/linear/linear.h"
#include "ops/polynomial_attention/polynomial_attention.h"
#include "ops/rows/bias_map.h"
#include "ops/rows/decay_gates.h"
#include "ops/rows/dropout.h"
#include "ops/rows/focus_heads.h"
#include "ops/rows/layer_norm.h"
#include "ops/rows/rms_norm.h"
#include "ops/rows/rotary.h"
#include "ops/rows/state_space_gates.h"
#include "ops/rows/swiglu.h"
#include "ops/rows/token_shift.h"
#include "ops/scans/selective_scan.h"
#include "ops/scans/wkv4.h"
#include "ops/sequence/exchange_cost.h"
#include "ops/sequence/row_segment.h"
#include "ops/sequence/segment_scan.h"
#include "ops/sequence/segment_tape.h"
#include "ops/sequence/sequence_chunks.h"
#include "ops/sequence/tokens_before.h"
#include "ops/softmax_attention/softmax_attention.h"
#include "ops/softmax_attention/visible_keys.h"
#include "ops/torch/autograd.h"
#include "ops/torch/column_slices.h"
#include "ops/torch/device_graph.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/gradient_sink.h"
#include "ops/torch/host_transfer.h"
#include "ops/torch/host_waits.h"
#include "ops/torch/tensor_checks.h"
#include "ops/torch/tensor_struct.h"
#include "ops/torch/tensor_views.h"
#include "tools/cuda_emulator/counts.h"

namespace halflife::kernels {

using at::Tensor;
using namespace ops;

void AdamWExample(const AdamWConfig& config, int64_t n, float* w, const float* g, float* m,
                  float* v, double lr, double clip, uint64_t num_updates) {
#include "examples/kernels/adamw/adamw_args.h"
}

void Await(cudaStream_t stream);
void LaunchCheckExample(cudaStream_t stream) {
#include "examples/kernels/common/cuda/launch_check.h"
}

void ChunkTableExample(int64_t B, int64_t T, const std::vector<int32_t>& cu_seqlens,
                       DecayAttentionArgs& args) {
#include "examples/kernels/common/chunks/chunk_table.h"
}

void SequenceChunksExample(int64_t B, int64_t T, const std::vector<int32_t>& starts,
                           const Tensor& x, ops::DecayAttentionInputs& inputs) {
#include "examples/ops/sequence/sequence_chunks.h"
}

void RowSegmentExample(const std::shared_ptr<ops::SegmentGroup>& group, const Tensor& positions,
                       const Tensor& x) {
#include "examples/ops/sequence/row_segment.h"
}
void SegmentTapeExample(const at::Tensor& x, ops::RowSegment row) {
  at::Tensor y;
  const auto Forward = [](const at::Tensor& of, const ops::RowSegment& segment) {
    return ops::TokensBefore(of, 3, segment).sum();
  };
#include "examples/ops/sequence/segment_tape.h"
}
void ExchangeCostExample(ops::SegmentGroup& group, int64_t bytes) {
#include "examples/ops/sequence/exchange_cost.h"
}
void SegmentScanExample(const Tensor& x, const Tensor& decay, const ops::SegmentScan& scan,
                        const ops::RowSegment& row) {
  const auto& run = scan.run;
  const auto& summarise = scan.summarise;
  const auto& nothing = scan.nothing;
#include "examples/ops/sequence/segment_scan.h"
}
void TokensBeforeExample(const Tensor& k, const Tensor& x, int64_t window, int64_t taps,
                         const ops::RowSegment& row) {
#include "examples/ops/sequence/tokens_before.h"
}

namespace cpu {
namespace vectorised_header {
#include "examples/kernels/common/cpu/vectorised.h"
}

void ParallelExample(int64_t num_states, size_t scratch_bytes) {
#include "examples/kernels/common/cpu/parallel.h"
}

void Scan(int64_t item, const ChunkBlock& block, void* scratch);
void HeadGroupsExample(int num_heads, int64_t num_items, bool rows_are_long, size_t bytes,
                       int begin, int end, int block_chunks) {
#include "examples/kernels/common/cpu/head_groups.h"
}

void SumPartialsExample(int64_t num_blocks, int64_t taps, int64_t dim, float* dweight,
                        float* dbias) {
#include "examples/kernels/common/sum_partials.h"
}

void InstructionSetExample() {
#include "examples/kernels/common/cpu/instruction_set.h"
}
}  // namespace cpu

void DropoutDrawsExample(const PairDropout& dropout, int row, int head, int query, int key) {
#include "examples/kernels/common/dropout_draws.h"
}

void MatmulExample(int64_t T, int64_t D, int64_t N, const float* w, const float* x, float* y) {
#include "examples/kernels/linear/linear_products.h"
}

void LinearCrossEntropyExample(const Tensor& hidden, const Tensor* head, const Tensor& targets,
                               int64_t num_targets) {
#include "examples/ops/cross_entropy/linear_cross_entropy.h"
}

void DecayAttentionArgsExample(int B, int T) {
#include "examples/kernels/decay_attention/decay_attention_args.h"
}

void RouteExample(const DecayAttentionArgs& args, const DeviceLimits& limits,
                  DecayAttentionPlan& plan) {
#include "examples/kernels/decay_attention/cuda/route.h"
}

void DecayAttentionExample(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& g,
                           int K) {
  using std::sqrt;
#include "examples/ops/decay_attention/decay_attention.h"
}

struct Slice {
  int64_t begin;
  Tensor positions;
};
void DropoutExample(Tensor& x, const Tensor& branch, uint64_t seed, uint32_t site,
                    std::span<const uint64_t> samples, const Slice& slice) {
#include "examples/ops/rows/dropout.h"
}

void FftConvExample(const Tensor& x, const Tensor& h, const Tensor& skip){
#include "examples/ops/convolution/fft_conv.h"
}

Tensor LinearExample(const Tensor& x, const Tensor* gate_proj, const Tensor* up_proj,
                     const Tensor* down_proj) {
#include "examples/ops/linear/linear.h"
}

void WeightGradientExample(int64_t T, int64_t N, int64_t K, const float* dy, const float* x,
                           float* dw) {
#include "examples/kernels/linear/linear_products.h.2"
}

void RmsNormExample(const Tensor& x, const Tensor* weight) {
#include "examples/ops/rows/rms_norm.h"
}

void RealNormExample(const Tensor& heads) {
#include "examples/ops/rows/layer_norm.h.2"
}

void DecayGateExample(const Tensor& logits, const Tensor* bias) {
#include "examples/ops/rows/decay_gates.h"
}

void StepGateExample(const Tensor& dt, const Tensor* dt_bias, const Tensor* a_log) {
#include "examples/ops/rows/state_space_gates.h"
}

void SkipGateExample(const Tensor& y, const Tensor& v, const Tensor* d, const Tensor& z) {
#include "examples/ops/rows/state_space_gates.h.2"
}

void BiasMapExample(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor* q_bias,
                    const Tensor* k_bias, const Tensor* v_bias) {
#include "examples/ops/rows/bias_map.h"
}

void LearnedDecayExample(const Tensor* a_log, const Tensor* ps, int64_t num_heads) {
#include "examples/ops/rows/decay_gates.h.2"
}

void RotaryExample(const Slice& slice, int64_t head_dim, Tensor& q, Tensor& k) {
#include "examples/ops/rows/rotary.h"
}

void FocusPoolExample(const Tensor& log_weight, const Tensor& v) {
#include "examples/ops/focus_pool/focus_pool.h"
}

void PolynomialArgsExample(int B, int T) {
#include "examples/kernels/polynomial_attention/polynomial_attention_args.h"
}

void PolynomialFeaturesExample() {
#include "examples/kernels/polynomial_attention/features.h"
}

void PolynomialAttentionExample(const Tensor& q, const Tensor& k, const Tensor& v, double d) {
  using std::sqrt;
#include "examples/ops/polynomial_attention/polynomial_attention.h"
}

struct PositionsOfSlice {
  Tensor positions;
};
void SoftmaxAttentionExample(const Tensor& q, const Tensor& k, const Tensor& v,
                             const PositionsOfSlice& slice) {
#include "examples/ops/softmax_attention/softmax_attention.h"
}

void VisibleKeysExample(const PositionsOfSlice& slice, int64_t num_past) {
#include "examples/ops/softmax_attention/visible_keys.h"
}

void TensorViewsExample(const Tensor& q, DecayAttentionArgs& args) {
#include "examples/ops/torch/tensor_views.h"
}

void SelectiveScanExample(const Tensor& x, const Tensor& delta, const Tensor* bias,
                          const Tensor* a_log, const Tensor& b, const Tensor& c, const Tensor* d) {
#include "examples/ops/scans/selective_scan.h"
}

void FocusHeadsExample(const Tensor& q, const Tensor& f, const Tensor& k, const Tensor& v,
                       int64_t n, double c) {
#include "examples/ops/rows/focus_heads.h"
}

void LayerNormExample(const Tensor& q, const Tensor& k, const Tensor* q_gamma, const Tensor* q_beta,
                      const Tensor* k_gamma, const Tensor* k_beta) {
#include "examples/ops/rows/layer_norm.h"
}

void TokenShiftExample(const Tensor& x, const Tensor& starts, const Tensor* mix_k,
                       const Tensor* mix_v, const Tensor* mix_r, const Tensor* key) {
#include "examples/ops/rows/token_shift.h"
}

void Wkv4Example(const Tensor& k, const Tensor& v, const Tensor* time_decay,
                 const Tensor* time_first) {
#include "examples/ops/scans/wkv4.h"
}

void AutogradExample(const Tensor& x) {
#include "examples/ops/torch/autograd.h"
}
void TensorStructExample(const Tensor& x, const Tensor& weight) {
#include "examples/ops/torch/tensor_struct.h"
}

template <typename T>
struct Args {
  const T* x;
};
Tensor Composed(const Tensor& x);
namespace cpu {
template <typename T>
void Kernel(const Args<T>& args);
}
namespace cuda {
template <typename T>
void Kernel(const Args<T>& args, cudaStream_t stream);
}
Tensor DispatchExample(const Tensor& x) {
#include "examples/ops/torch/dispatch.h"
  return x;
}

class MySink : public ops::GradientSink {
  Target Next() override { return {}; }
  void Written() override {}
};
Tensor GradientSinkExample(const Tensor& weight, const Tensor& dweight) {
#include "examples/ops/torch/gradient_sink.h"
  return dweight;
}
Tensor ColumnsExample(const Tensor& x, const Tensor& weight, const Tensor& up, int64_t inner) {
#include "examples/ops/torch/column_slices.h"
  return y;
}
struct WeightedOp {
  struct Inputs {
    Tensor x, weight;
  };
  struct Outputs {
    Tensor y;
  };
  using Saved = Inputs;
};
WeightedOp::Inputs GradientBufferExample(const Tensor& weight,
                                         const ops::BackwardOf<WeightedOp>& call, const Tensor& dx,
                                         const Tensor& dweight) {
  using Op = WeightedOp;
#include "examples/ops/torch/gradient_sink.h.2"
}

void EmulatorCountsExample(const DecayAttentionArgs& args, const DecayAttentionPlan& plan){
#include "examples/tools/cuda_emulator/counts.h"
}

Tensor Step(const Tensor& x);
void DeviceGraphExample(Tensor x, const Tensor& next) {
  Tensor y;
#include "examples/ops/torch/device_graph.h"
}

void HostTransferExample(const std::vector<ChunkEntry>& entries, const Tensor& x,
                         const Tensor& losses, const Tensor& squares) {
#include "examples/ops/torch/host_transfer.h"
}

void Print(const std::string& phase, int64_t num_waits);
void HostWaitsExample(const Tensor& x, const Tensor& weight) {
#include "examples/ops/torch/host_waits.h"
}

void TensorChecksExample(const Tensor& x, const Tensor& weight, int64_t dim) {
#include "examples/ops/torch/tensor_checks.h"
}

}  // namespace halflife::kernels
