// The recurrence with a decay, computed by decay attention:
//
//   S_t = decay_t S_{t-1} + k_t^T v_t,   o_t = q_t S_t / sqrt(F)
//
// with optional rotary positions, factors on the queries and a normaliser. A mixer provides its
// LogDecay and a DecayForm, which lists the other differences.
//
// Shapes: B batch, T seq_len, H query heads, Hk heads of k and v, K and V head dims, F features.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/mixers/linear/log_decay.h"
#include "model/mixers/linear/recurrence.h"

namespace halflife::model {

// The divisor of a head's output.
enum class Normaliser {
  kNone,
  kKeys,           // q_t z_t, where z is the decayed sum of the keys in S
  kUnrotatedKeys,  // the same, with q and k before their rotation
};

// The properties of the recurrence that differ between mixers.
struct DecayForm {
  using MakeDecay = std::function<std::unique_ptr<LogDecay>(const PartContext&)>;

  double rope_theta = 0;  // base of the rotary frequencies of q and k; 0: no rotation
  std::vector<double> rotary_frequencies = {};  // [F/2]; replaces the frequencies of rope_theta
  // A factor on each query that depends on its position: `of` maps positions [B, T] int64 to
  // factors [B, T, H] fp64; empty: none. Layers with the same `key` share the computed factors, so
  // the key must contain every other value that `of` depends on.
  struct QueryScale {
    std::vector<double> key;
    std::function<at::Tensor(const at::Tensor& positions)> of;
  };
  QueryScale query_scale = {};
  // Divides each query by its ScoreSums, clamped to [1, 5e4]. This needs all earlier keys, so the
  // state grows. Requires a constant decay per head.
  bool score_norm = false;
  // Makes the decay and declares its parameters. Empty: no decay.
  MakeDecay make_decay;
  bool allow_growth = false;  // a constant decay may exceed 1; requires a normaliser
  Normaliser normaliser = Normaliser::kNone;
  double normaliser_eps = 1e-30;
  bool scale_queries = true;  // multiplies queries by 1 / sqrt(F)
};

RecurrenceFactory MakeDecayRecurrence(DecayForm form);

// The sums of absolute scores by which torchscale's parallel retention divides (retnet.cc).
struct ScoreRows {
  at::Tensor q;          // [B, T, H, K]
  at::Tensor k;          // [B, N, Hk, K]; the last T keys are those of the queries' tokens
  at::Tensor positions;  // [B, T] int64 within the documents; a query sees as many earlier keys
  at::Tensor log_decay;  // [H] fp32
  double scale = 1;      // factor on q k
};

// sum_{m <= n} |scale q_n k_m| e^((n - m) log_decay) over the document, [B, T, H] in fp32 (fp64 for
// fp64 inputs), without a gradient. Takes O(T N) time and O(N) memory.
at::Tensor ScoreSums(const ScoreRows& rows);

}  // namespace halflife::model
