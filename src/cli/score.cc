// halflife score: writes log-probabilities of given tokens or texts.
#include <ATen/Parallel.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numbers>

#include "cli/command_line/options.h"
#include "cli/model_source.h"
#include "cli/readable_text.h"
#include "cli/world.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "core/human.h"
#include "core/json_text.h"
#include "core/log.h"
#include "eval/scorer.h"

namespace halflife::cli {
namespace {

// Size limit of one --text, and of --tokens, where it allows a hundred million ids.
constexpr uint64_t kMaxInputBytes = 1ull << 30;

using Sequences = std::vector<std::vector<int32_t>>;

struct Input {
  Sequences sequences;
  // Tokens without bos, and the bytes of their text. 0: unknown (--tokens).
  int64_t text_tokens = 0, text_bytes = 0;
};

// Returns the input on all ranks. Every rank reads a file itself. Standard input is read by rank 0
// and sent to the others.
std::string ReadInput(const std::string& file, dist::RankContext& context) {
  const bool is_stdin = file == "-" || file == "/dev/stdin";
  const bool mine = !is_stdin || context.rank() == 0;
  std::string text = mine ? ReadStream(file, ExitCode::kData, kMaxInputBytes) : "";
  if (is_stdin) text = dist::BroadcastBytes(context.control(), std::move(text), 0, {"input", 0});
  return text;
}

Input ReadTokens(const std::string& file, dist::RankContext& context) {
  const std::string text = ReadInput(file, context);
  nlohmann::json json;
  if (JsonNesting(text) <= kMaxJsonNesting)
    json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  HL_CHECK_AS(ExitCode::kData, json.is_array(), file,
              " is not a JSON list of lists of ids. Write for example [[5, 6, 7], [8, 9]].");
  Sequences sequences;
  for (const nlohmann::json& row : json) {
    HL_CHECK_AS(ExitCode::kData, row.is_array(), file, ": entry ", sequences.size(),
                " is not a list of ids. Write for example [5, 6, 7].");
    std::vector<int32_t>& ids = sequences.emplace_back();
    for (const nlohmann::json& id : row) {
      HL_CHECK_AS(ExitCode::kData,
                  id.is_number_integer() && id >= 0 && id <= std::numeric_limits<int32_t>::max(),
                  file, ": entry ", sequences.size() - 1, " holds ", id.dump().substr(0, 40),
                  ", which is not an id. Use whole numbers from 0.");
      ids.push_back(id.get<int32_t>());
    }
  }
  return {.sequences = std::move(sequences)};
}

Input ReadTexts(const ScoreOptions& options, const data::Tokenizer& tokenizer,
                dist::RankContext& context) {
  Input input;
  data::NameCounts names;
  const bool plain = options.special_tokens == data::SpecialTokens::kPlain;
  for (const std::string& file : options.texts) {
    const std::string text = ReadInput(file, context);
    HL_CHECK_AS(ExitCode::kData, !text.empty(), file,
                " is empty. Use a text with at least one token.");
    CheckReadable(file, text, tokenizer, options.special_tokens, ExitCode::kData);
    if (plain) tokenizer.CountSpecialNames(text, names);
    input.sequences.push_back(tokenizer.EncodeText(text, options.special_tokens));
    input.text_tokens += std::ssize(input.sequences.back()) - (tokenizer.begins_with_bos() ? 1 : 0);
    input.text_bytes += static_cast<int64_t>(text.size());
  }
  if (context.rank() == 0) WarnOfSpecialNames("score", "--text", names, kParseThem);
  return input;
}

// Returns for example ", 2.1406 bits per byte", or "" if the text is unknown. Without bos, the
// first token of a sequence is not scored and counts as the mean of the others.
std::string BitsPerByte(double nats_per_token, const Input& input) {
  if (input.text_bytes == 0) return "";
  const double tokens_per_byte =
      static_cast<double>(input.text_tokens) / static_cast<double>(input.text_bytes);
  return Concat(", ", Fixed(nats_per_token / std::numbers::ln2 * tokens_per_byte, 4),
                " bits per byte");
}

// Scores this rank's batches. Returns all numbers in one string.
std::string ScoreShare(const model::LanguageModel& model, const Sequences& sequences,
                       const std::vector<std::vector<size_t>>& batches,
                       const eval::ScoreConfig& config, const dist::RankContext& context) {
  std::string bytes;
  for (size_t b = context.rank(); b < batches.size(); b += context.world_size()) {
    std::vector<std::span<const int32_t>> rows;
    for (const size_t i : batches[b]) rows.emplace_back(sequences[i]);
    for (const std::vector<float>& scores : eval::ScoreBatch(model, rows, config))
      bytes.append(reinterpret_cast<const char*>(scores.data()), scores.size() * sizeof(float));
  }
  return bytes;
}

// Converts `shares[rank]`, in the order of ScoreShare, to one vector per sequence.
std::vector<std::vector<float>> Collect(const std::vector<std::string>& shares,
                                        const Sequences& sequences,
                                        const std::vector<std::vector<size_t>>& batches) {
  std::vector<std::vector<float>> scores(sequences.size());
  std::vector<size_t> read(shares.size(), 0);
  for (size_t b = 0; b < batches.size(); ++b) {
    const size_t rank = b % shares.size();
    for (const size_t i : batches[b]) {
      scores[i].resize(sequences[i].size() - 1);
      const size_t bytes = scores[i].size() * sizeof(float);
      HL_CHECK(read[rank] + bytes <= shares[rank].size());
      std::memcpy(scores[i].data(), shares[rank].data() + read[rank], bytes);
      read[rank] += bytes;
    }
  }
  return scores;
}

// Appends {"ids":[...],"logprobs":[...]}. Floats have the fewest digits that read back as the same
// fp32 value. Values that are not finite are null, because JSON cannot represent them.
void AppendLine(const std::vector<int32_t>& ids, const std::vector<float>& scores,
                std::string& text) {
  text += "{\"ids\":[";
  for (size_t i = 0; i < ids.size(); ++i) text += Concat(i == 0 ? "" : ",", ids[i]);
  text += "],\"logprobs\":[";
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i > 0) text += ',';
    text += std::isfinite(scores[i]) ? ShortestText(scores[i]) : "null";
  }
  text += "]}\n";
}

// `of_text`: the scores are those of next tokens, whose sum is the score of a text.
void Report(const Input& input, const std::vector<std::vector<float>>& scores, bool of_text,
            const std::string& out) {
  const Sequences& sequences = input.sequences;
  std::string text;
  double sum = 0;
  int64_t count = 0, not_finite = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    AppendLine(sequences[i], scores[i], text);
    for (const float score : scores[i]) {
      sum += score;
      not_finite += std::isfinite(score) ? 0 : 1;
    }
    count += static_cast<int64_t>(scores[i].size());
  }
  WriteOutput(out, text, ExitCode::kEnvironment);
  std::ostream& words = IsStandardOutput(out) ? std::cerr : std::cout;
  words << Counted(static_cast<int64_t>(sequences.size()), "sequence") << ", " << count
        << " tokens scored";
  const double nats = -sum / static_cast<double>(count);
  if (count > 0)
    words << ", " << Fixed(nats, 4) << " nats per token"
          << (of_text ? BitsPerByte(nats, input) : "");
  words << ": " << out << "\n";
  if (not_finite > 0)
    HL_WARN("score", not_finite, " of ", count, " scores are not finite: null in ", out);
}

// Checks that all ranks have the same sequences. Otherwise they would return other scores than rank
// 0 expects.
void CheckRanks(const ScoreOptions& options, const infer::LoadedModel& loaded,
                const Sequences& sequences, dist::RankContext& context) {
  if (context.world_size() == 1) return;
  StreamHash hash;
  for (const auto& ids : sequences) {
    const size_t length = ids.size();
    hash.Update(&length, sizeof length);
    hash.Update(ids.data(), length * sizeof(int32_t));
  }
  const std::string digest = ToHex(hash.Digest());
  const std::string from =
      options.tokens.empty() ? "--text " + Join(options.texts, " ") : "--tokens " + options.tokens;
  const std::string limits =
      Concat("--piece ", options.score.piece, " --batch-tokens ", options.score.batch_tokens);
  RequireAlike(context, {WeightsFact(loaded),
                         {"the text", digest, Concat(from, " (hash ", digest, ")")},
                         {"the batching", limits, limits}});
}

ExitCode Score(const ScoreOptions& options, dist::RankContext& context) {
  if (context.rank() == 0) RequireWritable(options.out, ExitCode::kEnvironment);
  if (options.threads > 0) at::set_num_threads(options.threads);
  WarnOfBusyCores(context);
  const infer::LoadedModel loaded =
      LoadAnyModel(options.model, options.tokenizer,
                   PlacementOf(options.compute, context.local_rank()), options.weights);
  const Input input = options.tokens.empty()
                          ? ReadTexts(options, infer::RequireTokenizer(loaded), context)
                          : ReadTokens(options.tokens, context);
  const Sequences& sequences = input.sequences;
  CheckRanks(options, loaded, sequences, context);
  std::vector<size_t> lengths;
  for (const auto& ids : sequences) lengths.push_back(ids.size());
  const auto batches = eval::ScoreBatches(lengths, options.score);
  const std::vector<std::string> shares = dist::AllGatherBytes(
      context.control(), ScoreShare(*loaded.model, sequences, batches, options.score, context),
      {"score", 0});
  if (context.rank() == 0)
    Report(input, Collect(shares, sequences, batches),
           loaded.model->objective().predicts_next_token(), options.out);
  return ExitCode::kFinished;
}

}  // namespace

ExitCode Run(const ScoreOptions& options) {
  HL_CHECK_AS(ExitCode::kUsage, !options.tokens.empty() || !options.texts.empty(),
              "there is nothing to score. Use --tokens FILE.json or --text FILE.");
  return RunInWorld(kNoTimeout, [&](dist::RankContext& context, std::filesystem::path&) {
    return Score(options, context);
  });
}

}  // namespace halflife::cli
