// What end-to-end tests start from: a small text, a prepared dataset and a tiny recipe, driven
// through the binary.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/subprocess.h"
#include "support/temp_dir.h"

namespace halflife::test {

// Sentences of a small vocabulary in paragraphs, the same for the same seed: learnable, but not
// trivial.
std::string MakeText(size_t bytes, uint64_t seed);

class RunFixture {
 public:
  // Prepares DIR/data from `text_bytes` of MakeText with the byte tokenizer.
  RunFixture(const std::string& binary, size_t text_bytes = 120000);

  std::filesystem::path path(const std::string& name) const { return dir_ / name; }
  std::string recipe() const { return (dir_ / "recipe.textproto").string(); }

  struct Train {
    std::string run;
    int ranks = 1;                   // 1: without mpirun
    std::vector<std::string> set;    // --set values
    std::vector<std::string> flags;  // other arguments
    std::map<std::string, std::string> env;
    double timeout_s = 120;
  };
  RunResult Run(const Train& train) const;
  // The command line of Run without mpirun.
  std::vector<std::string> Command(const Train& train) const;

  // Lines of RUN/metrics.jsonl that have `key`, e.g. "loss".
  std::vector<nlohmann::json> Metrics(const std::string& run, const std::string& key) const;
  RunResult Halflife(const std::vector<std::string>& arguments) const;

 private:
  std::string binary_;
  TempDir dir_;
};

}  // namespace halflife::test
