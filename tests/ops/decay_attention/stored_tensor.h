// A strided tensor in fp32, fp64 or bf16 as the kernels of decay attention receive it. Its values
// are read and written as doubles.
//
//   Tensor q({.B = 2, .T = 65, .heads = 4, .width = 64}, DType::kBF16);
//   q.Set(values);      // [B, T, heads, width] in dense order, rounded to the storage
//   args.q = q.view();
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "core/bfloat16.h"
#include "kernels/decay_attention/decay_attention_args.h"
#include "support/sparse_memory.h"

namespace halflife::kernels::test {

using Values = std::vector<double>;

struct Layout {
  // Padding elements before the first element and between heads, tokens and rows. An odd number
  // makes all of them unaligned.
  int padding = 0;
  int between_rows = 0;  // Additional padding elements. Tokens may stay aligned.
  // Places token 64, head 1 and row 1 each more than 2^31 elements (2^32 bytes of bf16) after the
  // first.
  bool far = false;
};
struct Extents {
  int64_t B = 1, T = 1, heads = 1, width = 1;
};

// Memory outside the rows is 0xFF (zeros if `far`). The last element ends at the last byte, so that
// AddressSanitizer detects an access beyond it.
class Tensor {
 public:
  Tensor() = default;
  Tensor(const Extents& extents, DType dtype, const Layout& layout = {})
      : extents_(extents), padding_(layout.padding) {
    view_.dtype = dtype;
    view_.stride_h = extents.width + padding_;
    view_.stride_t = view_.stride_h * extents.heads + padding_;
    view_.stride_b = view_.stride_t * extents.T + padding_ + layout.between_rows;
    if (layout.far) {
      view_.stride_t = (int64_t{1} << 25) + padding_;
      view_.stride_h = (int64_t{1} << 32) + (int64_t{1} << 12);
      view_.stride_b = view_.stride_h * extents.heads;
    }
    const int64_t last = Index(extents.B - 1, extents.T - 1, extents.heads - 1, extents.width - 1);
    const size_t bytes = extents.B * extents.T * extents.heads > 0 ? (last + 1) * SizeOf(dtype) : 0;
    if (layout.far) {
      sparse_ = halflife::test::SparseMemory(bytes);
    } else {
      bytes_.assign(bytes, std::byte{0xFF});
    }
  }

  // Valid until the tensor is moved from.
  TensorView view() const {
    TensorView view = view_;
    view.data = Address(0, 0, 0, 0);
    return view;
  }
  int heads() const { return static_cast<int>(extents_.heads); }
  int width() const { return static_cast<int>(extents_.width); }
  const std::vector<std::byte>& bytes() const { return bytes_; }

  double Get(int64_t b, int64_t t, int64_t head, int64_t c) const {
    const void* const at = Address(b, t, head, c);
    switch (view_.dtype) {
      case DType::kBF16:
        return Widen(Load<Bf16>(at));
      case DType::kF64:
        return Load<double>(at);
      default:
        return Load<float>(at);
    }
  }
  void Set(int64_t b, int64_t t, int64_t head, int64_t c, double x) {
    void* const at = Address(b, t, head, c);
    switch (view_.dtype) {
      case DType::kBF16:
        return Store(at, RoundToBf16(static_cast<float>(x)));
      case DType::kF64:
        return Store(at, x);
      default:
        return Store(at, static_cast<float>(x));
    }
  }
  Values Get() const {
    Values values;
    ForEach([&](int64_t b, int64_t t, int64_t head, int64_t c) {
      values.push_back(Get(b, t, head, c));
    });
    return values;
  }
  void Set(const Values& values) {
    auto value = values.begin();
    ForEach([&](int64_t b, int64_t t, int64_t head, int64_t c) { Set(b, t, head, c, *value++); });
  }

 private:
  int64_t Index(int64_t b, int64_t t, int64_t head, int64_t c) const {
    return padding_ + b * view_.stride_b + t * view_.stride_t + head * view_.stride_h + c;
  }
  void* Address(int64_t b, int64_t t, int64_t head, int64_t c) const {
    auto* const base =
        sparse_.data() != nullptr ? static_cast<std::byte*>(sparse_.data()) : bytes_.data();
    return const_cast<std::byte*>(base) + Index(b, t, head, c) * SizeOf(view_.dtype);
  }
  template <typename T>
  static T Load(const void* at) {
    T x;
    std::memcpy(&x, at, sizeof x);
    return x;
  }
  template <typename T>
  static void Store(void* at, T x) {
    std::memcpy(at, &x, sizeof x);
  }
  template <typename Function>
  void ForEach(const Function& function) const {
    for (int64_t b = 0; b < extents_.B; ++b)
      for (int64_t t = 0; t < extents_.T; ++t)
        for (int64_t head = 0; head < extents_.heads; ++head)
          for (int64_t c = 0; c < extents_.width; ++c) function(b, t, head, c);
  }

  Extents extents_;
  int64_t padding_ = 0;
  TensorView view_;  // Without the data pointer.
  std::vector<std::byte> bytes_;
  halflife::test::SparseMemory sparse_;
};

// Returns the arguments of a decoding step on the first token of each row, without a state.
inline DecayAttentionStepArgs StepArgsOf(const DecayAttentionArgs& args) {
  DecayAttentionStepArgs step;
  step.batch = args.batch;
  step.num_heads = args.num_heads;
  step.num_q_heads = args.num_q_heads;
  step.num_k_heads = args.num_k_heads;
  step.num_v_heads = args.num_v_heads;
  step.num_decay_heads = args.num_decay_heads;
  step.head_dim_k = args.head_dim_k;
  step.head_dim_v = args.head_dim_v;
  step.decay_kind = args.decay_kind;
  step.norm_kind = args.norm_kind;
  step.scale = args.scale;
  step.norm_eps = args.norm_eps;
  step.q = args.q;
  step.k = args.k;
  step.v = args.v;
  step.out = args.out;
  step.log_decay = args.log_decay;
  step.key_scale = args.key_scale;
  return step;
}

}  // namespace halflife::kernels::test
