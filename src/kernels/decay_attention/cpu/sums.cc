#include "kernels/decay_attention/cpu/sums.h"

#include <algorithm>

#include "core/bfloat16.h"

namespace halflife::kernels::cpu {
namespace {

template <typename T>
T* At(const TensorView& view, int64_t b, int64_t t, int64_t h) {
  return static_cast<T*>(view.data) + b * view.stride_b + t * view.stride_t + h * view.stride_h;
}

}  // namespace

SharedSums::SharedSums(const DecayAttentionGradArgs& grads, const BackwardLayout& layout)
    : grads_(grads), args_(grads.forward), layout_(layout) {
  Add(grads.dq, args_.num_q_heads, args_.head_dim_k, layout.dq, dq_);
  Add(grads.dk, args_.num_k_heads, args_.head_dim_k, layout.dk, dk_);
  Add(grads.dv, args_.num_v_heads, args_.head_dim_v, layout.dv, dv_);
  if (grads.dlog_decay.data != nullptr && IsPerToken(args_.decay_kind))
    Add(grads.dlog_decay, args_.num_decay_heads, decays(), layout.dlog_decay, dlog_decay_);
}

int SharedSums::decays() const { return IsPerChannel(args_.decay_kind) ? args_.head_dim_k : 1; }
bool SharedSums::constant_decay_wanted() const {
  return grads_.dlog_decay.data != nullptr && args_.decay_kind != DecayKind::kNone &&
         !IsPerToken(args_.decay_kind);
}
double* SharedSums::DLambda(int64_t piece) const {
  return reinterpret_cast<double*>(static_cast<std::byte*>(args_.workspace) + layout_.dlambda) +
         piece * decays();
}

void SharedSums::Add(const TensorView& sum, int heads, int width, size_t offset,
                     TensorView& direct) {
  direct = sum;
  if (heads == args_.num_heads) return;
  direct.data = static_cast<std::byte*>(args_.workspace) + offset;
  direct.dtype = ComputeBytes(args_) == 8 ? DType::kF64 : DType::kF32;
  direct.stride_h = width;
  direct.stride_t = direct.stride_h * args_.num_heads;
  direct.stride_b = direct.stride_t * args_.seq_len;
  shared_[num_shared_++] = {.partial = direct, .sum = sum, .heads = heads, .width = width};
}

void SharedSums::Direct(ReverseItem& item, int64_t segment, int segments) const {
  item.dq = dq_;
  item.dk = dk_;
  item.dv = dv_;
  item.dlog_decay = dlog_decay_;
  item.dkey_scale = grads_.dkey_scale;
  if (!constant_decay_wanted()) return;
  item.dlambda = DLambda((int64_t{1} * item.scan.sequence * segments + segment) * args_.num_heads +
                         item.scan.head);
  std::fill_n(item.dlambda, decays(), 0.0);
}

void SharedSums::Reduce(int segments) const {
  for (int i = 0; i < num_shared_; ++i) ReduceHeads(shared_[i]);
  if (constant_decay_wanted()) ReduceConstantDecay(segments);
}

void SharedSums::ReduceHeads(const Shared& shared) const {
  const int per_head = args_.num_heads / shared.heads;
  const int64_t num_tokens = int64_t{1} * args_.batch * args_.seq_len;
  const auto reduce = [&]<typename T>(T) {
#pragma omp parallel for schedule(static)
    for (int64_t token = 0; token < num_tokens; ++token) {
      const int64_t b = token / args_.seq_len, t = token % args_.seq_len;
      for (int head = 0; head < shared.heads; ++head) {
        T sums[std::max(kMaxHeadDimK, kMaxHeadDimV)];
        std::copy_n(At<T>(shared.partial, b, t, int64_t{1} * head * per_head), shared.width, sums);
        for (int i = 1; i < per_head; ++i) {
          const T* partial = At<T>(shared.partial, b, t, int64_t{1} * head * per_head + i);
          for (int j = 0; j < shared.width; ++j) sums[j] += partial[j];
        }
        if (shared.sum.dtype == DType::kBF16) {
          auto* target = At<Bf16>(shared.sum, b, t, head);
          for (int j = 0; j < shared.width; ++j)
            target[j] = RoundToBf16(static_cast<float>(sums[j]));
        } else {
          std::copy_n(sums, shared.width, At<T>(shared.sum, b, t, head));
        }
      }
    }
  };
  ComputeBytes(args_) == 8 ? reduce(double{}) : reduce(float{});
}

void SharedSums::ReduceConstantDecay(int segments) const {
  const int per_head = args_.num_heads / args_.num_decay_heads;
  const int64_t pieces = int64_t{1} * args_.num_sequences * segments;
  for (int head = 0; head < args_.num_decay_heads; ++head) {
    for (int c = 0; c < decays(); ++c) {
      double sum = 0;
      for (int64_t piece = 0; piece < pieces; ++piece)
        for (int i = 0; i < per_head; ++i)
          sum += DLambda(piece * args_.num_heads + int64_t{1} * head * per_head + i)[c];
      const int64_t at = head * grads_.dlog_decay.stride_h + c;
      if (ComputeBytes(args_) == 8) {
        static_cast<double*>(grads_.dlog_decay.data)[at] = sum;
      } else {
        static_cast<float*>(grads_.dlog_decay.data)[at] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace halflife::kernels::cpu
