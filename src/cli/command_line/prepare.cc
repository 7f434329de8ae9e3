// halflife prepare: converts text, or a synthetic task, to a dataset.
#include "cli/command_line/declare.h"
#include "core/human.h"

namespace halflife::cli {
namespace {

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
           "halflife prepare --input train.bin --validation-input val.bin --tokenizer "
           "gpt2/tokenizer.json --out owt.data",
           "halflife prepare --synthetic mqar --seq-len 128 --num-pairs 16 --out "
           "mqar.data",
           "halflife prepare --labels classes --input train.tsv --validation-input "
           "dev.tsv --row-len 128 --tokenizer bytes --out reviews.data",
           "halflife prepare --labels answers --input pairs.jsonl --tokenizer bytes "
           "--out pairs.data",
           "halflife prepare --labels messages --input chats.jsonl --template zephyr --tokenizer "
           "bytes --out chats.data",
           "halflife prepare --labels preferences --input pairs.jsonl --too-long drop --tokenizer "
           "bytes --out pairs.data"},
      .exit_codes = {ExitCode::kData, ExitCode::kEnvironment, ExitCode::kInterrupted}};
}

void AddFiles(OptionDeclarer& declare, PrepareOptions& options) {
  declare("--input PATH", options.input.paths,
          "Files, folders or patterns of .txt and .jsonl (with --labels: .tsv and .jsonl), also "
          "compressed as .gz or .zst. Or token files (.bin) of nanoGPT, llm.c or Megatron-LM (with "
          "its .idx), and --tokenizer is the one that made their ids. Required without --synthetic "
          "[none]");
  declare.Flag(
      "--in-place", options.text.in_place,
      "Link token files (.bin) of nanoGPT or llm.c instead of copying them. They must stay "
      "where they are, unchanged. Needs --validation-input or --validation-fraction 0");
  declare.Required("--out DIR", options.output.out, "The folder of the dataset; it must not exist");
  declare.Flag("--resumable", options.text.resumable,
               "Keep encoded text in OUT.journal (4 bytes per token, 64 per document) until the "
               "dataset is complete. The same command then continues after an interruption, with "
               "the same result");
  declare("--threads", options.output.threads, "Worker threads; 0: one per core", NumThreads(0));
}

void AddTokenizers(OptionDeclarer& declare, PrepareOptions& options) {
  declare.BeginGroup("Tokenizer");
  AddTokenizer(declare, options.input.tokenizer, "with --train-tokenizer: none");
  CLI::Option* const train = declare.Flag("--train-tokenizer", options.text.train_tokenizer,
                                          "Train a sentencepiece tokenizer on the training split");
  declare("--vocab", options.text.vocab_size,
          "Vocabulary size of the trained tokenizer. Required with --train-tokenizer [none]")
      ->needs(train);
}

void AddDocuments(OptionDeclarer& declare, PrepareOptions& options) {
  using data::DocumentMode;
  const std::map<std::string, DocumentMode> documents = {
      {"file", DocumentMode::kFile},
      {"line", DocumentMode::kLine},
      {"blank_lines", DocumentMode::kBlankLines}};
  const std::map<std::string, bool> invalid_utf8 = {{"error", false}, {"replace", true}};
  declare.BeginGroup("Documents");
  declare("--documents", options.text.documents,
          "Documents of .txt files: whole files, lines, or blocks between blank lines. A .jsonl "
          "record is always one document",
          documents)
      ->default_str("file");
  declare.Flag(
      "--dedup", options.text.dedup,
      "Leave out documents whose whole text occurred before. Needs about 48 bytes of memory "
      "per document");
  declare("--field", options.input.field, "The field of a JSON record that contains the text");
  declare("--invalid-utf8", options.input.replace_invalid_utf8,
          "Reaction to bytes that are not UTF-8, and to JSON escapes of half a surrogate pair: an "
          "error, or replacement by U+FFFD",
          invalid_utf8);
  declare("--max-document-bytes", options.input.max_document_bytes,
          "Largest document that is held in memory. Byte-tokenized text has no limit");
}

void AddSplits(OptionDeclarer& declare, PrepareOptions& options) {
  declare.BeginGroup("Splits and shards");
  declare("--validation-input PATH", options.input.validation_paths,
          "Text of the validation split, for example a published one, by the rules of --input. All "
          "of --input is then training text");
  declare("--validation-fraction", options.input.validation_fraction,
          "Share of documents that go to the validation split, chosen by their content; 0: none")
      ->default_str(ShortestText(data::kUsualValidationShare));
  declare("--split-seed", options.input.split_seed, "Seed that chooses these documents",
          AtLeast(0));
  declare("--validation-tail", options.input.validation_tail,
          "Share of each .txt file, at its end, for the validation split [0.05 if there are fewer "
          "than 100 documents, all of them whole .txt files]");
  declare("--shard-tokens", options.output.shard_tokens, "Maximum number of tokens per shard file");
}

void AddMqar(OptionDeclarer& declare, PrepareOptions& options) {
  using data::MqarGenerator;
  data::PrepareMqarConfig& mqar = options.mqar;
  declare.BeginMode("Synthetic rows");
  declare("--synthetic", options.synthetic,
          "Generate labelled rows of a task instead of reading --input. mqar: multi-query "
          "associative recall. A row has pairs of a key and a value, then each key again, labelled "
          "with its value [none: text]",
          OneOf({"mqar"}));
  declare("--vocab-size", mqar.vocab_size, "Number of tokens; half of them are keys");
  declare("--seq-len", options.seq_len, "Tokens per row, an even number");
  declare("--num-pairs", options.num_pairs,
          "Pairs per row, at most a quarter of its tokens. With several numbers here, in --seq-len "
          "or in --examples, the dataset has that number of segments, and scores are also reported "
          "by segment");
  declare("--power", mqar.power,
          "Distribution of a key's second position: its possible slot g has weight g^(power - 1)");
  declare.Flag("--random-non-queries", mqar.random_non_queries,
               "Fill unused positions with random tokens instead of zeros. Both generators draw "
               "them in the same way, which differs from the public code");
  declare("--generator", mqar.generator,
          "numpy_compat reproduces the rows of Zoology and ReBased exactly, except with "
          "--random-non-queries. native is faster and generates each row independently",
          {{"native", MqarGenerator::kNative}, {"numpy_compat", MqarGenerator::kNumpyCompat}});
  declare("--examples", options.examples, "Training rows per segment");
  declare("--validation-examples", options.validation_examples,
          "Validation rows per segment; 0: none");
  declare("--test-examples", options.test_examples, "Test rows per segment; 0: none");
  declare("--seed", mqar.seed,
          "Seed of the training rows. Test rows use seed + 10, validation rows seed + 20",
          AtLeast(0));
}

void AddExamples(OptionDeclarer& declare, PrepareOptions& options) {
  using data::TooLong;
  constexpr char kHeadline[] = "Labelled text";
  data::PrepareExamplesConfig& config = options.examples_config;
  declare.BeginMode(kHeadline);
  declare("--labels", options.labels,
          "--input contains labelled records (.tsv with a header line, or .jsonl): texts with "
          "their classes, prompts with their answers, conversations as lists of messages, or "
          "prompts with a preferred and a rejected answer [none: text]",
          OneOf({"classes", "answers", "messages", "preferences"}));
  declare("--row-len", config.rules.row_len,
          "Tokens per row. A row has one text with its class, or as many prompts with answers, "
          "conversations or pairs of answers as fit");
  declare("--too-long", config.rules.too_long,
          "Examples longer than a row: an error, truncated, or dropped",
          {{"error", TooLong::kError}, {"cut", TooLong::kCut}, {"drop", TooLong::kDrop}});
  declare("--test-input PATH", config.test_inputs, "Records of a test split [none]");
  declare.BeginGroup(kHeadline);  // Only with one value of --labels.
  declare("--label-field", config.label_field, "The field with the class of a text");
  declare("--classes", config.classes, "Class names, numbered from 0 [those of --input, sorted]")
      ->delimiter(',');
  declare("--prompt-field", config.prompt_field, "The field with the prompt");
  declare("--answer-field", config.answer_field, "The field with the answer");
  declare("--chosen-field", config.chosen_field, "The field with the preferred answer");
  declare("--rejected-field", config.rejected_field, "The field with the rejected answer");
  AddSpecialTokens(declare, config.rules.special_tokens, "prompts and answers");
  declare("--messages-field", config.messages_field,
          "The field with the list of messages, each {\"role\": ..., \"content\": ...}");
  declare("--template", config.chat_template,
          "Chat template that joins the messages to a text [that of the tokenizer, if this program "
          "wrote it]",
          OneOf({"chatml", "llama3", "qwen", "mistral", "zephyr"}));
}

}  // namespace

void AddPrepare(CLI::App& app, Request& request) {
  auto [command, options] = AddSubcommand<PrepareOptions>(
      app, request, "prepare", "Tokenize text into a dataset, or generate a synthetic one",
      PrepareUse());
  OptionDeclarer declare(command);
  AddFiles(declare, options);
  AddTokenizers(declare, options);
  AddDocuments(declare, options);
  AddSplits(declare, options);
  AddMqar(declare, options);
  AddExamples(declare, options);
  Exclude(
      command, "--synthetic",
      {"--input", "--in-place", "--resumable", "--tokenizer", "--train-tokenizer", "--documents",
       "--dedup", "--field", "--invalid-utf8", "--max-document-bytes", "--validation-input",
       "--validation-fraction", "--split-seed", "--validation-tail", "--labels"});
  Exclude(command, "--labels",
          {"--in-place", "--resumable", "--train-tokenizer", "--documents", "--dedup",
           "--validation-tail"});
  Exclude(command, "--tokenizer", {"--train-tokenizer"});
  Exclude(command, "--validation-input",
          {"--validation-fraction", "--split-seed", "--validation-tail"});
  Exclude(command, "--validation-tail", {"--validation-fraction", "--split-seed"});
  command.parse_complete_callback([&command = command, &labels = options.labels] {
    RequireValue(command, "--labels", "classes", {"--label-field", "--classes"});
    if (labels != "preferences") {
      RequireValue(command, "--labels", "answers", {"--prompt-field", "--special-tokens"});
      RequireValue(command, "--labels", "messages", {"--template"});
    }
    RequireValue(command, "--labels", "answers", {"--answer-field"});
    RequireValue(command, "--labels", "messages", {"--messages-field"});
    RequireValue(command, "--labels", "preferences", {"--chosen-field", "--rejected-field"});
    if (command.count("--labels") > 0) RequireValue(command, "--labels", "classes", {"--field"});
  });
}

}  // namespace halflife::cli
