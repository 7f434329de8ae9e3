#include "model/document_pooler.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/tanh.h>

#include "core/error.h"
#include "ops/torch/dispatch.h"
#include "ops/torch/host_transfer.h"

namespace halflife::model {
namespace {

// Returns the position after the last token of each document.
at::Tensor Ends(const at::Tensor& firsts, int64_t num_tokens) {
  return at::cat(
      {firsts.narrow(0, 1, firsts.size(0) - 1), at::full({1}, num_tokens, firsts.options())});
}

}  // namespace

at::Tensor FirstTokens(const SequenceSlice& slice) {
  HL_CHECK(slice.begin == 0 && slice.segment == nullptr,
           "pooling needs whole rows, but this slice is a part of longer rows");
  if (!slice.has_boundaries())
    return at::arange(0, slice.batch * slice.seq_len, slice.seq_len, slice.positions.options());
  return ops::UploadValues(
      std::vector<int64_t>(slice.document_starts.begin(), slice.document_starts.end()),
      slice.positions.device());
}

DocumentPooler::DocumentPooler(const ClassifierOptions& options, const PartContext& context)
    : pooling_(options.pooling == "first"  ? Pooling::kFirst
               : options.pooling == "last" ? Pooling::kLast
                                           : Pooling::kMean),
      model_dim_(context.model_dim()) {
  if (!options.dense) return;
  weight_ = DeclareMatrix(context, "pooler.dense.weight", {.out = model_dim_, .in = model_dim_});
  bias_ = DeclareBias(context, "pooler.dense.bias", model_dim_);
}

at::Tensor DocumentPooler::operator()(const at::Tensor& hidden, const at::Tensor& firsts) const {
  const at::Tensor tokens = hidden.flatten(0, 1);
  at::Tensor pooled;
  if (pooling_ == Pooling::kFirst) {
    // index_select is not used here: its backward on a GPU waits for the host.
    pooled = at::embedding(tokens, firsts);
  } else if (pooling_ == Pooling::kLast) {
    pooled = at::embedding(tokens, Ends(firsts, tokens.size(0)) - 1);
  } else {
    // unsafe=true skips a check that would read the lengths on the host. The lengths come from the
    // slice and are valid.
    pooled = at::segment_reduce(tokens.to(ops::ComputeType(tokens)), "mean",
                                Ends(firsts, tokens.size(0)) - firsts, /*indices=*/{},
                                /*offsets=*/{}, /*axis=*/0, /*unsafe=*/true)
                 .to(tokens.scalar_type());
  }
  if (!weight_.declared()) return pooled;
  return at::tanh(at::linear(pooled, *weight_, bias_->to(pooled.scalar_type())));
}

double DocumentPooler::FlopsPerDocument() const {
  return weight_.declared() ? 2.0 * static_cast<double>(model_dim_ * model_dim_) : 0;
}

}  // namespace halflife::model
