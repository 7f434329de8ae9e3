#include "kernels/decay_attention/low_rank_step.h"

#include <vector>

#include "kernels/linear/row_products_args.h"

namespace halflife::kernels::cpu {

void LowRankStep(const DecayAttentionStepArgs& args_in, const LowRankDecay& decay) {
  DecayAttentionStepArgs args = args_in;
  const int width = args.num_decay_heads * args.head_dim_k;
  std::vector<Bf16> logits(static_cast<size_t>(args.batch) * width);
  std::vector<float> log_decay(logits.size());
  RowProductsArgs product;
  product.num_rows = args.batch, product.depth = decay.rank;
  product.x = decay.hidden, product.x_stride = decay.hidden_stride;
  product.num_products = 1;
  product.products[0].weight = decay.weight, product.products[0].columns = width;
  product.products[0].out = logits.data();
  RowProducts(product);
  DecayGateForward(DecayGateRows<Bf16>{.x = logits.data(),
                                       .log_decay = log_decay.data(),
                                       .form = decay.form,
                                       .num_rows = args.batch,
                                       .dim = width},
                   0, args.batch);
  args.log_decay = {.data = log_decay.data(),
                    .stride_b = width,
                    .stride_h = args.head_dim_k,
                    .dtype = DType::kF32};
  Step(args);
}

}  // namespace halflife::kernels::cpu
