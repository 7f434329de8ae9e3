#include "train/preference/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string_view>

#include "ckpt/collective.h"
#include "ckpt/safetensors.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/hash.h"
#include "eval/batch_tensors.h"
#include "ops/torch/host_transfer.h"

namespace halflife::train {

namespace fs = std::filesystem;
namespace st = ckpt::safetensors;

AnswerScores::AnswerScores(const data::TokenView& tokens) {
  const int64_t num_rows = tokens.row_len > 0 ? tokens.info.num_tokens / tokens.row_len : 0;
  std::vector<int64_t> documents(static_cast<size_t>(num_rows));
  if (num_rows > 0)
    for (const int64_t start : tokens.document_starts(0, tokens.info.num_tokens))
      ++documents[static_cast<size_t>(start / tokens.row_len)];
  first_.assign(1, 0);
  for (const int64_t count : documents) first_.push_back(first_.back() + count / 2 * 2);
  values_.resize(static_cast<size_t>(first_.back()));
}

at::Tensor AnswerScores::Of(std::span<const int64_t> rows, int64_t max_pairs) const {
  const at::Tensor scores = at::zeros({std::ssize(rows), max_pairs, 2}, at::kDouble);
  auto* to = scores.mutable_data_ptr<double>();
  for (const int64_t row : rows) {
    if (row >= 0)
      std::copy(values_.begin() + first_[static_cast<size_t>(row)],
                values_.begin() + first_[static_cast<size_t>(row) + 1], to);
    to += 2 * max_pairs;
  }
  return scores;
}

void AnswerScores::Set(int64_t row, const double* scores) {
  const int64_t begin = first_[static_cast<size_t>(row)],
                end = first_[static_cast<size_t>(row) + 1];
  std::copy_n(scores, end - begin, values_.begin() + begin);
}

namespace {

// Returns the sums of -ln p of this rank's slice of the rows, [B, P, 2] on the CPU.
at::Tensor ScoreBatchOfRows(const model::LanguageModel& model, const data::TokenView& tokens,
                            std::span<const int64_t> rows, const ScoringConfig& config) {
  const data::Batch batch = data::ReadWindows(tokens, config.seq_len, rows);
  const PairRows pairs(batch, model.device(), config.parallel);
  const eval::BatchTensors tensors = config.parallel == nullptr
                                         ? eval::ToTensors(batch, model.device())
                                         : eval::ToTensors(batch, model.device(), *config.parallel);
  const at::Tensor losses =
      model.TokenLosses(tensors.inputs, tensors.targets,
                        {.slice = &tensors.slice, .num_targets = tensors.num_targets});
  // Reading a loss could wait forever for another rank. Settle() waits with a deadline.
  if (config.parallel != nullptr) config.parallel->group->Settle();
  return ops::ReadBack(pairs.Sums(losses)).contiguous();
}

}  // namespace

AnswerScores ScoreAnswers(const model::LanguageModel& model, const data::TokenView& tokens,
                          std::span<const int64_t> rows, const ScoringConfig& config,
                          dist::Communicator& control) {
  const at::NoGradGuard no_grad;
  const auto* const group = config.parallel ? config.parallel->group.get() : nullptr;
  const int sp = group ? group->size() : 1;
  const int64_t groups = control.size() / sp, own = control.rank() / sp;
  const int64_t num_batches = (std::ssize(rows) + config.batch - 1) / config.batch;
  const auto begin_of = [&](int64_t number) { return num_batches * number / groups; };
  AnswerScores scores(tokens);
  const Stopwatch stopwatch;
  for (int64_t batch = begin_of(own); batch < begin_of(own + 1); ++batch) {
    const auto first = static_cast<size_t>(batch * config.batch);
    const auto part =
        rows.subspan(first, std::min(static_cast<size_t>(config.batch), rows.size() - first));
    const at::Tensor sums = ScoreBatchOfRows(model, tokens, part, config);
    const auto* of_row = sums.const_data_ptr<double>();
    for (const int64_t row : part) {
      scores.Set(row, of_row);
      of_row += sums.stride(0);
    }
    if (config.on_batch) config.on_batch();
  }
  const int64_t passes = begin_of(own + 1) - begin_of(own);
  const int64_t most = config.equal_passes ? (num_batches + groups - 1) / groups : passes;
  for (int64_t pass = passes; pass < most; ++pass)
    ScoreBatchOfRows(model, tokens, rows.first(1), config);
  // A slower rank has as much time again.
  ckpt::Arrive(
      control, {"answer_scores", 0},
      config.waits_for_all ? std::numeric_limits<double>::infinity() : stopwatch.Seconds());
  std::vector<double>& values = scores.values();
  control
      .AllReduce(Ref(values.data(), std::ssize(values)), dist::ReduceOp::kSum, {"answer_scores", 1},
                 nullptr)
      .WaitHost();
  return scores;
}

ComparedRows CompareRows(const PreferenceConfig& config, const data::TokenView& tokens,
                         int64_t seq_len, std::span<const int64_t> rows, const AnswerScores& policy,
                         const AnswerScores& reference) {
  constexpr size_t kRowsAtOnce = 64;
  ComparedRows compared = {.sums = at::zeros({4}, at::kDouble)};
  for (; !rows.empty(); rows = rows.subspan(std::min(kRowsAtOnce, rows.size()))) {
    const auto part = rows.first(std::min(kRowsAtOnce, rows.size()));
    const PairRows pairs(data::ReadWindows(tokens, seq_len, part), at::kCPU, /*parallel=*/nullptr);
    const PairScores scores = {.policy = policy.Of(part, pairs.max_pairs()),
                               .reference = reference.Of(part, pairs.max_pairs())};
    compared.sums += SumPairs(ComparePairs(config, scores, pairs.lengths()));
    compared.num_pairs += pairs.num_pairs();
  }
  return compared;
}

namespace {

// The name of the hash of all scores in the metadata of the file. Older files have none.
constexpr char kScoresHash[] = "xxh3_128";

}  // namespace

void WriteReference(const fs::path& run, const Reference& reference) {
  std::vector<st::Entry> entries;
  std::string values;
  for (const auto& [split, scores] : reference.splits) {
    const uint64_t begin = values.size();
    values.append(reinterpret_cast<const char*>(scores.values().data()),
                  scores.values().size() * sizeof(double));
    entries.push_back({.name = data::Name(split),
                       .dtype = ckpt::StoredDType::kF64,
                       .shape = {scores.num_pairs(), 2},
                       .begin = begin,
                       .end = values.size()});
  }
  AtomicWriteFile(
      run / kReferenceFile,
      st::BuildHeader(entries,
                      {{"run_id", reference.run_id}, {kScoresHash, ToHex(HashBytes(values))}},
                      sizeof(double)) +
          values,
      ExitCode::kCheckpointIo);
}

fs::path FolderOfReference(const fs::path& run, const fs::path& own) {
  std::error_code error;
  return !run.empty() && fs::exists(run / kReferenceFile, error) ? run : own;
}

void ReadReference(const fs::path& run, Reference& reference) {
  const fs::path path = run / kReferenceFile;
  constexpr ExitCode kCode = ExitCode::kNoUsableCheckpoint;
  std::error_code error;
  HL_CHECK_AS(kCode, fs::exists(path, error), path.string(),
              " with the scores of the initial model is missing. Restore that file from the run "
              "whose step is resumed, or start another run with --init-from and without --resume.");
  const std::string text = ReadFile(path, kCode, UINT64_MAX);
  const st::Header header = st::ParseHeader(text, text.size(), path.string(), kCode);
  const auto id = header.metadata.find("run_id");
  HL_CHECK_AS(kCode, id != header.metadata.end() && id->second == reference.run_id, path.string(),
              " belongs to another run. Restore the file of the run whose step is resumed.");
  const auto hash = header.metadata.find(kScoresHash);
  HL_CHECK_AS(
      kCode,
      hash == header.metadata.end() ||
          hash->second == ToHex(HashBytes(std::string_view(text).substr(header.data_offset))),
      path.string(),
      " is damaged: the scores do not have the hash of its header. Restore the file of the run "
      "whose step is resumed.");
  for (auto& [split, scores] : reference.splits) {
    const auto entry = std::ranges::find(header.entries, data::Name(split), &st::Entry::name);
    const size_t bytes = scores.values().size() * sizeof(double);
    HL_CHECK_AS(kCode,
                entry != header.entries.end() && entry->dtype == ckpt::StoredDType::kF64 &&
                    entry->end - entry->begin == bytes,
                path.string(), " does not have the scores of ", scores.num_pairs(),
                " pairs of the ", data::Name(split),
                " split. Use the dataset of the run, or restore the file.");
    std::memcpy(scores.values().data(), text.data() + header.data_offset + entry->begin, bytes);
  }
}

}  // namespace halflife::train
