// Random problems of decay attention in host memory, which is the emulator's device memory, and the
// oracle's answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/concat.h"
#include "kernels/decay_attention/args.h"
#include "kernels/decay_attention/chunk_table.h"
#include "kernels/decay_attention/cuda_workspace.h"
#include "kernels/decay_attention/reference.h"

namespace halflife::kernels::test {

enum class Strength {
  kMild,     // between 0.9 and 1
  kOne,      // exactly 1
  kNearOne,  // 1 - 1e-6
  kStrong,   // 1e-3
  kVanish,   // 1e-30
  kResets,   // 0 and e^-90 at random places
  kMixed,    // 1 or 0 at random
  kGrowth,   // e^(60/64) a token: 60 over a chunk
};

struct ProblemShape {
  int batch = 1, seq_len = 65, heads = 2, dim_k = 64, dim_v = 64;
  DecayKind kind = DecayKind::kPerToken;
  DType dtype = DType::kBF16;
  Strength strength = Strength::kMild;
  int q_heads = 0, k_heads = 0, v_heads = 0, decay_heads = 0;  // 0: heads
  bool norm = false, key_scale = false, states = true;
  bool odd_strides = false;  // rows that no vector load can take
  int num_segments = 1, block_v = 0;
  std::vector<int32_t> document_starts, cu_seqlens;
  uint64_t seed = 1;

  std::string Name() const {
    return Concat("B", batch, " T", seq_len, " H", heads, " K", dim_k, " V", dim_v, " kind ",
                  static_cast<int>(kind), " ", halflife::Name(dtype), " strength ",
                  static_cast<int>(strength), " norm ", norm, " segments ", num_segments, " seed ",
                  seed);
  }
};

inline uint16_t RoundBf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float WidenBf16(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

// A tensor [B, T, H, D] with gaps between rows where asked, and with its values as doubles.
// Allocated to the byte, so that the address sanitizer sees a step beyond.
class Tensor {
 public:
  Tensor() = default;
  Tensor(int batch, int seq_len, int heads, int dim, DType dtype, bool odd = false)
      : batch_(batch), seq_len_(seq_len), heads_(heads), dim_(dim), dtype_(dtype) {
    stride_h_ = dim + (odd ? 3 : 0);
    stride_t_ = stride_h_ * heads + (odd ? 5 : 0);
    bytes_.assign(size_t(batch) * seq_len * stride_t_ * SizeOf(dtype), std::byte{0xff});
  }
  TensorView view() { return {bytes_.data(), stride_t_ * seq_len_, stride_t_, stride_h_, dtype_}; }
  int heads() const { return heads_; }
  int dim() const { return dim_; }
  int64_t Index(int b, int64_t t, int h, int c) const {
    return (b * int64_t{1} * seq_len_ + t) * stride_t_ + h * stride_h_ + c;
  }
  double Get(int b, int64_t t, int h, int c) const {
    const int64_t i = Index(b, t, h, c);
    if (dtype_ == DType::kBF16) {
      uint16_t x;
      std::memcpy(&x, &bytes_[2 * i], 2);
      return WidenBf16(x);
    }
    float x;
    std::memcpy(&x, &bytes_[4 * i], 4);
    return x;
  }
  void Set(int b, int64_t t, int h, int c, double value) {
    const int64_t i = Index(b, t, h, c);
    const float x = static_cast<float>(value);
    if (dtype_ == DType::kBF16) {
      const uint16_t rounded = RoundBf16(x);
      std::memcpy(&bytes_[2 * i], &rounded, 2);
    } else {
      std::memcpy(&bytes_[4 * i], &x, 4);
    }
  }
  template <typename Fn>
  void Fill(Fn fn) {
    for (int b = 0; b < batch_; ++b)
      for (int t = 0; t < seq_len_; ++t)
        for (int h = 0; h < heads_; ++h)
          for (int c = 0; c < dim_; ++c) Set(b, t, h, c, fn());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  int64_t batch_ = 0, seq_len_ = 0;
  int heads_ = 0, dim_ = 0;
  DType dtype_ = DType::kF32;
  int64_t stride_t_ = 0, stride_h_ = 0;
  std::vector<std::byte> bytes_;
};

// Error relative to the size of the whole tensor; NaN compares as infinite.
struct Errors {
  double difference = 0, size = 0;
  bool finite = true;
  void Add(double got, double want) {
    difference += (got - want) * (got - want);
    size += want * want;
    finite = finite && std::isfinite(got);
  }
  double Rms() const {
    if (!finite) return std::numeric_limits<double>::infinity();
    return std::sqrt(difference / std::max(size, 1e-20));
  }
};

struct Answer {
  Tensor out, dq, dk, dv, dlog_decay, dkey_scale;
  std::vector<double> final_state, dinitial_state, final_norm, dinitial_norm;
  std::vector<double> dlambda;
};

class Problem {
 public:
  explicit Problem(const ProblemShape& shape) : shape_(shape) {
    std::mt19937_64 generator(shape.seed);
    std::normal_distribution<double> normal;
    const auto gauss = [&] { return normal(generator); };
    const int B = shape.batch, T = shape.seq_len, H = shape.heads, K = shape.dim_k, V = shape.dim_v;
    const auto count = [&](int heads) { return heads > 0 ? heads : H; };
    q_ = Tensor(B, T, count(shape.q_heads), K, shape.dtype, shape.odd_strides);
    k_ = Tensor(B, T, count(shape.k_heads), K, shape.dtype, shape.odd_strides);
    v_ = Tensor(B, T, count(shape.v_heads), V, shape.dtype, shape.odd_strides);
    dout_ = Tensor(B, T, H, V, shape.dtype, shape.odd_strides);
    q_.Fill(gauss);
    k_.Fill(gauss);
    v_.Fill(gauss);
    dout_.Fill(gauss);
    if (shape.norm) {  // sums of keys that stay away from zero
      q_.Fill([&] { return std::abs(gauss()) + 0.1; });
      k_.Fill([&] { return std::abs(gauss()) + 0.1; });
    }
    const int decay_heads = count(shape.decay_heads);
    const int decay_dim = IsPerChannel(shape.kind) ? K : 1;
    const bool per_token = IsPerToken(shape.kind);
    decay_ = Tensor(per_token ? B : 1, per_token ? T : 1, decay_heads, decay_dim, DType::kF32);
    std::uniform_real_distribution<double> uniform;
    decay_.Fill([&]() -> double {
      const double u = uniform(generator);
      switch (shape.strength) {
        case Strength::kMild:
          return -0.1 * u;
        case Strength::kOne:
          return 0;
        case Strength::kNearOne:
          return std::log1p(-1e-6);
        case Strength::kStrong:
          return std::log(1e-3);
        case Strength::kVanish:
          return std::log(1e-30);
        case Strength::kResets:
          return u < 0.05 ? -std::numeric_limits<double>::infinity() : u < 0.1 ? -90 : -0.1 * u;
        case Strength::kMixed:
          return u < 0.5 ? -std::numeric_limits<double>::infinity() : 0;
        case Strength::kGrowth:
          return 60.0 / 64;
      }
      return 0;
    });
    if (shape.key_scale) {
      key_scale_ = Tensor(B, T, H, 1, DType::kF32);
      key_scale_.Fill([&] { return uniform(generator); });
    }
    table_ = MakeChunkTable({.batch = B,
                             .seq_len = T,
                             .chunk_size = 64,
                             .document_starts = shape.document_starts,
                             .cu_seqlens = shape.cu_seqlens});
    const size_t sequences = table_.sequence_begin.size() - 1;
    if (shape.states) {
      const auto fill = [&](std::vector<float>& x, size_t size, bool positive) {
        x.resize(size);
        for (float& value : x)
          value = static_cast<float>(positive ? std::abs(gauss()) + 0.1 : gauss());
      };
      fill(initial_state_, sequences * H * K * V, false);
      fill(dfinal_state_, sequences * H * K * V, false);
      if (shape.norm) {
        fill(initial_norm_, sequences * H * K, true);
        fill(dfinal_norm_, sequences * H * K, false);
      }
    }
    answer_.out = Tensor(B, T, H, V, shape.dtype, shape.odd_strides);
    answer_.dq = Tensor(B, T, q_.heads(), K, shape.dtype, shape.odd_strides);
    answer_.dk = Tensor(B, T, k_.heads(), K, shape.dtype, shape.odd_strides);
    answer_.dv = Tensor(B, T, v_.heads(), V, shape.dtype, shape.odd_strides);
    answer_.dlog_decay =
        Tensor(per_token ? B : 1, per_token ? T : 1, decay_heads, decay_dim, DType::kF32);
    answer_.dkey_scale = Tensor(B, T, H, 1, DType::kF32);
    final_state_.resize(sequences * H * K * V, std::nanf(""));
    dinitial_state_.resize(sequences * H * K * V, std::nanf(""));
    final_norm_.resize(sequences * H * K, std::nanf(""));
    dinitial_norm_.resize(sequences * H * K, std::nanf(""));
    denom_.resize(size_t(B) * T * H, std::nanf(""));
  }

  DecayAttentionArgs Args() {
    DecayAttentionArgs args;
    args.batch = shape_.batch;
    args.seq_len = shape_.seq_len;
    args.num_heads = shape_.heads;
    args.num_q_heads = q_.heads();
    args.num_k_heads = k_.heads();
    args.num_v_heads = v_.heads();
    args.num_decay_heads = decay_.heads();
    args.head_dim_k = shape_.dim_k;
    args.head_dim_v = shape_.dim_v;
    args.decay_kind = shape_.kind;
    args.norm_kind = shape_.norm ? NormKind::kSumOfKeys : NormKind::kNone;
    args.scale = Scale();
    args.q = q_.view();
    args.k = k_.view();
    args.v = v_.view();
    args.out = answer_.out.view();
    if (shape_.kind != DecayKind::kNone) args.log_decay = decay_.view();
    if (shape_.key_scale) args.key_scale = key_scale_.view();
    args.num_sequences = static_cast<int>(table_.sequence_begin.size()) - 1;
    args.num_chunks = static_cast<int>(table_.chunks.size());
    args.chunks = table_.chunks.data();
    args.sequence_begin = table_.sequence_begin.data();
    if (shape_.states) {
      args.initial_state = initial_state_.data();
      if (shape_.norm) args.initial_norm = initial_norm_.data();
    }
    args.final_state = final_state_.data();
    if (shape_.norm) {
      args.final_norm = final_norm_.data();
      args.norm_denom = denom_.data();
    }
    return args;
  }
  DecayAttentionPlan Plan() {
    const DecayAttentionArgs args = Args();
    DecayAttentionPlan plan =
        MakePlan(args, {.is_cuda = true, .num_sms = 4, .shared_memory_bytes = 227 << 10},
                 shape_.num_segments);
    if (shape_.block_v > 0) plan.block_v = shape_.block_v;
    return plan;
  }
  // Buffers of exactly the promised size.
  void Forward(bool with_checkpoints = false) {
    DecayAttentionArgs args = Args();
    const DecayAttentionPlan plan = Plan();
    workspace_.assign(cuda::ForwardWorkspaceBytes(args, plan), std::byte{0xff});
    args.workspace = workspace_.data();
    if (with_checkpoints) {
      checkpoints_.assign(cuda::CheckpointBytes(args, plan), std::byte{0xff});
      args.checkpoints = checkpoints_.data();
    }
    cuda::Forward(args, plan, nullptr);
  }
  DecayAttentionGradArgs GradArgs() {
    DecayAttentionGradArgs grads;
    grads.forward = Args();
    grads.forward.checkpoints = checkpoints_.data();
    grads.dout = dout_.view();
    grads.dq = answer_.dq.view();
    grads.dk = answer_.dk.view();
    grads.dv = answer_.dv.view();
    if (shape_.kind != DecayKind::kNone) grads.dlog_decay = answer_.dlog_decay.view();
    if (shape_.key_scale) grads.dkey_scale = answer_.dkey_scale.view();
    if (shape_.states) {
      grads.dfinal_state = dfinal_state_.data();
      if (shape_.norm) grads.dfinal_norm = dfinal_norm_.data();
    }
    grads.dinitial_state = dinitial_state_.data();
    if (shape_.norm) grads.dinitial_norm = dinitial_norm_.data();
    return grads;
  }
  void Backward() {
    DecayAttentionGradArgs grads = GradArgs();
    const DecayAttentionPlan plan = Plan();
    workspace_.assign(cuda::BackwardWorkspaceBytes(grads.forward, plan), std::byte{0xff});
    grads.forward.workspace = workspace_.data();
    cuda::Backward(grads, plan, nullptr);
  }

  // Errors of everything, by name, after Forward (and Backward).
  struct Report {
    std::vector<std::pair<std::string, double>> errors;
    double operator[](const std::string& name) const {
      for (const auto& [key, value] : errors)
        if (key == name) return value;
      return std::numeric_limits<double>::infinity();
    }
  };
  Report Compare(bool backward) const {
    Errors out, final_state, final_norm, dq, dk, dv, dg, dc, dinitial, dinitial_norm;
    const int H = shape_.heads, K = shape_.dim_k, V = shape_.dim_v;
    const int W = V + (shape_.norm ? 1 : 0);  // the normaliser is one more column of v
    std::vector<double> sum_dq = Zeros(answer_.dq), sum_dk = Zeros(answer_.dk),
                        sum_dv = Zeros(answer_.dv), sum_dg = Zeros(answer_.dlog_decay);
    const size_t sequences = table_.sequence_begin.size() - 1;
    for (size_t n = 0; n < sequences; ++n) {
      const int row = shape_.cu_seqlens.empty() ? static_cast<int>(n) : 0;
      const int begin = shape_.cu_seqlens.empty() ? 0 : shape_.cu_seqlens[n];
      const int end = shape_.cu_seqlens.empty() ? shape_.seq_len : shape_.cu_seqlens[n + 1];
      for (int h = 0; h < H; ++h) {
        DecayReferenceProblem oracle = OracleProblem(n, row, begin, end, h, W);
        DecayReferenceResult forward = DecayReference(oracle);
        const size_t state = (n * H + h) * K * V, keys = (n * H + h) * K;
        std::vector<double> denom(end - begin, 1.0);
        for (int t = begin; t < end; ++t) {
          const double* y = &forward.out[size_t(t - begin) * W];
          if (shape_.norm) denom[t - begin] = y[V] + 1e-30;
          for (int c = 0; c < V; ++c)
            out.Add(answer_.out.Get(row, t, h, c), y[c] / denom[t - begin]);
        }
        for (int c = 0; c < K; ++c) {
          for (int j = 0; j < V; ++j)
            final_state.Add(final_state_[state + c * V + j], forward.final_state[c * W + j]);
          if (shape_.norm) final_norm.Add(final_norm_[keys + c], forward.final_state[c * W + V]);
        }
        if (!backward) continue;
        oracle.dout.assign(size_t(end - begin) * W, 0.0);
        for (int t = begin; t < end; ++t) {
          double delta = 0;
          for (int c = 0; c < V; ++c) {
            const double d = dout_.Get(row, t, h, c) / denom[t - begin];
            oracle.dout[size_t(t - begin) * W + c] = d;
            delta += d * forward.out[size_t(t - begin) * W + c] / denom[t - begin];
          }
          if (shape_.norm) oracle.dout[size_t(t - begin) * W + V] = -delta;
        }
        if (shape_.states) {
          oracle.dfinal_state.assign(size_t(K) * W, 0.0);
          for (int c = 0; c < K; ++c) {
            for (int j = 0; j < V; ++j)
              oracle.dfinal_state[c * W + j] = dfinal_state_[state + c * V + j];
            if (shape_.norm) oracle.dfinal_state[c * W + V] = dfinal_norm_[keys + c];
          }
        }
        DecayReferenceResult grads = DecayReference(oracle);
        if (begin == end) {  // no tokens: the oracle takes no dout for a wish for gradients
          grads.dinitial_state = oracle.dfinal_state;
          grads.dinitial_state.resize(size_t(K) * W, 0.0);
        }
        for (int c = 0; c < K; ++c) {
          for (int j = 0; j < V; ++j)
            dinitial.Add(dinitial_state_[state + c * V + j], grads.dinitial_state[c * W + j]);
          if (shape_.norm)
            dinitial_norm.Add(dinitial_norm_[keys + c], grads.dinitial_state[c * W + V]);
        }
        for (int t = begin; t < end; ++t) {
          const size_t i = size_t(t - begin);
          const double c_t = KeyScale(row, t, h);
          double dc_t = 0;
          for (int c = 0; c < K; ++c) {
            At(sum_dq, answer_.dq, row, t, h, c) += grads.dq[i * K + c];
            At(sum_dk, answer_.dk, row, t, h, c) += c_t * grads.dk[i * K + c];
            dc_t += k_.Get(row, t, Share(h, k_), c) * grads.dk[i * K + c];
            const bool per_token = IsPerToken(shape_.kind);
            At(sum_dg, answer_.dlog_decay, per_token ? row : 0, per_token ? t : 0, h,
               IsPerChannel(shape_.kind) ? c : 0) += grads.dlog_decay[i * K + c];
          }
          if (shape_.key_scale) dc.Add(answer_.dkey_scale.Get(row, t, h, 0), dc_t);
          for (int c = 0; c < V; ++c) At(sum_dv, answer_.dv, row, t, h, c) += grads.dv[i * W + c];
        }
      }
    }
    Report report;
    report.errors = {{"out", out.Rms()}, {"final_state", final_state.Rms()}};
    if (shape_.norm) report.errors.emplace_back("final_norm", final_norm.Rms());
    if (!backward) return report;
    AddAll(dq, answer_.dq, sum_dq);
    AddAll(dk, answer_.dk, sum_dk);
    AddAll(dv, answer_.dv, sum_dv);
    report.errors.emplace_back("dq", dq.Rms());
    report.errors.emplace_back("dk", dk.Rms());
    report.errors.emplace_back("dv", dv.Rms());
    report.errors.emplace_back("dinitial_state", dinitial.Rms());
    if (shape_.norm) report.errors.emplace_back("dinitial_norm", dinitial_norm.Rms());
    if (shape_.kind != DecayKind::kNone) {
      AddAll(dg, answer_.dlog_decay, sum_dg);
      report.errors.emplace_back("dlog_decay", dg.Rms());
    }
    if (shape_.key_scale) report.errors.emplace_back("dkey_scale", dc.Rms());
    return report;
  }

  float Scale() const { return static_cast<float>(1 / std::sqrt(double(shape_.dim_k))); }
  const ProblemShape& shape() const { return shape_; }
  Tensor q_, k_, v_, dout_, decay_, key_scale_;
  Answer answer_;
  std::vector<float> initial_state_, dfinal_state_, initial_norm_, dfinal_norm_;
  std::vector<float> final_state_, dinitial_state_, final_norm_, dinitial_norm_, denom_;
  std::vector<std::byte> workspace_, checkpoints_;
  ChunkTable table_;

 private:
  int Share(int h, const Tensor& x) const { return h * x.heads() / shape_.heads; }
  double KeyScale(int row, int t, int h) const {
    return shape_.key_scale ? key_scale_.Get(row, t, h, 0) : 1.0;
  }
  static std::vector<double> Zeros(const Tensor& x) {
    return std::vector<double>(x.bytes().size(), 0.0);
  }
  double& At(std::vector<double>& sums, const Tensor& x, int b, int t, int h, int c) const {
    return sums[x.Index(b, t, Share(h, x), c)];
  }
  void AddAll(Errors& errors, const Tensor& got, const std::vector<double>& want) const {
    const bool per_token =
        got.bytes().size() > size_t(got.heads()) * got.dim() * 4 || &got != &answer_.dlog_decay;
    const int B = per_token ? shape_.batch : 1, T = per_token ? shape_.seq_len : 1;
    for (int b = 0; b < B; ++b)
      for (int t = 0; t < T; ++t)
        for (int h = 0; h < got.heads(); ++h)
          for (int c = 0; c < got.dim(); ++c)
            errors.Add(got.Get(b, t, h, c), want[got.Index(b, t, h, c)]);
  }
  DecayReferenceProblem OracleProblem(size_t n, int row, int begin, int end, int h, int W) const {
    const int K = shape_.dim_k, V = shape_.dim_v;
    DecayReferenceProblem oracle;
    oracle.batch = 1;
    oracle.seq_len = end - begin;
    oracle.num_heads = 1;
    oracle.head_dim_k = K;
    oracle.head_dim_v = W;
    oracle.scale = Scale();
    for (int t = begin; t < end; ++t) {
      const auto& starts = shape_.document_starts;
      oracle.starts.push_back(
          std::count(starts.begin(), starts.end(), row * shape_.seq_len + t) > 0 ? 1 : 0);
      const double c_t = KeyScale(row, t, h);
      for (int c = 0; c < K; ++c) {
        oracle.q.push_back(q_.Get(row, t, Share(h, q_), c));
        oracle.k.push_back(c_t * k_.Get(row, t, Share(h, k_), c));
        const bool per_token = IsPerToken(shape_.kind);
        oracle.log_decay.push_back(shape_.kind == DecayKind::kNone
                                       ? 0.0
                                       : decay_.Get(per_token ? row : 0, per_token ? t : 0,
                                                    Share(h, decay_),
                                                    IsPerChannel(shape_.kind) ? c : 0));
      }
      for (int c = 0; c < V; ++c) oracle.v.push_back(v_.Get(row, t, Share(h, v_), c));
      if (W > V) oracle.v.push_back(1);
    }
    if (shape_.states) {
      const size_t state = (n * shape_.heads + h) * K * V, keys = (n * shape_.heads + h) * K;
      for (int c = 0; c < K; ++c) {
        for (int j = 0; j < V; ++j)
          oracle.initial_state.push_back(initial_state_[state + c * V + j]);
        if (W > V) oracle.initial_state.push_back(initial_norm_[keys + c]);
      }
    }
    return oracle;
  }

  ProblemShape shape_;
};

}  // namespace halflife::kernels::test
