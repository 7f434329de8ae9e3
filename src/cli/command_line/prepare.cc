// halflife prepare: text, or a synthetic task, into a dataset.
#include <CLI/CLI.hpp>

#include "cli/command_line/command.h"
#include "cli/command_line/modes.h"
#include "cli/command_line/text_options.h"
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
          "An --input that is a folder is searched for .txt and .jsonl files (with --labels .tsv "
          "and .jsonl), also as .gz or .zst. Ctrl-C leaves nothing behind.",
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
                  "Files, folders or patterns of .txt and .jsonl (with --labels .tsv and "
                  ".jsonl), also as .gz or .zst [none: needed without --synthetic]")
      ->type_name("PATH");
  command.add_option("--out", options.output.out, "The dataset's folder; must not exist")
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
  command.add_option("--vocab", options.text.vocab_size,
                     "Pieces of the trained tokenizer [none: needed with --train-tokenizer]");
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
                  "The documents of .txt files: whole files, lines, or blocks between blank lines. "
                  "A record of .jsonl is always a document")
      ->transform(OneOf(modes))
      ->default_str("file");
  command
      .add_option("--field", options.input.field, "The field of a JSON record that holds the text")
      ->capture_default_str();
  command
      .add_option("--invalid-utf8", options.input.replace_invalid_utf8,
                  "Bytes that are not UTF-8: an error, or replaced by U+FFFD")
      ->transform(OneOf(invalid_utf8))
      ->default_str("error");
  command
      .add_option("--max-document-bytes", options.input.max_document_bytes,
                  "The longest document that is held whole; byte-tokenised text has no limit")
      ->capture_default_str();
}

void AddSplits(CLI::App& command, PrepareOptions& options) {
  command.option_defaults()->group("Splits and shards");
  command
      .add_option("--validation-input", options.input.validation_paths,
                  "Text of the validation split, such as a published one, by the rules of "
                  "--input; all of --input then trains")
      ->type_name("PATH");
  command
      .add_option("--validation-fraction", options.input.validation_fraction,
                  "Share of documents that go to the validation split, chosen by their content; 0: "
                  "none")
      ->default_str(ShortestText(data::kUsualValidationShare));
  command.add_option("--split-seed", options.input.split_seed, "Chooses which documents those are")
      ->check(AtLeast(0))
      ->capture_default_str();
  command.add_option(
      "--validation-tail", options.input.validation_tail,
      "Share of each .txt file, at its end, that is the validation split [0.05 if there are fewer "
      "than 100 documents, all of them whole .txt files]");
  command
      .add_option("--shard-tokens", options.output.shard_tokens, "Tokens of one shard file at most")
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
                  "In place of --input: labelled rows of a task. mqar: multi-query associative "
                  "recall, pairs of a key and a value, then each key again, which asks for its "
                  "value [none: text]")
      ->check(OneOf({"mqar"}));
  command.add_option("--vocab-size", mqar.vocab_size, "Tokens; half of them are keys")
      ->capture_default_str();
  command.add_option("--seq-len", options.seq_len, "Tokens of a row, an even number")
      ->capture_default_str();
  command
      .add_option("--num-pairs", options.num_pairs,
                  "Pairs of a row, at most a quarter of its tokens. With several numbers here, in "
                  "--seq-len or in --examples, the dataset has as many segments, and scores are "
                  "also given by segment")
      ->capture_default_str();
  command
      .add_option("--power", mqar.power,
                  "Slot g of those that a key may return in has the weight g^(power - 1)")
      ->capture_default_str();
  command.add_flag("--random-non-queries", mqar.random_non_queries,
                   "Random tokens where a row would have zeros. Both generators draw them in "
                   "halflife's own way, which differs from the public code's");
  command
      .add_option("--generator", mqar.generator,
                  "numpy_compat gives the rows of Zoology and ReBased to the bit, but not with "
                  "--random-non-queries; native is faster and makes each row from its number alone")
      ->transform(OneOf(generators))
      ->default_str("native");
  command.add_option("--examples", options.examples, "Training rows of each segment")
      ->capture_default_str();
  command
      .add_option("--validation-examples", options.validation_examples,
                  "Validation rows of each segment; 0: none")
      ->capture_default_str();
  command
      .add_option("--test-examples", options.test_examples, "Test rows of each segment; 0: none")
      ->capture_default_str();
  command
      .add_option("--seed", mqar.seed,
                  "Of the training rows; the test rows have this + 10, the validation rows + 20")
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
      .add_option("--labels", options.labels,
                  "--input holds labelled records, .tsv with a first line of names or .jsonl: "
                  "texts with their classes, or prompts with their answers [none: text]")
      ->check(OneOf({"classes", "answers"}));
  command
      .add_option("--row-len", config.rules.row_len,
                  "Tokens of a row: of one text with its class, or of as many answers as fit")
      ->capture_default_str();
  command
      .add_option("--too-long", config.rules.too_long,
                  "Examples that no row holds: an error, cut to a row, or left out")
      ->transform(OneOf(rules))
      ->default_str("error");
  command.add_option("--label-field", config.label_field, "The field with a text's class")
      ->capture_default_str();
  command
      .add_option("--classes", config.classes,
                  "The classes, by their numbers from 0 [those of --input, sorted]")
      ->delimiter(',');
  command.add_option("--prompt-field", config.prompt_field, "The field with a prompt")
      ->capture_default_str();
  command.add_option("--answer-field", config.answer_field, "The field with its answer")
      ->capture_default_str();
  AddSpecialTokens(command, config.rules.special_tokens, "prompts and answers");
  command.add_option("--test-input", config.test_inputs, "Records of a test split [none]")
      ->type_name("PATH");
}

// What --input holds, or what is made without it.
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
      app.add_subcommand("prepare", "Tokenise text into a dataset, or make a synthetic one");
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
