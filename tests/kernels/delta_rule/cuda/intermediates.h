// The arrays that the forward's kernels pass to the backward (workspace.h), computed in fp64 from
// their definitions and then rounded. So a test of the backward does not depend on the forward.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/delta_rule/cuda/workspace.h"
#include "kernels/delta_rule/run_cpu.h"

namespace halflife::kernels::test::delta {

// A matrix in fp64.
struct Dense {
  int64_t columns;
  Values data;

  Dense(int64_t rows, int64_t the_columns) : columns(the_columns), data(rows * the_columns) {}
  double& operator()(int64_t row, int64_t column) { return data[row * columns + column]; }
};

template <typename S>
class Intermediates {
 public:
  explicit Intermediates(Call<S>& call)
      : args_(call.grads.forward),
        data_(call.problem.data),
        keys_(kernels::delta::PaddedKeys(args_.head_dim_k)),
        values_(kernels::delta::PaddedValues(args_.head_dim_v)) {
    const size_t slots = static_cast<size_t>(args_.num_chunks) * args_.num_value_heads;
    inverse_.resize(slots * kC * kC);
    through_.resize(slots * keys_, 1);
    for (auto* array : {&w_, &k_exit_, &q_entry_}) array->resize(slots * kC * keys_);
    u_.resize(slots * kC * values_);
    scores_.resize(slots * kC * kC);
    states_.resize(slots * keys_ * values_);
    for (int sequence = 0; sequence < args_.num_sequences; ++sequence)
      for (int head = 0; head < args_.num_value_heads; ++head) Scan(sequence, head);
  }
  Intermediates(const Intermediates&) = delete;

  kernels::delta::Workspace workspace() {
    kernels::delta::Workspace workspace;
    workspace.inverse = inverse_.data();
    workspace.w = w_.data();
    workspace.u = u_.data();
    workspace.k_exit = k_exit_.data();
    workspace.through = through_.data();
    workspace.q_entry = q_entry_.data();
    workspace.scores = scores_.data();
    workspace.states = states_.data();
    return workspace;
  }

 private:
  static constexpr int kC = kDeltaChunkSize;

  static void Put(S& to, double x) {
    if constexpr (std::is_same_v<S, Bf16>) {
      to = RoundToBf16(static_cast<float>(x));
    } else {
      to = static_cast<S>(x);
    }
  }
  // exp of the log decays of tokens first .. last of the chunk, for channel c.
  double Decay(const ChunkEntry& chunk, int head, int first, int last, int c) const {
    if (args_.decay == DeltaDecay::kNone) return 1;
    const bool per_channel = args_.decay == DeltaDecay::kPerTokenChannel;
    const int64_t width = per_channel ? args_.head_dim_k : 1;
    double sum = 0;
    for (int t = first; t <= last; ++t)
      sum +=
          data_.log_decay[((chunk.row * args_.seq_len + chunk.token + t) * args_.num_value_heads +
                           head) *
                              width +
                          (per_channel ? c : 0)];
    return std::exp(sum);
  }
  double Key(const Values& x, const ChunkEntry& chunk, int head, int t, int c) const {
    const int64_t key_head = SharedHead(head, args_.num_heads, args_.num_value_heads);
    return x[((chunk.row * args_.seq_len + chunk.token + t) * args_.num_heads + key_head) *
                 args_.head_dim_k +
             c];
  }
  double Value(const Values& x, const ChunkEntry& chunk, int head, int t, int width, int c) const {
    return x[((chunk.row * args_.seq_len + chunk.token + t) * args_.num_value_heads + head) *
                 width +
             c];
  }

  void Scan(int sequence, int head) {
    const int K = args_.head_dim_k, V = args_.head_dim_v;
    Dense state(K, V);
    const size_t first = (size_t{1} * sequence * args_.num_value_heads + head) * K * V;
    for (size_t i = 0; i < state.data.size(); ++i) state.data[i] = data_.initial_state[first + i];
    for (int n = args_.sequence_begin[sequence]; n < args_.sequence_begin[sequence + 1]; ++n) {
      if (args_.chunks[n].flags & kChunkResets) state.data.assign(state.data.size(), 0.0);
      Chunk(n, head, state);
    }
  }

  // Fills the arrays of a chunk and advances the state.
  void Chunk(int n, int head, Dense& state) {
    const ChunkEntry& chunk = args_.chunks[n];
    const int K = args_.head_dim_k, V = args_.head_dim_v, C = chunk.length;
    const size_t slot = size_t{1} * n * args_.num_value_heads + head;
    const DeltaReferenceProblem& p = data_;
    Dense lower(C, C), inverse(kC, kC), w(C, K), u(C, V);
    for (int r = 0; r < C; ++r)
      for (int s = 0; s <= r; ++s) {
        double score = 0;
        for (int c = 0; c < K; ++c) {
          const double decayed = Decay(chunk, head, s + 1, r, c) * Key(p.k, chunk, head, s, c);
          score += p.scale * Key(p.q, chunk, head, r, c) * decayed;
          if (s < r)
            lower(r, s) +=
                Value(p.beta, chunk, head, r, 1, 0) * Key(p.k, chunk, head, r, c) * decayed;
        }
        Put(scores_[(slot * kC + r) * kC + s], score);
      }
    for (int s = 0; s < kC; ++s)
      for (int r = s; r < kC; ++r) {
        inverse(r, s) = r == s;
        for (int m = s; m < r && r < C; ++m) inverse(r, s) -= lower(r, m) * inverse(m, s);
        Put(inverse_[(slot * kC + r) * kC + s], inverse(r, s));
      }
    for (int r = 0; r < C; ++r)
      for (int s = 0; s <= r; ++s) {
        const double x = inverse(r, s) * Value(p.beta, chunk, head, s, 1, 0);
        for (int c = 0; c < K; ++c)
          w(r, c) += x * Key(p.k, chunk, head, s, c) * Decay(chunk, head, 0, s, c);
        for (int c = 0; c < V; ++c) u(r, c) += x * Value(p.v, chunk, head, s, V, c);
      }
    for (int r = 0; r < C; ++r) {
      for (int c = 0; c < V; ++c)
        for (int i = 0; i < K; ++i) u(r, c) -= w(r, i) * state(i, c);
      for (int c = 0; c < K; ++c) {
        const size_t at = (slot * kC + r) * keys_ + c;
        Put(w_[at], w(r, c));
        Put(k_exit_[at], Key(p.k, chunk, head, r, c) * Decay(chunk, head, r + 1, C - 1, c));
        Put(q_entry_[at], p.scale * Key(p.q, chunk, head, r, c) * Decay(chunk, head, 0, r, c));
      }
      for (int c = 0; c < V; ++c) Put(u_[(slot * kC + r) * values_ + c], u(r, c));
    }
    for (int i = 0; i < K; ++i) {
      const double through = Decay(chunk, head, 0, C - 1, i);
      through_[slot * keys_ + i] = static_cast<float>(through);
      for (int c = 0; c < V; ++c) {
        Put(states_[(slot * keys_ + i) * values_ + c], state(i, c));
        state(i, c) *= through;
        for (int r = 0; r < C; ++r)
          state(i, c) +=
              Key(p.k, chunk, head, r, i) * Decay(chunk, head, r + 1, C - 1, i) * u(r, c);
      }
    }
  }

  const DeltaRuleArgs& args_;
  const DeltaReferenceProblem& data_;
  int keys_, values_;
  std::vector<float> through_;
  std::vector<S> inverse_, w_, u_, k_exit_, q_entry_, scores_, states_;
};

}  // namespace halflife::kernels::test::delta
