// A mixer is the part of a block through which a token sees other tokens of its row: softmax
// attention, or one of its linear alternatives. To add one, write a file in mixers/, a line in
// mixers/mixers.inc and a message in the schema (docs/adding_a_mixer.md). The conformance suite
// then runs on it.
//
// Shapes: B batch, T seq_len, D model_dim. The numbers and widths of heads are options of a mixer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/cost.h"
#include "model/norms/norm.h"
#include "model/part_context.h"
#include "model/sequence_slice.h"
#include "ops/rows/dropout.h"

namespace halflife::ops {
struct SoftmaxAttentionInputs;
struct SoftmaxAttentionConfig;
}  // namespace halflife::ops

namespace halflife::model {

extern const PartKind kMixers;
using MixerConfig = ConfigOf<kMixers>;

// How a state tensor after a slice of a row depends on the same tensor before the slice. The rule
// determines how ranks that share rows obtain the state of the ranks before them.
enum class StateExchange {
  // after = A before + own, where A and `own` depend only on the slice. A is diagonal or a matrix
  // per head. Ranks exchange such states by an associative scan (ops/sequence).
  kAffine,
  // after = the last tokens of (before, slice). Ranks exchange a halo with their neighbours.
  kTail,
  // after = before, followed by all tokens of the slice. Ranks gather the tokens. The tokens that a
  // slice adds may depend on the kTail tensors of the state.
  kGather,
  // The logarithm of a factor on other tensors, which represent exp(log_scale) times their values.
  // Any log scale that keeps the values finite is correct. The rules of those tensors apply to the
  // product.
  kLogScale,
};

struct StateTensor {
  static constexpr int64_t kGrows = -1;
  std::string name;            // "kv", "k_tail"
  std::vector<int64_t> shape;  // of one row; kGrows: one entry per token seen
  // True: the dtype of the parameters. False: fp32, or fp64 for fp64 parameters.
  bool compute_dtype = false;
  StateExchange exchange = StateExchange::kAffine;
  // Index of the state tensor that holds this tensor's log scale; its shape is a prefix of this
  // tensor's shape. -1: none.
  int log_scale = -1;

  bool grows() const;
};

struct MixerTraits {
  bool causal = true;
  // False: a later token may change the last bits of an earlier output, for example through the
  // rounding of an FFT over the whole row.
  bool causal_in_bits = true;
  // False: a row must be one document. Forward rejects slices with boundaries (kUsage).
  bool packs_documents = true;
  // False: the launches of a forward depend on where documents start, so a recorded CUDA graph
  // cannot be replayed for other documents. True: they only read the tensors of the slice.
  bool replays_documents = true;
  // False: a row cannot be split over several ranks; models reject it with the mixer's name. True:
  // the mixer passes slice.segment to every kernel that reads earlier tokens.
  bool splits_rows = true;
  int64_t max_tokens = 0;        // maximum length of a row; 0: unlimited
  bool takes_positions = false;  // uses the model's Positions if those are in_attention()
  // True: outputs depend only on the position ids of a row (SequenceSlice::position_ids(), which
  // training may override), and not on token distances in the row.
  bool reads_position_ids = false;
  // The weights of its keys are probabilities. It passes them to MixerCall::observe.
  bool has_attention_probabilities = false;
  // It receives MixerCall::first_values, which an earlier layer must publish, or publishes them.
  bool reads_values = false, publishes_values = false;
  // An output depends on the number of tokens in the call, so padding or splitting a row changes
  // it.
  bool asks_row_length = false;
  std::vector<StateTensor> state;
  bool constant_state() const;  // no state tensor grows
};

// The state that a row carries from one token to the next: the tensors listed in the traits,
// [B, ...] each. Growing tensors may have a larger capacity than the tokens in use. Without
// tensors, the state is zero.
struct MixerState {
  std::vector<at::Tensor> tensors;
  int64_t bytes() const;
};
// Returns a zero state. `compute` is the dtype of the parameters.
MixerState EmptyState(const MixerTraits& traits, int64_t batch, at::Device device,
                      at::ScalarType compute);
// Writes a token [B, 1, ...] to index `place` of a growing tensor `cache` [B, capacity, ...]. A
// full cache is replaced by one of twice the capacity.
void AppendToken(const at::Tensor& token, int64_t place, at::Tensor& cache);
// Returns a copy of the last tokens of a slice, in the dtype of a state: fp32 (fp64 for fp64). A
// view would keep the whole sequence in memory.
at::Tensor KeptTail(const at::Tensor& tail);

// A forward over all tokens of a slice: training, evaluation and prefill.
struct MixerCall {
  // Applies dropout to x [B, T, C]. Each use within a mixer has its own site (0 to 255).
  using Drop = std::function<at::Tensor(uint32_t site, const at::Tensor& x, double rate)>;
  // The dropout parameters of a site, for kernels that apply dropout themselves.
  using DropWithin = std::function<ops::DropoutConfig(uint32_t site, double rate)>;

  at::Tensor x;                         // [B, T, D]
  const SequenceSlice& slice;           // borrowed
  const MixerState* initial = nullptr;  // state before the slice, borrowed; null: zero
  int64_t num_past = 0;                 // number of tokens that `initial` has seen
  bool want_state = false;              // return the state after the last token
  Drop drop = {};                       // empty outside training
  DropWithin drop_within = {};          // empty outside training
  // For statistics: attention layers call it with their inputs before they compute. May be empty.
  std::function<void(const ops::SoftmaxAttentionInputs&, const ops::SoftmaxAttentionConfig&)>
      observe = {};
  // The values of an earlier layer, for layers that read them in addition to their own (value
  // residuals); [B, T, D]. Undefined: no earlier layer published any.
  at::Tensor first_values = {};

  // Whether `initial` holds a state. If not, the mixer starts from zero.
  bool carried() const { return initial != nullptr && !initial->tensors.empty(); }
};
struct MixerOutput {
  at::Tensor y;      // [B, T, D]
  MixerState state;  // empty unless want_state
  // Values that later layers receive as MixerCall::first_values. Undefined: the layer publishes
  // none.
  at::Tensor first_values = {};
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual MixerTraits traits() const = 0;

  // Differentiable in x, the parameters and the initial state's tensors.
  virtual MixerOutput Forward(const MixerCall& call) const = 0;
  // Decodes one token of each row: x [B, D] -> [B, D]. `token` describes the slice [B, 1] of these
  // tokens, which follow token.begin others. `state` comes from EmptyState or Forward and is
  // updated in place. A mixer with a constant state may read only token.positions, on the device:
  // steps that are replayed from a CUDA graph have no other position (SequenceSlice::OfToken).
  virtual at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                          MixerState& state) const = 0;
  // Like Step, for mixers with value residuals. `first_values` [B, D] are those of an earlier layer
  // or undefined, and may be replaced.
  virtual at::Tensor StepWithValues(const at::Tensor& x, const SequenceSlice& token,
                                    MixerState& state, at::Tensor& /*first_values*/) const {
    return Step(x, token, state);
  }
  // Like StepWithValues, for the norm in front of a mixer, which may compute it in its first
  // kernel.
  virtual at::Tensor StepOnInput(const NormedInput& x, const SequenceSlice& token,
                                 MixerState& state, at::Tensor& first_values) const {
    return StepWithValues(x.Tensor(), token, state, first_values);
  }

  virtual FlopCount FlopsPerToken(int64_t seq_len) const = 0;
  // Returns the activation bytes that backward keeps per token, for planning.
  virtual double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const = 0;
  // Returns the additional bytes per token that backward keeps on a GPU, which may be negative. It
  // is positive, for example, if LibTorch operators replace a missing kernel.
  virtual double GpuActivationBytesPerToken(int64_t /*seq_len*/,
                                            int64_t /*bytes_per_element*/) const {
    return 0;
  }
  // Returns the largest workspace in bytes that a kernel of the forward or backward allocates on a
  // GPU while it runs. 0: small or unknown.
  virtual double WorkspaceBytes(const GpuBatch&) const { return 0; }
};

// Throws the same errors as MakePart.
std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const PartContext& context);

}  // namespace halflife::model
