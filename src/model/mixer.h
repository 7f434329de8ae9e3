// A mixer lets tokens of a row see others: the part of a block that differs between attention
// variants. Adding one is a file in mixers/, a line in mixers/mixers.inc and a message in the
// schema; the conformance suite then runs on it.
//
// Shapes: B batch, T seq_len, D model_dim; the mixer's own heads and widths are its options.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "model/cost.h"
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

// How a rank that holds a later slice of the rows gets a state tensor from the ranks before it.
// Every rule says what the state after a slice is as a function of the one before it.
enum class StateExchange {
  // after = D before + own, with D diagonal and of the slice alone: an associative scan over ranks.
  kAffine,
  // after = the last tokens of (before, slice): a halo of the neighbour.
  kTail,
  // after = before and all tokens of the slice: gathered. What a token adds may follow from the
  // state's tails.
  kGather,
  // A logarithm that other tensors are scaled by: exp(it) times each of those counts, so that any
  // choice of it is right which keeps them finite. They follow their own rules by that product.
  kLogScale,
};

struct StateTensor {
  static constexpr int64_t kGrows = -1;
  std::string name;            // "kv", "k_tail"
  std::vector<int64_t> shape;  // of one row; kGrows: one entry a token seen
  // In the dtype of the parameters; else in fp32 (fp64 beside fp64).
  bool compute_dtype = false;
  StateExchange exchange = StateExchange::kAffine;
  // Which tensor of the state holds the logarithm that this one is scaled by; its shape is the
  // first sizes of this one's. -1: none.
  int log_scale = -1;

  bool grows() const;
};

struct MixerTraits {
  bool causal = true;
  // False: a later token may move the last bits of an earlier output, as the rounding of a
  // transform over the whole row does.
  bool causal_in_bits = true;
  // False: a row is one document, and Forward refuses slices that have boundaries (kUsage).
  bool packs_documents = true;
  // False: the slices of a row cannot lie on several ranks, and models refuse it by the mixer's
  // name. True: what it knows of earlier tokens comes from kernels that take slice.segment.
  bool splits_rows = true;
  int64_t max_tokens = 0;        // of a row; 0: any number
  bool takes_positions = false;  // tells positions by the model's, where those are in_attention()
  // Its outputs follow the positions that a row is told in place of its own (SequenceSlice::told),
  // and no distance is counted besides.
  bool reads_told_positions = false;
  // Its weights are probabilities of keys, which it shows MixerCall::observe.
  bool has_attention_probabilities = false;
  // An output depends on how many tokens are given with its own, which padding adds to and a cut
  // takes away.
  bool asks_row_length = false;
  std::vector<StateTensor> state;
  bool constant_state() const;  // nothing grows
};

// What a row carries from one token to the next: the tensors of the traits, [B, ...] each. Tensors
// that grow have room for more tokens than are in use. No tensors: from zero.
struct MixerState {
  std::vector<at::Tensor> tensors;
  int64_t bytes() const;
};
// `compute`: the dtype of the parameters.
MixerState EmptyState(const MixerTraits& traits, int64_t batch, at::Device device,
                      at::ScalarType compute);
// Writes a token [B, 1, ...] to place `place` of a tensor that grows, [B, capacity, ...]; where
// that is full, it is replaced by one of twice the capacity.
void AppendToken(const at::Tensor& token, int64_t place, at::Tensor& cache);

// All tokens of a slice at once: training, evaluation and prefill.
struct MixerCall {
  // Dropout within the mixer, of x [B, T, C] at a site of its own (0 to 255) with a rate.
  using Drop = std::function<at::Tensor(uint32_t site, const at::Tensor& x, double rate)>;
  // What a kernel that drops by itself draws by, of such a site.
  using DropWithin = std::function<ops::DropoutConfig(uint32_t site, double rate)>;

  at::Tensor x;                         // [B, T, D]
  const SequenceSlice& slice;           // borrowed
  const MixerState* initial = nullptr;  // before the slice, borrowed; null: from zero
  int64_t num_past = 0;                 // tokens that `initial` has seen
  bool want_state = false;              // after the last token
  Drop drop = {};                       // empty outside training, as the next
  DropWithin drop_within = {};
  // Called by layers of attention with what they are about to compute, for statistics; may be
  // empty.
  std::function<void(const ops::SoftmaxAttentionInputs&, const ops::SoftmaxAttentionConfig&)>
      observe = {};

  // Whether there is a state to go on from: a mixer that has been given none starts from zero.
  bool carried() const { return initial != nullptr && !initial->tensors.empty(); }
};
struct MixerOutput {
  at::Tensor y;      // [B, T, D]
  MixerState state;  // empty unless asked for
};

class Mixer {
 public:
  virtual ~Mixer() = default;
  virtual MixerTraits traits() const = 0;

  // Differentiable in x, the parameters and the initial state's tensors.
  virtual MixerOutput Forward(const MixerCall& call) const = 0;
  // Decode: one token x [B, D] -> [B, D] of each row, whose place `token` [B, 1] tells, after
  // token.begin others. Updates the state in place, which EmptyState or Forward made. A mixer whose
  // state is constant asks for token.positions alone, and on the device: what a replayed step gets
  // has no other place (SequenceSlice::OfToken).
  virtual at::Tensor Step(const at::Tensor& x, const SequenceSlice& token,
                          MixerState& state) const = 0;

  virtual FlopCount FlopsPerToken(int64_t seq_len) const = 0;
  // Activation bytes that backward keeps per token, for planning.
  virtual double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const = 0;
  // What backward keeps besides on a GPU, where LibTorch's operators do what no kernel there takes.
  virtual double GpuActivationBytesPerToken(int64_t /*seq_len*/,
                                            int64_t /*bytes_per_element*/) const {
    return 0;
  }
  // Most that a kernel of its forward or backward borrows on a GPU and gives back when it is done.
  // 0: little, or not known.
  virtual double WorkspaceBytes(const GpuBatch&) const { return 0; }
};

// Errors as MakePart's.
std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const PartContext& context);
// Small forms of a mixer that between them take every path: what the conformance suite runs.
std::vector<MixerConfig> TestForms(const std::string& mixer);

}  // namespace halflife::model
