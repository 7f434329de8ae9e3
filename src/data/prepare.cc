#include "data/prepare.h"

#include <algorithm>
#include <cmath>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/host.h"
#include "data/document_encoder.h"
#include "data/held_out_contents.h"
#include "data/manifest.h"
#include "data/ordered_pipeline.h"
#include "data/output_folder.h"
#include "data/shard_writer.h"
#include "data/tokenizer_files.h"
#include "data/tokenizer_folder.h"
#include "data/tokenizer_trainer.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;

void CheckConfig(const PrepareConfig& config) {
  HL_CHECK_AS(ExitCode::kUsage, !config.inputs.empty(),
              "--input names no file; --synthetic mqar makes rows "
              "without text");
  HL_CHECK_AS(ExitCode::kUsage, !config.out.empty(), "--out names no folder");
  HL_CHECK_AS(ExitCode::kUsage, config.train_tokenizer == config.tokenizer.empty(),
              "give either --tokenizer bytes|FILE|FOLDER, or --train-tokenizer --vocab N");
  HL_CHECK_AS(ExitCode::kUsage, !config.train_tokenizer || config.vocab_size > 0,
              "--train-tokenizer needs --vocab N, the number of pieces, such as 8192");
  HL_CHECK_AS(ExitCode::kUsage, config.validation_fraction >= 0 && config.validation_fraction < 1,
              "--validation-fraction ", config.validation_fraction,
              " is not in [0, 1); 0.05 is usual, 0 leaves the validation split empty");
  HL_CHECK_AS(ExitCode::kUsage, config.threads >= 0 && config.threads <= 1024, "--threads ",
              config.threads, " is not in [0, 1024]; 0 takes all cores");
  HL_CHECK_AS(ExitCode::kUsage, config.shard_tokens >= kBlockTokens, "--shard-tokens ",
              config.shard_tokens, " is below ", kBlockTokens, ", the smallest shard");
  HL_CHECK_AS(ExitCode::kUsage, config.max_document_bytes > 0 && config.chunk_bytes > 0,
              "--max-document-bytes ", config.max_document_bytes, " is not positive");
}

// One run of `prepare`: the settings and counts that its phases share.
class Run {
 public:
  explicit Run(const PrepareConfig& config)
      : config_(config),
        inputs_(FindInputFiles(config.inputs)),
        validation_inputs_(config.validation_inputs.empty()
                               ? InputFiles{}
                               : FindInputFiles(config.validation_inputs, "--validation-input")),
        tokenizer_(config.train_tokenizer ? nullptr : OpenTokenizer(config.tokenizer)),
        threads_(config.threads == 0 ? NumUsableCores() : config.threads) {
    RequireApart(inputs_, validation_inputs_, "--validation-input");
    rules_ = {.field = config.field,
              .replace_invalid_utf8 = config.replace_invalid_utf8,
              .max_document_bytes = config.max_document_bytes,
              .allow_pieces = tokenizer_ != nullptr && tokenizer_->kind() == kBytesKind,
              .validation_fraction = config.validation_fraction,
              .split_seed = config.split_seed};
    if (has_validation_inputs()) rules_.split = Split::kTrain;
  }

  // Once only.
  std::unique_ptr<Tokenizer> MakeTokenizer() {
    return config_.train_tokenizer ? TrainTokenizer() : std::move(tokenizer_);
  }

  // Writes the shards of both splits and returns what the manifest says of them.
  Manifest WriteShards(const fs::path& folder, const Tokenizer& tokenizer);
  void CheckSplits(const Manifest& manifest) const;
  PrepareSummary Summarise(const Manifest& manifest) const;

 private:
  // The shards that are being written.
  struct Writers {
    ShardWriter train, validation;
    ShardWriter& of(Split split) { return split == Split::kTrain ? train : validation; }
  };

  bool has_validation_inputs() const { return !validation_inputs_.files.empty(); }
  void CheckInputs(const Manifest& manifest) const;
  std::unique_ptr<Tokenizer> TrainTokenizer();
  // Tokenises all documents of `inputs`, each into the split that `rules` give it.
  void WriteDocuments(const InputFiles& inputs, const DocumentRules& rules,
                      const Tokenizer& tokenizer, Writers& writers);
  TextChunker MakeChunker(const InputFiles& inputs) const {
    return TextChunker(inputs.files, {.documents = config_.documents,
                                      .allow_pieces = rules_.allow_pieces,
                                      .chunk_bytes = config_.chunk_bytes,
                                      .max_document_bytes = config_.max_document_bytes});
  }

  std::optional<TextChunk> NextChunk(TextChunker& chunker) const {
    HL_CHECK_AS(ExitCode::kInterrupted, config_.stop == nullptr || !config_.stop->load(),
                "stopped by a signal; nothing was written to ", config_.out.string());
    return chunker.Next();
  }
  void Report() const {
    if (config_.on_progress) config_.on_progress(progress_);
  }

  const PrepareConfig& config_;
  const InputFiles inputs_;
  const InputFiles validation_inputs_;    // none: the validation split is a share of inputs_
  std::unique_ptr<Tokenizer> tokenizer_;  // until MakeTokenizer hands it over
  const int threads_;
  DocumentRules rules_;
  PrepareProgress progress_;
  int64_t num_empty_ = 0;
  HeldOutContents held_out_;  // of validation_inputs_
};

std::unique_ptr<Tokenizer> Run::TrainTokenizer() {
  struct ChunkLines {
    std::vector<HashedLine> lines;
    uint64_t disk_bytes = 0;
  };
  progress_.phase = "training the tokenizer";
  progress_.total_disk_bytes = DiskBytes(inputs_);
  TextChunker chunker = MakeChunker(inputs_);
  LineSample sample(kTrainerSampleBytes);
  RunOrdered<TextChunk, ChunkLines>(
      threads_, [&] { return NextChunk(chunker); },
      [&](TextChunk chunk) {
        ChunkLines result{.lines = {}, .disk_bytes = chunk.disk_bytes};
        ForEachDocument(std::move(chunk), rules_, [&](const Document& document) {
          // The validation text stays unseen.
          if (ChooseSplit(ContentHash(document.text), rules_) == Split::kTrain) {
            AppendHashedLines(document.text, result.lines);
          }
        });
        return result;
      },
      [&](ChunkLines chunk) {
        sample.Add(std::move(chunk.lines));
        progress_.disk_bytes = chunk.disk_bytes;
        Report();
      });
  const std::vector<std::string> lines = std::move(sample).Sorted();
  HL_CHECK_AS(ExitCode::kData, !lines.empty(), "the input holds no text to train a tokenizer on");
  return MakeSentencePieceTokenizer(TrainSentencePiece(lines, config_.vocab_size));
}

void Run::WriteDocuments(const InputFiles& inputs, const DocumentRules& rules,
                         const Tokenizer& tokenizer, Writers& writers) {
  ShardWriter* writer = &writers.train;  // of the document that is open
  TextChunker chunker = MakeChunker(inputs);
  const DocumentEncoder encoder(tokenizer, rules);
  const uint64_t disk_bytes_before = progress_.disk_bytes;
  RunOrdered<TextChunk, EncodedChunk>(
      threads_, [&] { return NextChunk(chunker); },
      [&](TextChunk chunk) { return encoder.Encode(std::move(chunk)); },
      [&](EncodedChunk chunk) {
        std::span<const int32_t> ids = chunk.ids;
        for (const EncodedDocument& document : chunk.documents) {
          if (document.begins) {
            writer = &writers.of(document.split);
            writer->BeginDocument();
            if (has_validation_inputs()) held_out_.Add(document.split, document.content);
            ++progress_.num_documents;
          }
          writer->Append(ids.first(static_cast<size_t>(document.num_ids)));
          writer->CountBytes(document.num_bytes);
          ids = ids.subspan(static_cast<size_t>(document.num_ids));
          progress_.text_bytes += document.num_bytes;
        }
        num_empty_ += chunk.num_empty;
        progress_.disk_bytes = disk_bytes_before + chunk.disk_bytes;
        Report();
      });
}

Manifest Run::WriteShards(const fs::path& folder, const Tokenizer& tokenizer) {
  progress_.phase = "tokenising";
  progress_.disk_bytes = 0;
  progress_.total_disk_bytes = DiskBytes(inputs_) + DiskBytes(validation_inputs_);
  const int token_bytes = TokenBytes(tokenizer.vocab_size());
  const auto writer_config = [&](Split split) {
    return ShardWriterConfig{folder, split, token_bytes, config_.shard_tokens};
  };
  Writers writers{ShardWriter(writer_config(Split::kTrain)),
                  ShardWriter(writer_config(Split::kValidation))};
  if (has_validation_inputs()) {  // first, so that the training text is compared with all of it
    DocumentRules rules = rules_;
    rules.split = Split::kValidation;
    WriteDocuments(validation_inputs_, rules, tokenizer, writers);
  }
  WriteDocuments(inputs_, rules_, tokenizer, writers);
  Manifest manifest;
  manifest.train = writers.train.Finish();
  manifest.validation = writers.validation.Finish();
  return manifest;
}

void Run::CheckInputs(const Manifest& manifest) const {
  const auto require = [](const SplitRecord& split, const char* flag, const InputFiles& inputs) {
    HL_CHECK_AS(ExitCode::kData, split.info.num_documents > 0, flag,
                " holds no text: ", inputs.files.size(), " files with empty documents alone, ",
                "starting with ", inputs.files.front().path.string());
  };
  require(manifest.train, "--input", inputs_);
  require(manifest.validation, "--validation-input", validation_inputs_);
}

void Run::CheckSplits(const Manifest& manifest) const {
  if (has_validation_inputs()) return CheckInputs(manifest);
  const int64_t train = manifest.train.info.num_documents;
  const int64_t validation = manifest.validation.info.num_documents;
  HL_CHECK_AS(ExitCode::kData, train + validation > 0,
              "the input holds no text: ", inputs_.files.size(), " files with ", num_empty_,
              " empty documents, starting with ", inputs_.files.front().path.string());
  HL_CHECK_AS(ExitCode::kData, train > 0, "all ", validation,
              " documents fell into the validation split; lower --validation-fraction ",
              config_.validation_fraction,
              ", change --split-seed, or cut into more documents with "
              "--documents blank-line");
  HL_CHECK_AS(ExitCode::kData, validation > 0 || config_.validation_fraction == 0, "none of the ",
              train, " documents fell into the validation split; raise --validation-fraction ",
              config_.validation_fraction,
              " (0 goes without), change --split-seed, or cut into "
              "more documents with --documents blank-line");
}

PrepareSummary Run::Summarise(const Manifest& manifest) const {
  return {.train = manifest.train.info,
          .validation = manifest.validation.info,
          .vocab_size = manifest.vocab_size,
          .tokenizer_kind = manifest.tokenizer_kind,
          .num_files = static_cast<int64_t>(inputs_.files.size() + validation_inputs_.files.size()),
          .num_skipped_files = inputs_.num_skipped + validation_inputs_.num_skipped,
          .num_empty = num_empty_,
          .num_validation_in_train = held_out_.num_in_train(),
          .seconds = 0,
          .hash = manifest.hash};
}

void Describe(const PrepareConfig& config, Manifest& manifest) {
  manifest.documents = Name(config.documents);
  manifest.field = config.field;
  manifest.validation_input = !config.validation_inputs.empty();
  manifest.validation_fraction = manifest.validation_input ? 0 : config.validation_fraction;
  manifest.split_seed = config.split_seed;
  manifest.replace_invalid_utf8 = config.replace_invalid_utf8;
}

}  // namespace

PrepareSummary Prepare(const PrepareConfig& config) try {
  const Stopwatch clock;
  CheckConfig(config);
  Run run(config);
  OutputFolder output(config.out);
  const std::unique_ptr<Tokenizer> tokenizer = run.MakeTokenizer();
  Manifest manifest = run.WriteShards(output.path(), *tokenizer);
  run.CheckSplits(manifest);
  SaveTokenizer(*tokenizer, output.path(), manifest);
  Describe(config, manifest);
  manifest.hash = WriteManifest(manifest, output.path());
  output.Publish();
  PrepareSummary summary = run.Summarise(manifest);
  summary.seconds = clock.Seconds();
  return summary;
} catch (const fs::filesystem_error& error) {
  // A folder that cannot be made or listed, such as on a full disk.
  HL_FAIL(ExitCode::kData, "prepare cannot go on with ", config.out.string(), ": ", TextOf(error));
}

}  // namespace halflife::data
