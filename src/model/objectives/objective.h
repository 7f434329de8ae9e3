// What a model learns from a batch: which tokens it sees and which labels it must give at each.
// Adding one is a file here, a line in objectives.inc and a message in the schema.
//
//   const auto objective = MakeObjective(config.objective, config.vocab_size);
//   objective->Label({.batch = 2, .seq_len = 4, .inputs = inputs, .labels = labels, ...});
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "model/config/part.h"

namespace halflife::model {

// On the host, in place. Borrowed.
struct LabelledRows {
  int64_t batch = 0, seq_len = 0;  // B, T
  std::span<int32_t> inputs;       // [B, T] tokens that the model sees
  // [B, T]; before: the next token, or the dataset's own label, negative where there is none;
  // after: what the loss asks for, negative where it asks for nothing.
  std::span<int32_t> labels;
  std::span<const uint64_t> samples;  // [B] global sample numbers: random choices follow them
  uint64_t seed = 0;
};

// What a model ends with, in place of a head over its vocabulary, to name the class of a document.
struct ClassifierOptions {
  int64_t num_classes = 2;
  // The document as one vector: its first or last hidden vector, or the mean of all of them, eos
  // included.
  std::string pooling = "mean";
  bool dense = false;  // a layer and tanh behind it, as BERT's pooler (Devlin et al., 2019)
};

class Objective {
 public:
  virtual ~Objective() = default;
  virtual void Label(const LabelledRows& rows) const = 0;
  // True: scores are probabilities of the next token, and text can be generated.
  virtual bool predicts_next_token() const { return false; }
  // The token that hides others; none: nothing is hidden.
  virtual std::optional<int32_t> mask_token() const { return std::nullopt; }
  // True: it trains on labels that stand in the dataset, and on nothing else.
  virtual bool takes_labels_of_data() const { return false; }
  // Then: the labels are classes, one at the first token of a document.
  virtual std::optional<ClassifierOptions> classifier() const { return std::nullopt; }
};

struct ObjectiveContext {
  int64_t vocab_size = 0;
};

extern const PartKind kObjectives;
using ObjectiveConfig = ConfigOf<kObjectives>;

// Errors as MakePart's.
std::unique_ptr<Objective> MakeObjective(const ObjectiveConfig& config, int64_t vocab_size);

}  // namespace halflife::model
