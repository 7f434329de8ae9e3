// Speed and memory of `prepare` on generated text. Prints one JSON object.
//
//   build/cpu/bench/bench_prepare [--mb N] [--dir DIR] [--tokenizer FILE|FOLDER]
//
// Tokenizers are `bytes`, a sentencepiece model that is trained on the same text, and that of
// --tokenizer, such as a byte-level BPE tokenizer.json. First checks that the dataset gives the
// text back. Then runs each tokenizer in a separate process with one thread, and measures MB of
// text per second of processor time (user and system), the rate by wall time, and the peak resident
// set for the input and for eight times the input, which must not grow. Reads and writes stay in
// the page cache.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "core/files.h"
#include "core/philox.h"
#include "data/dataset.h"
#include "data/prepare/prepare.h"

namespace halflife::bench {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

constexpr int kVocabSize = 8192;

// Makes text of 20000 words with one to four syllables, drawn by Zipf's law: sentences, paragraphs,
// some non-ASCII letters.
class TextMaker {
 public:
  TextMaker() {
    const std::vector<std::string> syllables = {"ka", "to", "ri",  "men", "sol", "de", "war", "lin",
                                                "pe", "th", "ing", "er",  "os",  "ün", "é",   "st"};
    for (uint64_t w = 0; w < kNumWords; ++w) {
      const RandomCounter draw = Draw(key_, w, 0, 0);
      std::string word;
      for (uint32_t s = 0; s <= draw.x[0] % 4; ++s) word += syllables[draw.x[1] >> 4 * s & 15];
      words_.push_back(word);
    }
  }

  void Write(const fs::path& path, int64_t bytes) const {
    std::ofstream file(path, std::ios::binary);
    std::string text;
    for (uint64_t i = 0; bytes > 0; ++i) {
      const RandomCounter draw = Draw(key_, i, 1, 0);
      // u^3 distributes ranks like a heavy-tailed law: the first hundredth of the words makes a
      // fifth of the text.
      const double u = ToUniform(draw.x[0]);
      text += words_[static_cast<size_t>(u * u * u * kNumWords)];
      text += draw.x[1] % 90 == 0 ? ".\n\n" : draw.x[1] % 12 == 0 ? ".\n" : " ";
      if (text.size() < 1 << 20) continue;
      file << text;
      bytes -= static_cast<int64_t>(text.size());
      text.clear();
    }
    HL_CHECK(file.good(), "cannot write ", path.string());
  }

 private:
  static constexpr uint64_t kNumWords = 20000;
  const RandomKey key_ = MakeRandomKey(1, RandomPurpose::kTest, 0);
  std::vector<std::string> words_;
};

struct Usage {
  double cpu_seconds = 0;
  double wall_seconds = 0;
  double peak_mib = 0;
};

double Seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
}

// Runs in a child, so that the peak memory is that of this work.
Usage Measure(const std::function<void()>& work) {
  const Stopwatch clock;
  const pid_t child = ::fork();
  HL_CHECK(child >= 0, "fork failed");
  if (child == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      std::cerr << error.what() << "\n";
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  rusage usage{};
  ::wait4(child, &status, 0, &usage);
  HL_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the measured process failed");
  return {Seconds(usage.ru_utime) + Seconds(usage.ru_stime), clock.Seconds(),
          static_cast<double>(usage.ru_maxrss) / 1024};
}

data::PrepareConfig Config(const fs::path& input, const std::string& tokenizer,
                           const fs::path& out) {
  data::PrepareConfig config;
  config.input.paths = {input.string()};
  config.input.tokenizer = tokenizer;
  config.documents = data::DocumentMode::kBlankLines;
  config.output.out = out;
  config.output.threads = 1;
  return config;
}

void CheckRoundTrip(const fs::path& out, const fs::path& input) {
  const data::Dataset dataset = data::Dataset::Open(out);
  dataset.Verify();
  std::vector<int32_t> ids(
      static_cast<size_t>(std::min<int64_t>(dataset.info().train.num_tokens, 200000)));
  dataset.Read(data::Split::kTrain, 0, ids);
  while (!ids.empty() && ids.back() != dataset.info().eos_id) ids.pop_back();
  const auto tokenizer = dataset.LoadTokenizer();
  const std::string text = ReadFile(input, ExitCode::kData);
  size_t at = 0;
  std::vector<int32_t> document;
  for (const int32_t id : ids) {
    if (id != dataset.info().eos_id) {
      document.push_back(id);
      continue;
    }
    const std::string decoded = tokenizer->Decode(document);
    at = text.find(decoded, at);
    HL_CHECK(at != std::string::npos, "a document does not come back: ", decoded);
    document.clear();
  }
}

ordered_json Run(const std::string& name, const std::string& tokenizer, const fs::path& dir,
                 int mb) {
  const fs::path small = dir / "1x.txt", large = dir / "8x.txt";
  const auto run = [&](const fs::path& input) {
    const fs::path out = dir / (name + "." + input.stem().string());
    const Usage usage = Measure([&] { data::Prepare(Config(input, tokenizer, out)); });
    // In a child too, because its allocations would count in the peak of the next child.
    if (input == small) Measure([&] { CheckRoundTrip(out, input); });
    fs::remove_all(out);
    return usage;
  };
  const Usage at_1x = run(small), at_8x = run(large);
  const double bytes = static_cast<double>(fs::file_size(large)) * 1e-6;
  return {{"tokenizer", name},
          {"input_mb", {mb, 8 * mb}},
          {"mb_per_s_per_core", bytes / at_8x.cpu_seconds},
          {"mb_per_s_wall", bytes / at_8x.wall_seconds},
          {"peak_rss_mib_1x", at_1x.peak_mib},
          {"peak_rss_mib_8x", at_8x.peak_mib}};
}

int Main(int argc, char** argv) {
  int mb = 16;
  fs::path parent = fs::temp_directory_path();
  std::string third;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (std::string(argv[i]) == "--mb") mb = std::atoi(argv[i + 1]);
    if (std::string(argv[i]) == "--dir") parent = argv[i + 1];
    if (std::string(argv[i]) == "--tokenizer") third = argv[i + 1];
  }
  const fs::path dir = parent / ("bench-prepare-" + RandomHex(8));
  fs::create_directories(dir);
  const TextMaker maker;
  maker.Write(dir / "1x.txt", int64_t{1000000} * mb);
  maker.Write(dir / "8x.txt", int64_t{8000000} * mb);
  maker.Write(dir / "train.txt", 4000000);

  data::PrepareConfig trained = Config(dir / "train.txt", "", dir / "trained");
  trained.train_tokenizer = true;
  trained.vocab_size = kVocabSize;
  const Usage training = Measure([&] { data::Prepare(trained); });

  ordered_json result = {
      {"benchmark", "prepare"}, {"threads", 1}, {"results", ordered_json::array()}};
  result["results"].push_back(Run("bytes", "bytes", dir, mb));
  const fs::path model = dir / "trained/tokenizer/sentencepiece.model";
  result["results"].push_back(Run("sentencepiece", model.string(), dir, mb));
  if (!third.empty()) result["results"].push_back(Run("given", third, dir, mb));
  result["sentencepiece_training"] = {{"input_mb", 4},
                                      {"vocab", kVocabSize},
                                      {"seconds", training.wall_seconds},
                                      {"peak_rss_mib", training.peak_mib}};
  std::cout << result.dump(2) << "\n";
  fs::remove_all(dir);
  return 0;
}

}  // namespace
}  // namespace halflife::bench

int main(int argc, char** argv) {
  try {
    return halflife::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
