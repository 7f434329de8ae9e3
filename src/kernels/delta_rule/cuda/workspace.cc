#include "kernels/delta_rule/cuda/workspace.h"

#include "kernels/delta_rule/cuda/backward.h"

namespace halflife::kernels::delta {
namespace {

constexpr size_t kAlignment = 256;

// Hands out consecutive arrays; without memory it only counts.
class Divider {
 public:
  explicit Divider(void* memory) : memory_(static_cast<std::byte*>(memory)) {}

  void* Take(size_t bytes) {
    std::byte* const array = memory_ == nullptr ? nullptr : memory_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return array;
  }
  size_t used() const { return used_; }

 private:
  std::byte* memory_;
  size_t used_ = 0;
};

Workspace Divide(const DeltaRuleArgs& args, Purpose purpose, Divider& divider) {
  const size_t chunks = static_cast<size_t>(args.num_chunks) * args.num_value_heads;
  const size_t size = args.q.dtype == DType::kBF16 ? 2 : 4;
  const size_t keys = PaddedKeys(args.head_dim_k), values = PaddedValues(args.head_dim_v);
  Workspace workspace;
  if (purpose == Purpose::kForward && CanScanTokensByWgmma(args)) {
    workspace.operand = divider.Take(chunks * kChunk * kChunk * size);
    workspace.scores = divider.Take(chunks * kChunk * kChunk * size);
    workspace.entry = static_cast<float*>(divider.Take(chunks * kChunk * sizeof(float)));
    return workspace;
  }
  workspace.w = divider.Take(chunks * kChunk * keys * size);
  if (purpose != Purpose::kAdjoint) workspace.u = divider.Take(chunks * kChunk * values * size);
  workspace.k_exit = divider.Take(chunks * kChunk * keys * size);
  workspace.through = static_cast<float*>(divider.Take(chunks * keys * sizeof(float)));
  if (purpose == Purpose::kSummarise) return workspace;
  workspace.q_entry = divider.Take(chunks * kChunk * keys * size);
  workspace.scores = divider.Take(chunks * kChunk * kChunk * size);
  if (purpose == Purpose::kAdjoint) return workspace;
  if (purpose == Purpose::kBackward || !CanUseWgmma(args))
    workspace.states = divider.Take(chunks * keys * values * size);
  if (purpose == Purpose::kBackward)
    workspace.inverse = divider.Take(chunks * kChunk * kChunk * size);
  return workspace;
}

BackwardArrays TakeBackwardArrays(const DeltaRuleArgs& args, Divider& divider) {
  const size_t chunks = static_cast<size_t>(args.num_chunks) * args.num_value_heads;
  const size_t size = args.q.dtype == DType::kBF16 ? 2 : 4;
  const size_t keys = PaddedKeys(args.head_dim_k), values = PaddedValues(args.head_dim_v);
  BackwardArrays arrays;
  arrays.du = divider.Take(chunks * kChunk * values * size);
  arrays.adjoints = divider.Take(chunks * keys * values * size);
  if (args.num_heads == args.num_value_heads) return arrays;
  const size_t partial = sizeof(float) * args.batch * args.seq_len * args.num_value_heads *
                         static_cast<size_t>(args.head_dim_k);
  arrays.dq = static_cast<float*>(divider.Take(partial));
  arrays.dk = static_cast<float*>(divider.Take(partial));
  return arrays;
}

}  // namespace

bool CanUseWgmma(const DeltaRuleArgs& args) {
  return args.warpgroups && args.q.dtype == DType::kBF16 && args.num_chunks > 0;
}

bool CanScanTokensByWgmma(const DeltaRuleArgs& args) {
  const int K = args.head_dim_k, V = args.head_dim_v;
  return CanUseWgmma(args) && args.decay != DeltaDecay::kPerTokenChannel && K == PaddedKeys(K) &&
         V % 64 == 0 && IsMatrixOfRows(args.q, args.batch, args.num_heads, K) &&
         IsMatrixOfRows(args.k, args.batch, args.num_heads, K) &&
         IsMatrixOfRows(args.v, args.batch, args.num_value_heads, V) &&
         IsMatrixOfRows(args.out, args.batch, args.num_value_heads, V);
}

bool CanScanAdjointByWgmma(const DeltaRuleArgs& args, const TensorView& dout) {
  return CanUseWgmma(args) && args.head_dim_v % 64 == 0 &&
         IsMatrixOfRows(dout, args.batch, args.num_value_heads, args.head_dim_v);
}

size_t WorkspaceBytes(const DeltaRuleArgs& args, Purpose purpose) {
  Divider divider(nullptr);
  Divide(args, purpose, divider);
  return divider.used();
}

Workspace DivideWorkspace(const DeltaRuleArgs& args, Purpose purpose, void* memory) {
  Divider divider(memory);
  return Divide(args, purpose, divider);
}

size_t BackwardArrayBytes(const DeltaRuleArgs& args) {
  Divider divider(nullptr);
  TakeBackwardArrays(args, divider);
  return divider.used();
}
BackwardArrays DivideBackwardArrays(const DeltaRuleArgs& args, void* memory) {
  Divider divider(memory);
  return TakeBackwardArrays(args, divider);
}

}  // namespace halflife::kernels::delta

namespace halflife::kernels::cuda {

bool SupportsDeltaRule(const DeltaRuleArgs& args) {
  const bool is_bf16 = args.q.dtype == DType::kBF16,
             per_channel = args.decay == DeltaDecay::kPerTokenChannel;
  if (!is_bf16 && args.q.dtype != DType::kF32) return false;
  if (args.head_dim_k > kDeltaMaxHeadDimK || args.head_dim_v > kDeltaMaxHeadDimV) return false;
  if (!is_bf16 && per_channel && args.head_dim_k > delta::kMaxChannelKeysF32) return false;
  return delta::ForwardBlockBytes(is_bf16, delta::PaddedKeys(args.head_dim_k), per_channel) <=
         args.shared_memory_bytes;
}

bool SupportsDeltaRuleBackward(const DeltaRuleArgs& args) {
  const bool is_bf16 = args.q.dtype == DType::kBF16;
  if (!SupportsDeltaRule(args)) return false;
  if (!is_bf16 && args.head_dim_k > delta::kMaxGradientKeysF32) return false;
  return delta::BackwardBlockBytes(is_bf16, delta::PaddedKeys(args.head_dim_k),
                                   args.decay == DeltaDecay::kPerTokenChannel) <=
         args.shared_memory_bytes;
}

size_t DeltaRuleForwardBytes(const DeltaRuleArgs& args) {
  return delta::WorkspaceBytes(args, delta::Purpose::kForward);
}

size_t DeltaRuleBackwardBytes(const DeltaRuleArgs& args) {
  return delta::WorkspaceBytes(args, delta::Purpose::kBackward) + delta::BackwardArrayBytes(args);
}

size_t DeltaRuleAdjointBytes(const DeltaRuleArgs& args) {
  return delta::WorkspaceBytes(args, delta::Purpose::kAdjoint);
}

size_t DeltaRuleSummaryBytes(const DeltaRuleArgs& args) {
  return delta::WorkspaceBytes(args, delta::Purpose::kSummarise);
}

}  // namespace halflife::kernels::cuda
