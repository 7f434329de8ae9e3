// An objective defines what a model learns from a batch: which tokens it sees and which label it
// must predict at each of them. To add an objective, add a class and a line of
// ObjectiveVariants() to objective.cc, and a message to the schema.
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

// Rows in host memory, which Label() changes in place. Borrowed.
struct LabelledRows {
  int64_t batch = 0, seq_len = 0;  // B, T
  std::span<int32_t> inputs;       // [B, T]: the tokens that the model sees.
  // [B, T]. Before Label(): the next token or the dataset's own label. After Label(): the label
  // that the loss uses. Negative: no label.
  std::span<int32_t> labels;
  std::span<const uint64_t> samples;  // [B]: global sample numbers, which determine random choices.
  uint64_t seed = 0;
};

// The classifier that replaces the head over the vocabulary and predicts the class of a document.
struct ClassifierOptions {
  int64_t num_classes = 2;
  // How the document's hidden vectors become one: "first", "last", or "mean" of all of them,
  // including that of eos.
  std::string pooling = "mean";
  bool dense = false;  // Adds a linear layer and tanh, as in BERT's pooler (Devlin et al., 2019).
};

class Objective {
 public:
  virtual ~Objective() = default;
  virtual void Label(const LabelledRows& rows) const = 0;
  // Returns true if scores are probabilities of the next token, so that text can be generated.
  virtual bool predicts_next_token() const { return false; }
  // Returns the token that replaces hidden tokens, or nullopt if the objective hides none.
  virtual std::optional<int32_t> mask_token() const { return std::nullopt; }
  // Returns true if the objective trains only on labels that are stored in the dataset.
  virtual bool takes_labels_of_data() const { return false; }
  // With takes_labels_of_data(): set if the labels are classes, one at the first token of each
  // document.
  virtual std::optional<ClassifierOptions> classifier() const { return std::nullopt; }
};

struct ObjectiveContext {
  int64_t vocab_size = 0;
};

extern const PartKind kObjectives;
using ObjectiveConfig = ConfigOf<kObjectives>;

// Throws the errors of MakePart.
std::unique_ptr<Objective> MakeObjective(const ObjectiveConfig& config, int64_t vocab_size);

}  // namespace halflife::model
