// The datasets for tests of a training step: DIR/data has packed text in bytes, DIR/mqar has rows
// of one document with few targets.
#pragma once

#include <filesystem>
#include <fstream>

#include "data/prepare/prepare.h"
#include "data/synthetic/mqar.h"
#include "support/run_fixture.h"

namespace halflife::test {

inline void PrepareStepData(const std::filesystem::path& dir) {
  const std::filesystem::path text = dir / "text.txt";
  std::ofstream(text) << MakeText(30000, 2);
  data::Prepare({.input = {.paths = {text.string()}, .tokenizer = "bytes"},
                 .documents = data::DocumentMode::kBlankLines,
                 .output = {.out = dir / "data", .threads = 1}});
  data::PrepareMqar(
      {.train = {{16, 4, 20}}, .vocab_size = 64, .output = {.out = dir / "mqar", .threads = 1}});
}

}  // namespace halflife::test
