// `prepare` for labelled examples: rows of classes and of answers, counts, and errors.
#include "data/examples/prepare_examples.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/concat.h"
#include "data/batch.h"
#include "data/chat/chat_tokens.h"
#include "data/shard_layout.h"
#include "data/small_bpe.h"
#include "data/small_datasets.h"
#include "data/token_source.h"
#include "support/expect_error.h"
#include "support/temp_dir.h"

namespace halflife::data {
namespace {

namespace fs = std::filesystem;
using test::WriteText;

class PrepareExamplesTest : public testing::Test {
 protected:
  std::string File(const std::string& name, const std::string& text) const {
    WriteText(dir_ / name, text);
    return (dir_ / name).string();
  }
  PrepareExamplesConfig Classes(const std::string& out) const {
    return {.labels = RowLabels::kClasses,
            .input = {.paths = {File("train.tsv", "text\tlabel\nabc\t10\nd\t2\n\t2\nef\t10\n")},
                      .validation_paths = {File("dev.tsv", "label\ttext\n2\tgh\n")},
                      .tokenizer = "bytes"},
            .rules = {.row_len = 5},
            .output = {.out = dir_ / out, .threads = 2}};
  }
  PrepareExamplesConfig Answers(const std::string& out, const std::string& text) const {
    return {.labels = RowLabels::kAnswers,
            .input = {.paths = {File(out + ".jsonl", text)},
                      .tokenizer = "bytes",
                      .validation_fraction = 0},
            .rules = {.row_len = 8},
            .output = {.out = dir_ / out}};
  }
  halflife::test::TempDir dir_;
};

// A row has a text with its class, and then padding as a separate document.
TEST_F(PrepareExamplesTest, RowsOfClasses) {
  const PrepareExamplesConfig config = Classes("classes");
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.train.num_examples, 3);
  EXPECT_EQ(summary.num_empty, 1);
  EXPECT_EQ(summary.classes, (std::vector<std::string>{"2", "10"})) << "numbers by their size";
  const Dataset dataset = Dataset::Open(config.output.out);
  dataset.Verify();
  const DatasetInfo& info = dataset.info();
  EXPECT_EQ(info.hash, summary.hash);
  EXPECT_EQ(info.labels, RowLabels::kClasses);
  EXPECT_EQ(info.classes, summary.classes);
  EXPECT_TRUE(info.has_tokenizer() && info.packs_documents());
  EXPECT_EQ(dataset.LoadTokenizer()->kind(), "bytes");
  EXPECT_EQ(info.train.num_bytes, 6);

  const TokenView view = ViewOf(dataset, Split::kTrain);
  ASSERT_EQ(NumWindows(view, 5), 3);
  const Batch batch = ReadWindows(view, 5, 0, 3);
  const auto id = [](char c) { return c + 3; };
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{id('a'), id('b'), id('c'), 1, 0, id('d'), 1, 0, 0,
                                                0, id('e'), id('f'), 1, 0, 0}));
  std::vector<int32_t> labels(15, kNoTarget);
  labels[0] = 1, labels[5] = 0, labels[10] = 1;
  EXPECT_EQ(batch.targets, labels);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 4, 5, 7, 10, 13, 15}));
  EXPECT_EQ(batch.num_targets, 3);
}

// A row has as many examples as fit, in order. They do not see each other.
TEST_F(PrepareExamplesTest, RowsOfAnswers) {
  const PrepareExamplesConfig config =
      Answers("answers",
              "{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"prompt\": \"cd\", \"answer\": \"e\"}\n"
              "{\"prompt\": \"f\", \"answer\": \"ghij\"}\n");
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.train.num_examples, 3);
  EXPECT_EQ(summary.train.num_rows, 2);
  const Dataset dataset = Dataset::Open(config.output.out);
  const Batch batch = ReadWindows(dataset, Split::kTrain, 8, 0, 2);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 7, 8, 14, 16}));
  const int32_t no = kNoTarget;
  const auto id = [](char c) { return c + 3; };
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{id('b'), 1, no, no, id('e'), 1, no, no, id('g'),
                                                 id('h'), id('i'), id('j'), 1, no, no, no}));
}

// Rows of conversations: labels on the turns of assistants, several conversations per row.
TEST_F(PrepareExamplesTest, RowsOfConversations) {
  const std::string text =
      "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
      "{\"role\": \"assistant\", \"content\": \"bc\"}]}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"no answer\"}]}\n"
      "{\"messages\": [{\"role\": \"user\", \"content\": \"d\"}, "
      "{\"role\": \"assistant\", \"content\": \"e\"}]}\n";
  PrepareExamplesConfig config = Answers("chats", text);
  config.conversations = true;
  config.chat_template = "zephyr";
  config.rules.row_len = 64;
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.train.num_examples, 2);
  EXPECT_EQ(summary.train.num_rows, 1);
  EXPECT_EQ(summary.num_empty, 1);
  EXPECT_EQ(summary.chat_template, "zephyr");
  const Dataset dataset = Dataset::Open(config.output.out);
  dataset.Verify();
  const Batch batch = ReadWindows(dataset, Split::kTrain, 64, 0, 1);
  const ChatTemplate chat = RequireChatTemplate("zephyr");
  std::vector<int32_t> ids, labels, starts = {0};
  for (const auto& [question, answer] :
       std::vector<std::pair<std::string, std::string>>{{"a", "bc"}, {"d", "e"}}) {
    const ChatTokens tokens = EncodeChat(
        *MakeByteTokenizer(),
        chat.Render({{"user", question}, {"assistant", answer}}, GenerationPrompt::kOmit));
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      const bool labelled = i + 1 < tokens.ids.size() && tokens.assistant[i + 1];
      ids.push_back(tokens.ids[i]);
      labels.push_back(labelled ? tokens.ids[i + 1] : kNoTarget);
    }
    starts.push_back(static_cast<int32_t>(ids.size()));
  }
  EXPECT_EQ(batch.num_targets, 5) << "b, c, eos, e, eos";
  ids.resize(64, 0), labels.resize(64, kNoTarget), starts.push_back(64);
  EXPECT_EQ(batch.inputs, ids);
  EXPECT_EQ(batch.targets, labels);
  EXPECT_EQ(batch.cu_seqlens, starts) << "two conversations and padding";

  // The template is kept with the tokenizer, where the next `prepare` finds it.
  config.chat_template.clear();
  config.input.tokenizer = (config.output.out / "tokenizer").string();
  config.output.out = dir_ / "again";
  EXPECT_EQ(PrepareExamples(config).chat_template, "zephyr");
}

// Both sequences of a pair are in one row, as documents of their own.
TEST_F(PrepareExamplesTest, RowsOfPreferences) {
  PrepareExamplesConfig config =
      Answers("pairs",
              "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cd\"}\n"
              "{\"prompt\": \"e\", \"chosen\": \"\", \"rejected\": \"f\"}\n"
              "{\"prompt\": \"g\", \"chosen\": \"h\", \"rejected\": \"i\"}\n"
              "{\"prompt\": \"jklmn\", \"chosen\": \"o\", \"rejected\": \"p\"}\n");
  config.labels = RowLabels::kPreferences;
  config.rules.too_long = TooLong::kDrop;
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.train.num_examples, 2);
  EXPECT_EQ(summary.train.num_rows, 2);
  EXPECT_EQ(summary.num_empty, 1);
  EXPECT_EQ(summary.num_dropped, 1) << "14 tokens do not fit into 8";
  const Dataset dataset = Dataset::Open(config.output.out);
  EXPECT_EQ(dataset.info().labels, RowLabels::kPreferences);
  const Batch batch = ReadWindows(dataset, Split::kTrain, 8, 0, 2);
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 3, 7, 8, 11, 14, 16}));
  const int32_t no = kNoTarget;
  const auto id = [](char c) { return c + 3; };
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{id('b'), 1, no, id('c'), id('d'), 1, no, no,
                                                 id('h'), 1, no, id('i'), 1, no, no, no}));

  config.rules.too_long = TooLong::kError;
  config.output.out = dir_ / "refused";
  EXPECT_HL_ERROR(PrepareExamples(config), ExitCode::kData,
                  "pairs.jsonl:4: a pair of 14 tokens in both sequences, but rows have 8. "
                  "Use --row-len 14 or --too-long drop.");
  config.rules.too_long = TooLong::kCut;
  EXPECT_HL_ERROR(
      PrepareExamples(config), ExitCode::kUsage,
      "--too-long cut would change the answers that are compared. Use --too-long drop.");
}

// A prompt is a list of messages, or the messages that both answers begin with. Only the last turn
// has labels.
TEST_F(PrepareExamplesTest, PreferencesOfConversations) {
  const std::string user = R"({"role": "user", "content": "a"})",
                    first = R"({"role": "assistant", "content": "b"})",
                    again = R"({"role": "user", "content": "c"})",
                    good = R"({"role": "assistant", "content": "dd"})",
                    bad = R"({"role": "assistant", "content": "e"})";
  const auto list = [](const std::vector<std::string>& items) {
    return Concat("[", Join(items, ", "), "]");
  };
  const std::string with_prompt =
      Concat(R"({"prompt": )", list({user, first, again}), R"(, "chosen": )", list({good}),
             R"(, "rejected": )", list({bad}), "}\n");
  const std::string without =
      Concat(R"({"prompt": "a", "chosen": )", list({user, first, again, good}), R"(, "rejected": )",
             list({user, first, again, bad}), "}\n");
  const std::string none =
      Concat(R"({"chosen": )", list({user}), R"(, "rejected": )", list({user, bad}), "}\n");
  PrepareExamplesConfig config = Answers("chats", with_prompt + without + none);
  config.labels = RowLabels::kPreferences;
  config.chat_template = "zephyr";
  config.rules.row_len = 128;
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.train.num_rows, 2);
  EXPECT_EQ(summary.num_empty, 1);
  const Dataset dataset = Dataset::Open(config.output.out);
  const Batch one = ReadWindows(dataset, Split::kTrain, 128, 0, 1),
              two = ReadWindows(dataset, Split::kTrain, 128, 1, 1);
  EXPECT_EQ(one.inputs, two.inputs);
  EXPECT_EQ(one.targets, two.targets);
  EXPECT_EQ(one.cu_seqlens.size(), 4u) << "two sequences and padding";
  EXPECT_EQ(one.num_targets, 5) << "d, d, eos, e, eos";

  const auto refuse = [&](const std::string& text, const std::string& name, ExitCode code,
                          const char* words) {
    PrepareExamplesConfig bad_config = config;
    bad_config.input.paths = {File("bad.jsonl", text)};
    bad_config.chat_template = name;
    bad_config.output.out = dir_ / "refused";
    EXPECT_HL_ERROR(PrepareExamples(bad_config), code, words);
  };
  refuse(with_prompt, "", ExitCode::kUsage, "the tokenizer bytes has no chat template");
  refuse(R"({"prompt": "a", "chosen": "b", "rejected": []})", "zephyr", ExitCode::kData,
         "bad.jsonl:1: the chosen answer is a JSON string and the rejected one a JSON array. Use "
         "two strings, or two lists of messages.");
  refuse(R"({"chosen": "b", "rejected": "c"})", "zephyr", ExitCode::kData,
         "bad.jsonl:1: the record has no prompt. Answers that are texts need a prompt that is a "
         "text; choose it with --prompt-field.");
}

TEST_F(PrepareExamplesTest, RefusesConversations) {
  const auto refuse = [&](const std::string& text, const char* name, ExitCode code,
                          const char* words) {
    PrepareExamplesConfig config = Answers("refused", text);
    config.conversations = true;
    config.chat_template = name;
    EXPECT_HL_ERROR(PrepareExamples(config), code, words);
  };
  const std::string turn = R"({"messages": [{"role": "user", "content": "a"}]})";
  refuse(turn, "", ExitCode::kUsage,
         "the tokenizer bytes has no chat template. Name the template of the model with "
         "--template: chatml, llama3, qwen, mistral, zephyr.");
  refuse("\n{\"messages\": [{\"role\": \"robot\", \"content\": \"a\"}]}", "zephyr", ExitCode::kData,
         "refused.jsonl:2: message 1 has the role 'robot'");
  refuse("{\"messages\": \"a\"}", "zephyr", ExitCode::kData,
         "refused.jsonl:1: the messages are a JSON string, not a list");
  refuse("{\"prompt\": \"a\"}", "zephyr", ExitCode::kData,
         "the record has no field 'messages'; it has: prompt; choose one with --messages-field");
  refuse(
      R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})",
      "zephyr", ExitCode::kData, "refused.jsonl:1: an example of");
}

// An eos inside an example, as in chat templates, does not end the example.
TEST_F(PrepareExamplesTest, SpecialTokensOfAnswers) {
  const auto json = test::BpeFiles(test::SmallBpeJson());
  for (const auto& [name, bytes] : json) File(name, bytes);
  PrepareExamplesConfig config = Answers("chat",
                                         "{\"prompt\": \"a<|end|>b\", \"answer\": \"c<|end|>\"}\n"
                                         "{\"prompt\": \"d\", \"answer\": \"e\"}\n");
  config.input.tokenizer = dir_.path().string();
  config.rules.row_len = 10;
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_TRUE(summary.special_names.empty());
  const Dataset dataset = Dataset::Open(config.output.out);
  dataset.Verify();
  const Batch batch = ReadWindows(dataset, Split::kTrain, 10, 0, 1);
  const int32_t no = kNoTarget, end = test::kEnd, pad = test::kPad;
  EXPECT_EQ(batch.inputs, (std::vector<int32_t>{'a', end, 'b', 'c', end, end, 'd', 'e', end, pad}));
  EXPECT_EQ(batch.targets, (std::vector<int32_t>{no, no, 'c', end, end, no, 'e', end, no, no}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<int32_t>{0, 6, 9, 10})) << "two examples and padding";
  EXPECT_NE(test::ReadText(config.output.out / "manifest.txtpb").find("special-tokens"),
            std::string::npos);

  config.rules = {.row_len = 40, .special_tokens = SpecialTokens::kPlain};
  config.output.out = dir_ / "plain";
  EXPECT_EQ(PrepareExamples(config).special_names, (NameCounts{{"<|end|>", 2}}));
  const Dataset plain = Dataset::Open(config.output.out);
  const Batch characters = ReadWindows(plain, Split::kTrain, 40, 0, 1);
  EXPECT_EQ(std::ranges::count(characters.inputs, end), 2) << "one for each example";
}

// Examples without prompts are split by their answers. Those without answers are left out.
TEST_F(PrepareExamplesTest, PromptsMayBeEmpty) {
  std::string lines = "{\"prompt\": \"a\", \"answer\": \"\"}\n";
  for (int i = 0; i < 200; ++i) lines += Concat("{\"prompt\": \"\", \"answer\": \"", i, "\"}\n");
  PrepareExamplesConfig config = Answers("free", lines);
  config.input.validation_fraction = 0.2;
  const ExamplesSummary summary = PrepareExamples(config);
  EXPECT_EQ(summary.num_empty, 1);
  EXPECT_NEAR(static_cast<double>(summary.validation.num_examples), 40, 5 * std::sqrt(32));
}

// Conversations that the assistant begins are split by its first message.
TEST_F(PrepareExamplesTest, AssistantsMayBegin) {
  std::string chats, pairs;
  for (int i = 0; i < 200; ++i) {
    const auto list = [](const auto& content) {
      return Concat(R"([{"role": "assistant", "content": ")", content, "\"}]");
    };
    chats += Concat(R"({"messages": )", list(i), "}\n");
    pairs += Concat(R"({"chosen": )", list(i), R"(, "rejected": )", list("no"), "}\n");
  }
  PrepareExamplesConfig config = Answers("begun", chats);
  config.conversations = true;
  config.chat_template = "zephyr";
  config.rules.row_len = 64;
  config.input.validation_fraction = 0.2;
  const auto num_validation = [&] {
    return static_cast<double>(PrepareExamples(config).validation.num_examples);
  };
  EXPECT_NEAR(num_validation(), 40, 5 * std::sqrt(32));

  config = Answers("pairs_begun", pairs);
  config.labels = RowLabels::kPreferences;
  config.chat_template = "zephyr";
  config.rules.row_len = 128;
  config.input.validation_fraction = 0.2;
  EXPECT_NEAR(num_validation(), 40, 5 * std::sqrt(32));
}

TEST_F(PrepareExamplesTest, CountsWhatIsHeldOutAndTrains) {
  PrepareExamplesConfig config = Classes("twins");
  config.input.validation_paths = {File("twins.tsv", "text\tlabel\nd\t2\nd\t10\nnew\t2\n")};
  EXPECT_EQ(PrepareExamples(config).num_held_out_in_train, 2);
  EXPECT_EQ(PrepareExamples(Classes("apart")).num_held_out_in_train, 0);
}

// The result depends only on files and options: threads and shard boundaries change no row.
TEST_F(PrepareExamplesTest, ThreadsChangeNothing) {
  std::string lines = "text\tlabel\n";
  for (int i = 0; i < 3000; ++i)
    lines += Concat("text number ", i, "\t", i % 3 == 0 ? "third" : "other", "\n");
  const auto prepare = [&](const std::string& out, int threads) {
    PrepareExamplesConfig config = Classes(out);
    config.input.paths = {File("many.tsv", lines)};
    config.input.validation_paths = {};
    config.input.validation_fraction = 0.1;
    config.rules.row_len = 40;
    config.output.threads = threads;
    config.output.shard_tokens = kBlockTokens;
    return PrepareExamples(config);
  };
  const ExamplesSummary one = prepare("one", 1), three = prepare("three", 3);
  EXPECT_EQ(one.hash, three.hash);
  EXPECT_EQ(one.train.num_examples + one.validation.num_examples, 3000);
  EXPECT_NEAR(static_cast<double>(one.validation.num_examples), 300, 5 * std::sqrt(300));
  const Dataset dataset = Dataset::Open(dir_ / "one");
  EXPECT_GE(dataset.info().train.num_shards, 2) << "rows should cross shards";
  const TokenView view = ViewOf(dataset, Split::kTrain);
  for (int64_t row = 0; row < NumWindows(view, 40); ++row)
    ASSERT_EQ(ReadWindows(view, 40, row, 1).num_targets, 1) << row;
}

TEST_F(PrepareExamplesTest, RefusesToLeaveOutAllExamples) {
  PrepareExamplesConfig config = Answers("none",
                                         "{\"prompt\": \"long prompt\", \"answer\": \"a\"}\n"
                                         "{\"prompt\": \"another\", \"answer\": \"bc\"}\n");
  for (const TooLong rule : {TooLong::kDrop, TooLong::kCut}) {
    config.rules.too_long = rule;
    config.rules.row_len = rule == TooLong::kCut ? 7 : 8;
    EXPECT_HL_ERROR(PrepareExamples(config), ExitCode::kData,
                    Concat("no example is in the train split: --too-long ", Name(rule),
                           " left out all 2 of its examples, because --row-len ",
                           config.rules.row_len, " is too short for them. Raise --row-len."));
  }
  config.input.paths = {File("short.jsonl", "{\"prompt\": \"\", \"answer\": \"a\"}\n")};
  config.input.validation_paths = {(dir_ / "none.jsonl").string()};
  EXPECT_HL_ERROR(PrepareExamples(config), ExitCode::kData,
                  "no example is in the validation split: --too-long cut left out all 2");
  config = Answers("empty", "{\"prompt\": \"a\", \"answer\": \"\"}\n");
  EXPECT_HL_ERROR(PrepareExamples(config), ExitCode::kData,
                  "train split: all 1 records are empty. Use records with answers.");
}

TEST_F(PrepareExamplesTest, Refuses) {
  const auto with = [&](auto change) {
    PrepareExamplesConfig config = Classes("refused");
    change(config);
    return PrepareExamples(config);
  };
  EXPECT_HL_ERROR(with([&](auto& c) {
                    c.input.validation_paths = {File("odd.tsv", "text\tlabel\na\t2\nb\tmaybe\n")};
                  }),
                  ExitCode::kData, "odd.tsv:3: the label 'maybe' is not one of the classes 2, 10");
  EXPECT_HL_ERROR(with([&](auto& c) { c.input.paths = {File("one.tsv", "text\tlabel\na\t2\n")}; }),
                  ExitCode::kData, "have 1 label: '2'. Provide examples of two or more classes.");
  EXPECT_HL_ERROR(with([](auto& c) {
                    c.classes = {"2", "2"};
                  }),
                  ExitCode::kUsage, "names a class twice");
  EXPECT_HL_ERROR(with([](auto& c) { c.rules.row_len = 3; }), ExitCode::kData,
                  "train.tsv:2: ", "4 tokens, but rows have 3");
  EXPECT_HL_ERROR(with([](auto& c) { c.input.validation_paths = c.input.paths; }), ExitCode::kUsage,
                  "both in --input and in --validation-input");
  EXPECT_HL_ERROR(with([](auto& c) { c.input.tokenizer = ""; }), ExitCode::kUsage,
                  "needs --tokenizer");
  EXPECT_HL_ERROR(
      with([&](auto& c) { c.input.validation_paths = {File("empty.tsv", "text\tlabel\n\t2\n")}; }),
      ExitCode::kData, "no example is in the validation split");
  EXPECT_HL_ERROR(with([&](auto& c) { c.test_inputs = {File("names.tsv", "text\tlabel\n")}; }),
                  ExitCode::kData, "no example is in the test split. Use files with examples.");
  EXPECT_HL_ERROR(
      with([&](auto& c) { c.input.paths = {File("un.tsv", "text\tlabel\na\t1\nb\t2\nc\t\n")}; }),
      ExitCode::kData, "un.tsv:4: a text without a label. Use one of 1, 2.");
  EXPECT_HL_ERROR(with([](auto& c) { c.output.threads = 1025; }), ExitCode::kUsage,
                  "--threads 1025", "Use 0 for all cores");
  EXPECT_HL_ERROR(with([](auto& c) { c.output.shard_tokens = 10; }), ExitCode::kUsage,
                  "--shard-tokens 10", "32768");
  EXPECT_HL_ERROR(with([](auto& c) { c.input.validation_fraction = 1; }), ExitCode::kUsage,
                  "--validation-fraction 1", "Use for example 0.05");
  EXPECT_HL_ERROR(with([](auto& c) { c.input.max_document_bytes = 0; }), ExitCode::kUsage,
                  "--max-document-bytes 0");
  const std::atomic<bool> stop{true};
  EXPECT_HL_ERROR(with([&](auto& c) { c.output.stop = &stop; }), ExitCode::kInterrupted,
                  "stopped by a signal");
  EXPECT_FALSE(fs::exists(dir_ / "refused"));
  for (const auto& entry : fs::directory_iterator(dir_.path()))
    EXPECT_TRUE(entry.is_regular_file()) << "left behind: " << entry.path();
}

}  // namespace
}  // namespace halflife::data
