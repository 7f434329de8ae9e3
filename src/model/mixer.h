// A mixer lets tokens of a row see earlier ones: the only part of a block that differs between attention variants.
// Adding one is a file in mixers/ and a line in mixers/mixers.inc; the conformance suite then runs on it.
//
// Shapes: B batch, T seq_len, D model_dim; the mixer's own heads and widths are its options.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/concat.h"
#include "model/parameters.h"
#include "model/sequence_slice.h"

namespace halflife::model {

struct MixerConfig {
  std::string name = "retention";
  std::map<std::string, std::string>
      options;  // read by the mixer; unknown keys and bad values are Error kUsage
};

// The widest that a matrix of a model may be, and the most heads, taps or tokens of a window: far
// above every real model, and products of a few still count in 64 bits.
inline constexpr int64_t kMaxWidth = int64_t{1} << 24;

// Sizes and services of the surrounding model.
struct MixerContext {
  int64_t model_dim = 0;
  double norm_eps = 1e-6;
  double initializer_range = 0.02;
  std::string prefix;  // parameter names start with it, e.g. "layers.3.attn."
  ParameterSet* parameters = nullptr;
  // Where given: gets every option that the mixer has, with the value in force.
  std::map<std::string, std::string>* resolved_options = nullptr;
};

// What a row carries from one token to the next. Linear mixers: fixed-size fp32 tensors ([B, H, K, V], conv tails);
// softmax: keys and values that grow. The order of tensors is the mixer's own; undefined tensors mean "from zero".
struct MixerState {
  std::vector<at::Tensor> tensors;
  int64_t num_tokens = 0;  // tokens of the row seen so far (position of the next one)
  int64_t bytes() const;
};

struct MixerOutput {
  at::Tensor y;      // [B, T, D]
  MixerState state;  // after the last token; empty unless asked for
};

// Cost of one token at a given sequence length, in multiply-adds counted as 2.
struct FlopCount {
  double matmul = 0;  // parameter matmuls: 2 x weights
  double mixing =
      0;  // token-to-token work (state update and read, or scores), chunk overhead left out
};

class Mixer {
 public:
  virtual ~Mixer() = default;

  // Training, evaluation and prefill: all tokens of the slice at once. `initial` may be null or empty: from zero.
  // Differentiable in x, the parameters and the initial state's tensors.
  virtual MixerOutput Forward(const at::Tensor& x, const SequenceSlice& slice,
                              const MixerState* initial, bool want_state) const = 0;

  // Decode. An empty state of `batch` rows; Prefill = Forward with want_state; Step takes one token [B, D] -> [B, D] and
  // updates the state in place.
  virtual MixerState EmptyState(int64_t batch, at::Device device) const = 0;
  virtual at::Tensor Step(const at::Tensor& x, MixerState& state) const = 0;

  virtual FlopCount FlopsPerToken(int64_t seq_len) const = 0;
  // Activation bytes that backward keeps per token, for planning.
  virtual double ActivationBytesPerToken(int64_t seq_len, int64_t bytes_per_element) const = 0;
  // False: the state grows with the number of tokens (softmax).
  virtual bool constant_state() const { return true; }
};

// Error kUsage for an unknown name (lists the known ones).
std::unique_ptr<Mixer> MakeMixer(const MixerConfig& config, const MixerContext& context);
std::vector<std::string> MixerNames();
// Every option of the mixer with the value in force, defaults included: what another program must be told. Errors as
// MakeMixer's.
std::map<std::string, std::string> ResolvedOptions(const MixerConfig& config, int64_t model_dim);

// Reads a mixer's options: typed, with defaults; collects what is wrong and reports it all at once.
//
//   MixerOptions options(config, context);
//   const int64_t heads = options.Int("num_heads", 4);
//   options.Require(model_dim % heads == 0, "num_heads ", heads, " does not divide model_dim ", model_dim);
//   options.Check();
class MixerOptions {
 public:
  // Borrows the config.
  MixerOptions(const MixerConfig& config, const MixerContext& context)
      : config_(config), resolved_(context.resolved_options) {}
  int64_t Int(const std::string& key, int64_t default_value, int64_t min = 1,
              int64_t max = kMaxWidth);
  double Double(const std::string& key, double default_value);
  bool Bool(const std::string& key, bool default_value);
  std::string Choice(const std::string& key, const std::string& default_value,
                     const std::vector<std::string>& choices);
  bool Has(const std::string& key) { return Find(key) != nullptr; }

  template <typename... Pieces>
  void Require(bool condition, const Pieces&... pieces) {
    if (!condition) problems_.push_back("mixer " + config_.name + ": " + Concat(pieces...));
  }
  // After the last read: Error kUsage with one line per problem, keys that nobody read included.
  void Check() const;

 private:
  const std::string* Find(const std::string& key);
  void Resolve(const std::string& key, std::string value);
  const MixerConfig& config_;
  std::map<std::string, std::string>* resolved_;
  std::vector<std::string> known_;
  std::vector<std::string> problems_;
};

}  // namespace halflife::model
