#include "model/mixers/linear/gated_delta_options.h"

#include <algorithm>
#include <cmath>

namespace halflife::model {

std::vector<Option> GatedDeltaOptions::Fields() {
  return {{"num_heads", &num_heads},
          {"num_v_heads", &num_v_heads, {.min = 0}},
          {"head_dim", &head_dim, {.min = 0}},
          {"expand_v", &expand_v},
          {"use_short_conv", &use_short_conv},
          {"conv_size", &conv_size},
          {"allow_neg_eigval", &allow_neg_eigval}};
}

void GatedDeltaOptions::Resolve(const ModelSizes& sizes, ProblemList& problems) {
  if (num_v_heads == 0) num_v_heads = num_heads;
  problems.Require(num_v_heads % num_heads == 0, "num_v_heads ", num_v_heads,
                   " is not a multiple of num_heads ", num_heads, ". Use ", num_heads, " or ",
                   2 * num_heads, ".");
  if (head_dim == 0) {
    problems.Require(sizes.model_dim % num_heads == 0, "num_heads ", num_heads,
                     " must divide model_dim ", sizes.model_dim,
                     ". Set head_dim to use other sizes.");
    head_dim = std::max<int64_t>(sizes.model_dim / num_heads, 1);
  }
  const double width = static_cast<double>(head_dim) * expand_v;
  // expand_v may be a rounded ratio of two widths.
  const bool whole = std::abs(width - std::round(width)) < 1e-9 * width;
  const bool fits = std::round(width) >= 1 && width <= kMaxWidth && whole;
  problems.Require(fits, "head_dim ", head_dim, " times expand_v ", expand_v,
                   " is not a whole number from 1 to ", kMaxWidth, ". Change expand_v.");
  if (fits) head_dim_v = std::llround(width);
}

LinearForm MakeGatedDeltaForm(const GatedDeltaOptions& options) {
  LinearForm form = {.recurrence_next_to_projections = true, .norm_name = "o_norm.weight"};
  if (options.use_short_conv) {
    form.conv_size = options.conv_size;
    return form;
  }
  form.make_map_q = [dim = options.head_dim](const PartContext&) {
    return MakeActivationMap("silu", dim);
  };
  form.v_activation = "silu";
  return form;
}

}  // namespace halflife::model
