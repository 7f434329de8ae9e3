#include "data/examples/row_packer.h"

#include "core/error.h"
#include "data/batch.h"

namespace halflife::data {

void RowPacker::Add(const Example& example) {
  const auto length = static_cast<int64_t>(example.ids.size());
  HL_CHECK(length >= 1 && length <= config_.row_len, "an example of ", length, " tokens");
  if (used_ + length > config_.row_len) PadRow();
  if (used_ == 0) ++num_rows_;
  writer_.AppendLabelled(example.ids, example.labels);
  writer_.CountBytes(example.num_bytes);
  used_ += length;
  if (config_.one_per_row || used_ == config_.row_len) PadRow();
}

void RowPacker::Finish() {
  if (used_ > 0) PadRow();
}

void RowPacker::PadRow() {
  const auto rest = static_cast<size_t>(config_.row_len - used_);
  used_ = 0;
  if (rest == 0) return;
  writer_.AppendLabelled(std::vector<int32_t>(rest, config_.pad_id),
                         std::vector<int32_t>(rest, kNoTarget));
}

}  // namespace halflife::data
