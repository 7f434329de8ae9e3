// The datasets for tests of training: DIR/data and DIR/other have packed text in bytes, and
// DIR/mqar has rows of one document with few targets.
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
  const std::filesystem::path other = dir / "other.txt";
  std::ofstream(other) << MakeText(20000, 3);
  data::Prepare(
      {.input = {.paths = {other.string()}, .tokenizer = "bytes", .validation_fraction = 0.3},
       .documents = data::DocumentMode::kBlankLines,
       .output = {.out = dir / "other", .threads = 1}});
  data::PrepareMqar(
      {.train = {{16, 4, 20}}, .vocab_size = 64, .output = {.out = dir / "mqar", .threads = 1}});
}

}  // namespace halflife::test
