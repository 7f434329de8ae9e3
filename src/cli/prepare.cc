// halflife prepare: signals, progress and the summary. The work is done by data/prepare/prepare.h,
// data/examples/prepare_examples.h and data/synthetic/mqar.h.
#include "data/prepare/prepare.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <iostream>
#include <map>
#include <memory>

#include "cli/command_line/options.h"
#include "cli/readable_text.h"
#include "cli/world.h"
#include "core/clock.h"
#include "core/error.h"
#include "core/human.h"
#include "core/log.h"
#include "data/examples/prepare_examples.h"
#include "data/prepare/token_files.h"
#include "data/synthetic/mqar.h"
#include "train/config/run_config.h"

namespace halflife::cli {
namespace {

// Set by SIGINT and SIGTERM. The run then stops and removes its temporary folder.
std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // A signal handler writes it.

// During its lifetime, the first signal stops the run cleanly. A second one kills the process.
class StopOnSignal {
 public:
  StopOnSignal() {
    stop_requested = false;
    struct sigaction action {};
    action.sa_handler = [](int) { stop_requested = true; };
    action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
    ::sigaction(SIGINT, &action, &old_int_);
    ::sigaction(SIGTERM, &action, &old_term_);
  }
  ~StopOnSignal() {
    ::sigaction(SIGINT, &old_int_, nullptr);
    ::sigaction(SIGTERM, &old_term_, nullptr);
  }
  StopOnSignal(const StopOnSignal&) = delete;
  StopOnSignal& operator=(const StopOnSignal&) = delete;

 private:
  struct sigaction old_int_ {
  }, old_term_{};
};

// Shows the progress: on a terminal, as one line that is updated four times per second; elsewhere,
// as a new line every ten seconds.
class ProgressLine {
 public:
  void operator()(const data::PrepareProgress& progress) {
    if (since_last_.Seconds() < (terminal_ ? 0.25 : 10.0)) return;
    since_last_.Restart();
    const std::string text = Describe(progress);
    if (terminal_) {
      std::cerr << "\r\x1b[K" << text << std::flush;
      shown_ = true;
    } else {
      HL_INFO("prepare", text);
    }
  }
  // Clears the terminal's line, so that later output starts on an empty line.
  ~ProgressLine() {
    if (shown_) std::cerr << "\r\x1b[K" << std::flush;
  }

 private:
  std::string Describe(const data::PrepareProgress& progress) {
    const double seconds = clock_.Seconds();
    const double done = static_cast<double>(progress.disk_bytes);
    const double left = static_cast<double>(progress.total_disk_bytes) - done;
    std::string text = Concat(progress.phase, ": ");
    if (progress.num_documents > 0) {
      text +=
          Concat(HumanCount(static_cast<double>(progress.num_documents)), " documents, ",
                 Fixed(static_cast<double>(progress.text_bytes) / seconds * 1e-6, 1), " MB/s, ");
    }
    text += Concat(HumanBytes(progress.disk_bytes), " of ", HumanBytes(progress.total_disk_bytes));
    return done > 0 ? Concat(text, ", ", HumanSeconds(left * seconds / done), " left") : text;
  }

  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  const Stopwatch clock_ = {};
  Stopwatch since_last_;
  bool shown_ = false;
};

// Formats a duration, which is a fraction of a second for small inputs.
std::string Took(double seconds) {
  if (seconds < 0.05) return "less than 0.1 s";
  return seconds < 10 ? Concat(Fixed(seconds, 1), " s") : HumanSeconds(seconds);
}

// Returns, for example, "the last 5 % of book.txt".
std::string TailText(const data::PrepareSummary& summary) {
  const std::string percent = ShortestText(static_cast<float>(100 * summary.validation_tail));
  return Concat("the last ", percent, " % of ",
                summary.num_files == 1 ? summary.first_file
                                       : Concat("each of ", summary.num_files, " files"));
}

// Warns if rows are much longer than the documents, because each token then has less context than
// the row has tokens. The row length of the training is not known yet, so the default is used.
void WarnOfShortDocuments(const data::PrepareSummary& summary) {
  if (summary.documents == data::DocumentMode::kFile) return;
  const int64_t seq_len = train::DataConfig().seq_len;
  const double mean = data::MeanDocumentTokens(summary.train);
  if (mean >= 0.5 * static_cast<double>(seq_len)) return;
  HL_WARN(
      "prepare", "the documents of the training split have ", Fixed(mean, 0),
      " tokens on average. The state restarts at each document, so in rows of ", seq_len,
      " tokens, the default data.seq_len, a token sees only its own document, not the whole row. ",
      summary.documents == data::DocumentMode::kRecord ? "Train" : "Use --documents file, or train",
      " with data.reset_at_documents=false to continue across documents.");
}

void PrintSplit(const char* name, const data::SplitInfo& split, const std::string& part = "") {
  std::cout << "  " << name << ": " << HumanCount(static_cast<double>(split.num_tokens))
            << " tokens in " << HumanCount(static_cast<double>(split.num_documents))
            << (split.num_documents == 1 ? " document (" : " documents (")
            << HumanBytes(split.num_bytes) << " of text), " << Counted(split.num_shards, "shard")
            << (part.empty() ? "" : ", ") << part << "\n";
}

void PrintSummary(const data::PrepareConfig& config, const data::PrepareSummary& summary) {
  const int64_t bytes = summary.train.num_bytes + summary.validation.num_bytes;
  std::cout << "prepared " << config.output.out.string() << ": "
            << Counted(summary.num_files, "file") << ", " << HumanBytes(bytes) << " of text in "
            << Took(summary.seconds) << " ("
            << Fixed(static_cast<double>(bytes) / summary.seconds * 1e-6, 1) << " MB/s)\n";
  PrintSplit("train", summary.train);
  PrintSplit("validation", summary.validation,
             summary.validation_tail > 0 ? TailText(summary) : "");
  std::cout << "  tokenizer: " << summary.tokenizer_kind << ", " << summary.vocab_size << " ids\n"
            << "  hash: " << ToHex(summary.hash) << "\n";
  if (summary.num_empty > 0) {
    std::cout << "  left out: " << Counted(summary.num_empty, "empty document") << "\n";
  }
  if (summary.num_duplicates > 0)
    std::cout << "  left out: " << Counted(summary.num_duplicates, "duplicate document") << "\n";
  if (summary.num_skipped_files > 0) {
    std::cout << "  left out: " << summary.num_skipped_files
              << " files of other kinds than .txt and .jsonl\n";
  }
  if (summary.num_validation_in_train > 0) {
    HL_WARN("prepare", summary.num_validation_in_train, " of the ",
            summary.validation.num_documents,
            " documents of --validation-input are also in --input, so the validation loss includes "
            "text that was trained on. Remove them from one of the two.");
  }
  WarnOfShortDocuments(summary);
  WarnOfSpecialNames("prepare", "the text", summary.special_names, kMarkupInText);
}

// Runs `prepare(config)`, stops it on signals and shows its progress.
template <typename Config, typename Prepare>
auto Watched(Config config, const Prepare& prepare) {
  const StopOnSignal signals;
  config.output.stop = &stop_requested;
  ProgressLine progress;
  config.output.on_progress = std::ref(progress);
  return prepare(config);
}

// Combines the lists of the command line into segments. Segments without examples are left out.
std::vector<data::MqarSegment> Segments(const PrepareOptions& options,
                                        const std::vector<int64_t>& examples) {
  const size_t count =
      std::max({options.seq_len.size(), options.num_pairs.size(), examples.size()});
  const auto entry = [&](const char* flag, const std::vector<int64_t>& list, size_t i) {
    HL_CHECK_AS(ExitCode::kUsage, list.size() == 1 || list.size() == count, flag, " has ",
                list.size(), " numbers. Use 1 number for all segments, or ", count, ".");
    return list[list.size() == 1 ? 0 : i];
  };
  std::vector<data::MqarSegment> segments;
  for (size_t i = 0; i < count; ++i) {
    const data::MqarSegment segment = {entry("--seq-len", options.seq_len, i),
                                       entry("--num-pairs", options.num_pairs, i),
                                       entry("the list of examples", examples, i)};
    if (segment.num_examples != 0) segments.push_back(segment);
  }
  return segments;
}

void PrintRows(const char* name, const data::SplitInfo& split) {
  std::cout << "  " << name << ": " << Counted(split.num_documents, "row");
  for (const data::Segment& segment : split.segments)
    std::cout << "\n    " << segment.num_rows << " of " << segment.name << ", seed "
              << segment.seed;
  std::cout << "\n";
}

void PrintSummary(const data::PrepareMqarConfig& config, const data::MqarSummary& summary) {
  std::cout << "prepared " << config.output.out.string() << ": labelled rows of " << summary.row_len
            << " tokens in " << Took(summary.seconds) << "\n";
  PrintRows("train", summary.train);
  PrintRows("validation", summary.validation);
  PrintRows("test", summary.test);
  std::cout << "  vocabulary: " << config.vocab_size << "\n"
            << "  hash: " << ToHex(summary.hash) << "\n";
}

void PrintCounts(const char* name, const data::ExampleCounts& counts) {
  std::cout << "  " << name << ": " << Counted(counts.num_examples, "example") << " in "
            << Counted(counts.num_rows, "row") << "\n";
}

void PrintSummary(const data::PrepareExamplesConfig& config, const data::ExamplesSummary& summary) {
  std::cout << "prepared " << config.output.out.string() << ": labelled rows of "
            << config.rules.row_len << " tokens in " << Took(summary.seconds) << "\n";
  PrintCounts("train", summary.train);
  PrintCounts("validation", summary.validation);
  PrintCounts("test", summary.test);
  if (!summary.classes.empty()) std::cout << "  classes: " << Join(summary.classes, ", ") << "\n";
  std::cout << "  tokenizer: " << summary.tokenizer_kind << "\n";
  if (!summary.chat_template.empty())
    std::cout << "  chat template: " << summary.chat_template << "\n";
  std::cout << "  hash: " << ToHex(summary.hash) << "\n";
  const auto left = [](const char* what, int64_t count) {
    if (count > 0) std::cout << "  " << what << ": " << Counted(count, "example") << "\n";
  };
  left("left out, as empty", summary.num_empty);
  left("left out, as too long", summary.num_dropped);
  left("cut to a row", summary.num_cut);
  if (summary.num_held_out_in_train > 0)
    HL_WARN("prepare", summary.num_held_out_in_train,
            " examples of the validation and test splits have a text or prompt that is also in "
            "--input, so scores on them include training data. Remove them from one of the two.");
  WarnOfSpecialNames("prepare", "the text", summary.special_names,
                     config.labels == data::RowLabels::kClasses ? kMarkupInText : kParseThem);
}

void PrepareText(const PrepareOptions& options) {
  data::PrepareConfig config = options.text;
  config.input = options.input;
  config.output = options.output;
  const bool of_tokens = data::AreTokenFiles(config.input.paths);
  PrintSummary(config, Watched(config, of_tokens ? data::PrepareTokenFiles : data::Prepare));
}

void PrepareLabelled(const PrepareOptions& options) {
  data::PrepareExamplesConfig config = options.examples_config;
  config.labels = options.labels == "classes"       ? data::RowLabels::kClasses
                  : options.labels == "preferences" ? data::RowLabels::kPreferences
                                                    : data::RowLabels::kAnswers;
  config.conversations = options.labels == "messages";
  config.input = options.input;
  config.output = options.output;
  PrintSummary(config, Watched(config, data::PrepareExamples));
}

void PrepareTask(const PrepareOptions& options) {
  data::PrepareMqarConfig config = options.mqar;
  config.train = Segments(options, options.examples);
  config.validation = Segments(options, options.validation_examples);
  config.test = Segments(options, options.test_examples);
  config.output = options.output;
  PrintSummary(config, Watched(config, data::PrepareMqar));
}

}  // namespace

ExitCode Run(const PrepareOptions& options) {
  WarnOfBusyCores(options.output.threads);
  if (!options.synthetic.empty()) {
    PrepareTask(options);
  } else if (!options.labels.empty()) {
    PrepareLabelled(options);
  } else {
    PrepareText(options);
  }
  return ExitCode::kFinished;
}

}  // namespace halflife::cli
