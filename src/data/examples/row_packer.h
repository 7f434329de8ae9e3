// Packs examples, each of which is one document, into rows of equal length. The rest of a row is
// one more document of padding, which has no labels and which no example can attend to.
//
//   RowPacker packer(writer, {.row_len = 512, .pad_id = 0});
//   packer.Add(example);
//   packer.Finish();
#pragma once

#include <cstdint>

#include "data/examples/example.h"
#include "data/prepare/shard_writer.h"

namespace halflife::data {

struct RowPackerConfig {
  int64_t row_len = 512;
  int32_t pad_id = 0;
  bool one_per_row = false;  // one example per row; otherwise as many as fit, in order
};

class RowPacker {
 public:
  // `writer` is borrowed and must be configured with labels.
  RowPacker(ShardWriter& writer, const RowPackerConfig& config)
      : writer_(writer), config_(config) {}
  // `example` must have at most row_len tokens.
  void Add(const Example& example);
  void Finish();  // pads the last row
  int64_t num_rows() const { return num_rows_; }

 private:
  void PadRow();

  ShardWriter& writer_;
  const RowPackerConfig config_;
  int64_t used_ = 0;  // tokens in the current row
  int64_t num_rows_ = 0;
};

}  // namespace halflife::data
