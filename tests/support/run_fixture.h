// The fixture of end-to-end tests: a small text, a prepared dataset, a tiny recipe, and functions
// that run the binary on them.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::test {

// Returns paragraphs of sentences from a small vocabulary. The text is learnable but not trivial,
// and depends only on the seed.
std::string MakeText(size_t bytes, uint64_t seed);

class RunFixture {
 public:
  // Prepares DIR/data from `text_bytes` bytes of MakeText with the byte tokenizer.
  explicit RunFixture(size_t text_bytes = 120000);

  std::filesystem::path path(const std::string& name) const { return dir_ / name; }
  std::string recipe() const { return (dir_ / "recipe.textproto").string(); }

  struct Train {
    std::string run;
    int ranks = 1;                   // 1: without mpirun.
    std::vector<std::string> set;    // Values of --set.
    std::vector<std::string> flags;  // Other arguments.
    std::map<std::string, std::string> env;
    double timeout_s = 120;
  };
  // A single rank is forked (forked_engine.h).
  RunResult Run(const Train& train) const;
  // Returns the command line of Run, without mpirun.
  std::vector<std::string> Command(const Train& train) const;

  // Returns the lines of RUN/metrics.jsonl that contain `key`, for example "loss".
  std::vector<nlohmann::json> Metrics(const std::string& run, const std::string& key) const;
  RunResult Halflife(const std::vector<std::string>& arguments) const;

 private:
  TempDir dir_;
};

}  // namespace halflife::test
