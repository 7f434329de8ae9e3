// halflife prepare: converts text, or a synthetic task, to a dataset.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/shared_options.h"
#include "cli/command_line/value_checks.h"
#include "core/human.h"

namespace halflife::cli {
namespace {

constexpr char kTokenizerGroup[] = "Tokenizer";
constexpr char kDocumentsGroup[] = "Documents";
constexpr char kSyntheticGroup[] = "Synthetic rows";
constexpr char kLabelsGroup[] = "Labelled text";

Use PrepareUse() {
  return {
      .notes =
          "If --input is a folder, it is searched for .txt and .jsonl files (with --labels: .tsv "
          "and .jsonl), also compressed as .gz or .zst. Ctrl-C leaves no files behind.",
      .examples =
          {"halflife prepare --input book.txt --tokenizer bytes --out book.data",
           "halflife prepare --input book.txt --validation-tail 0.1 --tokenizer bytes --out "
           "book.data",
           "halflife prepare --input wiki.train.txt --validation-input wiki.valid.txt "
           "--tokenizer tokenizer.json --out wiki.data",
           "halflife prepare --input 'corpus/*.jsonl.zst' --field body --tokenizer "
           "spm.model --out corpus.data",
           "halflife prepare --input corpus/ --train-tokenizer --vocab 8192 --out "
           "corpus.data",
           "halflife prepare --synthetic mqar --seq-len 128 --num-pairs 16 --out "
           "mqar.data",
           "halflife prepare --labels classes --input train.tsv --validation-input "
           "dev.tsv --row-len 128 --tokenizer bytes --out reviews.data",
           "halflife prepare --labels answers --input pairs.jsonl --tokenizer bytes "
           "--out pairs.data"},
      .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kInterrupted}};
}

void AddFiles(CLI::App& command, PrepareOptions& options) {
  command
      .add_option("--input", options.input.paths,
                  "Files, folders or patterns of .txt and .jsonl (with --labels: .tsv and "
                  ".jsonl), also compressed as .gz or .zst. Required without --synthetic [none]")
      ->type_name("PATH");
  command.add_option("--out", options.output.out, "The folder of the dataset; it must not exist")
      ->type_name("DIR")
      ->required();
  command.add_option("--threads", options.output.threads, "Worker threads; 0: one per core")
      ->check(NumThreads(0))
      ->capture_default_str();
}

void AddTokenizers(CLI::App& command, PrepareOptions& options) {
  command.option_defaults()->group(kTokenizerGroup);
  AddTokenizer(command, options.input.tokenizer, "with --train-tokenizer: none");
  command.add_flag("--train-tokenizer", options.text.train_tokenizer,
                   "Train a sentencepiece tokenizer on the training split");
  command.add_option(
      "--vocab", options.text.vocab_size,
      "Vocabulary size of the trained tokenizer. Required with --train-tokenizer [none]");
}

void AddDocuments(CLI::App& command, PrepareOptions& options) {
  using data::DocumentMode;
  const std::map<std::string, DocumentMode> modes = {{"file", DocumentMode::kFile},
                                                     {"line", DocumentMode::kLine},
                                                     {"blank_lines", DocumentMode::kBlankLines}};
  const std::map<std::string, bool> invalid_utf8 = {{"error", false}, {"replace", true}};
  command.option_defaults()->group(kDocumentsGroup);
  command
      .add_option("--documents", options.text.documents,
                  "Documents of .txt files: whole files, lines, or blocks between blank lines. "
                  "A .jsonl record is always one document")
      ->transform(OneOf(modes))
      ->default_str("file");
  command
      .add_option("--field", options.input.field,
                  "The field of a JSON record that contains the text")
      ->capture_default_str();
  command
      .add_option("--invalid-utf8", options.input.replace_invalid_utf8,
                  "Reaction to bytes that are not UTF-8: an error, or replacement by U+FFFD")
      ->transform(OneOf(invalid_utf8))
      ->default_str("error");
  command
      .add_option("--max-document-bytes", options.input.max_document_bytes,
                  "Largest document that is held in memory. Byte-tokenised text has no limit")
      ->capture_default_str();
}

void AddSplits(CLI::App& command, PrepareOptions& options) {
  command.option_defaults()->group("Splits and shards");
  command
      .add_option("--validation-input", options.input.validation_paths,
                  "Text of the validation split, for example a published one, by the rules of "
                  "--input. All of --input is then training text")
      ->type_name("PATH");
  command
      .add_option("--validation-fraction", options.input.validation_fraction,
                  "Share of documents that go to the validation split, chosen by their content; 0: "
                  "none")
      ->default_str(ShortestText(data::kUsualValidationShare));
  command.add_option("--split-seed", options.input.split_seed, "Seed that chooses these documents")
      ->check(AtLeast(0))
      ->capture_default_str();
  command.add_option(
      "--validation-tail", options.input.validation_tail,
      "Share of each .txt file, at its end, for the validation split [0.05 if there are fewer "
      "than 100 documents, all of them whole .txt files]");
  command
      .add_option("--shard-tokens", options.output.shard_tokens,
                  "Maximum number of tokens per shard file")
      ->capture_default_str();
}

void AddMqar(CLI::App& command, PrepareOptions& options) {
  using data::MqarGenerator;
  const std::map<std::string, MqarGenerator> generators = {
      {"native", MqarGenerator::kNative}, {"numpy_compat", MqarGenerator::kNumpyCompat}};
  data::PrepareMqarConfig& mqar = options.mqar;
  command.option_defaults()->group(kSyntheticGroup);
  command
      .add_option("--synthetic", options.synthetic,
                  "Generate labelled rows of a task instead of reading --input. mqar: multi-query "
                  "associative recall. A row has pairs of a key and a value, then each key again, "
                  "labelled with its value [none: text]")
      ->check(OneOf({"mqar"}));
  command.add_option("--vocab-size", mqar.vocab_size, "Number of tokens; half of them are keys")
      ->capture_default_str();
  command.add_option("--seq-len", options.seq_len, "Tokens per row, an even number")
      ->capture_default_str();
  command
      .add_option("--num-pairs", options.num_pairs,
                  "Pairs per row, at most a quarter of its tokens. With several numbers here, in "
                  "--seq-len or in --examples, the dataset has that number of segments, and scores "
                  "are also reported by segment")
      ->capture_default_str();
  command
      .add_option(
          "--power", mqar.power,
          "Distribution of a key's second position: its possible slot g has weight g^(power - 1)")
      ->capture_default_str();
  command.add_flag(
      "--random-non-queries", mqar.random_non_queries,
      "Fill unused positions with random tokens instead of zeros. Both generators draw "
      "them in the same way, which differs from the public code");
  command
      .add_option("--generator", mqar.generator,
                  "numpy_compat reproduces the rows of Zoology and ReBased exactly, except with "
                  "--random-non-queries. native is faster and generates each row independently")
      ->transform(OneOf(generators))
      ->default_str("native");
  command.add_option("--examples", options.examples, "Training rows per segment")
      ->capture_default_str();
  command
      .add_option("--validation-examples", options.validation_examples,
                  "Validation rows per segment; 0: none")
      ->capture_default_str();
  command.add_option("--test-examples", options.test_examples, "Test rows per segment; 0: none")
      ->capture_default_str();
  command
      .add_option("--seed", mqar.seed,
                  "Seed of the training rows. Test rows use seed + 10, validation rows seed + 20")
      ->check(AtLeast(0))
      ->capture_default_str();
}

void AddExamples(CLI::App& command, PrepareOptions& options) {
  using data::TooLong;
  const std::map<std::string, TooLong> rules = {
      {"error", TooLong::kError}, {"cut", TooLong::kCut}, {"drop", TooLong::kDrop}};
  data::PrepareExamplesConfig& config = options.examples_config;
  command.option_defaults()->group(kLabelsGroup);
  command
      .add_option(
          "--labels", options.labels,
          "--input contains labelled records (.tsv with a header line, or .jsonl): texts with "
          "their classes, or prompts with their answers [none: text]")
      ->check(OneOf({"classes", "answers"}));
  command
      .add_option("--row-len", config.rules.row_len,
                  "Tokens per row. A row has one text with its class, or as many answers as fit")
      ->capture_default_str();
  command
      .add_option("--too-long", config.rules.too_long,
                  "Examples longer than a row: an error, truncated, or dropped")
      ->transform(OneOf(rules))
      ->default_str("error");
  command.add_option("--label-field", config.label_field, "The field with the class of a text")
      ->capture_default_str();
  command
      .add_option("--classes", config.classes,
                  "Class names, numbered from 0 [those of --input, sorted]")
      ->delimiter(',');
  command.add_option("--prompt-field", config.prompt_field, "The field with the prompt")
      ->capture_default_str();
  command.add_option("--answer-field", config.answer_field, "The field with the answer")
      ->capture_default_str();
  AddSpecialTokens(command, config.rules.special_tokens, "prompts and answers");
  command.add_option("--test-input", config.test_inputs, "Records of a test split [none]")
      ->type_name("PATH");
}

// Modes: the content of --input, or the task that is generated without it.
Modes PrepareModes(const CLI::App& command) {
  Modes modes(command);
  modes.OnlyWith("--synthetic", modes.Group(kSyntheticGroup));
  modes.NotWith("--synthetic", modes.Group(kTokenizerGroup), "--input PATH");
  modes.NotWith("--synthetic", modes.Group(kDocumentsGroup), "--input PATH");
  modes.NotWith(
      "--synthetic",
      {"--validation-input", "--validation-fraction", "--split-seed", "--validation-tail"},
      "--input PATH");
  modes.OnlyWith("--labels classes", {"--label-field", "--classes"});
  modes.OnlyWith("--labels answers", {"--prompt-field", "--answer-field", "--special-tokens"});
  modes.NotWith("--labels answers", {"--field"}, "--labels classes");
  modes.OnlyWith("--labels", modes.Group(kLabelsGroup));
  modes.NotWith("--labels", {"--train-tokenizer", "--vocab", "--documents", "--validation-tail"});
  modes.OnlyWith("--train-tokenizer", {"--vocab"});
  modes.NotWith("--validation-input",
                {"--validation-fraction", "--split-seed", "--validation-tail"});
  modes.NotWith("--validation-tail", {"--validation-fraction", "--split-seed"});
  return modes;
}

}  // namespace

void AddPrepare(CLI::App& app, Request& request) {
  auto options = std::make_shared<PrepareOptions>();
  CLI::App* command =
      app.add_subcommand("prepare", "Tokenise text into a dataset, or generate a synthetic one");
  DescribeUse(*command, PrepareUse());
  AddFiles(*command, *options);
  AddTokenizers(*command, *options);
  AddDocuments(*command, *options);
  AddSplits(*command, *options);
  AddMqar(*command, *options);
  AddExamples(*command, *options);
  command->get_option("--synthetic")
      ->excludes(command->get_option("--input"), command->get_option("--labels"));
  command->get_option("--tokenizer")->excludes(command->get_option("--train-tokenizer"));
  command->callback([=, &request, modes = PrepareModes(*command)] {
    modes.Require();
    request = *options;
  });
}

}  // namespace halflife::cli
