#include "model/objectives/objective.h"

#include <span>

#include "core/error.h"
#include "core/philox.h"

namespace halflife::model {
namespace {

// Each token predicts the next one. Batches already have these labels.
struct NextTokenOptions : OptionsOf<NextTokenOptions> {};

class NextToken : public Objective {
 public:
  NextToken(const NextTokenOptions&, const ObjectiveContext&) {}
  void Label(const LabelledRows&) const override {}
  bool predicts_next_token() const override { return true; }
};

// Masked language modelling (Devlin et al., 2019). A share of the tokens is chosen. By default the
// model sees a mask instead of 80 % of them, a random token instead of 10 %, and the original token
// for the rest. It must predict the original tokens.
// All choices are functions of the seed and of the token's index among all samples, sample * T + t.
// If the samples are consecutive windows of a text, as in evaluation, windows of any length hide
// the same tokens, except in whole words that are split by the edge of a window.
constexpr int32_t kNoLabel = -100;

struct MaskedTokenOptions : OptionsOf<MaskedTokenOptions> {
  double rate = 0.15;
  double mask_share = 0.8, random_share = 0.1;  // Shares of the chosen tokens.
  int64_t mask_id = 2;                          // The token that replaces hidden tokens.
  // All tokens of a word are chosen together, and are hidden, kept or replaced together (Cui et
  // al., 2019). Only for the tokenizer `bytes`, where a word is a run of letters, digits and bytes
  // above 127.
  bool whole_words = false;
  std::vector<Option> Fields() override {
    return {{"rate", &rate},
            {"mask_share", &mask_share},
            {"random_share", &random_share},
            {"mask_id", &mask_id, {.min = 0, .max = INT32_MAX}},
            {"whole_words", &whole_words}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(rate > 0 && rate <= 1, "option rate is ", rate, ". Use a share in (0, 1].");
    problems.Require(mask_share >= 0 && random_share >= 0 && mask_share + random_share <= 1,
                     "mask_share is ", mask_share, " and random_share is ", random_share,
                     ". Use shares from 0 on with a sum of at most 1.");
  }
};

class MaskedToken : public Objective {
 public:
  MaskedToken(const MaskedTokenOptions& options, const ObjectiveContext& context)
      : options_(options), vocab_size_(static_cast<uint32_t>(context.vocab_size)) {
    HL_CHECK_AS(ExitCode::kUsage, options.mask_id < context.vocab_size,
                "objective masked_token: ", "option mask_id is ", options.mask_id,
                ", which is outside the vocabulary. Use a token below ", context.vocab_size, ".");
    constexpr int64_t kBytesVocabulary = 259;
    HL_CHECK_AS(
        ExitCode::kUsage, !options.whole_words || context.vocab_size == kBytesVocabulary,
        "objective masked_token: whole_words needs the tokenizer bytes, which has a vocabulary "
        "of ",
        kBytesVocabulary, ", but the model's vocabulary is ", context.vocab_size,
        ". Use whole_words false, or set model.vocab_size to ", kBytesVocabulary,
        " if no dataset is given.");
  }

  std::optional<int32_t> mask_token() const override {
    return static_cast<int32_t>(options_.mask_id);
  }
  void Label(const LabelledRows& rows) const override {
    const RandomKey key = MakeRandomKey(rows.seed, RandomPurpose::kMask, 0);
    for (int64_t row = 0; row < rows.batch; ++row) {
      const size_t first = row * rows.seq_len;
      const auto draw = [&](int64_t t) {
        const uint64_t place = rows.samples[row] * static_cast<uint64_t>(rows.seq_len) + t;
        return Draw(key, place, /*position=*/0, 0);
      };
      for (int64_t t = 0, end = 0; t < rows.seq_len; t = end) {
        end = EndOfWord(rows.inputs.subspan(first, rows.seq_len), t);
        const RandomCounter of_word = draw(t);
        const bool chosen = ToUniform(of_word.x[0]) < options_.rate;
        for (int64_t i = t; i < end; ++i) {
          int32_t& input = rows.inputs[first + i];
          rows.labels[first + i] = chosen ? input : kNoLabel;
          if (chosen) input = Shown(input, ToUniform(of_word.x[1]), draw(i).x[2]);
        }
      }
    }
  }

 private:
  // Returns the position after the word (or the token) that starts at t.
  int64_t EndOfWord(std::span<const int32_t> row, int64_t t) const {
    int64_t end = t + 1;
    if (!options_.whole_words || !InWord(row[t])) return end;
    while (end < static_cast<int64_t>(row.size()) && InWord(row[end])) ++end;
    return end;
  }
  static bool InWord(int32_t token) {
    constexpr int32_t kFirstByte = 3;  // The first byte in the vocabulary of the tokenizer `bytes`.
    const int32_t byte = token - kFirstByte;
    return byte >= 0x80 || (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') ||
           (byte >= 'a' && byte <= 'z');
  }
  int32_t Shown(int32_t token, double share, uint32_t random) const {
    if (share < options_.mask_share) return static_cast<int32_t>(options_.mask_id);
    if (share >= options_.mask_share + options_.random_share) return token;
    return static_cast<int32_t>(static_cast<uint64_t>(random) * vocab_size_ >> 32);
  }

  MaskedTokenOptions options_;
  uint32_t vocab_size_;
};

// Trains on labels from the dataset, which stores them with the tokens. Only tokens with a label
// have a loss.
struct LabelledOptions : OptionsOf<LabelledOptions> {};

class Labelled : public Objective {
 public:
  Labelled(const LabelledOptions&, const ObjectiveContext&) {}
  void Label(const LabelledRows&) const override {}
  bool takes_labels_of_data() const override { return true; }
};

// Document classification: the dataset stores the class of a document as the label of its first
// token.
struct ClassificationOptions : OptionsOf<ClassificationOptions> {
  ClassifierOptions classifier;
  std::vector<Option> Fields() override {
    return {{"num_classes", &classifier.num_classes, {.min = 2, .max = INT32_MAX}},
            {"pooling", &classifier.pooling, {.choices = {"first", "mean", "last"}}},
            {"dense", &classifier.dense}};
  }
};

class Classification : public Objective {
 public:
  Classification(const ClassificationOptions& options, const ObjectiveContext&)
      : classifier_(options.classifier) {}
  void Label(const LabelledRows&) const override {}
  bool takes_labels_of_data() const override { return true; }
  std::optional<ClassifierOptions> classifier() const override { return classifier_; }

 private:
  ClassifierOptions classifier_;
};

using ObjectiveVariant = Variant<Objective, ObjectiveContext>;

std::vector<ObjectiveVariant> ObjectiveVariants() {
  return {VariantOf<NextTokenOptions, NextToken, Objective, ObjectiveContext>("next_token"),
          VariantOf<MaskedTokenOptions, MaskedToken, Objective, ObjectiveContext>("masked_token"),
          VariantOf<LabelledOptions, Labelled, Objective, ObjectiveContext>("labelled"),
          VariantOf<ClassificationOptions, Classification, Objective, ObjectiveContext>(
              "classification")};
}

}  // namespace

const PartKind kObjectives = {"objective", "next_token",
                              [] { return InfosOf(ObjectiveVariants()); }};

std::unique_ptr<Objective> MakeObjective(const ObjectiveConfig& config, int64_t vocab_size) {
  return MakePart(ObjectiveVariants(), config, {}, ObjectiveContext{vocab_size});
}

}  // namespace halflife::model
