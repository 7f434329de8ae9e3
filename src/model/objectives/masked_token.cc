// Masked language modelling (Devlin et al., 2019): a share of the tokens is chosen; the model sees
// a mask in place of 80 % of them, a random token in place of 10 %, the token itself at the rest,
// and must name what stood there. The choices are functions of the seed and the token's place among
// all samples, sample T + t. Where samples are the windows of a text, as in evaluation, windows of
// another length so hide the same tokens, but for whole words that an edge cuts.
#include <span>

#include "core/error.h"
#include "core/philox.h"
#include "model/objectives/variants.h"

namespace halflife::model {
namespace {

constexpr int32_t kNoLabel = -100;

struct MaskedTokenOptions : OptionsOf<MaskedTokenOptions> {
  double rate = 0.15;
  double mask_share = 0.8, random_share = 0.1;  // of the chosen tokens
  int64_t mask_id = 2;                          // the token that hides others
  // A word is chosen, and hidden, kept or replaced, as one (Cui et al., 2019). Of the tokenizer
  // `bytes`: a word is a run of letters, digits and bytes above 127.
  bool whole_words = false;
  std::vector<Option> Fields() override {
    return {{"rate", &rate},
            {"mask_share", &mask_share},
            {"random_share", &random_share},
            {"mask_id", &mask_id, {.min = 0, .max = INT32_MAX}},
            {"whole_words", &whole_words}};
  }
  void Resolve(const ModelSizes&, ProblemList& problems) override {
    problems.Require(rate > 0 && rate <= 1, "option rate is ", rate,
                     "; a share in (0, 1] would work");
    problems.Require(mask_share >= 0 && random_share >= 0 && mask_share + random_share <= 1,
                     "mask_share ", mask_share, " and random_share ", random_share,
                     "; shares of at most 1 together would work");
  }
};

class MaskedToken : public Objective {
 public:
  MaskedToken(const MaskedTokenOptions& options, const ObjectiveContext& context)
      : options_(options), vocab_size_(static_cast<uint32_t>(context.vocab_size)) {
    HL_CHECK_AS(ExitCode::kUsage, options.mask_id < context.vocab_size,
                "objective masked_token: ", "option mask_id is ", options.mask_id,
                "; a token below the vocabulary of ", context.vocab_size, " would work");
    constexpr int64_t kBytesVocabulary = 259;
    HL_CHECK_AS(ExitCode::kUsage, !options.whole_words || context.vocab_size == kBytesVocabulary,
                "objective masked_token: whole_words knows the words of the tokenizer bytes, whose "
                "vocabulary is ",
                kBytesVocabulary, ", and the model's is ", context.vocab_size,
                "; whole_words false, or where no dataset is at hand model.vocab_size ",
                kBytesVocabulary, ", would work");
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
  // Behind the word, or the token, that begins at t.
  int64_t EndOfWord(std::span<const int32_t> row, int64_t t) const {
    int64_t end = t + 1;
    if (!options_.whole_words || !InWord(row[t])) return end;
    while (end < static_cast<int64_t>(row.size()) && InWord(row[end])) ++end;
    return end;
  }
  static bool InWord(int32_t token) {
    constexpr int32_t kFirstByte = 3;  // the layout of the tokenizer `bytes`
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

}  // namespace

ObjectiveVariant MaskedTokenVariant() {
  return VariantOf<MaskedTokenOptions, MaskedToken, Objective, ObjectiveContext>("masked_token");
}

}  // namespace halflife::model
