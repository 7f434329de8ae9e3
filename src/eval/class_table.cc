#include "eval/class_table.h"

#include <algorithm>

#include "core/error.h"

namespace halflife::eval {

void ClassTable::Add(int64_t window, const data::Batch& batch, const at::Tensor& log_probs) {
  const at::Tensor values = log_probs.to(at::kCPU).to(at::kDouble).contiguous();
  const double* from = values.const_data_ptr<double>();
  for (size_t i = 0; i + 1 < batch.cu_seqlens.size(); ++i, from += num_classes_) {
    const int64_t first = batch.cu_seqlens[i], row = first / batch.seq_len;
    const int32_t label = batch.targets[static_cast<size_t>(first)];
    if (label < 0) continue;
    double* const place = &rows_[static_cast<size_t>((window + row) * width())];
    HL_CHECK(place[0] == 0,
             "a row has several labelled documents, but classification needs one per row");
    place[0] = label + 1;
    std::copy_n(from, num_classes_, place + 1);
  }
}

std::optional<ClassScores> ClassTable::Scores(dist::Communicator& control) {
  if (rows_.empty()) return std::nullopt;
  control
      .AllReduce(Ref(rows_.data(), static_cast<int64_t>(rows_.size())), dist::ReduceOp::kSum,
                 {"validation_classes", 0}, nullptr)
      .WaitHost();
  std::vector<int32_t> labels;
  std::vector<double> log_probs;
  for (size_t at = 0; at < rows_.size(); at += static_cast<size_t>(width())) {
    if (rows_[at] == 0) continue;
    labels.push_back(static_cast<int32_t>(rows_[at]) - 1);
    const auto row = rows_.begin() + static_cast<int64_t>(at);
    log_probs.insert(log_probs.end(), row + 1, row + width());
  }
  return ScoreClasses(labels, log_probs, num_classes_);
}

}  // namespace halflife::eval
