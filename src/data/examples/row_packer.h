// Examples, each a document of its own, as rows of equal length. What a row has left is one more
// document, of padding, which nothing is asked of and no example looks into.
//
//   RowPacker packer(writer, {.row_len = 512, .pad_id = 0});
//   packer.Add(example);
//   packer.Finish();
#pragma once

#include <cstdint>

#include "data/examples/example.h"
#include "data/shard_writer.h"

namespace halflife::data {

struct RowPackerConfig {
  int64_t row_len = 512;
  int32_t pad_id = 0;
  bool one_per_row = false;  // else as many as fit, in their order
};

class RowPacker {
 public:
  // `writer`, with labels, is borrowed.
  RowPacker(ShardWriter& writer, const RowPackerConfig& config)
      : writer_(writer), config_(config) {}
  // At most row_len tokens.
  void Add(const Example& example);
  void Finish();  // pads the last row
  int64_t num_rows() const { return num_rows_; }

 private:
  void PadRow();

  ShardWriter& writer_;
  const RowPackerConfig config_;
  int64_t used_ = 0;  // tokens of the open row
  int64_t num_rows_ = 0;
};

}  // namespace halflife::data
